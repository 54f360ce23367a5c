//! `starvation`: does a runnable task wait for longer than its weight explains?
//!
//! Looks at every task of the system again and again, as a real-time task, so that no load keeps it
//! from looking. A task that is runnable at two looks and has not run between them has waited all
//! the time: to sleep and wake up again, it would have had to run. That wait is measured from after
//! the first look at this task to before the later one. Where a task ran, the kernel's count of its
//! waits (`/proc/PID/schedstat`) tells their mean, which the longest exceeds. So a wait that is
//! reported is a lower bound of a real one.
//!
//! A fair scheduler owes a task one request, of two slices, before any other task gets more than two
//! requests ahead of it. If all runnable tasks shared one CPU, the task would wait for
//!
//! ```text
//! 2 requests x 2 slices x (weight of all runnable tasks) / (its own weight)
//! ```
//!
//! That is the bound, plus what the machine itself may take, divided by the part of a CPU that
//! real-time tasks leave, and at most `--longest-ms`: a sched_ext scheduler is ended if a task waits
//! for 30 s.
//!
//! It does not know `cpu.weight` or `cpu.max` of cgroups: a weight follows from the nice value only.
//! In a light or throttled cgroup, a task may rightly wait for longer than its bound; in a heavy
//! cgroup, the bound is longer than what the task is due.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use crate::Finding;
use crate::sys::{self, Policy};

/// Look for runnable tasks that wait for longer than their weight explains.
///
/// Exits with 2 if one did. Real-time and deadline tasks are not judged. It knows nice values only,
/// not cpu.weight or cpu.max of cgroups.
#[derive(clap::Args)]
pub struct Args {
    /// How long to look
    #[arg(long, default_value = "10", value_parser = sys::parse_seconds)]
    seconds: Duration,
    /// Milliseconds between two looks
    #[arg(long, default_value_t = 100)]
    interval_ms: u64,
    /// Slice of a task, in milliseconds
    #[arg(long, default_value_t = 3.0)]
    slice_ms: f64,
    /// Milliseconds that a task may wait for something else than other tasks
    #[arg(long, default_value_t = 200.0)]
    extra_ms: f64,
    /// The part of a CPU's time that real-time tasks leave to others
    #[arg(long, default_value_t = 1.0)]
    share: f64,
    /// The most that any task may wait, in milliseconds
    #[arg(long, default_value_t = 10_000.0)]
    longest_ms: f64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// For how long a sum of weights counts after it was seen, because waits began with it.
const REMEMBERED: Duration = Duration::from_secs(10);

/// What a look finds of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Look {
    ran_ns: u64,
    waited_ns: u64,
    slices: u64,
    /// 0 for a real-time task.
    weight: u32,
    is_runnable: bool,
}

/// A look at a task, and when it was.
#[derive(Clone, Copy)]
struct Sight {
    task: i32,
    look: Look,
    /// Before the first file of the task was read.
    before: Instant,
    /// After the last one was.
    after: Instant,
}

/// A wait, with the bound that it is held against.
#[derive(Clone, Debug, Serialize)]
struct Wait {
    task: i32,
    name: String,
    weight: u32,
    waited_ms: f64,
    bound_ms: f64,
    /// Since the start of the watch.
    at_s: f64,
}

/// Looks until the time is over.
pub fn run(args: &Args) -> Result<Finding> {
    sys::set_policy(0, Policy::Fifo)?;
    let began = Instant::now();
    let mut watch = Watch::default();
    let mut looks = 0;
    loop {
        let now = Instant::now();
        watch.look(args, now, now.duration_since(began), &look_at_all());
        looks += 1;
        if began.elapsed() >= args.seconds {
            break;
        }
        // A machine with many tasks is looked at less often, so that the watch does not become a load.
        let pause = Duration::from_millis(args.interval_ms).max(now.elapsed() * 4);
        std::thread::sleep(pause.min(args.seconds.saturating_sub(began.elapsed())));
    }
    let mut text = format!("{looks} looks at {} tasks", watch.tasks.len());
    if let Some(worst) = &watch.worst {
        text += &format!(
            "; nearest to its bound: {} [{}] of weight {} waited {:.0} of {:.0} ms, at {:.1} s",
            worst.name, worst.task, worst.weight, worst.waited_ms, worst.bound_ms, worst.at_s
        );
    }
    for wait in &watch.starved {
        text += &format!(
            "\n  starved: {} [{}] of weight {} waited {:.0} ms, {:.0} ms are due, at {:.1} s",
            wait.name, wait.task, wait.weight, wait.waited_ms, wait.bound_ms, wait.at_s
        );
    }
    Ok(Finding {
        text,
        json: json!({
            "looks": looks, "tasks": watch.tasks.len(), "longest_ms": watch.longest_ms,
            "worst": watch.worst, "starved": watch.starved,
        }),
        holds: watch.starved.is_empty(),
    })
}

