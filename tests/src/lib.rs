//! Integration tests: every mechanism in a real kernel.
//!
//! What the tests share: guests, one at a time per test program. Several guests at once would slow
//! each other down until time limits are missed, which would say nothing about what is tested.
//! What the scheduler's tests share on top of that is in [`scheduler`].

pub mod limit;
pub mod scheduler;

use anyhow::{Context, Result, ensure};
use magpie_lab::{Guest, GuestOptions, Machine};
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

static SLOT: Mutex<()> = Mutex::new(());
static AGENT: Once = Once::new();

/// A guest that holds the one slot for guests until it is dropped.
pub struct TestGuest {
    guest: Option<Guest>,
    _slot: MutexGuard<'static, ()>,
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
    build_agent()?;
    let mut options = GuestOptions {
        machine: Machine::find(machine)?,
        ..GuestOptions::default()
    };
    change(&mut options);
    let slot = SLOT.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(TestGuest {
        guest: Some(Guest::boot(&options)?),
        _slot: slot,
    })
}

/// Runs a test, and once more if QEMU's emulation broke the kernel: a vCPU can execute a breakpoint of
/// the kernel's code patching after the kernel has taken it away, as when a scheduler is loaded. It then
/// panics with `Oops: int3`, whatever the scheduler (docs/lab.md); any other failure is the test's.
pub fn despite_emulator(test: fn() -> Result<()>) -> Result<()> {
    match test() {
        Err(error) if format!("{error:#}").contains("Oops: int3") => {
            eprintln!("once more, because of the emulator: {error:#}");
            test()
        }
        outcome => outcome,
    }
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
