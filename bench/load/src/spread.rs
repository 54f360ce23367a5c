//! `spread`: how long until idle CPUs take tasks that are queued on one CPU?
//!
//! Starts hogs that may run on one CPU only, lifts the restriction, and notes when each other CPU
//! first runs a hog. The main thread sleeps meanwhile, because polling would wake the idle CPUs.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde_json::json;

use crate::Finding;
use crate::cpus::CpuSet;
use crate::sys;

/// Measure how fast hogs that were held on one CPU spread over the idle ones.
///
/// Exits with 2 if a CPU got no hog within the limit.
#[derive(clap::Args)]
pub struct Args {
    /// How many hogs [default: one per CPU]
    #[arg(long)]
    count: Option<usize>,
    /// The CPU on which they are held at first [default: the first allowed]
    #[arg(long)]
    from: Option<usize>,
    /// The CPUs that they may use later [default: all allowed]
    #[arg(long)]
    cpus: Option<CpuSet>,
    /// Keep the other CPUs busy until the hogs are released: each then becomes idle while hogs
    /// wait, and has to find one by itself
    #[arg(long)]
    busy: bool,
    /// How long to hold them
    #[arg(long, default_value = "0.5", value_parser = sys::parse_seconds)]
    hold: Duration,
    /// How long to wait until they have spread
    #[arg(long, default_value = "1", value_parser = sys::parse_seconds)]
    limit: Duration,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The state that the hogs and the main thread share.
struct Board {
    stop: AtomicBool,
    released: AtomicBool,
    /// For each CPU, when a hog first ran there after the release; 0: not yet.
    first_run: Vec<AtomicU64>,
    /// CPUs that ran a hog so far.
    covered: AtomicUsize,
}

/// Holds, releases, waits, and reports.
pub fn run(args: &Args) -> Result<Finding> {
    let allowed = match &args.cpus {
        Some(cpus) => cpus.clone(),
        None => sys::affinity(0)?.and(&CpuSet::online()?),
    };
    let Some(from) = args.from.or(allowed.iter().next()) else {
        bail!("no CPU is allowed")
    };
    if !allowed.contains(from) {
        bail!("CPU {from} (--from) is not among the CPUs {allowed}");
    }
    let count = args.count.unwrap_or(allowed.len());
    if !(2..=4096).contains(&count) {
        bail!("{count} hogs cannot spread: give at least 2 CPUs, or --count 2 to 4096");
    }
    let board = Arc::new(Board {
        stop: AtomicBool::new(false),
        released: AtomicBool::new(false),
        first_run: allowed
            .iter()
            .last()
            .map_or(0..1, |last| 0..last + 1)
            .map(|_| AtomicU64::new(0))
            .collect(),
        covered: AtomicUsize::new(0),
    });
    let ready = Arc::new(Barrier::new(count + 1));
    let tids: Arc<Vec<AtomicI32>> = Arc::new((0..count).map(|_| AtomicI32::new(0)).collect());
    let hogs: Vec<_> = (0..count)
        .map(|i| {
            let (board, ready, tids) = (Arc::clone(&board), Arc::clone(&ready), Arc::clone(&tids));
            std::thread::spawn(move || {
                let held = sys::set_affinity(0, &CpuSet::of([from]));
                tids[i].store(nix::unistd::gettid().as_raw(), Ordering::Release);
                ready.wait();
                if held.is_ok() {
                    burn(&board);
                }
                held
            })
        })
        .collect();
    let blockers: Vec<_> = allowed
        .iter()
        .filter(|cpu| args.busy && *cpu != from)
        .map(|cpu| {
            let board = Arc::clone(&board);
            std::thread::spawn(move || block(cpu, &board))
        })
        .collect();
    ready.wait();
    std::thread::sleep(args.hold);
    let release = || {
        let now = sys::now_ns();
        board.released.store(true, Ordering::Release);
        now
    };
    // Free the other CPUs only after all hogs are allowed there.
    let early = (!args.busy).then(release);
    let released = tids
        .iter()
        .try_for_each(|tid| sys::set_affinity(tid.load(Ordering::Acquire), &allowed));
    let released_at = early.unwrap_or_else(release);
    std::thread::sleep(args.limit);
    board.stop.store(true, Ordering::Release);
    for hog in hogs {
        hog.join().map_err(|_| anyhow!("a hog panicked"))??;
    }
    for blocker in blockers {
        blocker
            .join()
            .map_err(|_| anyhow!("a thread that kept a CPU busy panicked"))??;
    }
    released?;
    let mut times: Vec<u64> = board
        .first_run
        .iter()
        .map(|t| t.load(Ordering::Acquire))
        .filter(|t| *t > 0)
        .collect();
    times.sort_unstable();
    Ok(describe(
        &times,
        released_at,
        count.min(allowed.len()),
        args.limit,
    ))
}

/// Keeps a CPU busy until the hogs are released.
fn block(cpu: usize, board: &Board) -> Result<()> {
    sys::set_affinity(0, &CpuSet::of([cpu]))?;
    while !board.released.load(Ordering::Acquire) {
        std::hint::spin_loop();
    }
    Ok(())
}

/// A hog: after the release, notes on which CPU it runs, until the end.
fn burn(board: &Board) {
    while !board.stop.load(Ordering::Acquire) {
        if !board.released.load(Ordering::Acquire) {
            std::hint::spin_loop();
            continue;
        }
        let Some(slot) = board.first_run.get(sys::current_cpu()) else {
            continue;
        };
        if slot.load(Ordering::Relaxed) == 0
            && slot
                .compare_exchange(0, sys::now_ns(), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            board.covered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// `times`: first runs in ascending order; `expected`: how many CPUs can have a hog.
fn describe(times: &[u64], released_at: u64, expected: usize, limit: Duration) -> Finding {
    let ms: Vec<f64> = times
        .iter()
        .map(|t| t.saturating_sub(released_at) as f64 / 1e6)
        .collect();
    let covered = ms.len().min(expected);
    let spread = (covered == expected).then(|| ms[expected - 1]);
    let text = match spread {
        Some(last) => format!("all {expected} CPUs ran a hog {last:.3} ms after the release"),
        None => format!(
            "only {covered} of {expected} CPUs ran a hog within {:.3} s of the release",
            limit.as_secs_f64()
        ),
    };
    let json =
        json!({ "cpus": expected, "covered": covered, "spread_ms": spread, "first_run_ms": ms });
    Finding {
        text,
        json,
        holds: spread.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cpu_decides() {
        let limit = Duration::from_secs(1);
        let finding = describe(&[1_000_000, 3_000_000, 9_000_000], 1_000_000, 3, limit);
        assert!(finding.holds);
        assert_eq!(finding.json["spread_ms"], 8.0);
        let finding = describe(&[1_000_000], 1_000_000, 3, limit);
        assert!(!finding.holds);
        assert!(finding.json["spread_ms"].is_null());
        assert!(finding.text.contains("1 of 3"));
    }
}
