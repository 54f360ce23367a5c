//! `even-out`: how long until busy CPUs give some of their work to CPUs that have less?
//!
//! Restricts hogs to some of the CPUs, lifts the restriction, and measures when those CPUs have no
//! more than their part of the hogs. Idle CPUs take the first hogs at once; the rest moves only
//! when busy CPUs balance.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde_json::json;

use crate::Finding;
use crate::cpus::CpuSet;
use crate::sys;

/// Measure how long hogs take to even out over all CPUs once they are allowed to.
///
/// Exits with 2 if they have not evened out within the limit.
#[derive(clap::Args)]
pub struct Args {
    /// The CPUs on which they are held at first, like 0-3
    #[arg(long)]
    from: CpuSet,
    /// How many hogs
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=4096))]
    count: u32,
    /// How long to hold them
    #[arg(long, default_value = "0.2", value_parser = sys::parse_seconds)]
    hold: Duration,
    /// How long to wait until they are even
    #[arg(long, default_value = "0.5", value_parser = sys::parse_seconds)]
    limit: Duration,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The time at which a hog left the CPUs where it was held, or came back to them.
type Move = (u64, bool);

/// Holds, releases, waits, and reports.
pub fn run(args: &Args) -> Result<Finding> {
    let allowed = sys::affinity(0)?.and(&CpuSet::online()?);
    let from = args.from.and(&allowed);
    if from.is_empty() || from.len() == allowed.len() {
        bail!("--from must be some of the CPUs {allowed}, and not all");
    }
    let count = args.count as usize;
    let ready = Barrier::new(count + 1);
    let tids: Vec<AtomicI32> = (0..count).map(|_| AtomicI32::new(0)).collect();
    let stop = AtomicBool::new(false);
    let (released_at, moves) = thread::scope(|scope| -> Result<(u64, Vec<Move>)> {
        let (from, stop, ready) = (&from, &stop, &ready);
        let start = |tid| scope.spawn(move || hog(tid, from, stop, ready));
        let hogs: Vec<_> = tids.iter().map(start).collect();
        ready.wait();
        thread::sleep(args.hold);
        let now = sys::now_ns();
        let released = tids
            .iter()
            .try_for_each(|tid| sys::set_affinity(tid.load(Ordering::Acquire), &allowed));
        thread::sleep(args.limit);
        stop.store(true, Ordering::Release);
        let mut moves = Vec::new();
        for hog in hogs {
            moves.extend(hog.join().map_err(|_| anyhow!("a hog panicked"))??);
        }
        moves.sort_unstable();
        released.map(|()| (now, moves))
    })?;
    let part = (count * from.len()).div_ceil(allowed.len());
    let even_at = even_at(&moves, count, part);
    Ok(describe(&moves, even_at, released_at, args.limit))
}

/// Burns CPU, and notes when this hog leaves the first CPUs or comes back.
fn hog(tid: &AtomicI32, from: &CpuSet, stop: &AtomicBool, ready: &Barrier) -> Result<Vec<Move>> {
    let held = sys::set_affinity(0, from);
    tid.store(nix::unistd::gettid().as_raw(), Ordering::Release);
    ready.wait();
    held?;
    let mut moves = Vec::new();
    let mut was_there = true;
    while !stop.load(Ordering::Acquire) {
        let is_there = from.contains(sys::current_cpu());
        if is_there != was_there {
            moves.push((sys::now_ns(), was_there));
            was_there = is_there;
        }
    }
    Ok(moves)
}

/// The first time at which no more than `part` of the hogs were left where they were held.
fn even_at(moves: &[Move], count: usize, part: usize) -> Option<u64> {
    let mut held = count;
    for (time, left) in moves {
        held = if *left { held - 1 } else { held + 1 };
        if held <= part {
            return Some(*time);
        }
    }
    None
}

fn describe(moves: &[Move], even_at: Option<u64>, released_at: u64, limit: Duration) -> Finding {
    let since = |time: u64| time.saturating_sub(released_at) as f64 / 1e6;
    let even = even_at.map(since);
    let left: Vec<f64> = moves
        .iter()
        .filter(|(_, left)| *left)
        .map(|(time, _)| since(*time))
        .collect();
    let text = match even {
        Some(ms) => format!("even {ms:.3} ms after the release"),
        None => format!(
            "not even within {:.3} s of the release",
            limit.as_secs_f64()
        ),
    };
    Finding {
        text,
        json: json!({ "even_ms": even, "left_ms": left, "came_back": moves.len() - left.len() }),
        holds: even.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_moment_at_which_no_more_than_their_part_is_left_counts() {
        let moves = [(10, true), (20, false), (30, true), (40, true), (50, true)];
        assert_eq!(even_at(&moves, 8, 6), Some(40));
        assert_eq!(even_at(&moves, 8, 3), None);
    }

    #[test]
    fn never_is_told_as_such() {
        let limit = Duration::from_secs(1);
        let never = describe(&[], None, 5, limit);
        assert!(
            !never.holds && never.json["even_ms"].is_null(),
            "{}",
            never.text
        );
        let late = describe(&[(3_000_000, true)], Some(3_000_000), 1_000_000, limit);
        assert!(late.holds && late.json["even_ms"] == 2.0, "{}", late.text);
    }
}
