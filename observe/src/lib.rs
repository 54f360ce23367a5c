//! What a running scx_magpie does, for monitoring: `magpie export` serves it as metrics, `magpie
//! top` draws it on a terminal.
//!
//! ```text
//!   scx_stats' socket   /sys/kernel/sched_ext   /sys/devices/system   /proc/stat
//!          |                     |                      |                 |
//!      scheduler              kernel                topology          cpu_times
//!          '---------------------+----------+-----------+-----------------'
//!                                           |
//!                                        sample: everything at one moment
//!                                           |
//!                       export: metrics, http, textfile; top: app, screen, recording
//! ```
//!
//! The scheduler itself opens no port, because the usual units forbid it: these programs ask it
//! over its unix socket. Each file depends only on files above it in the picture.

mod cpu_times;
pub mod export;
mod kernel;
mod sample;
mod scheduler;
pub mod top;
mod topology;

pub use sample::{Sample, Source};
pub use scheduler::{Cgroup, Cpu, Preferred};
