//! The scheduling events that the analysis looks at, independent of where they come from.

use crate::cpus::CpuSet;

/// An event on a CPU at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The CPU on which it happened.
    pub cpu: usize,
    /// The kind of event.
    pub event: Event,
}

impl Record {
    /// Does the event happen on or to one of these CPUs, or to this task?
    pub fn concerns(&self, task: i32, cpus: &[usize]) -> bool {
        let (tasks, target) = match self.event {
            Event::Switch { prev, next, .. } => ([prev, next], None),
            Event::Wakeup { pid, target, .. } | Event::Migrate { pid, target } => {
                ([pid, pid], Some(target))
            }
            Event::Fork { parent, child } => ([parent, child], None),
            Event::Affinity { pid, .. } => ([pid, pid], None),
            Event::Kick { target } | Event::Hotplug { target, .. } => ([-1, -1], Some(target)),
            Event::IdleEnter | Event::IdleExit | Event::Sign => ([-1, -1], None),
        };
        tasks.contains(&task)
            || cpus.contains(&self.cpu)
            || target.is_some_and(|t| cpus.contains(&t))
    }
}

/// The kinds of events. Pid 0 is the idle task of the CPU.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The CPU switches from `prev` to `next`.
    Switch {
        /// The task that ran.
        prev: i32,
        /// `prev` stays runnable: it was preempted, or yielded.
        prev_runs_on: bool,
        /// `prev` is a real-time or deadline task.
        prev_is_rt: bool,
        /// The task that runs now.
        next: i32,
    },
    /// A sleeping or new task becomes runnable on CPU `target`.
    Wakeup {
        /// The task.
        pid: i32,
        /// Where it is queued.
        target: usize,
        /// It is a real-time or deadline task.
        is_rt: bool,
    },
    /// A task moves to the queue of another CPU.
    Migrate {
        /// The task.
        pid: i32,
        /// Where it moves to.
        target: usize,
    },
    /// A task is made; it inherits the affinity of its parent.
    Fork {
        /// The parent.
        parent: i32,
        /// The new task.
        child: i32,
    },
    /// A CPU is told to reschedule.
    Kick {
        /// The CPU that is told.
        target: usize,
    },
    /// The CPU enters an idle state.
    IdleEnter,
    /// The CPU leaves an idle state: an interrupt woke it.
    IdleExit,
    /// Before (`done` false) or after (`done` true) a task's affinity is changed to `cpus`.
    Affinity {
        /// The task.
        pid: i32,
        /// The new affinity.
        cpus: CpuSet,
        /// The change is complete.
        done: bool,
    },
    /// A CPU is about to go offline, or has come online.
    Hotplug {
        /// The CPU.
        target: usize,
        /// It is online now.
        online: bool,
    },
    /// Any other event: it only shows that the host runs the CPU.
    Sign,
}

/// The trace marker for an affinity change.
pub fn affinity_marker(pid: i32, cpus: &CpuSet, done: bool) -> String {
    format!(
        "magpie affinity {pid} {cpus} {}",
        if done { "done" } else { "begin" }
    )
}

/// The trace marker for a hotplug.
pub fn hotplug_marker(cpu: usize, online: bool) -> String {
    format!(
        "magpie hotplug {cpu} {}",
        if online { "online" } else { "offline" }
    )
}

/// The event that a trace marker of ours stands for; [`Event::Sign`] for any other marker.
pub fn parse_marker(text: &str) -> Event {
    let words: Vec<&str> = text.trim_end_matches(['\0', '\n']).split(' ').collect();
    let parsed = match words[..] {
        ["magpie", "affinity", pid, cpus, phase] => pid.parse().ok().and_then(|pid| {
            Some(Event::Affinity {
                pid,
                cpus: CpuSet::parse(cpus).ok()?,
                done: phase == "done",
            })
        }),
        ["magpie", "hotplug", cpu, state] => cpu.parse().ok().map(|target| Event::Hotplug {
            target,
            online: state == "online",
        }),
        _ => None,
    };
    parsed.unwrap_or(Event::Sign)
}

/// A record of a switch from a task that falls asleep.
#[cfg(test)]
pub fn switch(time: u64, cpu: usize, prev: i32, next: i32) -> Record {
    let event = Event::Switch {
        prev,
        prev_runs_on: false,
        prev_is_rt: false,
        next,
    };
    Record { time, cpu, event }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_survive_the_trace() {
        let cpus = CpuSet::of([0, 1, 2, 70]);
        assert_eq!(
            parse_marker(&format!("{}\n\0", affinity_marker(42, &cpus, true))),
            Event::Affinity {
                pid: 42,
                cpus,
                done: true
            }
        );
        assert_eq!(
            parse_marker(&hotplug_marker(3, false)),
            Event::Hotplug {
                target: 3,
                online: false
            }
        );
        assert_eq!(parse_marker("somebody else's words"), Event::Sign);
    }
}
