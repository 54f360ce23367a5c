//! Measures schedulers: interleaved, with statistics.
//!
//! ```text
//!                        options, cli                      the command line
//!                                |
//!   suites/*.toml                |
//!   workloads.toml    --sched list         --in vm | host | vtime
//!        |                 |                     |
//!   suite, workload  candidate, setting   place, guests,    commands, schedulers, /proc,
//!        |                 |              beside, applied   settings of the kernel
//!        |                 |                     |
//!        +--------------- plan ------------------+          all checks before a guest is booted
//!        |                 |                     |
//!        +------------> runner <-----------------+          progress shows how far it is,
//!                          |  samples, counters, occupancy  interrupt is Ctrl-C
//!                        report, provenance ----> file      JSON: raw samples, and their origin
//!                          |
//!            stats, sequential, relation, verdicts          averages, real differences
//!                          |
//!        +--------+--------+-+--------+-----------+
//!      table   compare     html     plot      shard         text, exit code, pages, pictures,
//!        |                   |                              parts of a run joined
//!   show, page, mail      strip, curve
//!        + reference                                        published results beside ours
//!
//!   trial                                                   `magpie try`: turns on this host
//!   bisect                                                  the first bad step of many
//!   callbacks                                               cost of a scheduler's operations
//!   peers                                                   installs published schedulers
//! ```
//!
//! The report keeps raw samples, and `stats` and `verdicts` compute every average and verdict from
//! them, so that a better statistic can be applied to old files. No file imports itself over
//! others.

pub mod beside;
pub mod candidate;
pub mod cli;
pub mod guests;
pub mod html;
pub mod place;
pub mod relation;
pub mod report;
pub mod runner;
pub mod sequential;
pub mod stats;
pub mod table;
pub mod trial;
pub mod verdicts;
pub mod workload;

mod applied;
mod bisect;
mod callbacks;
mod compare;
mod counters;
mod curve;
mod file;
mod interrupt;
mod mail;
mod occupancy;
mod options;
mod page;
mod peers;
mod plan;
mod plot;
mod progress;
mod provenance;
mod reference;
mod setting;
mod shard;
mod show;
mod strip;
mod suite;
