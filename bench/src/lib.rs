//! Measures schedulers: interleaved, with statistics.
//!
//! ```text
//!   suites/*.toml
//!   workloads.toml    --sched list         --in vm | host | vtime
//!        |                 |                     |
//!   suite, workload    candidate               place        commands, schedulers, /proc
//!        |                 |                     |
//!        +--------------- plan ------------------+          everything that can fail early
//!        |                 |                     |
//!        +------------> runner <-----------------+
//!                          |  samples, counters
//!                        report  ---------------> JSON file (raw samples)
//!                          |
//!              stats --> table, compare, plot     text, Markdown, exit code, SVG
//!                        html                     one page with pictures of each test
//!                        shard                    parts of a run, joined
//!                          + reference            published results beside ours
//! ```
//!
//! The report keeps raw samples; every average and verdict is computed from them by `stats`.

pub mod callbacks;
pub mod candidate;
pub mod cli;
pub mod compare;
pub mod counters;
pub mod curve;
pub mod html;
pub mod interrupt;
pub mod occupancy;
pub mod peers;
pub mod place;
pub mod plan;
pub mod plot;
pub mod progress;
pub mod reference;
pub mod report;
pub mod runner;
pub mod shard;
pub mod stats;
pub mod strip;
pub mod suite;
pub mod table;
pub mod workload;
