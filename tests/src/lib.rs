//! Integration tests: every mechanism in a real kernel.
//!
//! What the tests share: guests, each with its part of the host. Two that do not mind share it: one in
//! virtual time, or a small one whose test has time to spare. Others have the host for themselves:
//! they would be slowed down until time limits are missed, which would say nothing about what is
//! tested.
//! What the scheduler's tests share on top of that is in [`scheduler`].

pub mod limit;
pub mod scheduler;

use anyhow::{Context, Result, ensure};
use magpie_lab::{Guest, GuestOptions, Machine};
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::sync::{Condvar, Mutex, Once, PoisonError};

static HOST: Host = Host {
    free: Mutex::new(Host::PARTS),
    freed: Condvar::new(),
};
static AGENT: Once = Once::new();

/// What guests share.
struct Host {
    free: Mutex<u32>,
    freed: Condvar,
}

impl Host {
    const PARTS: u32 = 2;

    /// vCPUs of a guest in real time that boots in time beside another one.
    const FEW_CPUS: u32 = 8;

    /// Waits until as many parts are free.
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

/// Parts of the host, given back when dropped.
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
    /// The guest itself, for what consumes it.
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

/// Boots a preset or what `change` makes of it.
pub fn boot(machine: &str, change: impl FnOnce(&mut GuestOptions)) -> Result<TestGuest> {
    let options = options(machine, change)?;
    let share = share_of(&options.machine);
    boot_in(share, &options)
}

/// The same, but nothing else runs meanwhile: for what measures real time.
pub fn boot_alone(machine: &str, change: impl FnOnce(&mut GuestOptions)) -> Result<TestGuest> {
    let options = options(machine, change)?;
    boot_in(HOST.take(Host::PARTS), &options)
}

fn options(machine: &str, change: impl FnOnce(&mut GuestOptions)) -> Result<GuestOptions> {
    build_agent()?;
    let mut options = GuestOptions {
        machine: Machine::find(machine)?,
        ..GuestOptions::default()
    };
    change(&mut options);
    Ok(options)
}

fn boot_in(share: Share, options: &GuestOptions) -> Result<TestGuest> {
    Ok(TestGuest {
        guest: Some(Guest::boot(options)?),
        _share: share,
    })
}

/// Waits for the part of the host that a guest on this machine needs.
pub fn share_of(machine: &Machine) -> Share {
    let may_share = machine.virtual_time.is_some() || machine.cpus() <= Host::FEW_CPUS;
    HOST.take(if may_share { 1 } else { Host::PARTS })
}

/// `cargo test` builds no binaries of other packages: without this a test would boot the agent of an
/// earlier build.
pub fn build_agent() -> Result<()> {
    let mut built = Ok(());
    AGENT.call_once(|| built = run_cargo_build());
    built
}

fn run_cargo_build() -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "magpie-guest"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let status = command
        .status()
        .context("cannot run cargo to build the guest agent")?;
    ensure!(status.success(), "cannot build the guest agent");
    Ok(())
}
