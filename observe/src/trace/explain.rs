//! Says in words why a task waited: where, who ran there meanwhile, which decision put it there,
//! and whether a CPU that it may use was idle.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use anyhow::{Result, bail};
use serde::Serialize;

use super::event::{Decision, Event, Step, What};
use super::recorder::Recording;
use super::waits::{Cause, Wait, Waiting};
use crate::topology::parse_list;

/// So many tasks are named if the one asked for is not in the trace, and at one wait.
const NAMED: usize = 5;

/// The answer.
#[derive(Debug, Serialize)]
pub struct Explanation {
    pid: i32,
    name: String,
    /// Length of the trace.
    trace_ns: u64,
    /// The CPUs that the task may use, as the kernel lists them; none if not known.
    allowed_cpus: Option<String>,
    /// Events that the trace lacks.
    lost_events: u64,
    waits: usize,
    total_ns: u64,
    median_ns: u64,
    p99_ns: u64,
    longest_ns: u64,
    /// The longest waits, longest first.
    longest: Vec<Told>,
}

/// A wait, with all that is known of it.
#[derive(Debug, Serialize)]
struct Told {
    /// Since the begin of the trace.
    begin_ns: u64,
    ns: u64,
    /// On which CPUs, one after the other.
    cpus: Vec<u32>,
    /// It still waited at the end of the trace.
    lasts: bool,
    /// Why it waited there.
    why: String,
    /// The decisions about the task while it waited.
    then: Vec<String>,
    /// Which tasks ran meanwhile on the CPUs for which it waited, longest first.
    ran: Vec<Share>,
    /// Which CPUs that it may use were idle meanwhile, longest first; none if not known.
    idle: Option<Vec<Idle>>,
}

#[derive(Debug, Serialize)]
struct Share {
    cpu: u32,
    pid: i32,
    name: String,
    ns: u64,
}

#[derive(Debug, Serialize)]
struct Idle {
    cpu: u32,
    ns: u64,
}

/// Explains the longest waits of a task.
///
/// # Errors
/// If the trace has no wait of it; then with the tasks that waited longest.
pub fn explain(recording: &Recording, pid: i32, most: usize) -> Result<Explanation> {
    let history = History::new(&recording.events);
    let (mut waits, others): (Vec<Wait>, Vec<Wait>) = Waiting::all(&recording.events)
        .into_iter()
        .partition(|wait| wait.pid == pid);
    if waits.is_empty() {
        bail!(
            "the trace has no wait of task {pid}{}",
            history.suggest(&others)
        );
    }
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.ns()));
    // The nearest rank; the waits are in descending order.
    let rank = |percent: usize| waits[waits.len() - (percent * waits.len()).div_ceil(100)].ns();
    let allowed = history.allowed(pid);
    Ok(Explanation {
        pid,
        name: history.name(pid),
        trace_ns: history.end - history.begin,
        allowed_cpus: history.affinity.get(&pid).cloned(),
        lost_events: recording.lost.values().sum(),
        waits: waits.len(),
        total_ns: waits.iter().map(Wait::ns).sum(),
        median_ns: rank(50),
        p99_ns: rank(99),
        longest_ns: waits[0].ns(),
        longest: waits
            .iter()
            .take(most)
            .map(|wait| history.tell(wait, allowed.as_ref()))
            .collect(),
    })
}

/// The task that ran on a CPU from a time on.
struct Run {
    begin: u64,
    pid: i32,
}

/// All of the trace, by CPU and by task.
struct History {
    begin: u64,
    end: u64,
    names: HashMap<i32, Arc<str>>,
    runs: BTreeMap<u32, Vec<Run>>,
    affinity: HashMap<i32, String>,
}

impl History {
    fn new(events: &[Event]) -> History {
        let begin = events.first().map_or(0, |event| event.time);
        let mut history = History {
            begin,
            end: events.last().map_or(0, |event| event.time),
            names: HashMap::new(),
            runs: BTreeMap::new(),
            affinity: HashMap::new(),
        };
        for event in events {
            match &event.what {
                What::Switch { prev, next, .. } => {
                    let runs = history.runs.entry(event.cpu).or_default();
                    // The first switch tells what ran before.
                    if runs.is_empty() {
                        runs.push(Run {
                            begin,
                            pid: prev.pid,
                        });
                    }
                    runs.push(Run {
                        begin: event.time,
                        pid: next.pid,
                    });
                    history.names.insert(prev.pid, prev.name.clone());
                    history.names.insert(next.pid, next.name.clone());
                }
                What::Waking { task, .. } | What::Wakeup { task, .. } => {
                    history.names.insert(task.pid, task.name.clone());
                }
                What::Allowed { pid, cpus } => {
                    history.affinity.insert(*pid, cpus.clone());
                }
                _ => {}
            }
        }
        history
    }

