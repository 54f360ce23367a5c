//! Integration tests: every mechanism in a real kernel.
//!
//! This file boots guests and gives each its part of the host. Two guests run at once if both are
//! in virtual time or small. A test that measures real time, and a large guest, have the host for
//! themselves: beside another guest they would miss time limits, which says nothing about the code
//! under test. [`scheduler`] adds the helpers of the scheduler's tests.

pub mod limit;
pub mod mutations;
pub mod scheduler;
pub mod soak;
pub mod verifier;

use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::sync::{Condvar, Mutex, Once, PoisonError};

use anyhow::{Context, Result, ensure};
use magpie_lab::vtime::batch::{self, Outcome};
use magpie_lab::{Guest, GuestOptions, Machine, files};

static HOST: Host = Host {
    free: Mutex::new(Host::PARTS),
    freed: Condvar::new(),
};
static AGENT: Once = Once::new();

/// The host, in parts. A guest takes one of them or all.
struct Host {
    free: Mutex<u32>,
    freed: Condvar,
}

impl Host {
    const PARTS: u32 = 2;

    /// The most vCPUs with which a guest in real time still boots in time beside another one.
    const FEW_CPUS: u32 = 8;

    /// Waits until that many parts are free, and takes them.
    fn take(&'static self, parts: u32) -> Share {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self
            .freed
            .wait_while(free, |free| *free < parts)
            .unwrap_or_else(PoisonError::into_inner);
        *free -= parts;
        Share(parts)
    }
}

/// Parts of the host. Dropping it gives them back.
pub struct Share(u32);

impl Drop for Share {
    fn drop(&mut self) {
        *HOST.free.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        HOST.freed.notify_all();
    }
}

/// A guest that holds its part of the host until it is dropped.
pub struct TestGuest {
    guest: Option<Guest>,
    _share: Share,
}

impl TestGuest {
    /// Returns the guest itself, for calls that consume it.
    pub fn into_guest(mut self) -> Guest {
        self.guest.take().expect("a guest is taken once")
    }
}

impl Deref for TestGuest {
    type Target = Guest;
    fn deref(&self) -> &Guest {
        self.guest
            .as_ref()
            .expect("a guest is there until it is taken")
    }
}

impl DerefMut for TestGuest {
    fn deref_mut(&mut self) -> &mut Guest {
        self.guest
            .as_mut()
            .expect("a guest is there until it is taken")
    }
}

/// Boots a preset, with the options that `change` sets, as soon as a part of the host is free.
pub fn boot(machine: &str, change: impl FnOnce(&mut GuestOptions)) -> Result<TestGuest> {
    let options = options(machine, change)?;
    let share = share_of(&options.machine);
    boot_in(share, &options)
}

/// As [`boot`], but no other guest runs meanwhile: for tests that measure real time.
pub fn boot_alone(machine: &str, change: impl FnOnce(&mut GuestOptions)) -> Result<TestGuest> {
    let options = options(machine, change)?;
    boot_in(HOST.take(Host::PARTS), &options)
}

/// As [`boot`], with all options.
pub fn boot_machine(options: GuestOptions) -> Result<TestGuest> {
    build_agent()?;
    boot_in(share_of(&options.machine), &options)
}

/// Returns the options of a preset, with those that `change` sets.
fn options(machine: &str, change: impl FnOnce(&mut GuestOptions)) -> Result<GuestOptions> {
    build_agent()?;
    let mut options = GuestOptions {
        machine: Machine::find(machine)?,
        ..GuestOptions::default()
    };
    change(&mut options);
    Ok(options)
}

/// Boots a guest, which holds the share until it is dropped.
fn boot_in(share: Share, options: &GuestOptions) -> Result<TestGuest> {
    Ok(TestGuest {
        guest: Some(Guest::boot(options)?),
        _share: share,
    })
}

/// Runs a shell script as a batch job on a machine in virtual time, as soon as a part of the host
/// is free.
pub fn run_batch(machine: &Machine, job: &str) -> Result<Outcome> {
    build_agent()?;
    let options = GuestOptions {
        machine: machine.clone(),
        ..GuestOptions::default()
    };
    let _share = share_of(machine);
    batch::run(&options, job, scheduler::PATIENCE)
}

/// Waits for the part of the host that a guest on this machine needs.
pub fn share_of(machine: &Machine) -> Share {
    let may_share = machine.virtual_time.is_some() || machine.cpus() <= Host::FEW_CPUS;
    HOST.take(if may_share { 1 } else { Host::PARTS })
}

/// Returns the arguments that run a shell script.
pub fn shell_argv(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_string).into()
}

/// Builds the guest agent, once. `cargo test` builds no binaries of other packages, so a test would
/// otherwise boot the agent of an earlier build.
pub fn build_agent() -> Result<()> {
    let mut built = Ok(());
    AGENT.call_once(|| built = build_programs(!cfg!(debug_assertions)));
    built
}

/// Builds all programs of the workspace. With fewer packages cargo would choose other features of the
/// crates that they share: it would build those again, and replace the programs of the others while
/// tests use them.
fn build_programs(release: bool) -> Result<()> {
    let tree = files::source_tree().context("the tests need the source tree")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--workspace", "--bins"]);
    if release {
        command.arg("--release");
    }
    let status = command
        .current_dir(&tree)
        .status()
        .context("cannot run cargo to build what is tested")?;
    ensure!(status.success(), "cannot build what is tested");
    Ok(())
}
