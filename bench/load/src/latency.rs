//! `latency`: how long does a woken task wait, and what does that do to requests?
//!
//! The shape is that of schbench, which models a server: message threads hand out requests, worker
//! threads sleep until woken, work, and ask for more. Four numbers come out:
//! - *wakeup latency*: from just before the message thread wakes the worker until the worker runs;
//! - *request latency*: wakeup latency plus the work (a fixed number of operations, the same on
//!   every machine and under every scheduler, so that preemption shows);
//! - *answer latency*: from just before a worker asks until it runs again. It contains the time for
//!   which the message thread itself waited, which schbench leaves out: a scheduler that keeps that
//!   thread waiting hands out requests late, and then finds idle CPUs for them;
//! - *requests per second*.
//!
//! Threads sleep and wake by `park`/`unpark`, which are one futex call each. With `--timer-us`
//! there are no message threads: a timer wakes each worker at fixed times, and wakeup latency is
//! how much later the worker runs. cyclictest measures the same, so that the two can be compared.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::Finding;
use crate::{sys, times};

/// Measure wakeup, request and answer latency of message and worker threads.
#[derive(clap::Args)]
pub struct Args {
    /// Message threads
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    message_threads: u32,
    /// Worker threads of each message thread
    #[arg(long, short, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Wake each worker by a timer instead, at this interval in microseconds
    #[arg(long, conflicts_with = "message_threads", value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    timer_us: Option<u64>,
    /// Operations (dependent multiplications) of work per request
    #[arg(long, default_value_t = 100_000)]
    operations: u64,
    /// How long to measure
    #[arg(long, default_value = "10", value_parser = sys::parse_seconds)]
    seconds: Duration,
    /// How long to run before measuring
    #[arg(long, default_value = "0.3", value_parser = sys::parse_seconds)]
    warmup: Duration,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The state that a message thread and its workers share.
struct Team {
    messenger: OnceLock<Thread>,
    /// Workers that ask for a request.
    asking: Mutex<Vec<usize>>,
    workers: Vec<Mailbox>,
}

/// Where a worker finds its request.
#[derive(Default)]
struct Mailbox {
    /// When the request was handed out, 0 while there is none.
    woken_at: AtomicU64,
    thread: OnceLock<Thread>,
}

/// When to measure and when to stop, the same for all threads.
struct Schedule {
    measure_from: u64,
    stop: AtomicBool,
    operations: u64,
}

/// One worker's histograms, in nanoseconds.
struct Latencies {
    wakeup: Histogram<u64>,
    request: Histogram<u64>,
    answer: Histogram<u64>,
}

impl Latencies {
    fn new() -> Result<Self> {
        Ok(Self {
            wakeup: times::histogram()?,
            request: times::histogram()?,
            answer: times::histogram()?,
        })
    }

