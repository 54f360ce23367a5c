//! Options of a guest: its machine, kernel, packages and files, time limits, and its QEMU.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::kernel::KernelChoice;
use crate::machine::Machine;
use crate::progress::Progress;

/// The means by which QEMU executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// Hardware virtualisation.
    Kvm,
    /// QEMU's translator, with one host thread per vCPU.
    Tcg,
}

/// The place of a guest on a host with others, as the plugin takes it (`lab/vtime/guests.c`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// File of the state that the guests share.
    pub file: PathBuf,
    /// Number of guests.
    pub guests: usize,
    /// This guest.
    pub guest: usize,
    /// The first CPU of this guest among those of all.
    pub first_cpu: u32,
    /// The number of CPUs of all guests.
    pub cpus: u32,
    /// Whether the run is over without this guest.
    pub background: bool,
    /// Its weight on the host, as `cpu.weight` of a cgroup.
    pub weight: u32,
    /// Whether the weight is the guest's, which its busy CPUs divide. Else each of them has it.
    pub cgroups: bool,
}

/// Options of a guest and of its boot. `Default` boots the machine tiny2 with the newest locked
/// kernel.
#[derive(Debug, Clone)]
pub struct GuestOptions {
    /// Shape of the machine, and its speed if it is in virtual time.
    pub machine: Machine,
    /// Kernel to boot.
    pub kernel: KernelChoice,
    /// Debian packages to unpack into the image, with the dependencies that the host lacks.
    pub packages: Vec<String>,
    /// Host programs and files to copy to the guest's /bin, with the libraries they need.
    pub files: Vec<PathBuf>,
    /// Real time that the guest may take until its agent says hello.
    pub boot_timeout: Duration,
    /// Real time that a scheduler may take to be enabled, or to end after it was asked to.
    pub scheduler_timeout: Duration,
    /// Real time that the guest may take for an answer that needs no work.
    pub answer_timeout: Duration,
    /// Further words for the kernel's command line.
    pub kernel_cmdline: Vec<String>,
    /// Accelerator; `None` tries KVM and falls back to the translator.
    pub accelerator: Option<Accelerator>,
    /// QEMU's CPU model with its features; `None` takes one that suits the accelerator.
    pub cpu: Option<String>,
    /// QEMU binary; `None` takes `MAGPIE_QEMU`, the host's, or one of Debian's backports.
    pub qemu_program: Option<PathBuf>,
    /// Further arguments for QEMU. `{folder}` in one stands for the folder of this run.
    pub extra_qemu_args: Vec<String>,
    /// Further environment variables for QEMU.
    pub qemu_environment: Vec<(String, String)>,
    /// Socket on which a machine in virtual time, once its guest has reached a mark, asks for seeds
    /// ([`crate::vtime::snapshot`]).
    pub snapshot: Option<PathBuf>,
    /// The place of a machine in virtual time on a host with other guests ([`crate::vtime::host`]).
    pub seat: Option<Seat>,
    /// Whether a machine in virtual time notes where its time goes ([`crate::Guest::profile`]).
    pub profile: bool,
    /// Hears of downloads and of the boot.
    pub progress: Progress,
}

impl Default for GuestOptions {
    fn default() -> Self {
        GuestOptions {
            machine: Machine::default(),
            kernel: KernelChoice::Default,
            packages: Vec::new(),
            files: Vec::new(),
            boot_timeout: Duration::from_secs(120),
            scheduler_timeout: Duration::from_secs(90),
            answer_timeout: Duration::from_secs(20),
            kernel_cmdline: Vec::new(),
            accelerator: None,
            cpu: None,
            qemu_program: None,
            extra_qemu_args: Vec::new(),
            qemu_environment: Vec::new(),
            snapshot: None,
            seat: None,
            profile: false,
            progress: Progress::default(),
        }
    }
}
