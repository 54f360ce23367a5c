//! Finds stranded tasks in a trace of scheduling events, without a system call or a clock.
//!
//! A *stretch* is a time during which one task is queued (runnable, not running) and at least one
//! CPU that it may use is idle. It need not be the same CPU throughout: where CPUs are idle only
//! briefly, a task can starve beside a different idle CPU each time. A stretch longer than the
//! threshold means that the scheduler stranded the task, unless the *host* caused it:
//!
//! ```text
//!               queued ---------------------------------------> running
//! task T             |<------------- stretch ------------->|
//! idle CPU C   ======|=====[kick]........[runs]                C was told: from the kick on it is
//!                                                              not idle but late (its vCPU sleeps)
//! T's CPU B    x--x--|-x------(gap)----------x--x--x           no tick for so long: B's vCPU was
//!                                                              not run and could not ask for help
//! ```
//!
//! - From the moment a CPU sends a reschedule interrupt to idle CPU C, or an interrupt wakes C,
//!   until C answers (enters an idle state, or switches), C is not available: the scheduler has
//!   done all that it can. If C goes back to its idle state, that time is a hole in the stretch.
//! - A busy CPU has an event each tick. A gap of more than a tick and a half in which a busy CPU
//!   has no event is the host's, and so is one of more than a quarter of a tick in which a kicked
//!   CPU does not answer: an interrupt reaches a CPU that runs within microseconds. The gap is
//!   taken off the stretch if it is of the CPU that holds the task or of the CPU that woke the task.
//!
//! Stretches that exceed the threshold only because of such gaps are counted apart ("late host").
//!
//! The analysis does not judge real-time tasks, which the kernel places, tasks of unknown affinity,
//! and CPUs that are offline or excluded. It errs about a task that is preempted while
//! migration-disabled: the trace does not tell that such a task may not run elsewhere. It also errs
//! about a worker that the kernel makes, binds to a CPU, and ends within the trace.

use std::collections::{HashMap, HashSet};

use super::event::{Event, Record};
use super::finding::{Analysis, Setting, Stretch};
use crate::cpus::CpuSet;

/// Analyses a trace whose records are in order of time.
pub fn analyse(setting: &Setting, records: &[Record]) -> Analysis {
    let mut tracker = Tracker::new(setting, records);
    for record in records {
        tracker.step(record);
    }
    tracker.finish()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not seen yet; the first event tells its state until then.
    Unknown,
    /// Waiting on `cpu` since `since`; `waker` is the CPU that put it there.
    Queued {
        since: u64,
        cpu: usize,
        waker: usize,
    },
    Running,
    Blocked,
}

struct Task {
    state: State,
    /// Index into the classes; none while the affinity is unknown.
    class: Option<usize>,
}

/// All tasks with one affinity. While a CPU is available, the class is *open*: its queued tasks are
/// in a stretch. When the last available CPU was kicked and has not answered, the class is
/// *paused*. If that CPU then takes a task, the stretches ended with the kick; if it goes back to
/// its idle state, the pause is a hole in them.
struct Class {
    cpus: CpuSet,
    available: usize,
    /// CPUs of the class that were kicked while idle and have not answered.
    pending: usize,
    /// Open since; none while closed.
    since: Option<u64>,
    /// Paused since.
    paused: Option<u64>,
    /// Past pauses since it is open, oldest first.
    holes: Vec<(u64, u64)>,
    /// One of the available CPUs, for the report.
    example: usize,
    queued: HashSet<i32>,
}

#[derive(Clone, Default)]
struct Cpu {
    online: bool,
    judged: bool,
    idle: bool,
    /// Kicked while idle, not yet answered, since when.
    kicked: Option<u64>,
    last_sign: u64,
    /// Times in which the host did not run this CPU, oldest first.
    gaps: Vec<(u64, u64)>,
}

