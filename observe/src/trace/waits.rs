//! Which tasks wait for a CPU, where, and since when: followed from event to event.
//!
//! ```text
//!   wakeup, or switched away from while runnable --> waits --> switched to
//!                                                    |   ^
//!                                                    migrates
//! ```

use std::collections::HashMap;

use super::event::{Decision, Event, Task, What};

/// A wait of a task: from when it could run until it ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    pub pid: i32,
    pub begin: u64,
    pub end: u64,
    /// On which CPUs, one after the other, and since when.
    pub places: Vec<(u32, u64)>,
    pub cause: Cause,
    /// Decisions about the task while it waited.
    pub decisions: Vec<Decision>,
    /// It still waited at the end of the trace.
    pub lasts: bool,
}

impl Wait {
    /// Returns how long it took, in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

/// Why a task waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// It was woken by a task, and placed by a decision, if the scheduler was asked and told.
    Woken { by: i32, placed: Option<Decision> },
    /// A task that was woken took its CPU.
    Preempted { by: Task },
    /// Its turn was over, and it was that of a task that waited.
    Requeued { next: Task },
}

/// A woken task took the CPU of another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Preemption {
    pub task: Task,
    pub by: Task,
}

/// The change that an event made.
#[derive(Debug, Default)]
pub struct Change {
    /// How many tasks wait now for these CPUs.
    pub counts: Vec<(u32, usize)>,
    /// The wait that ended.
    pub ended: Option<Wait>,
    pub preemption: Option<Preemption>,
}

/// Follows events in order of time.
#[derive(Default)]
pub struct Waiting {
    waits: HashMap<i32, Wait>,
    /// How many tasks wait for a CPU.
    counts: HashMap<u32, usize>,
    /// The running task of a CPU, and since when.
    running: HashMap<u32, (i32, u64)>,
    /// The waker of a task, and the decision about the task: from sched_waking to sched_wakeup.
    waking: HashMap<i32, (i32, Option<Decision>)>,
}

impl Waiting {
    /// Returns the waits of all events, in the order in which they end.
    pub fn all(events: &[Event]) -> Vec<Wait> {
        let mut waiting = Waiting::default();
        let mut waits: Vec<Wait> = events
            .iter()
            .filter_map(|event| waiting.note(event).ended)
            .collect();
        let end = events.last().map_or(0, |event| event.time);
        waits.extend(waiting.waits.into_values().map(|wait| Wait {
            end,
            lasts: true,
            ..wait
        }));
        waits
    }

    /// Follows an event.
    pub fn note(&mut self, event: &Event) -> Change {
        let mut change = Change::default();
        match &event.what {
            What::Switch { prev, state, next } => {
                self.switch(event, prev, *state, next, &mut change)
            }
            What::Waking { task, .. } => {
                self.waking.insert(task.pid, (event.current, None));
            }
            What::Wakeup { task, target } | What::WakeupNew { task, target } => {
                let (by, placed) = self
                    .waking
                    .remove(&task.pid)
                    .unwrap_or((event.current, None));
                // A task that was about to sleep, and still runs, does not wait.
                if !self.running.values().any(|(pid, _)| *pid == task.pid) {
                    let cause = Cause::Woken { by, placed };
                    self.begin(task.pid, *target, event.time, cause, &mut change);
                }
            }
            What::Migrate { task, to, .. } => self.migrate(task.pid, *to, event.time, &mut change),
            What::Decision(decision) => self.decide(decision),
            What::Allowed { .. } => {}
        }
        change
    }

    fn switch(&mut self, event: &Event, prev: &Task, state: u32, next: &Task, change: &mut Change) {
        let (cpu, time) = (event.cpu, event.time);
        let since = self.running.get(&cpu).map_or(0, |(_, since)| *since);
        self.running.insert(cpu, (next.pid, time));
        if let Some(wait) = self.waits.remove(&next.pid) {
            self.leave(&wait, change);
            change.ended = Some(Wait { end: time, ..wait });
        }
        // The bits above are no states: "preempted" is one of them.
        let is_runnable = state & 0xff == 0 && prev.pid != 0;
        if !is_runnable {
            return;
        }
        let was_just_woken = change
            .ended
            .as_ref()
            .is_some_and(|wait| matches!(wait.cause, Cause::Woken { .. }) && wait.begin >= since);
        let cause = if was_just_woken {
            change.preemption = Some(Preemption {
                task: prev.clone(),
                by: next.clone(),
            });
            Cause::Preempted { by: next.clone() }
        } else {
            Cause::Requeued { next: next.clone() }
        };
        self.begin(prev.pid, cpu, time, cause, change);
    }

    fn begin(&mut self, pid: i32, cpu: u32, time: u64, cause: Cause, change: &mut Change) {
        if self.waits.contains_key(&pid) {
            return;
        }
        let wait = Wait {
            pid,
            begin: time,
            end: time,
            places: vec![(cpu, time)],
            cause,
            decisions: Vec::new(),
            lasts: false,
        };
        self.waits.insert(pid, wait);
        self.count(cpu, 1, change);
    }

