//! The events of a trace, independent of how it is recorded and stored.

use std::sync::Arc;

/// An event on a CPU at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Nanoseconds of the kernel's boot clock.
    pub time: u64,
    /// The CPU on which it happened.
    pub cpu: u32,
    /// The task that ran there.
    pub current: i32,
    /// The kind of event.
    pub what: What,
}

/// A task, as it was at an event. Pid 0 is the idle task of a CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub pid: i32,
    pub prio: i32,
    pub name: Arc<str>,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The CPU switches between two tasks.
    Switch {
        prev: Task,
        /// State of `prev`, as in the tracepoint; 0 if it is still runnable.
        state: u32,
        next: Task,
    },
    /// A task is about to be woken.
    Waking { task: Task, target: u32 },
    /// A task was woken, and may run on this CPU.
    Wakeup { task: Task, target: u32 },
    /// A new task may run on this CPU.
    WakeupNew { task: Task, target: u32 },
    /// A task moves to another CPU.
    Migrate { task: Task, from: u32, to: u32 },
    /// scx_magpie decided.
    Decision(Decision),
    /// A task may run on some CPUs only. Not an event: read once.
    Allowed { pid: i32, cpus: String },
}

/// A decision of scx_magpie.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Where a woken task goes.
    Place {
        pid: i32,
        step: Step,
        /// Its previous CPU, and the chosen one.
        from: u32,
        to: u32,
        /// How many CPUs were looked at.
        looked: u32,
    },
    /// A CPU without work took a waiting task.
    Steal { pid: i32, from: u32, to: u32 },
    /// A busy CPU took a waiting task, to even out CPU time.
    Balance { pid: i32, from: u32, to: u32 },
    /// A task was requeued, and an idle CPU was kicked to take it.
    Push { pid: i32, from: u32 },
    /// A tick, or a real-time task that took the CPU, had an idle CPU kicked for a waiting task.
    Offer { pid: i32, from: u32 },
    /// The governor set the number of preferred cores.
    Preferred { cores: u32 },
}

/// The step of the wakeup order at which a CPU was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Previous,
    Recent,
    Waker,
    IdleCore,
    IdleCpu,
    Beyond,
    Queue,
    /// No step: the task is to be parked, or scx_magpie runs with `--no-wakeup`.
    None,
}

impl Step {
    /// In the order of `enum wakeup_step` in the scheduler's `portable/placement.h`.
    const ORDER: [Step; 7] = [
        Step::Previous,
        Step::Recent,
        Step::Waker,
        Step::IdleCore,
        Step::IdleCpu,
        Step::Beyond,
        Step::Queue,
    ];

    /// Returns the step by the scheduler's number for it.
    pub fn of_number(number: u32) -> Step {
        let step = Self::ORDER.get(number as usize);
        step.copied().unwrap_or(Step::None)
    }

    /// Returns the name of the step in a trace.
    pub fn name(self) -> &'static str {
        match self {
            Step::Previous => "previous CPU",
            Step::Recent => "recent CPU",
            Step::Waker => "waker's CPU",
            Step::IdleCore => "idle core",
            Step::IdleCpu => "idle CPU",
            Step::Beyond => "idle CPU beyond the LLC",
            Step::Queue => "queue",
            Step::None => "no search",
        }
    }

    /// Returns the step by its name.
    pub fn of_name(name: &str) -> Option<Step> {
        let mut steps = Self::ORDER.into_iter().chain([Step::None]);
        steps.find(|step| step.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scheduler's steps are read by their numbers.
    #[test]
    fn the_steps_are_those_of_the_scheduler() {
        let header = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../scheduler/src/bpf/portable/placement.h"
        );
        let text = std::fs::read_to_string(header).unwrap();
        let (_, steps) = text.split_once("enum wakeup_step {").unwrap();
        let (steps, _) = steps.split_once("};").unwrap();
        let names: Vec<_> = steps
            .lines()
            .filter_map(|line| line.trim().split_once(','))
            .map(|(name, _)| name.trim_start_matches("STEP_").replace('_', ""))
            .collect();
        let ours = Step::ORDER.map(|step| format!("{step:?}").to_uppercase());
        assert_eq!(names, ours);
    }

    #[test]
    fn a_step_is_found_by_its_name() {
        for number in 0..=Step::ORDER.len() as u32 {
            let step = Step::of_number(number);
            assert_eq!(Step::of_name(step.name()), Some(step));
        }
    }
}
