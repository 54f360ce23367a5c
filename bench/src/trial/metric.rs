//! The figures of a turn: what each is called, its unit, and which direction is an improvement.

use crate::stats::Better;

/// A figure that each turn gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name in the result file.
    pub name: &'static str,
    /// Its unit; "…/s" is a rate.
    pub unit: &'static str,
    /// Which direction is an improvement.
    pub better: Better,
}

/// Runs of the command per second.
pub const THROUGHPUT: Metric = Metric {
    name: "throughput",
    unit: "runs/s",
    better: Better::Higher,
};
/// How many tasks wait for a CPU, on average over the time: the kernel's run delay per second.
pub const WAITING: Metric = lower("tasks that wait", "tasks");
/// How long a task waits each time before it runs: the kernel's run delay per run on a CPU.
pub const WAIT: Metric = lower("each wait", "us");
/// How late half of the probes' wakeups are, at most.
pub const WAKEUP_P50: Metric = lower("wakeup p50", "us");
/// How late 99 of 100 of the probes' wakeups are, at most.
pub const WAKEUP_P99: Metric = lower("wakeup p99", "us");
/// Context switches of all CPUs.
pub const SWITCHES: Metric = lower("context switches", "switches/s");
/// Part of the CPU time in tasks and interrupts.
pub const BUSY: Metric = lower("busy", "%");
/// Power of all packages, while no command is given.
pub const POWER: Metric = lower("power", "W");
/// Energy of all packages for a run of the command, because a faster run may take more power.
pub const ENERGY: Metric = lower("energy", "J/run");

/// All figures, in the order of the result file.
pub const ALL: [Metric; 9] = [
    THROUGHPUT, WAITING, WAIT, WAKEUP_P50, WAKEUP_P99, SWITCHES, BUSY, POWER, ENERGY,
];

const fn lower(name: &'static str, unit: &'static str) -> Metric {
    Metric {
        name,
        unit,
        better: Better::Lower,
    }
}
