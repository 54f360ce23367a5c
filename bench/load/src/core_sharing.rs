//! `core-sharing`: do busy threads share cores while whole cores are idle?
//!
//! Runs fewer threads than there are CPUs. Each computes and naps. The kernel's trace tells for
//! what share of the time two threads ran on one core while another core was idle, and how often
//! threads migrated.
//!
//! The threads start packed, two on a core. Otherwise a scheduler that never migrates would look
//! good whenever the threads happened to be forked well apart.

use std::collections::{HashMap, HashSet};
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

/// Run threads that compute and nap, and measure how they are spread over cores.
///
/// Needs root and tracefs, and CPUs with SMT: without SMT no core is shared.
#[derive(clap::Args)]
pub struct Args {
    /// How many threads
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: u32,
    /// How long a thread computes at a time, in microseconds, give or take a half
    #[arg(long, default_value_t = 4000)]
    burst_us: u64,
    /// How long a thread sleeps in between
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

/// The result of the analysis, in nanoseconds and migrations.
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
    let ended_on = thread::scope(|scope| {
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
        let ended_on = record(&recorder, args.seconds).and_then(|()| cpus_of(&tasks));
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        ended_on
    })?;
    let trace = recorder.collect()?;
    if trace.complete_until.is_some() {
        bail!("the trace did not fit: watch for a shorter time");
    }
    let sharing = analyse(&trace.records, &cores, &ended_on);
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

/// Records for a time, once the threads have had time to leave where they were packed.
fn record(recorder: &Recorder, time: Duration) -> Result<()> {
    // The start is packed on purpose; only what follows is measured.
    thread::sleep(time / 4);
    recorder.start()?;
    thread::sleep(time);
    recorder.stop()
}

/// A thread: computes and sleeps in turn, for random times, until the end.
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

/// Returns the CPU of each thread of this program that does not sleep.
fn cpus_of(threads: &Mutex<HashSet<i32>>) -> Result<HashMap<i32, Option<usize>>> {
    let threads = threads.lock().map_err(|_| anyhow!("a thread panicked"))?;
    let cpu_of = |thread: &i32| Ok((*thread, sys::cpu_of_running(*thread)?));
    threads.iter().map(cpu_of).collect()
}

/// Returns the thread that ran on each CPU before the CPU's first switch: the one that it switched
/// from. A CPU that never switched ran the thread found there at the end, because a CPU hog may run
/// without a switch throughout, or no thread. A thread found there that has switched elsewhere is
/// ignored: it came after the trace had ended, and would count as sharing a core for the whole run.
fn running_at_first(
    records: &[Record],
    cpus: usize,
    ended_on: &HashMap<i32, Option<usize>>,
) -> Vec<i32> {
    let mut running = vec![None; cpus];
    let mut switched = HashSet::new();
    for record in records {
        let Event::Switch { prev, next, .. } = record.event else {
            continue;
        };
        switched.extend([prev, next]);
        if let Some(first @ None) = running.get_mut(record.cpu) {
            *first = Some(prev);
        }
    }
    for (thread, cpu) in ended_on {
        if !switched.contains(thread)
            && let Some(silent @ None) = cpu.and_then(|cpu| running.get_mut(cpu))
        {
            *silent = Some(*thread);
        }
    }
    running.iter().map(|task| task.unwrap_or(0)).collect()
}

/// Follows which thread runs on which CPU.
fn analyse(
    records: &[Record],
    cores: &[Vec<usize>],
    ended_on: &HashMap<i32, Option<usize>>,
) -> Sharing {
    let cpus = cores.iter().flatten().max().map_or(0, |last| last + 1);
    let mut running = running_at_first(records, cpus, ended_on);
    let mut sharing = Sharing::default();
    let mut last = records.first().map_or(0, |record| record.time);
    for record in records {
        let passed = record.time.saturating_sub(last);
        last = record.time;
        sharing.watched += passed;
        if is_sharing(&running, cores, ended_on) {
            sharing.shared += passed;
        }
        match record.event {
            Event::Switch { next, .. } if record.cpu < cpus => running[record.cpu] = next,
            Event::Migrate { pid, .. } if ended_on.contains_key(&pid) => sharing.moves += 1,
            _ => {}
        }
    }
    sharing
}

/// Do two of the threads run on one core while another core is idle?
fn is_sharing(
    running: &[i32],
    cores: &[Vec<usize>],
    threads: &HashMap<i32, Option<usize>>,
) -> bool {
    let is_busy = |cpu: &&usize| threads.contains_key(&running[**cpu]);
    let is_shared = |core: &Vec<usize>| core.iter().filter(is_busy).count() > 1;
    let is_idle = |core: &Vec<usize>| core.iter().all(|cpu| running[*cpu] == 0);
    cores.iter().any(is_shared) && cores.iter().any(is_idle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idle_watch::event::switch;

    #[test]
    fn sharing_counts_only_beside_an_idle_core() {
        let cores = [vec![0, 1], vec![2, 3]];
        let threads = HashMap::from([7, 8, 9].map(|thread| (thread, None)));
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
        assert_eq!(analyse(&records, &cores, &threads), expected);
    }

    #[test]
    fn a_thread_that_never_switches_is_seen() {
        let cores = [vec![0, 1], vec![2, 3]];
        // 7 computes on CPU 0 all the time, 8 on CPU 1 until it moves to CPU 2; 9 sleeps.
        let threads = HashMap::from([(7, Some(0)), (8, Some(2)), (9, None)]);
        let records = [
            switch(10, 3, 0, 5),
            switch(20, 3, 5, 0),
            switch(60, 1, 8, 0),
            switch(60, 2, 0, 8),
            switch(100, 3, 0, 5),
        ];
        let expected = Sharing {
            watched: 90,
            shared: 40,
            moves: 0,
        };
        assert_eq!(analyse(&records, &cores, &threads), expected);
    }

    #[test]
    fn a_thread_that_moves_after_the_trace_was_not_there_before() {
        let cores = [vec![0, 1], vec![2, 3], vec![4, 5]];
        // 8 is on CPU 2 throughout; after the trace has ended it is found on CPU 1, beside 7.
        let threads = HashMap::from([(7, Some(0)), (8, Some(1))]);
        let records = [
            switch(10, 2, 0, 8),
            switch(60, 4, 5, 0),
            switch(90, 4, 0, 5),
        ];
        let expected = Sharing {
            watched: 80,
            ..Sharing::default()
        };
        assert_eq!(analyse(&records, &cores, &threads), expected);
    }

    #[test]
    fn a_thread_that_computes_is_found_on_its_cpu() -> Result<()> {
        let thread = nix::unistd::gettid().as_raw();
        let cpu = sys::cpu_of_running(thread)?.context("it runs, but is told to sleep")?;
        assert!(sys::affinity(thread)?.contains(cpu));
        Ok(())
    }
}
