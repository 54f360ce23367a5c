//! `wakeup`: on which CPU does a woken task run?
//!
//! Builds one situation again and again (the task's previous and recent CPU, its waker's CPU, and
//! which CPUs are busy), wakes the task, and counts the CPUs on which it runs and how long it waits.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::Finding;
use crate::cpus::CpuSet;
use crate::sys::{self, Child, Policy};

/// The time after which a task that was about to sleep is asleep.
const SETTLE: Duration = Duration::from_millis(3);
/// How long the waker sleeps after a wakeup; the woken task must have run by then.
const PATIENCE: Duration = Duration::from_secs(10);

/// Wake a task again and again in the same situation, and count the CPUs on which it runs.
#[derive(clap::Args)]
pub struct Args {
    /// The CPU on which the task sleeps
    #[arg(long)]
    previous: usize,
    /// The CPU on which it ran before that, its recent CPU; needs a busy CPU [default: any]
    #[arg(long, requires = "busy")]
    recent: Option<usize>,
    /// The CPU from which it is woken
    #[arg(long)]
    waker: usize,
    /// CPUs that are kept busy, like 1,3
    #[arg(long)]
    busy: Option<CpuSet>,
    /// ... by tasks of SCHED_IDLE
    #[arg(long)]
    busy_idle_policy: bool,
    /// Make a sync wakeup: the waker sleeps right after it
    #[arg(long)]
    sync: bool,
    /// Wake a real-time task on the previous CPU just before, which keeps that CPU for so many
    /// microseconds
    #[arg(long)]
    realtime_us: Option<u64>,
    /// How long the task works after each wakeup, in microseconds
    #[arg(long, default_value_t = 200)]
    work_us: u64,
    /// How often to wake it
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The state that the waker and the woken task share.
struct Shared {
    /// The thread of the task.
    tid: AtomicI32,
    /// The task is about to sleep.
    sleeps: AtomicBool,
    /// When it woke up.
    woke_at: AtomicU64,
    /// Where it woke up, plus one; 0 before.
    woke_on: AtomicUsize,
    /// All rounds are over.
    is_over: AtomicBool,
}

/// The findings of the waker.
#[derive(Default)]
struct Seen {
    /// How often the task woke on which CPU.
    counts: BTreeMap<usize, u32>,
    /// The longest time from a wakeup until the task ran, in nanoseconds.
    longest_wait: u64,
}

/// Builds the situation `rounds` times and counts the CPUs.
pub fn run(args: &Args) -> Result<Finding> {
    let online = CpuSet::online()?;
    let busy = args.busy.clone().unwrap_or_else(|| CpuSet::of([]));
    let named = busy
        .iter()
        .chain([args.previous, args.waker])
        .chain(args.recent);
    for cpu in named {
        if !online.contains(cpu) {
            bail!("CPU {cpu} is not online; online are {online}");
        }
    }
    let hogs: Result<Vec<Child>> = busy
        .iter()
        .map(|cpu| {
            Child::fork(|| {
                sys::set_affinity(0, &CpuSet::of([cpu]))?;
                if args.busy_idle_policy {
                    sys::set_policy(0, Policy::Idle)?;
                }
                sys::burn_forever()
            })
        })
        .collect();
    let hogs = hogs?;

    let shared = Shared {
        tid: AtomicI32::new(0),
        sleeps: AtomicBool::new(false),
        woke_at: AtomicU64::new(0),
        woke_on: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    };
    let (read, write) = nix::unistd::pipe().context("make a pipe")?;
    let (read, write) = (File::from(read), File::from(write));
    let seen = thread::scope(|scope| {
        let task = scope.spawn(|| sleep_and_tell(args, &busy, &shared, &read));
        let realtime = args.realtime_us.map(|keep_us| {
            let keep = Duration::from_micros(keep_us);
            let shared = &shared;
            scope.spawn(move || keep_when_woken(args.previous, keep, shared))
        });
        let realtime_thread = realtime.as_ref().map(|thread| thread.thread());
        let seen = wake_and_count(
            args,
            &online,
            &shared,
            &write,
            task.thread(),
            realtime_thread,
        );
        // After an error the task would otherwise wait for ever for the next round.
        drop(write);
        if seen.is_err() {
            task.thread().unpark();
        }
        shared.is_over.store(true, Ordering::Release);
        if let Some(thread) = realtime_thread {
            thread.unpark();
        }
        let told = task.join();
        let kept = realtime.map(|thread| thread.join());
        let seen = seen?;
        told.map_err(|_| anyhow::anyhow!("the woken task panicked"))??;
        if let Some(kept) = kept {
            kept.map_err(|_| anyhow::anyhow!("the real-time task panicked"))??;
        }
        Ok::<_, anyhow::Error>(seen)
    })?;
    drop(hogs);

    let wait_us = seen.longest_wait as f64 / 1e3;
    let list: Vec<String> = seen
        .counts
        .iter()
        .map(|(cpu, count)| format!("CPU {cpu}: {count}"))
        .collect();
    Ok(Finding {
        text: format!(
            "woken {} times; {}; longest wait {wait_us:.1} us",
            args.rounds,
            list.join(", ")
        ),
        json: json!({ "rounds": args.rounds, "cpus": seen.counts, "longest_wait_us": wait_us }),
        holds: true,
    })
}

/// The task: makes its history, sleeps, and notes on which CPU it woke.
fn sleep_and_tell(args: &Args, busy: &CpuSet, shared: &Shared, mut read: &File) -> Result<()> {
    let work = Duration::from_micros(args.work_us);
    shared
        .tid
        .store(nix::unistd::gettid().as_raw(), Ordering::Release);
    for _ in 0..args.rounds {
        if let (Some(recent), Some(busy)) = (args.recent, busy.iter().next()) {
            // Allow a second CPU, which is busy: a scheduler does not place a pinned task, and so
            // keeps no history of it.
            sys::set_affinity(0, &CpuSet::of([recent]))?;
            sys::set_affinity(0, &CpuSet::of([recent, busy]))?;
            sys::spin_for(work);
            thread::sleep(SETTLE);
        }
        // The waker allows the other CPUs again while this task sleeps, so that nothing migrates
        // it before.
        sys::set_affinity(0, &CpuSet::of([args.previous]))?;
        sys::spin_for(work);
        shared.sleeps.store(true, Ordering::Release);
        match args.sync {
            true => {
                let read = read.read(&mut [0]).context("read from the pipe")?;
                if read == 0 {
                    return Ok(());
                }
            }
            false => {
                thread::park();
            }
        }
        shared.woke_at.store(sys::now_ns(), Ordering::Relaxed);
        shared
            .woke_on
            .store(sys::current_cpu() + 1, Ordering::Release);
    }
    Ok(())
}

/// A real-time task on one CPU: keeps the CPU for a while whenever it is woken.
fn keep_when_woken(cpu: usize, keep: Duration, shared: &Shared) -> Result<()> {
    sys::set_affinity(0, &CpuSet::of([cpu]))?;
    sys::set_policy(0, Policy::Fifo)?;
    loop {
        thread::park();
        if shared.is_over.load(Ordering::Acquire) {
            return Ok(());
        }
        sys::spin_for(keep);
    }
}

/// The waker. It sleeps between its steps, so that its CPU is busy for the wakeup only.
fn wake_and_count(
    args: &Args,
    online: &CpuSet,
    shared: &Shared,
    mut write: &File,
    task: &thread::Thread,
    realtime: Option<&thread::Thread>,
) -> Result<Seen> {
    sys::set_affinity(0, &CpuSet::of([args.waker]))?;
    // Sleep often before the first round: a scheduler may judge the waker by how it has behaved.
    (0..50).for_each(|_| thread::sleep(Duration::from_millis(1)));
    let mut seen = Seen::default();
    for round in 1..=args.rounds {
        wait_until(|| shared.sleeps.swap(false, Ordering::AcqRel))
            .with_context(|| format!("round {round}: the task does not go to sleep"))?;
        thread::sleep(SETTLE);
        sys::set_affinity(shared.tid.load(Ordering::Acquire), online)?;
        let woken_at = sys::now_ns();
        if let Some(thread) = realtime {
            thread.unpark();
        }
        match args.sync {
            true => write.write_all(&[0]).context("write to the pipe")?,
            false => task.unpark(),
        }
        let mut cpu = 0;
        wait_until(|| {
            cpu = shared.woke_on.swap(0, Ordering::AcqRel);
            cpu != 0
        })
        .with_context(|| format!("round {round}: the task was woken and does not run"))?;
        *seen.counts.entry(cpu - 1).or_insert(0) += 1;
        let wait = shared
            .woke_at
            .load(Ordering::Relaxed)
            .saturating_sub(woken_at);
        seen.longest_wait = seen.longest_wait.max(wait);
    }
    Ok(seen)
}

/// Waits until the condition holds, and fails if it does not in a bounded time.
fn wait_until(mut holds: impl FnMut() -> bool) -> Result<()> {
    let end = sys::now_ns() + PATIENCE.as_nanos() as u64;
    loop {
        thread::sleep(Duration::from_millis(1));
        if holds() {
            return Ok(());
        }
        if sys::now_ns() > end {
            bail!("waited for {PATIENCE:?}");
        }
    }
}
