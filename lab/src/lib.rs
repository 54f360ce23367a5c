//! Stock kernels on virtual machines of any topology, without KVM.
//!
//! ```text
//!   Machine (preset or TOML)  KernelChoice        packages, files
//!          |                      |                      |
//!          |               kernel: lock file      packages: private apt root
//!          |                      |                      |
//!          v                      v                      v
//!        qemu  <------------- GuestOptions -------->  image: initramfs
//!          |
//!          v
//!        Guest: exec, start_scheduler, ...  <== JSON lines ==>  magpie-guest (init of the guest)
//! ```
//!
//! [`Guest::boot`] downloads what is missing, boots and waits until the agent reports for work; one
//! guest then serves any number of commands and schedulers.

pub mod accelerator;
pub mod apt;
pub mod cli;
pub mod emulator;
pub mod guest;
pub mod image;
pub mod kernel;
pub mod machine;
pub mod packages;
pub mod place;
pub mod qemu;
pub mod topology;
pub mod vtime;

pub use guest::{Accelerator, ExecResult, Guest, GuestOptions, Progress, SchedulerExit, Stream};
pub use kernel::KernelChoice;
pub use machine::Machine;
