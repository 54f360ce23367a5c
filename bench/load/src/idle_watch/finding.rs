//! What the analysis of a trace is given, and what it finds.

use std::collections::HashMap;

use crate::cpus::CpuSet;

/// The state before the trace starts, and how long a stretch may be.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// Length of a tick, nanoseconds.
    pub tick_ns: u64,
    /// A stretch must be longer than this to be a violation, nanoseconds.
    pub threshold_ns: u64,
    /// CPUs on which idleness counts: online ones, or fewer.
    pub judged: CpuSet,
    /// Affinity of the tasks that exist at the start. Children inherit it.
    pub affinity: HashMap<i32, CpuSet>,
    /// Affinity at the end of tasks that began meanwhile and changed it unmarked, as the kernel does
    /// to a worker that it makes: only CPUs that are in the inherited one, too, are certain.
    pub later: HashMap<i32, CpuSet>,
    /// When the trace starts and ends, nanoseconds.
    pub start: u64,
    /// See `start`.
    pub end: u64,
}

/// One stretch that was too long.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Stretch {
    /// The task that waited.
    pub pid: i32,
    /// The CPU on whose queue it waited, as far as the trace tells.
    pub cpu: usize,
    /// A CPU that was idle meanwhile.
    pub idle_cpu: usize,
    /// When it began, nanoseconds of the trace's clock.
    pub at_ns: u64,
    /// How long it lasted, nanoseconds.
    pub ns: u64,
    /// How much of it the scheduler could not help: gaps of the host, and times in which each idle
    /// CPU had been kicked already; nanoseconds.
    pub host_ns: u64,
}

impl Stretch {
    /// What the scheduler could have helped.
    pub fn own_ns(&self) -> u64 {
        self.ns - self.host_ns
    }
}

/// The findings in the trace.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    /// Stretches over the threshold even without the host's part, in order of time.
    pub violations: Vec<Stretch>,
    /// How many stretches were over the threshold only because of the host.
    pub late_host: u64,
    /// The longest stretch without the host's part, in nanoseconds, also if below the threshold.
    pub longest_ns: u64,
    /// Times a task became queued, or got another affinity while it was.
    pub waits: u64,
    /// Context switches seen.
    pub switches: u64,
    /// Queued tasks that could not be judged because their affinity is unknown.
    pub unknown: u64,
    /// The longest time that a kicked idle CPU took to answer, nanoseconds.
    pub slowest_answer_ns: u64,
    /// CPUs that never switched: they count as busy, because a CPU's first switch tells what it did
    /// before.
    pub silent: CpuSet,
}