impl Cpu {
    /// A task could run here at once, or as soon as the CPU answers.
    fn is_idle(&self) -> bool {
        self.online && self.judged && self.idle
    }

    /// It idles and was not told to look for work.
    fn is_available(&self) -> bool {
        self.is_idle() && self.kicked.is_none()
    }

    /// It idles, but was told to look for work and has not answered.
    fn is_pending(&self) -> bool {
        self.is_idle() && self.kicked.is_some()
    }
}

struct Tracker<'a> {
    setting: &'a Setting,
    tasks: HashMap<i32, Task>,
    classes: Vec<Class>,
    cpus: Vec<Cpu>,
    found: Analysis,
}

impl<'a> Tracker<'a> {
    fn new(setting: &'a Setting, records: &[Record]) -> Self {
        let mut tracker = Self {
            setting,
            tasks: HashMap::new(),
            classes: Vec::new(),
            cpus: Vec::new(),
            found: Analysis::default(),
        };
        let count = 1 + records
            .iter()
            .map(|record| record.cpu)
            .chain(setting.judged.iter())
            .max()
            .unwrap_or(0);
        tracker.cpus = (0..count)
            .map(|cpu| Cpu {
                online: true,
                judged: setting.judged.contains(cpu),
                last_sign: setting.start,
                ..Cpu::default()
            })
            .collect();
        for (pid, cpus) in &setting.affinity {
            let class = Some(tracker.class_of(cpus));
            tracker.tasks.insert(
                *pid,
                Task {
                    state: State::Unknown,
                    class,
                },
            );
        }
        for cpu in perhaps_offline_at_start(records) {
            tracker.change_cpu(cpu, setting.start, |c| c.online = false);
        }
        // The first switch of each CPU tells what it did from the start on.
        let mut seen = HashSet::new();
        for record in records {
            if let Event::Switch { prev, .. } = record.event
                && seen.insert(record.cpu)
                && prev == 0
            {
                tracker.change_cpu(record.cpu, setting.start, |cpu| cpu.idle = true);
            }
        }
        tracker.found.silent = CpuSet::of(setting.judged.iter().filter(|cpu| !seen.contains(cpu)));
        tracker
    }

    /// Changes the states of tasks and CPUs by one event.
    fn step(&mut self, record: &Record) {
        let (now, cpu) = (record.time, record.cpu);
        self.note_sign_of_life(cpu, now);
        if !matches!(record.event, Event::Switch { .. } | Event::IdleEnter) {
            // An event on an idle CPU means that an interrupt woke the CPU, which is about to look
            // for work. The kernel traces "left the idle state" only after that interrupt.
            self.note_kick(cpu, now);
        }
        match record.event {
            Event::Switch {
                prev,
                prev_runs_on,
                prev_is_rt,
                next,
                ..
            } => {
                self.found.switches += 1;
                if prev != 0 {
                    let state = match prev_runs_on {
                        true if !prev_is_rt => State::Queued {
                            since: now,
                            cpu,
                            waker: cpu,
                        },
                        _ => State::Blocked,
                    };
                    self.change_task(prev, now, state);
                }
                if next != 0 {
                    // Without an earlier event the task has been queued since before the trace.
                    if self.task(next).state == State::Unknown {
                        let since = self.setting.start;
                        self.change_task(
                            next,
                            since,
                            State::Queued {
                                since,
                                cpu,
                                waker: cpu,
                            },
                        );
                    }
                    self.change_task(next, now, State::Running);
                }
                self.note_answer(cpu, now);
                self.change_cpu(cpu, now, |c| {
                    c.kicked = None;
                    c.idle = next == 0;
                });
            }
            Event::Wakeup { pid, target, is_rt } => {
                let state = self.task(pid).state;
                if matches!(state, State::Blocked | State::Unknown) {
                    let queued = State::Queued {
                        since: now,
                        cpu: target,
                        waker: cpu,
                    };
                    self.change_task(pid, now, if is_rt { State::Blocked } else { queued });
                }
            }
            Event::Migrate { pid, target } => {
                if let State::Queued { since, .. } = self.task(pid).state {
                    // The task still waits; only its CPU changes.
                    self.task(pid).state = State::Queued {
                        since,
                        cpu: target,
                        waker: cpu,
                    };
                }
            }
            Event::Fork { parent, child } => {
                let mut class = self.task(parent).class;
                if let (Some(known), Some(later)) = (class, self.setting.later.get(&child)) {
                    let sure = self.classes[known].cpus.and(later);
                    class = Some(self.class_of(&sure));
                }
                self.change_task(child, now, State::Blocked);
                self.task(child).class = class;
            }
            Event::Kick { target } => self.note_kick(target, now),
            Event::IdleEnter => {
                self.note_answer(cpu, now);
                self.change_cpu(cpu, now, |c| c.kicked = None);
            }
            Event::Affinity {
                pid,
                ref cpus,
                done,
            } => self.change_affinity(pid, now, cpus, done),
            Event::Hotplug { target, online } => {
                self.change_cpu(target, now, |c| {
                    c.online = online;
                    c.kicked = None;
                    c.last_sign = now;
                });
            }
            Event::IdleExit | Event::Sign => {}
        }
    }