/// A task between two looks.
struct Seen {
    look: Look,
    /// Since when it has been runnable without running.
    since: Option<Instant>,
}

#[derive(Default)]
struct Watch {
    tasks: HashMap<i32, Seen>,
    /// Sums of the weights of all runnable tasks, each with its time.
    loads: Vec<(Instant, u64)>,
    longest_ms: f64,
    /// The wait that came nearest to its bound.
    worst: Option<Wait>,
    starved: Vec<Wait>,
}

impl Watch {
    /// Takes in what a look found of all tasks.
    fn look(&mut self, args: &Args, now: Instant, at: Duration, sights: &[Sight]) {
        let runnable = sights.iter().filter(|sight| sight.look.is_runnable);
        let load = runnable.map(|sight| u64::from(sight.look.weight)).sum();
        self.loads.push((now, load));
        self.loads
            .retain(|(then, _)| now.duration_since(*then) < REMEMBERED);
        let load = self.loads.iter().map(|(_, load)| *load).max().unwrap_or(0);

        let mut tasks = HashMap::new();
        for sight in sights {
            let (tid, look) = (sight.task, sight.look);
            let old = self.tasks.remove(&tid);
            let (waited_ms, since) = waited(old.as_ref(), sight);
            tasks.insert(tid, Seen { look, since });
            if look.weight == 0 || waited_ms <= 0.0 {
                continue;
            }
            self.longest_ms = self.longest_ms.max(waited_ms);
            let bound_ms = bound_ms(args, look.weight, load);
            let share = waited_ms / bound_ms;
            let is_worst = self
                .worst
                .as_ref()
                .is_none_or(|worst| share > worst.waited_ms / worst.bound_ms);
            if is_worst || share > 1.0 {
                let wait = Wait {
                    task: tid,
                    name: name_of(tid),
                    weight: look.weight,
                    waited_ms,
                    bound_ms,
                    at_s: at.as_secs_f64(),
                };
                if share > 1.0 {
                    self.starved.push(wait.clone());
                }
                if is_worst {
                    self.worst = Some(wait);
                }
            }
        }
        self.tasks = tasks;
    }
}

/// Returns the shortest that the task's longest wait since the look before can have been, and since
/// when it waits now.
fn waited(old: Option<&Seen>, sight: &Sight) -> (f64, Option<Instant>) {
    let look = sight.look;
    let fresh = look.is_runnable.then_some(sight.after);
    let Some(Seen { look: old, since }) = old else {
        return (0.0, fresh);
    };
    let has_run = look.slices != old.slices || look.ran_ns != old.ran_ns;
    match (has_run, look.is_runnable, since) {
        (false, true, Some(since)) => {
            let waited = sight.before.duration_since(*since);
            (waited.as_secs_f64() * 1e3, Some(*since))
        }
        (true, ..) if look.slices > old.slices => {
            // The kernel adds up a wait when it ends.
            let waits = look.waited_ns.saturating_sub(old.waited_ns);
            (
                waits as f64 / (look.slices - old.slices) as f64 / 1e6,
                fresh,
            )
        }
        _ => (0.0, fresh),
    }
}

/// Returns for how long a task may wait.
fn bound_ms(args: &Args, weight: u32, load: u64) -> f64 {
    let others = load.max(u64::from(weight)) as f64 / f64::from(weight);
    let due = (4.0 * args.slice_ms * others + args.extra_ms) / args.share;
    due.min(args.longest_ms)
}

/// Looks at all tasks but this one.
fn look_at_all() -> Vec<Sight> {
    let own = std::process::id() as i32;
    let mut found = Vec::new();
    for pid in sys::numbers("/proc").into_iter().filter(|pid| *pid != own) {
        for tid in sys::numbers(&format!("/proc/{pid}/task")) {
            // Skip tasks that end meanwhile.
            found.extend(look_at(tid));
        }
    }
    found
}

/// Looks at a task. The counts are read before the state, so that a task that runs in between does
/// not seem to wait: the next look finds that its counts have changed.
fn look_at(tid: i32) -> Option<Sight> {
    let before = Instant::now();
    let counts = fs::read_to_string(format!("/proc/{tid}/schedstat")).ok()?;
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    let after = Instant::now();
    Some(Sight {
        task: tid,
        look: parse(&counts, &stat)?,
        before,
        after,
    })
}

