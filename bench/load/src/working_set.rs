//! `working-set`: threads that each update memory of their own, nap, and update it again.
//!
//! The memory of each thread is its working set. A thread that wakes on the core where it napped
//! finds its lines in that core's caches; anywhere else it fetches them again. So the load shows
//! whether a scheduler moves a task for longer than the wait that the move saves. Lines are updated
//! in an order that no prefetcher follows, as a hash table's are. A pass lasts from the end of the
//! nap, when the thread is due to run, until all lines are updated.

use std::hint::black_box;
use std::thread;

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::Finding;
use crate::counters::LINE;
use crate::cpus;
use crate::sys;
use crate::times::{self, Length, Window};

/// Measure how fast threads update memory of their own between naps, and how often they change CPU.
#[derive(clap::Args)]
pub struct Args {
    /// Threads [default: one per CPU]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    threads: Option<u32>,
    /// Size of each thread's memory in KiB
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    kib: u32,
    /// How long a thread naps between two passes, in microseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    nap_us: u64,
    #[command(flatten)]
    length: Length,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The measurements of one thread.
struct Passes {
    /// From the end of the nap until all lines are updated, ns.
    times: Histogram<u64>,
    /// Passes that began on another CPU than the last one.
    moved: u64,
}

/// Runs the threads and reports passes.
pub fn run(args: &Args) -> Result<Finding> {
    let threads = match args.threads {
        Some(threads) => threads as usize,
        None => cpus::usable(),
    };
    let (lines, nap) = (
        args.kib as usize * 1024 / size_of::<[u64; LINE]>(),
        args.nap_us * 1000,
    );
    let window = args.length.window();
    let workers: Vec<_> = (0..threads)
        .map(|_| thread::spawn(move || measure(lines, nap, window)))
        .collect();
    let mut all = Passes {
        times: times::histogram()?,
        moved: 0,
    };
    for worker in workers {
        let passes = worker.join().map_err(|_| anyhow!("a thread panicked"))??;
        all.times += &passes.times;
        all.moved += passes.moved;
    }

    let count = all.times.len();
    let per_s = count as f64 / args.length.seconds.as_secs_f64();
    let moved = 100.0 * all.moved as f64 / count.max(1) as f64;
    Ok(Finding {
        text: format!(
            "{per_s:.1} passes/s, {moved:.1} % of them on another CPU than the one before\npass us: {}",
            times::describe(&all.times)
        ),
        json: json!({
            "passes_per_s": per_s, "moved_percent": moved,
            "pass_us": times::percentiles(&all.times),
        }),
        holds: count > 0,
    })
}

/// One thread: fills its memory, then updates it and naps until the window ends.
fn measure(lines: usize, nap: u64, window: Window) -> Result<Passes> {
    sys::ask_for_exact_timers()?;
    let mut memory = vec![1_u64; lines * LINE];
    let mut passes = Passes {
        times: times::histogram()?,
        moved: 0,
    };
    let mut cpu = sys::current_cpu();
    loop {
        let due = sys::now_ns() + nap;
        if due >= window.until {
            return Ok(passes);
        }
        sys::sleep_until(due)?;
        let before = std::mem::replace(&mut cpu, sys::current_cpu());
        update(black_box(&mut memory));
        if due >= window.from {
            let took = sys::now_ns().saturating_sub(due);
            passes.times.saturating_record(took.max(1));
            passes.moved += u64::from(cpu != before);
        }
    }
}

/// Adds one to a word of each line, in an order that looks random.
fn update(memory: &mut [u64]) {
    let lines = memory.len() / LINE;
    let mask = lines.next_power_of_two() - 1;
    let mut line = 0;
    for _ in 0..=mask {
        // A linear congruential generator of full period: it visits each number up to the mask once.
        line = (line * 1_664_525 + 1_013_904_223) & mask;
        if line < lines {
            memory[line * LINE] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pass_updates_each_line_once() {
        for lines in [1, 2, 3, 16, 1000] {
            let mut memory = vec![1; lines * LINE];
            update(&mut memory);
            assert!(memory.chunks(LINE).all(|line| line[0] == 2), "{lines}");
            assert!(memory.iter().sum::<u64>() as usize == lines * (LINE + 1));
        }
    }

    #[test]
    fn a_pass_lasts_from_the_end_of_the_nap() -> Result<()> {
        let window = Window::after(Duration::ZERO, Duration::from_millis(200));
        let passes = measure(64, 1_000_000, window)?;
        assert!(passes.times.len() > 2);
        assert!(passes.moved <= passes.times.len());
        Ok(())
    }
}
