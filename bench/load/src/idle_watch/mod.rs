//! `idle-watch`: is a queued task ever left beside an idle CPU?
//!
//! Runs loads, records every scheduling event with the kernel's tracer, and afterwards looks for
//! tasks that were runnable and not running while a CPU that they may use was idle, for longer than
//! a tick. [`analysis`] defines this exactly, and how delays that a virtual machine's host causes
//! are told from those of the scheduler. With `--scheduler` the watch runs twice, under the
//! kernel's own scheduler and under the given one, so that both numbers come from the same machine.

mod analysis;
pub mod event;
mod finding;
mod selftest;
mod stress;
pub mod trace;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use self::finding::{Analysis, Setting, Stretch};
use self::stress::{OnlineGuard, Stress};
use self::trace::{Recorder, Trace};
use crate::Finding;
use crate::cpus::CpuSet;
use crate::sys::{self, Policy};

/// Watch for runnable tasks that wait although a CPU they may use is idle.
///
/// Needs root and tracefs. Exits with 2 if a task was stranded for longer than the threshold.
/// Time in which the host of a virtual machine did not run a CPU is told apart and not counted.
#[derive(clap::Args)]
pub struct Args {
    /// How long to watch (each scheduler)
    #[arg(long, default_value = "5", value_parser = sys::parse_seconds)]
    seconds: Duration,
    /// Loads to run meanwhile; without one, watch the tasks that run anyway
    #[arg(long = "with", value_delimiter = ',')]
    stress: Vec<Stress>,
    /// Longest wait beside an idle CPU that passes, in ms [default: 1.1 ticks]
    #[arg(long)]
    threshold_ms: Option<f64>,
    /// Length of a tick in ms [default: from CONFIG_HZ in /boot/config-<release>, else 4]
    #[arg(long)]
    tick_ms: Option<f64>,
    /// CPUs whose idleness counts, like 0-3,8 [default: all that are online]
    #[arg(long)]
    cpus: Option<CpuSet>,
    /// Watch the kernel's own scheduler first, then start this one and watch it
    #[arg(long, value_name = "COMMAND")]
    scheduler: Option<String>,
    /// Memory for the trace, MiB in all
    #[arg(long, default_value_t = 192, value_parser = clap::value_parser!(u64).range(8..=16384))]
    trace_mib: u64,
    /// Seed of the random loads [default: random, printed]
    #[arg(long)]
    seed: Option<u64>,
    /// How many of the worst cases to list
    #[arg(long, default_value_t = 5)]
    worst: usize,
    /// Print what the trace shows around the worst case
    #[arg(long)]
    explain: bool,
    /// Plant stranded tasks, in an isolated cpuset without load balancing, and check that the watch
    /// finds them; then check that it finds none without stranded tasks
    #[arg(long, conflicts_with_all = ["stress", "scheduler"])]
    self_test: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The sum over all recordings under one scheduler.
struct Watch {
    scheduler: String,
    seconds: f64,
    tick_ns: u64,
    violations: Vec<(Stretch, String)>,
    sum: Analysis,
    missing: Vec<&'static str>,
    /// Why the watch ended early, if the scheduler died.
    died: Option<String>,
    /// The events around the worst case, with `--explain`.
    events: Vec<String>,
}

/// Watches and reports.
pub fn run(args: &Args) -> Result<Finding> {
    if args.self_test {
        return selftest::run(args);
    }
    args.stress
        .iter()
        .try_for_each(|stress| stress::check(*stress))?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut watches = vec![watch(args, &running_scheduler(), seed)?];
    if let Some(command) = &args.scheduler {
        if watches[0].scheduler != "eevdf" {
            bail!(
                "{} is loaded already: stop it first, or leave out --scheduler",
                watches[0].scheduler
            );
        }
        let mut scheduler = Scheduler::start(command)?;
        let mut second = watch(args, command, seed)?;
        second.died = scheduler.stop()?;
        watches.push(second);
    }
    let threshold = threshold_ns(args)? as f64 / 1e6;
    let mut text = String::new();
    for watch in &watches {
        watch.describe(&mut text, args.worst, threshold);
    }
    let _ = write!(text, "seed {seed}");
    // Judge only the last watch; the one under EEVDF before it is there to compare with.
    let holds = watches
        .last()
        .is_some_and(|watch| watch.violations.is_empty() && watch.died.is_none());
    let watches: Vec<Value> = watches.iter().map(|watch| watch.json(args.worst)).collect();
    Ok(Finding {
        text,
        json: json!({ "seed": seed, "threshold_ms": threshold, "watches": watches }),
        holds,
    })
}

/// The name of the loaded sched_ext scheduler, or `eevdf`.
fn running_scheduler() -> String {
    let read = |file: &str| {
        std::fs::read_to_string(format!("/sys/kernel/sched_ext/{file}")).unwrap_or_default()
    };
    if read("state").trim() == "enabled" {
        read("root/ops").trim().to_string()
    } else {
        "eevdf".into()
    }
}

/// The length of a tick: as told, else as the kernel's configuration says, else 4 ms.
fn tick_ns(args: &Args) -> u64 {
    let from_config = || {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        let config = std::fs::read_to_string(format!("/boot/config-{}", release.trim())).ok()?;
        let hz: f64 = config
            .lines()
            .find_map(|l| l.strip_prefix("CONFIG_HZ="))?
            .parse()
            .ok()?;
        Some(1000.0 / hz)
    };
    (args.tick_ms.or_else(from_config).unwrap_or(4.0) * 1e6) as u64
}

/// The longest stretch that passes.
fn threshold_ns(args: &Args) -> Result<u64> {
    let ns = args
        .threshold_ms
        .map_or(tick_ns(args) as f64 * 1.1, |ms| ms * 1e6);
    if !(ns > 0.0 && ns < 1e12) {
        bail!("--threshold-ms must be more than 0");
    }
    Ok(ns as u64)
}

/// Runs the loads and records, as often as the trace's memory requires, until the time is over.
fn watch(args: &Args, scheduler: &str, seed: u64) -> Result<Watch> {
    let online = CpuSet::online()?;
    let kib_per_cpu = (args.trace_mib * 1024 / online.len() as u64).max(64) as usize;
    // Dropped in reverse: the loads first, then the recorder whose marker they hold, the CPUs last.
    let _online = OnlineGuard::new()?;
    let recorder = Recorder::new(kib_per_cpu)?;
    let marker = recorder.marker()?;
    // Count the time watched, because a slow machine takes long to start loads and read traces. The
    // limit ends the watch on a machine that makes no progress.
    let limit = Instant::now() + 10 * args.seconds + Duration::from_secs(120);
    let mut loads: Vec<_> = args
        .stress
        .iter()
        .map(|stress| stress::start(*stress, limit, seed, &marker))
        .collect::<Result<_>>()?;
    drop(marker);

    let mut sum = Watch {
        scheduler: scheduler.into(),
        seconds: 0.0,
        tick_ns: tick_ns(args),
        violations: Vec::new(),
        sum: Analysis::default(),
        missing: recorder.missing.clone(),
        died: None,
        events: Vec::new(),
    };
    while sum.seconds < args.seconds.as_secs_f64() {
        if Instant::now() > limit {
            bail!(
                "only {:.3} s could be watched in time: is the machine overloaded?",
                sum.seconds
            );
        }
        let left = Duration::from_secs_f64(args.seconds.as_secs_f64() - sum.seconds);
        // The loads would only delay the reading of the last recording. One that lost events is
        // shorter than it seems, and another one follows.
        let stopped = |recorded| {
            if recorded >= left {
                loads.clear();
            }
        };
        let (setting, trace) = record(&recorder, kib_per_cpu, args, left, stopped)?;
        let worst = sum.worst_ns();
        sum.add(
            &setting,
            &analysis::analyse(&setting, &trace.records),
            &trace.names,
        );
        if args.explain && sum.worst_ns() > worst {
            sum.events = around(&sum.violations[0].0, &trace);
        }
    }
    Ok(sum)
}

/// Records for a time or until the buffers are nearly full. If no event was lost, calls `stopped` with
/// the time that was recorded, before what was recorded is read.
fn record(
    recorder: &Recorder,
    kib_per_cpu: usize,
    args: &Args,
    time: Duration,
    stopped: impl FnOnce(Duration),
) -> Result<(Setting, Trace)> {
    recorder.start()?;
    // Read affinities after the start, so that the trace has every later change.
    let judged = match &args.cpus {
        Some(cpus) => cpus.clone(),
        None => CpuSet::online()?,
    };
    let mut affinity = affinities();
    let known_at = sys::now_ns();
    touch(&judged);
    let start = sys::now_ns();
    let began = Instant::now();
    let until = began + time;
    while Instant::now() < until && recorder.fill(kib_per_cpu)? < 0.7 {
        std::thread::sleep(
            Duration::from_millis(200).min(until.saturating_duration_since(Instant::now())),
        );
    }
    let recorded = began.elapsed();
    let end = sys::now_ns();
    recorder.stop()?;
    let mut later = affinities();
    if recorder.fill(kib_per_cpu)? < 1.0 {
        stopped(recorded);
    }
    let trace = recorder.collect()?;

    // An affinity that changed while the table was read is known again at the end of its change.
    for pid in trace::tasks_with_affinity_marks(&trace, Some(known_at)) {
        affinity.remove(&pid);
    }
    // Another program changed the affinity at an unknown time, so only CPUs of both sets are
    // certain.
    let ours = trace::tasks_with_affinity_marks(&trace, None);
    for (pid, cpus) in affinity.iter_mut().filter(|(pid, _)| !ours.contains(pid)) {
        if let Some(later) = later.get(pid) {
            *cpus = cpus.and(later);
        }
    }
    later.retain(|pid, _| !affinity.contains_key(pid) && !ours.contains(pid));
    let end = trace.complete_until.map_or(end, |until| until.min(end));
    let setting = Setting {
        tick_ns: tick_ns(args),
        threshold_ns: threshold_ns(args)?,
        judged,
        affinity,
        later,
        start: start.min(end),
        end,
    };
    Ok((setting, trace))
}

/// The events of the task and the two CPUs of a stretch, from a little before it to a little after.
fn around(stretch: &Stretch, trace: &Trace) -> Vec<String> {
    const MARGIN_NS: u64 = 200_000;
    const LINES: usize = 80;
    let (from, to) = (
        stretch.at_ns - MARGIN_NS,
        stretch.at_ns + stretch.ns + MARGIN_NS,
    );
    trace
        .records
        .iter()
        .filter(|r| {
            (from..to).contains(&r.time)
                && r.concerns(stretch.pid, &[stretch.cpu, stretch.idle_cpu])
        })
        .take(LINES)
        .map(|r| {
            let ms = (r.time as f64 - stretch.at_ns as f64) / 1e6;
            format!("{ms:>10.3} ms  CPU {:<3} {:?}", r.cpu, r.event)
        })
        .collect()
}

/// The affinity of every task in the system.
fn affinities() -> HashMap<i32, CpuSet> {
    let mut found = HashMap::new();
    for pid in sys::numbers("/proc") {
        for tid in sys::numbers(&format!("/proc/{pid}/task")) {
            // Skip tasks that have ended meanwhile.
            if let Ok(cpus) = sys::affinity(tid) {
                found.insert(tid, cpus);
            }
        }
    }
    found
}

/// Makes every CPU switch once, so that the trace tells its state. A CPU that is idle, or runs one
/// task, for the whole recording would otherwise leave no event.
fn touch(cpus: &CpuSet) {
    let threads: Vec<_> = cpus
        .iter()
        .map(|cpu| {
            std::thread::spawn(move || {
                // Use a real-time policy, so that this thread does not wait behind hogs. Ignore
                // errors: a CPU may just have gone offline, and without root the trace would not
                // have started.
                let _ = sys::set_policy(0, Policy::Fifo);
                let _ = sys::set_affinity(0, &CpuSet::of([cpu]));
            })
        })
        .collect();
    for thread in threads {
        let _ = thread.join();
    }
}

impl Watch {
    /// Adds the findings of one recording.
    fn add(&mut self, setting: &Setting, found: &Analysis, names: &HashMap<i32, String>) {
        self.seconds += (setting.end - setting.start) as f64 / 1e9;
        for stretch in &found.violations {
            let name = names.get(&stretch.pid).cloned().unwrap_or_default();
            self.violations.push((stretch.clone(), name));
        }
        let sum = &mut self.sum;
        sum.late_host += found.late_host;
        sum.longest_ns = sum.longest_ns.max(found.longest_ns);
        sum.waits += found.waits;
        sum.switches += found.switches;
        sum.unknown += found.unknown;
        sum.slowest_answer_ns = sum.slowest_answer_ns.max(found.slowest_answer_ns);
        found.silent.iter().for_each(|cpu| sum.silent.insert(cpu));
        self.violations
            .sort_by_key(|(stretch, _)| std::cmp::Reverse(stretch.own_ns()));
    }