    fn migrate(&mut self, pid: i32, to: u32, time: u64, change: &mut Change) {
        let Some(mut wait) = self.waits.remove(&pid) else {
            return;
        };
        self.leave(&wait, change);
        wait.places.push((to, time));
        self.waits.insert(pid, wait);
        self.count(to, 1, change);
    }

    fn leave(&mut self, wait: &Wait, change: &mut Change) {
        if let Some((cpu, _)) = wait.places.last() {
            self.count(*cpu, -1, change);
        }
    }

    fn count(&mut self, cpu: u32, more: isize, change: &mut Change) {
        let count = self.counts.entry(cpu).or_insert(0);
        *count = count.saturating_add_signed(more);
        change.counts.push((cpu, *count));
    }

    /// Notes a decision about a task that is being woken, or that waits.
    fn decide(&mut self, decision: &Decision) {
        let pid = match decision {
            Decision::Place { pid, .. }
            | Decision::Steal { pid, .. }
            | Decision::Balance { pid, .. }
            | Decision::Push { pid, .. }
            | Decision::Offer { pid, .. } => *pid,
            Decision::Preferred { .. } => return,
        };
        if matches!(decision, Decision::Place { .. }) {
            // For a new task there is no sched_waking.
            let waking = self.waking.entry(pid).or_insert((0, None));
            waking.1 = Some(decision.clone());
        } else if let Some(wait) = self.waits.get_mut(&pid) {
            wait.decisions.push(decision.clone());
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::event::Step;
    use super::*;

    pub fn task(pid: i32) -> Task {
        Task {
            pid,
            prio: 120,
            name: format!("task{pid}").as_str().into(),
        }
    }

    pub fn event(time: u64, cpu: u32, what: What) -> Event {
        let current = match &what {
            What::Switch { prev, .. } => prev.pid,
            _ => 0,
        };
        Event {
            time,
            cpu,
            current,
            what,
        }
    }

    pub fn switch(time: u64, cpu: u32, prev: i32, state: u32, next: i32) -> Event {
        let (prev, next) = (task(prev), task(next));
        event(time, cpu, What::Switch { prev, state, next })
    }

    pub fn wakeup(time: u64, cpu: u32, pid: i32, target: u32) -> Event {
        let task = task(pid);
        event(time, cpu, What::Wakeup { task, target })
    }

    #[test]
    fn a_wait_lasts_from_wakeup_to_switch_and_moves() {
        let place = Decision::Place {
            pid: 5,
            step: Step::Queue,
            from: 0,
            to: 0,
            looked: 2,
        };
        let steal = Decision::Steal {
            pid: 5,
            from: 0,
            to: 1,
        };
        let migrate = What::Migrate {
            task: task(5),
            from: 0,
            to: 1,
        };
        let waking = What::Waking {
            task: task(5),
            target: 0,
        };
        let events = [
            switch(100, 0, 0, 0, 9),
            event(190, 0, waking),
            event(195, 0, What::Decision(place.clone())),
            wakeup(200, 0, 5, 0),
            event(300, 1, migrate),
            event(301, 1, What::Decision(steal.clone())),
            switch(310, 1, 0, 0, 5),
        ];
        let expected = Wait {
            pid: 5,
            begin: 200,
            end: 310,
            places: vec![(0, 200), (1, 300)],
            cause: Cause::Woken {
                by: 0,
                placed: Some(place),
            },
            decisions: vec![steal],
            lasts: false,
        };
        assert_eq!(Waiting::all(&events), [expected]);

        let mut waiting = Waiting::default();
        let counts: Vec<_> = events
            .iter()
            .flat_map(|event| waiting.note(event).counts)
            .collect();
        assert_eq!(counts, [(0, 1), (0, 0), (1, 1), (1, 0)]);
    }

    #[test]
    fn a_woken_task_preempts_and_a_waiting_one_has_its_turn() {
        let mut waiting = Waiting::default();
        waiting.note(&wakeup(50, 0, 6, 0));
        waiting.note(&switch(100, 0, 0, 0, 9));
        waiting.note(&wakeup(150, 0, 5, 0));
        let change = waiting.note(&switch(160, 0, 9, 0x100, 5));
        let by = change.preemption.expect("task 5 was woken while 9 ran").by;
        assert_eq!(by.pid, 5);
        waiting.note(&switch(170, 0, 5, 1, 9));
        let change = waiting.note(&switch(180, 0, 9, 0, 6));
        assert_eq!(change.preemption, None, "task 6 waited before 9 ran");
        let turn = waiting.note(&switch(190, 0, 6, 1, 9)).ended.unwrap();
        assert_eq!(turn.cause, Cause::Requeued { next: task(6) });
        assert_eq!(turn.ns(), 10);
    }

    #[test]
    fn a_task_that_still_runs_does_not_wait_when_woken() {
        let events = [switch(100, 0, 0, 0, 9), wakeup(150, 1, 9, 0)];
        assert_eq!(Waiting::all(&events), []);
    }

    #[test]
    fn a_wait_that_does_not_end_lasts() {
        let waits = Waiting::all(&[wakeup(100, 0, 5, 0), switch(400, 1, 0, 0, 7)]);
        assert!(waits[0].lasts);
        assert_eq!(waits[0].ns(), 300);
    }
}