    /// Ends all stretches with the trace, and returns the findings.
    fn finish(mut self) -> Analysis {
        let end = self.setting.end;
        let queued: Vec<i32> = self
            .tasks
            .iter()
            .filter(|(_, task)| matches!(task.state, State::Queued { .. }))
            .map(|(pid, _)| *pid)
            .collect();
        for pid in queued {
            self.change_task(pid, end, State::Blocked);
        }
        self.found.violations.sort_by_key(|stretch| stretch.at_ns);
        self.found
    }

    /// The task of this pid, made on first use.
    fn task(&mut self, pid: i32) -> &mut Task {
        self.tasks.entry(pid).or_insert(Task {
            state: State::Unknown,
            class: None,
        })
    }

    /// The class of an affinity, made on first use.
    fn class_of(&mut self, cpus: &CpuSet) -> usize {
        if let Some(found) = self.classes.iter().position(|class| class.cpus == *cpus) {
            return found;
        }
        let member = |c: &usize| cpus.contains(*c);
        let available: Vec<usize> = (0..self.cpus.len())
            .filter(member)
            .filter(|c| self.cpus[*c].is_available())
            .collect();
        let pending = (0..self.cpus.len())
            .filter(member)
            .filter(|c| self.cpus[*c].is_pending());
        self.classes.push(Class {
            cpus: cpus.clone(),
            available: available.len(),
            pending: pending.count(),
            // No task had this affinity so far, so the class may be open since the start.
            since: available.first().map(|_| self.setting.start),
            paused: None,
            holes: Vec::new(),
            example: available.first().copied().unwrap_or(0),
            queued: HashSet::new(),
        });
        self.classes.len() - 1
    }

    /// Gives a task another state; its stretch ends if it was queued.
    fn change_task(&mut self, pid: i32, now: u64, state: State) {
        let task = self.task(pid);
        let (old, class) = (std::mem::replace(&mut task.state, state), task.class);
        if let (State::Queued { .. }, Some(class)) = (old, class) {
            self.classes[class].queued.remove(&pid);
            self.close_stretch(pid, old, class, now);
        }
        if let State::Queued { .. } = state {
            self.found.waits += 1;
            match class {
                Some(class) => {
                    self.classes[class].queued.insert(pid);
                }
                None => self.found.unknown += 1,
            }
        }
    }