    /// The longest violation without the host's part.
    fn worst_ns(&self) -> u64 {
        self.violations
            .first()
            .map_or(0, |(stretch, _)| stretch.own_ns())
    }

    /// How many violations are longer than 1, 2, 4, ... ticks.
    fn distribution(&self) -> Vec<(u64, usize)> {
        let longer = |ticks: u64| {
            self.violations
                .iter()
                .filter(|(s, _)| s.own_ns() > ticks * self.tick_ns)
                .count()
        };
        [1, 2, 4, 8, 16, 32]
            .into_iter()
            .map(|ticks| (ticks, longer(ticks)))
            .collect()
    }

    fn describe(&self, text: &mut String, worst: usize, threshold_ms: f64) {
        let ms = |ns: u64| ns as f64 / 1e6;
        let _ = writeln!(
            text,
            "{}: {:.1} s watched, {} switches, {} waits: {} beside an idle CPU for more than \
             {threshold_ms} ms; longest {:.3} ms",
            self.scheduler,
            self.seconds,
            self.sum.switches,
            self.sum.waits,
            self.violations.len(),
            ms(self.sum.longest_ns)
        );
        if !self.violations.is_empty() {
            let parts: Vec<String> = self
                .distribution()
                .iter()
                .map(|(ticks, count)| format!(">{ticks}: {count}"))
                .collect();
            let _ = writeln!(
                text,
                "  by ticks of {} ms: {}",
                ms(self.tick_ns),
                parts.join("  ")
            );
        }
        for (stretch, name) in self.violations.iter().take(worst) {
            let _ = writeln!(
                text,
                "  {:.3} ms (host {:.3} ms): {name} [{}] queued on CPU {} while CPU {} was idle, \
                 at {:.6} s",
                ms(stretch.ns),
                ms(stretch.host_ns),
                stretch.pid,
                stretch.cpu,
                stretch.idle_cpu,
                stretch.at_ns as f64 / 1e9
            );
        }
        for line in &self.events {
            let _ = writeln!(text, "    {line}");
        }
        if self.sum.late_host > 0 {
            let _ = writeln!(
                text,
                "  {} more were too long only because the host did not run a CPU (slowest answer \
                 to a kick: {:.3} ms)",
                self.sum.late_host,
                ms(self.sum.slowest_answer_ns)
            );
        }
        if self.sum.unknown > 0 {
            let _ = writeln!(
                text,
                "  {} waits not judged: affinity unknown",
                self.sum.unknown
            );
        }
        if !self.sum.silent.is_empty() {
            let _ = writeln!(
                text,
                "  CPUs {} showed no switch in some recording: counted as busy there",
                self.sum.silent
            );
        }
        if !self.missing.is_empty() {
            let _ = writeln!(
                text,
                "  this kernel has no {}: less is blamed on the host",
                self.missing.join(", ")
            );
        }
        if let Some(why) = &self.died {
            let _ = writeln!(text, "  the scheduler died: {why}");
        }
    }

