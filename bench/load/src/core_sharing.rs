//! `core-sharing`: do busy threads share cores while whole cores are idle? Runs threads that compute
//! and sleep briefly, fewer than there are CPUs, and tells from the kernel's trace for what share of
//! the time two of them ran on one core beside an idle core, and how often they moved.
//!
//! They start packed, two on a core: where a thread happens to be forked says nothing, and a scheduler
//! that leaves tasks where they are would look good whenever they were forked well.

use std::collections::HashSet;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;

use crate::Finding;
use crate::cpus::CpuSet;
use crate::idle_watch::event::{Event, Record};
use crate::idle_watch::trace::Recorder;
use crate::sys;

const KIB_PER_CPU: usize = 8192;

/// How long the threads are held where they start.
const PACKED: Duration = Duration::from_millis(10);

/// Run threads that compute and nap, and tell how they are spread over cores.
///
/// Needs root and tracefs, and CPUs with SMT to have anything to tell.
#[derive(clap::Args)]
pub struct Args {
    /// How many threads
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: u32,
    /// How long each computes at a time, in microseconds, give or take a half
    #[arg(long, default_value_t = 4000)]
    burst_us: u64,
    /// How long it sleeps in between
    #[arg(long, default_value_t = 300)]
    nap_us: u64,
    /// How long to watch
    #[arg(long, default_value = "2", value_parser = sys::parse_seconds)]
    seconds: Duration,
    /// Seed of the bursts and naps
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What the trace tells, in nanoseconds and moves.
#[derive(Debug, Default, PartialEq)]
struct Sharing {
    watched: u64,
    /// Two or more threads on one core, and a core without anything.
    shared: u64,
    moves: u64,
}

/// Runs the threads and reports.
pub fn run(args: &Args) -> Result<Finding> {
    let online = CpuSet::online()?;
    let cores = cores(&online)?;
    if args.threads as usize > online.len() {
        bail!(
            "{} threads on {} CPUs share cores because they must; take fewer",
            args.threads,
            online.len()
        );
    }
    let recorder = Recorder::new(KIB_PER_CPU)?;
    let (stop, tasks) = (AtomicBool::new(false), Mutex::new(HashSet::new()));
    let packed = cores.iter().flatten().take(args.threads as usize);
    thread::scope(|scope| -> Result<()> {
        let start = |cpu: &usize| {
            let (cpu, online, stop, tasks) = (*cpu, &online, &stop, &tasks);
            scope.spawn(move || -> Result<()> {
                if let Ok(mut tasks) = tasks.lock() {
                    tasks.insert(nix::unistd::gettid().as_raw());
                }
                sys::set_affinity(0, &CpuSet::of([cpu]))?;
                sys::spin_for(PACKED);
                sys::set_affinity(0, online)?;
                compute_and_nap(args, cpu as u64, stop);
                Ok(())
            })
        };
        let threads: Vec<_> = packed.map(start).collect();
        let recorded = record(&recorder, args.seconds);
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        recorded
    })?;
    let tasks = tasks.into_inner().unwrap_or_default();
    let trace = recorder.collect()?;
    if trace.complete_until.is_some() {
        bail!("the trace did not fit: watch for a shorter time");
    }
    let sharing = analyse(&trace.records, &cores, &tasks);
    if sharing.watched == 0 {
        bail!("the trace has no events of these threads");
    }
    let percent = 100.0 * sharing.shared as f64 / sharing.watched as f64;
    let moves = sharing.moves as f64 * 1e9 / sharing.watched as f64;
    Ok(Finding {
        text: format!(
            "{} threads on {} cores shared a core beside an idle one for {percent:.2} % of the \
             time; {moves:.1} moves a second",
            args.threads,
            cores.len()
        ),
        json: json!({
            "threads": args.threads, "cores": cores.len(), "shared_percent": percent,
            "moves_per_second": moves,
        }),
        holds: true,
    })
}

fn record(recorder: &Recorder, time: Duration) -> Result<()> {
    // Where they start is not the question, but where they go from there.
    thread::sleep(time / 4);
    recorder.start()?;
    thread::sleep(time);
    recorder.stop()
}

fn compute_and_nap(args: &Args, thread: u64, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(args.seed ^ (thread << 32));
    let mut around = |us: u64| Duration::from_micros(us / 2 + random.u64(0..=us));
    while !stop.load(Ordering::Relaxed) {
        sys::spin_for(around(args.burst_us));
        thread::sleep(around(args.nap_us));
    }
}

/// The online CPUs of each core.
fn cores(online: &CpuSet) -> Result<Vec<Vec<usize>>> {
    let mut cores: Vec<Vec<usize>> = Vec::new();
    for cpu in online.iter() {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list");
        let list = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        let siblings = CpuSet::parse(list.trim())?.and(online);
        if siblings.iter().next() == Some(cpu) {
            cores.push(siblings.iter().collect());
        }
    }
    Ok(cores)
}

/// Follows who runs where. A CPU counts once it has switched for the first time.
fn analyse(records: &[Record], cores: &[Vec<usize>], tasks: &HashSet<i32>) -> Sharing {
    let cpus = cores.iter().flatten().max().map_or(0, |last| last + 1);
    let mut running: Vec<Option<i32>> = vec![None; cpus];
    let mut sharing = Sharing::default();
    let mut last: Option<u64> = None;
    for record in records {
        match record.event {
            Event::Switch { prev, next, .. } if record.cpu < cpus => {
                if let Some(last) = last.replace(record.time) {
                    let passed = record.time.saturating_sub(last);
                    sharing.watched += passed;
                    if is_sharing(&running, cores, tasks) {
                        sharing.shared += passed;
                    }
                }
                // What it ran so far is known only now, and only of the past.
                debug_assert!(running[record.cpu].is_none_or(|task| task == prev));
                running[record.cpu] = Some(next);
            }
            Event::Migrate { pid, .. } if last.is_some() && tasks.contains(&pid) => {
                sharing.moves += 1;
            }
            _ => {}
        }
    }
    sharing
}

fn is_sharing(running: &[Option<i32>], cores: &[Vec<usize>], tasks: &HashSet<i32>) -> bool {
    let busy = |cpu: &&usize| running[**cpu].is_some_and(|task| tasks.contains(&task));
    let shares = cores
        .iter()
        .any(|core| core.iter().filter(busy).count() > 1);
    shares
        && cores
            .iter()
            .any(|core| core.iter().all(|cpu| running[*cpu] == Some(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idle_watch::event::switch;

    #[test]
    fn sharing_counts_only_beside_an_idle_core() {
        let cores = [vec![0, 1], vec![2, 3]];
        let tasks = HashSet::from([7, 8, 9]);
        let migrate = Record {
            time: 55,
            cpu: 0,
            event: Event::Migrate { pid: 8, target: 1 },
        };
        let records = [
            switch(10, 2, 5, 0),
            switch(10, 3, 5, 0),
            switch(10, 0, 0, 7),
            switch(20, 1, 0, 8), // shares from here
            switch(50, 2, 0, 9), // until here: no core idles any more
            migrate,
            switch(60, 2, 9, 0), // and again
            switch(65, 1, 8, 5), // not one of the threads
            switch(90, 1, 5, 8),
        ];
        let expected = Sharing {
            watched: 80,
            shared: 35,
            moves: 1,
        };
        assert_eq!(analyse(&records, &cores, &tasks), expected);
    }
}
