//! Monitors a running scx_magpie: `magpie export` serves metrics, `magpie top` draws on a terminal,
//! `magpie trace` records events.
//!
//! ```text
//!   scx_stats' socket   /sys/kernel/sched_ext   /sys/devices/system   /proc/stat   tracepoints
//!          |                     |                      |                 |             |
//!      scheduler              kernel                topology          cpu_times      latency
//!          '---------------------+----------+-----------+-----------------+-------------'
//!                                           |
//!                                        sample: everything at one moment
//!                                           |
//!                       export: metrics, http, textfile; top: app, screen, recording
//! ```
//!
//! `trace` stands beside these: its events come from BPF programs in the kernel.
//!
//! The scheduler itself opens no port, because the usual units of schedulers forbid it: these
//! programs ask the scheduler over its unix socket. Each file depends only on files above it in the
//! picture.

mod cpu_times;
pub mod export;
mod kernel;
mod latency;
mod sample;
mod scheduler;
pub mod top;
mod topology;
pub mod trace;

pub use sample::{Sample, Source};
pub use scheduler::{Cgroup, Cpu, Preferred};
