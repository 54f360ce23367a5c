//! `audio`: is every buffer of a sound server filled in time?
//!
//! A thread wakes each period, as a sound card's interrupt wakes a sound server, and fills a
//! buffer: a fixed number of operations. If the thread is not done before the next period begins,
//! people hear a click. Two latencies are measured from the time at which the timer was set: until
//! the thread runs, as cyclictest does, and until it is done.

use std::thread;

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::Finding;
use crate::beside::{self, Beside, Done};
use crate::deadlines::{Deadlines, Kept};
use crate::sys;
use crate::times::{self, Length};

/// Measure how late a sound server's thread wakes and is done, and how many buffers are late.
#[derive(clap::Args)]
pub struct Args {
    /// The period, in microseconds: the default is 128 samples of 48,000 a second
    #[arg(long, default_value_t = 2667, value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    period_us: u64,
    /// Operations (dependent multiplications) to fill a buffer
    #[arg(long, default_value_t = 16_000)]
    operations: u64,
    /// Ask the kernel for a slice of this length for the thread, in microseconds; 0: do not ask
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=100_000))]
    slice_us: u64,
    #[command(flatten)]
    beside: beside::Args,
    #[command(flatten)]
    length: Length,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The measurements of the thread, in nanoseconds.
struct Played {
    wakeup: Histogram<u64>,
    done: Histogram<u64>,
    kept: Kept,
}

/// Runs the thread and reports latencies and late buffers.
pub fn run(args: &Args) -> Result<Finding> {
    let beside = Beside::start(&args.beside)?;
    let window = args.length.window();
    let period = args.period_us * 1000;
    let deadlines = Deadlines::new(sys::now_ns() + period, period, window);
    let (operations, slice) = (args.operations, args.slice_us * 1000);
    let server = thread::spawn(move || play(deadlines, operations, slice));
    let done = beside.measure(window)?;
    let played = server
        .join()
        .map_err(|_| anyhow!("the sound server's thread panicked"))??;
    Ok(describe(&played, &done))
}

/// The sound server's thread, which asks for a slice in nanoseconds unless that is 0.
fn play(mut deadlines: Deadlines, operations: u64, slice: u64) -> Result<Played> {
    sys::ask_for_exact_timers()?;
    if slice > 0 {
        sys::ask_for_slice(slice)?;
    }
    let (mut wakeup, mut done) = (times::histogram()?, times::histogram()?);
    while let Some(due) = deadlines.due() {
        sys::sleep_until(due)?;
        let running_at = sys::now_ns();
        sys::work(operations);
        let done_at = sys::now_ns();
        if deadlines.finish(done_at, done_at) {
            wakeup.saturating_record(running_at.saturating_sub(due).max(1));
            done.saturating_record(done_at.saturating_sub(due).max(1));
        }
    }
    Ok(Played {
        wakeup,
        done,
        kept: deadlines.kept(),
    })
}

fn describe(played: &Played, beside: &Done) -> Finding {
    let Kept { met, missed } = played.kept;
    let in_time = played.kept.percent();
    Finding {
        text: format!(
            "wakeup us: {}\ndone us:   {}\n{} buffers were due: {met} in time, {missed} late ({:.2} %){}",
            times::describe(&played.wakeup),
            times::describe(&played.done),
            played.kept.total(),
            100.0 - in_time.unwrap_or(0.0),
            beside.describe()
        ),
        json: json!({
            "buffers": played.kept.total(), "late": missed, "in_time_percent": in_time,
            "wakeup_us": times::percentiles(&played.wakeup),
            "done_us": times::percentiles(&played.done), "beside": beside.json(),
        }),
        holds: !played.done.is_empty() && beside.has_progressed(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::times::Window;

    #[test]
    fn each_buffer_is_done_after_its_wakeup() -> Result<()> {
        // Long enough that some buffers are in time on a host that is busy with other work.
        let window = Window::after(Duration::ZERO, Duration::from_millis(500));
        let played = play(Deadlines::new(window.from, 50_000_000, window), 1000, 0)?;
        assert!(played.wakeup.len() > 2);
        assert_eq!(played.wakeup.len(), played.done.len());
        assert!(played.wakeup.min() <= played.done.min());
        assert_eq!(played.kept.total(), 10);
        Ok(())
    }
}