    /// Gives a task another affinity. Its wait begins anew, because other CPUs count from now on.
    /// Between the marks before and after the change (`done`), only CPUs of both sets count: the
    /// kernel applies the change at some time between.
    fn change_affinity(&mut self, pid: i32, now: u64, cpus: &CpuSet, done: bool) {
        let state = self.task(pid).state;
        // Judge the wait from the change on.
        self.change_task(pid, now, State::Blocked);
        let sure = match (done, self.task(pid).class) {
            (true, _) => Some(cpus.clone()),
            (false, Some(class)) => Some(self.classes[class].cpus.and(cpus)),
            (false, None) => None,
        };
        self.task(pid).class = sure.map(|sure| self.class_of(&sure));
        let state = match state {
            State::Queued { cpu, waker, .. } => State::Queued {
                since: now,
                cpu,
                waker,
            },
            other => other,
        };
        self.change_task(pid, now, state);
    }

    /// Changes a CPU, and counts it anew in each class that has it: the numbers of available and
    /// pending CPUs say whether a class is open, paused or closed.
    fn change_cpu(&mut self, cpu: usize, now: u64, change: impl FnOnce(&mut Cpu)) {
        let Some(entry) = self.cpus.get_mut(cpu) else {
            return;
        };
        let before = (entry.is_available(), entry.is_pending());
        change(entry);
        let after = (entry.is_available(), entry.is_pending());
        if before == after {
            return;
        }
        for index in 0..self.classes.len() {
            let class = &mut self.classes[index];
            if class.cpus.contains(cpu) {
                class.available = class.available + usize::from(after.0) - usize::from(before.0);
                class.pending = class.pending + usize::from(after.1) - usize::from(before.1);
                if after.0 && class.available == 1 {
                    class.example = cpu;
                } else if !after.0 && class.example == cpu && class.available > 0 {
                    let mut others = class.cpus.iter();
                    let other = others.find(|other| is_available(&self.cpus, *other));
                    class.example = other.unwrap_or(cpu);
                }
                self.settle_class(index, now);
            }
        }
    }

    /// Opens, pauses or closes a class after its counts have changed.
    fn settle_class(&mut self, index: usize, now: u64) {
        let class = &mut self.classes[index];
        if class.available > 0 {
            class.since.get_or_insert(now);
            class
                .holes
                .extend(class.paused.take().map(|paused| (paused, now)));
        } else if class.pending > 0 {
            class.paused = class.paused.or(class.since.map(|_| now));
        } else if let Some(since) = class.since {
            let end = class.paused.unwrap_or(now);
            // Skip the walk over all queued tasks if the class was open too briefly for a stretch
            // that matters. A CPU that is idle only briefly is the common case.
            if end - since > self.setting.threshold_ns.min(self.found.longest_ns) {
                let queued: Vec<i32> = class.queued.iter().copied().collect();
                for pid in queued {
                    let state = self.task(pid).state;
                    self.close_stretch(pid, state, index, now);
                }
            }
            let class = &mut self.classes[index];
            (class.since, class.paused) = (None, None);
            class.holes.clear();
        }
    }

    /// Ends the stretch of a task, and notes it if it was too long.
    fn close_stretch(&mut self, pid: i32, state: State, class: usize, now: u64) {
        let State::Queued { since, cpu, waker } = state else {
            return;
        };
        let class = &self.classes[class];
        let Some(open_since) = class.since else {
            return;
        };
        let start = since.max(open_since);
        let end = class.paused.unwrap_or(now);
        let length = end.saturating_sub(start);
        if length <= self.setting.threshold_ns.min(self.found.longest_ns) {
            return;
        }
        let host_ns = self.excused_time(&class.holes, &[cpu, waker], start, end);
        let idle_cpu = class.example;
        let stretch = Stretch {
            pid,
            cpu,
            idle_cpu,
            at_ns: start,
            ns: length,
            host_ns,
        };
        self.found.longest_ns = self.found.longest_ns.max(stretch.own_ns());
        if stretch.own_ns() > self.setting.threshold_ns {
            self.found.violations.push(stretch);
        } else if length > self.setting.threshold_ns {
            self.found.late_host += 1;
        }
    }