    /// Works on a request for which the caller was woken at `woken_at`, and asked before, unless a
    /// timer woke it; notes all latencies.
    fn work_since(&mut self, asked_at: Option<u64>, woken_at: u64, schedule: &Schedule) {
        let running_at = sys::now_ns();
        sys::work(schedule.operations);
        if woken_at < schedule.measure_from {
            return;
        }
        let since = |time: u64, now: u64| now.saturating_sub(time).max(1);
        self.wakeup.saturating_record(since(woken_at, running_at));
        self.request
            .saturating_record(since(woken_at, sys::now_ns()));
        if let Some(asked_at) = asked_at.filter(|at| *at >= schedule.measure_from) {
            self.answer.saturating_record(since(asked_at, running_at));
        }
    }
}

/// Runs the threads and reports percentiles.
pub fn run(args: &Args) -> Result<Finding> {
    let measure_from = sys::now_ns() + args.warmup.as_nanos() as u64;
    let schedule = Arc::new(Schedule {
        measure_from,
        stop: AtomicBool::new(false),
        operations: args.operations,
    });
    let mut workers = Vec::new();
    let mut messengers = Vec::new();
    if let Some(us) = args.timer_us {
        for _ in 0..args.threads {
            let schedule = Arc::clone(&schedule);
            let work = move || work_by_timer(Duration::from_micros(us), &schedule);
            workers.push(thread::spawn(work));
        }
    }
    let teams = args.timer_us.map_or(args.message_threads, |_| 0);
    for _ in 0..teams {
        let team = Arc::new(Team {
            messenger: OnceLock::new(),
            asking: Mutex::default(),
            workers: (0..args.threads).map(|_| Mailbox::default()).collect(),
        });
        let (its_team, its_schedule) = (Arc::clone(&team), Arc::clone(&schedule));
        let messenger = thread::spawn(move || hand_out(&its_team, &its_schedule));
        // Set before any worker exists, so that a worker always finds it.
        let _ = team.messenger.set(messenger.thread().clone());
        messengers.push(messenger);
        for index in 0..args.threads as usize {
            let (team, schedule) = (Arc::clone(&team), Arc::clone(&schedule));
            workers.push(thread::spawn(move || work(&team, index, &schedule)));
        }
    }
    thread::sleep(args.warmup + args.seconds);
    let elapsed = (sys::now_ns() - measure_from) as f64 / 1e9;
    schedule.stop.store(true, Ordering::Relaxed);

    let mut all = Latencies::new()?;
    for worker in workers {
        let one = worker
            .join()
            .map_err(|_| anyhow!("a worker thread panicked"))??;
        all.wakeup.add(&one.wakeup).context("sum up histograms")?;
        all.request.add(&one.request).context("sum up histograms")?;
        all.answer.add(&one.answer).context("sum up histograms")?;
    }
    for messenger in messengers {
        messenger
            .join()
            .map_err(|_| anyhow!("a message thread panicked"))?;
    }
    Ok(describe(&all, elapsed))
}

/// A message thread: wakes every worker that asks, sleeps while none does.
fn hand_out(team: &Team, schedule: &Schedule) {
    while !schedule.stop.load(Ordering::Relaxed) {
        let asking =
            std::mem::take(&mut *team.asking.lock().unwrap_or_else(PoisonError::into_inner));
        if asking.is_empty() {
            thread::park_timeout(Duration::from_millis(50));
        }
        for index in asking {
            let mailbox = &team.workers[index];
            mailbox.woken_at.store(sys::now_ns(), Ordering::Release);
            if let Some(thread) = mailbox.thread.get() {
                thread.unpark();
            }
        }
    }
}

/// A worker: asks, sleeps until woken, works, and notes all latencies.
fn work(team: &Team, index: usize, schedule: &Schedule) -> Result<Latencies> {
    let mailbox = &team.workers[index];
    let _ = mailbox.thread.set(thread::current());
    let mut latencies = Latencies::new()?;
    while !schedule.stop.load(Ordering::Relaxed) {
        let asked_at = sys::now_ns();
        mailbox.woken_at.store(0, Ordering::Relaxed);
        team.asking
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(index);
        if let Some(messenger) = team.messenger.get() {
            messenger.unpark();
        }
        let woken_at = loop {
            match mailbox.woken_at.load(Ordering::Acquire) {
                // At the end of the run no thread hands out requests, so the sleep has a limit.
                0 if schedule.stop.load(Ordering::Relaxed) => return Ok(latencies),
                0 => thread::park_timeout(Duration::from_millis(50)),
                at => break at,
            }
        };
        latencies.work_since(Some(asked_at), woken_at, schedule);
    }
    Ok(latencies)
}

/// A worker that a timer wakes. Timer times that pass while the worker is busy are left out.
fn work_by_timer(interval: Duration, schedule: &Schedule) -> Result<Latencies> {
    sys::ask_for_exact_timers()?;
    let interval = interval.as_nanos() as u64;
    let mut latencies = Latencies::new()?;
    let mut next = sys::now_ns();
    while !schedule.stop.load(Ordering::Relaxed) {
        let passed = sys::now_ns().saturating_sub(next);
        next += interval * (passed / interval + 1);
        sys::sleep_until(next)?;
        latencies.work_since(None, next, schedule);
    }
    Ok(latencies)
}

fn describe(latencies: &Latencies, elapsed: f64) -> Finding {
    let requests = latencies.request.len();
    let rate = requests as f64 / elapsed;
    // With a timer nobody asks.
    let answer = (!latencies.answer.is_empty()).then_some(&latencies.answer);
    let mut text = String::new();
    let all = [
        ("wakeup", Some(&latencies.wakeup)),
        ("request", Some(&latencies.request)),
        ("answer", answer),
    ];
    for (name, histogram) in all {
        let Some(histogram) = histogram else { continue };
        let _ = writeln!(text, "{name:<7} us: {}", times::describe(histogram));
    }
    let _ = write!(
        text,
        "{requests} requests in {elapsed:.3} s: {rate:.1} requests/s"
    );
    let json = json!({
        "elapsed_s": elapsed, "requests": requests, "requests_per_s": rate,
        "wakeup_us": times::percentiles(&latencies.wakeup), "request_us": times::percentiles(&latencies.request),
        "answer_us": answer.map(times::percentiles),
    });
    // Fail if there was no request at all: a wakeup was lost.
    Finding {
        text,
        json,
        holds: requests > 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measures_requests(timer_us: Option<u64>) {
        let args = Args {
            message_threads: 1,
            threads: 2,
            timer_us,
            operations: 1000,
            seconds: Duration::from_millis(100),
            warmup: Duration::from_millis(10),
            json: true,
        };
        let finding = run(&args).unwrap();
        assert!(finding.holds);
        let json = finding.json;
        assert!(json["requests"].as_u64().unwrap() > 10, "{json}");
        // A request contains its wakeup.
        assert!(
            json["request_us"]["p50"].as_f64() >= json["wakeup_us"]["p50"].as_f64(),
            "{json}"
        );
    }

    #[test]
    fn a_short_run_measures_requests() {
        measures_requests(None);
    }

    #[test]
    fn a_short_run_by_timer_measures_requests() {
        measures_requests(Some(500));
    }
}
