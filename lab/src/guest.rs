//! A booted guest.
use crate::{kernel::KernelChoice, machine::Machine};
use anyhow::{Result, bail};
pub use magpie_guest::{ExecResult, SchedulerExit, Stream};
use std::path::PathBuf;
use std::time::Duration;

/// What to boot and how. `Default` gives tiny2 with the default kernel.
#[derive(Debug, Clone)]
pub struct GuestOptions {
    /// Shape of the machine.
    pub machine: Machine,
    /// Kernel to boot.
    pub kernel: KernelChoice,
    /// Debian packages to unpack into the image.
    pub packages: Vec<String>,
    /// Host executables and files copied to /bin of the guest with the libraries they need.
    pub files: Vec<PathBuf>,
    /// How long the guest may take to report for work.
    pub boot_timeout: Duration,
    /// How long a scheduler may take to be enabled, or to be gone after it was asked to stop.
    pub scheduler_timeout: Duration,
    /// More words for the kernel's command line.
    pub kernel_cmdline: Vec<String>,
    /// Accelerator; probed when none is given.
    pub accelerator: Option<Accelerator>,
    /// QEMU binary; `qemu-system-x86_64` from PATH when none is given.
    pub qemu_program: Option<PathBuf>,
    /// More arguments for QEMU.
    pub extra_qemu_args: Vec<String>,
    /// More environment variables for QEMU.
    pub qemu_environment: Vec<(String, String)>,
}

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// Hardware virtualisation.
    Kvm,
    /// QEMU's translator, one host thread per vCPU.
    Tcg,
}

impl Default for GuestOptions {
    fn default() -> Self {
        GuestOptions {
            machine: Machine::default(),
            kernel: KernelChoice::Default,
            packages: Vec::new(),
            files: Vec::new(),
            boot_timeout: Duration::from_secs(120),
            scheduler_timeout: Duration::from_secs(60),
            kernel_cmdline: Vec::new(),
            accelerator: None,
            qemu_program: None,
            extra_qemu_args: Vec::new(),
            qemu_environment: Vec::new(),
        }
    }
}

/// A booted VM; dropping it kills QEMU.
#[derive(Debug)]
pub struct Guest {}

impl Guest {
    /// Boots and waits until the agent reports for work.
    pub fn boot(_options: &GuestOptions) -> Result<Guest> {
        bail!("under construction")
    }
    /// Runs a command and streams its output.
    pub fn exec(
        &mut self,
        _argv: &[String],
        _timeout: Duration,
        _output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<ExecResult> {
        bail!("under construction")
    }
    /// Runs a command; its standard output as text.
    pub fn capture(&mut self, _argv: &[&str], _timeout: Duration) -> Result<String> {
        bail!("under construction")
    }
    /// Returns when the kernel's sched_ext state is "enabled".
    pub fn start_scheduler(&mut self, _argv: &[String]) -> Result<()> {
        bail!("under construction")
    }
    /// SIGINT, then waits until the kernel's state is "disabled".
    pub fn stop_scheduler(&mut self) -> Result<SchedulerExit> {
        bail!("under construction")
    }
    /// `Some` if the scheduler exited by itself.
    pub fn scheduler_died(&mut self) -> Result<Option<SchedulerExit>> {
        bail!("under construction")
    }
    /// `uname -r` of the guest.
    pub fn kernel_release(&self) -> &str {
        ""
    }
    /// Host thread id of each vCPU, indexed by QEMU's CPU index.
    pub fn qemu_threads(&mut self) -> Result<Vec<u32>> {
        bail!("under construction")
    }
    /// Process id of QEMU.
    pub fn qemu_pid(&self) -> u32 {
        0
    }
    /// Powers the guest off and waits for QEMU.
    pub fn shutdown(self) -> Result<()> {
        bail!("under construction")
    }
}