    /// A busy CPU without an event for longer than this was not run by the host.
    fn gap_limit(&self) -> u64 {
        self.setting.tick_ns + self.setting.tick_ns / 2
    }

    /// Notes that the host runs a CPU, and the gap before if that was too long.
    fn note_sign_of_life(&mut self, cpu: usize, now: u64) {
        let limit = self.gap_limit();
        if let Some(cpu) = self.cpus.get_mut(cpu) {
            if !cpu.idle && cpu.online && now.saturating_sub(cpu.last_sign) > limit {
                cpu.gaps.push((cpu.last_sign, now));
            }
            cpu.last_sign = now;
        }
    }

    /// Notes that a CPU kicked an idle one, or an interrupt woke it: it is about to look for work.
    fn note_kick(&mut self, cpu: usize, now: u64) {
        self.change_cpu(cpu, now, |c| {
            if c.idle && c.kicked.is_none() {
                c.kicked = Some(now);
            }
        });
    }

    /// Notes that a kicked CPU is awake. If it took more than a quarter of a tick, its vCPU slept.
    fn note_answer(&mut self, cpu: usize, now: u64) {
        let Some(entry) = self.cpus.get_mut(cpu) else {
            return;
        };
        let Some(kicked) = entry.kicked else { return };
        self.found.slowest_answer_ns = self.found.slowest_answer_ns.max(now - kicked);
        if now - kicked > self.setting.tick_ns / 4 {
            entry.gaps.push((kicked, now));
        }
    }

    /// Returns how much of `start..end` the scheduler could not help: the given holes, and gaps of the
    /// given CPUs. A kick without an answer so far counts in full, because its CPU may still sleep.
    fn excused_time(&self, holes: &[(u64, u64)], cpus: &[usize], start: u64, end: u64) -> u64 {
        let within = |gaps: &[(u64, u64)]| -> Vec<(u64, u64)> {
            gaps.iter()
                .rev()
                .take_while(|gap| gap.1 > start)
                .copied()
                .collect()
        };
        let mut gaps = within(holes);
        for cpu in cpus.iter().filter_map(|cpu| self.cpus.get(*cpu)) {
            gaps.extend(within(&cpu.gaps));
            if let Some(kicked) = cpu.kicked {
                gaps.push((kicked, end));
            } else if !cpu.idle
                && cpu.online
                && end.saturating_sub(cpu.last_sign) > self.gap_limit()
            {
                gaps.push((cpu.last_sign, end));
            }
        }
        gaps.sort_unstable();
        let (mut sum, mut covered) = (0, start);
        for (from, to) in gaps {
            let (from, to) = (from.max(covered), to.min(end));
            if to > from {
                sum += to - from;
                covered = to;
            }
        }
        sum
    }
}

/// Returns whether a CPU that the trace may not have is available.
fn is_available(cpus: &[Cpu], cpu: usize) -> bool {
    cpus.get(cpu).is_some_and(Cpu::is_available)
}

/// Returns the CPUs that may have been going offline when the recording began, which would look
/// idle from the start on. A CPU that goes offline is marked twice, before and after, so an
/// incomplete first pair means that the first mark came before the recording. A recording that ends
/// between the two marks looks the same, and the CPU is not judged in it.
fn perhaps_offline_at_start(records: &[Record]) -> Vec<usize> {
    let mut marks: HashMap<usize, Vec<bool>> = HashMap::new();
    for record in records {
        if let Event::Hotplug { target, online } = record.event {
            marks.entry(target).or_default().push(online);
        }
    }
    let is_torn = |marks: &[bool]| !marks.starts_with(&[false, false]);
    marks
        .into_iter()
        .filter(|(_, marks)| is_torn(marks))
        .map(|(cpu, _)| cpu)
        .collect()
}

#[cfg(test)]
#[path = "analysis_tests.rs"]
mod tests;
