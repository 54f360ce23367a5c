//! Stock kernels on virtual machines of many topologies, with KVM or without.
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
//! [`Guest::boot`] downloads what is missing, boots, and waits until the agent says hello. One
//! guest then serves any number of commands and schedulers. `lab/examples/boot_guest.rs` does that.
//!
//! The modules below are in layers: each imports only from those above its line.
//!
//! ```text
//!   progress, text, files, machine
//!   cache
//!   apt, git, image
//!   kernel: built, payload; kernel, packages
//!   kernel: build
//!   options
//!   emulator
//!   qemu, accelerator, vtime: plugin, fidelity, prepare()
//!   boot
//!   vtime: batch, snapshot, host; guest
//!   topology, selfcheck, fuzz
//!   cli
//! ```

mod accelerator;
mod apt;
mod boot;
mod cache;
pub mod cli;
mod emulator;
pub mod files;
pub mod fuzz;
pub mod git;
pub mod guest;
mod image;
pub mod kernel;
mod machine;
mod options;
pub mod packages;
mod progress;
pub mod qemu;
mod run_folder;
pub mod selfcheck;
mod text;
pub mod topology;
pub mod vtime;

pub use guest::Guest;
pub use kernel::KernelChoice;
pub use machine::{Machine, Memory};
pub use magpie_guest::{ExecResult, SchedulerExit, Stream};
pub use options::{Accelerator, GuestOptions};
pub use progress::Progress;
