//! Stock kernels on virtual machines of any topology, without KVM.

pub mod cli;
pub mod guest;
pub mod kernel;
pub mod machine;

pub use guest::{Accelerator, ExecResult, Guest, GuestOptions, SchedulerExit, Stream};
pub use kernel::KernelChoice;
pub use machine::Machine;