/// Reads the files `schedstat` and `stat` of a task.
fn parse(counts: &str, stat: &str) -> Option<Look> {
    let mut counts = counts.split_whitespace().map(str::parse);
    let mut count = || counts.next()?.ok();
    // Names may have spaces and parentheses. The next field is the third, the state.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
    let nice: i32 = fields.get(19 - 3)?.parse().ok()?;
    let policy: i32 = fields.get(41 - 3)?.parse().ok()?;
    Some(Look {
        ran_ns: count()?,
        waited_ns: count()?,
        slices: count()?,
        weight: match policy {
            libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE => 0,
            libc::SCHED_IDLE => sys::weight(nice, Policy::Idle),
            _ => sys::weight(nice, Policy::Other),
        },
        is_runnable: *fields.first()? == "R",
    })
}

fn name_of(tid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
    name.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> Args {
        Args {
            seconds: Duration::from_secs(1),
            interval_ms: 100,
            slice_ms: 3.0,
            extra_ms: 200.0,
            share: 1.0,
            longest_ms: 10_000.0,
            json: false,
        }
    }

    fn look(ran_ns: u64, waited_ns: u64, slices: u64, is_runnable: bool) -> Look {
        Look {
            ran_ns,
            waited_ns,
            slices,
            weight: 1024,
            is_runnable,
        }
    }

    /// A look at a task that takes no time.
    fn sight(look: Look, at: Instant) -> Sight {
        Sight {
            task: 1,
            look,
            before: at,
            after: at,
        }
    }

    #[test]
    fn files_of_a_task_are_read() {
        let stat = "7 (a (b) c) R 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 POLICY 1 0 5 0 0 0 0 0 0 0 0 0 0 0 0 \
                    0 0 0 17 0 0 KIND 0 0 0";
        let parsed = |nice: &str, kind: &str| {
            let stat = stat.replace("POLICY", nice).replace("KIND", kind);
            parse("10 20 30\n", &stat).unwrap()
        };
        assert_eq!(parsed("0", "0"), look(10, 20, 30, true));
        assert_eq!(parsed("19", "3").weight, 15);
        assert_eq!(parsed("0", "5").weight, 3);
        assert_eq!(parsed("0", "1").weight, 0);
        assert!(parse("10", stat).is_none() && parse("1 2 3", "").is_none());
    }

    #[test]
    fn a_task_that_is_runnable_and_does_not_run_waits() {
        let mut watch = Watch::default();
        let start = Instant::now();
        let mut at = |ms, look| {
            let after = Duration::from_millis(ms);
            let sight = sight(look, start + after);
            watch.look(&args(), start + after, after, &[sight]);
            (watch.longest_ms, watch.starved.len())
        };
        assert_eq!(at(0, look(5, 5, 5, false)), (0.0, 0));
        // Runnable since this look at the latest.
        assert_eq!(at(100, look(5, 5, 5, true)), (0.0, 0));
        assert_eq!(at(200, look(5, 5, 5, true)), (100.0, 0));
        // Alone it is due after two requests and what the machine takes.
        assert_eq!(at(400, look(5, 5, 5, true)), (300.0, 1));
        // It runs without a switch, then it slept: neither is a wait.
        assert_eq!(at(500, look(9, 5, 5, true)), (300.0, 1));
        assert_eq!(at(600, look(9, 5, 5, false)), (300.0, 1));
    }

    #[test]
    fn the_time_that_a_look_takes_is_no_wait() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let between = |before, after| Sight {
            before: at(before),
            after: at(after),
            ..sight(look(5, 5, 5, true), start)
        };
        let seen = |sight: Sight, since| Seen {
            look: sight.look,
            since,
        };
        let first = between(0, 40);
        let (waited_ms, since) = waited(None, &first);
        assert_eq!((waited_ms, since), (0.0, Some(at(40))));
        let (waited_ms, since) = waited(Some(&seen(first, since)), &between(100, 190));
        assert_eq!((waited_ms, since), (60.0, Some(at(40))));
    }

    #[test]
    fn waits_that_are_over_count_by_their_mean() {
        let old = Seen {
            look: look(5, 0, 5, false),
            since: None,
        };
        let new = sight(look(6, 900_000_000, 8, false), Instant::now());
        let (waited_ms, _) = waited(Some(&old), &new);
        assert_eq!(waited_ms, 300.0);
    }

    #[test]
    fn a_light_task_among_heavy_ones_may_wait() {
        let args = args();
        assert_eq!(bound_ms(&args, 1024, 0), 212.0);
        assert_eq!(bound_ms(&args, 1024, 10 * 1024), 320.0);
        assert_eq!(bound_ms(&args, 3, 100 * 1024), 10_000.0);
        let half = Args { share: 0.5, ..args };
        assert_eq!(bound_ms(&half, 1024, 10 * 1024), 640.0);
    }
}