    fn name(&self, pid: i32) -> String {
        match (pid, self.names.get(&pid)) {
            (0, _) => "idle".into(),
            (_, Some(name)) => name.to_string(),
            (_, None) => "unknown".into(),
        }
    }

    fn task(&self, pid: i32) -> String {
        format!("{} [{pid}]", self.name(pid))
    }

    /// The CPUs that a task may use; none if not known.
    fn allowed(&self, pid: i32) -> Option<BTreeSet<u32>> {
        let list = parse_list(self.affinity.get(&pid)?);
        Some(list.into_iter().map(|cpu| cpu as u32).collect())
    }

    /// Names the tasks that waited longest.
    fn suggest(&self, waits: &[Wait]) -> String {
        let mut sums: BTreeMap<i32, u64> = BTreeMap::new();
        for wait in waits {
            *sums.entry(wait.pid).or_default() += wait.ns();
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let named: Vec<String> = sums
            .iter()
            .take(NAMED)
            .map(|(pid, ns)| format!("{} {}", self.task(*pid), Ms(*ns)))
            .collect();
        match named.is_empty() {
            true => String::new(),
            false => format!("; these waited longest: {}", named.join(", ")),
        }
    }

    /// How long each task ran on a CPU between two times.
    fn ran(&self, cpu: u32, from: u64, to: u64) -> HashMap<i32, u64> {
        let mut sums = HashMap::new();
        let Some(runs) = self.runs.get(&cpu) else {
            return sums;
        };
        let first = runs.partition_point(|run| run.begin <= from).max(1) - 1;
        for (at, run) in runs.iter().enumerate().skip(first) {
            if run.begin >= to {
                break;
            }
            let end = runs.get(at + 1).map_or(self.end, |next| next.begin);
            let ns = end.min(to).saturating_sub(run.begin.max(from));
            *sums.entry(run.pid).or_default() += ns;
        }
        sums
    }

    fn tell(&self, wait: &Wait, allowed: Option<&BTreeSet<u32>>) -> Told {
        let ends = wait.places.iter().skip(1).map(|(_, since)| *since);
        let mut ran = Vec::new();
        for ((cpu, from), to) in wait.places.iter().zip(ends.chain([wait.end])) {
            for (pid, ns) in self.ran(*cpu, *from, to) {
                ran.push(Share {
                    cpu: *cpu,
                    pid,
                    name: self.name(pid),
                    ns,
                });
            }
        }
        ran.retain(|share| share.ns > 0);
        ran.sort_by_key(|share| (std::cmp::Reverse(share.ns), share.pid));
        let idle = allowed.map(|allowed| {
            let idle_ns = |cpu: &u32| self.ran(*cpu, wait.begin, wait.end).remove(&0);
            let mut idle: Vec<Idle> = allowed
                .iter()
                .filter_map(|cpu| {
                    Some(Idle {
                        cpu: *cpu,
                        ns: idle_ns(cpu)?,
                    })
                })
                .filter(|idle| idle.ns > 0)
                .collect();
            idle.sort_by_key(|idle| std::cmp::Reverse(idle.ns));
            idle
        });
        Told {
            begin_ns: wait.begin - self.begin,
            ns: wait.ns(),
            cpus: wait.places.iter().map(|(cpu, _)| *cpu).collect(),
            lasts: wait.lasts,
            why: self.why(wait, allowed),
            then: wait
                .decisions
                .iter()
                .map(|decision| self.then(decision))
                .collect(),
            ran,
            idle,
        }
    }

    /// Says why a task waited where it did.
    fn why(&self, wait: &Wait, allowed: Option<&BTreeSet<u32>>) -> String {
        let cpu = wait.places[0].0;
        match &wait.cause {
            Cause::Preempted { by } => {
                format!(
                    "{} was woken and preempted it on CPU {cpu}",
                    self.task(by.pid)
                )
            }
            Cause::Requeued { next } if next.pid == 0 => {
                format!("it had to leave CPU {cpu}, which then idled")
            }
            Cause::Requeued { next } => format!(
                "its turn on CPU {cpu} was over; {}, which waited there, came next",
                self.task(next.pid)
            ),
            Cause::Woken { by, placed } => {
                let by = match by {
                    0 => "woken from idle (a timer or an interrupt)".to_string(),
                    by => format!("woken by {}", self.task(*by)),
                };
                let placed = match placed {
                    Some(placed) => place(placed),
                    None if allowed.is_some_and(|cpus| cpus.len() == 1) => {
                        format!("it may use CPU {cpu} only, so no CPU was searched for")
                    }
                    None => format!("the scheduler put it on CPU {cpu}"),
                };
                format!("{by}; {placed}")
            }
        }
    }

    /// Says what was decided about a waiting task.
    fn then(&self, decision: &Decision) -> String {
        match decision {
            Decision::Steal { from, to, .. } => {
                format!("CPU {to}, which had nothing to run, stole it from CPU {from}")
            }
            Decision::Balance { from, to, .. } => {
                format!("CPU {to} pulled it from CPU {from}, to even out CPU time")
            }
            Decision::Push { from, .. } => {
                format!("when it was requeued, CPU {from} kicked an idle CPU to take it")
            }
            Decision::Offer { from, .. } => {
                format!("a tick of CPU {from} kicked an idle CPU to take it")
            }
            Decision::Place { .. } | Decision::Preferred { .. } => String::new(),
        }
    }
}

/// Says how a woken task was placed.
fn place(decision: &Decision) -> String {
    let Decision::Place {
        step,
        from,
        to,
        looked,
        ..
    } = decision
    else {
        return String::new();
    };
    let after = match looked {
        1 => "after a look at 1 CPU".to_string(),
        looked => format!("after a look at {looked} CPUs"),
    };
    match step {
        Step::Queue if from == to => {
            format!(
                "no idle CPU was found ({after}), so it joined the queue of CPU {to}, its previous one"
            )
        }
        Step::Queue => {
            format!(
                "no idle CPU was found ({after}), so it joined the queue of CPU {to}, shorter than that of CPU {from}, its previous one"
            )
        }
        Step::Waker => {
            format!(
                "it was to run next on its waker's CPU {to}, because the waker was expected to sleep soon"
            )
        }
        Step::None => format!("it was put on CPU {to} without scx_magpie's search"),
        step => format!(
            "CPU {to} was idle and claimed for it (step: {}, {after})",
            step.name()
        ),
    }
}

/// A time in milliseconds.
struct Ms(u64);

impl Display for Ms {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.0 as f64 / 1e6)
    }
}

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let waits = match self.waits {
            1 => "1 wait".to_string(),
            count => format!("{count} waits"),
        };
        writeln!(
            f,
            "{} [{}] in {:.3} s: {waits}, {} in all; median {}, 99th percentile {}, longest {}",
            self.name,
            self.pid,
            self.trace_ns as f64 / 1e9,
            Ms(self.total_ns),
            Ms(self.median_ns),
            Ms(self.p99_ns),
            Ms(self.longest_ns)
        )?;
        match &self.allowed_cpus {
            Some(cpus) if parse_list(cpus).len() == 1 => {
                writeln!(f, "It may use CPU {cpus} only.")?
            }
            Some(cpus) => writeln!(f, "It may use CPUs {cpus}.")?,
            None => writeln!(
                f,
                "It ended before its affinity was read, so idle CPUs are not told."
            )?,
        }
        if self.lost_events > 0 {
            writeln!(
                f,
                "{} events are missing: waits may be wrong.",
                self.lost_events
            )?;
        }
        self.longest
            .iter()
            .try_for_each(|wait| write!(f, "\n{wait}"))
    }
}

impl Display for Told {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let cpus: Vec<String> = self.cpus.iter().map(u32::to_string).collect();
        let lasts = if self.lasts { ", and did not end" } else { "" };
        writeln!(
            f,
            "{} on CPU {}, from {:.6} s on{lasts}",
            Ms(self.ns),
            cpus.join(", then "),
            self.begin_ns as f64 / 1e9
        )?;
        writeln!(f, "  why: {}", self.why)?;
        for share in self.ran.iter().filter(|share| share.pid != 0).take(NAMED) {
            let (name, pid, cpu) = (&share.name, share.pid, share.cpu);
            writeln!(
                f,
                "  meanwhile CPU {cpu} ran {name} [{pid}] for {}",
                Ms(share.ns)
            )?;
        }
        for then in &self.then {
            writeln!(f, "  then: {then}")?;
        }
        match self.idle.as_deref() {
            Some([]) => writeln!(f, "  idle: no CPU that it may use"),
            Some(idle) => {
                let idle: Vec<String> = idle
                    .iter()
                    .take(NAMED)
                    .map(|idle| format!("CPU {} for {}", idle.cpu, Ms(idle.ns)))
                    .collect();
                writeln!(f, "  idle: {}", idle.join(", "))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