    fn json(&self, worst: usize) -> Value {
        let list: Vec<Value> = self
            .violations
            .iter()
            .take(worst)
            .map(|(stretch, name)| json!({ "task": name, "stretch": stretch }))
            .collect();
        let ticks: serde_json::Map<String, Value> = self
            .distribution()
            .into_iter()
            .map(|(ticks, count)| (ticks.to_string(), count.into()))
            .collect();
        json!({
            "scheduler": self.scheduler, "seconds": self.seconds, "tick_ns": self.tick_ns,
            "violations": self.violations.len(), "longer_than_ticks": ticks, "worst": list,
            "longest_ns": self.sum.longest_ns, "late_host": self.sum.late_host,
            "slowest_answer_ns": self.sum.slowest_answer_ns, "switches": self.sum.switches,
            "waits": self.sum.waits, "unknown_affinity": self.sum.unknown,
            "silent_cpus": self.sum.silent.to_string(), "missing_events": self.missing, "died": self.died,
        })
    }
}

/// A sched_ext scheduler that was started here; stopped when dropped.
struct Scheduler(std::process::Child);

impl Scheduler {
    /// Starts a scheduler and waits until the kernel says that it is enabled.
    fn start(command: &str) -> Result<Self> {
        let mut words = command.split_whitespace();
        let Some(program) = words.next() else {
            bail!("--scheduler is empty")
        };
        let child = Command::new(program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("start the scheduler {program}: is it in PATH?"))?;
        let mut scheduler = Self(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        while running_scheduler() == "eevdf" {
            if let Some(status) = scheduler.0.try_wait().context("look after the scheduler")? {
                bail!("`{command}` ended with {status} before it was enabled; its output is above");
            }
            if Instant::now() > deadline {
                bail!(
                    "`{command}` was not enabled within 60 s: look at its output above, and at \
                     dmesg"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(scheduler)
    }

    /// Stops the scheduler. Some if it had ended by itself.
    fn stop(&mut self) -> Result<Option<String>> {
        if let Some(status) = self.0.try_wait().context("look after the scheduler")? {
            return Ok(Some(format!("it ended with {status} while being watched")));
        }
        let pid = Pid::from_raw(self.0.id() as i32);
        kill(pid, Signal::SIGINT).context("stop the scheduler")?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while self
            .0
            .try_wait()
            .context("look after the scheduler")?
            .is_none()
        {
            if Instant::now() > deadline {
                bail!("the scheduler did not stop within 20 s of SIGINT");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(None)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // The kernel falls back to its own scheduler when the process is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
