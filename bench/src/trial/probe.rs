//! Probes: threads of the caller's policy that sleep for about a millisecond at a time, and note
//! how much later than asked for they run. They feel what a task that sleeps and wakes feels beside the
//! load, and take a few thousandths of a CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sys::prctl;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

/// Two, because they are mostly on different CPUs, although nothing pins them; no more, because they
/// shall be no load.
const THREADS: u64 = 2;

/// Each sleep is a random time between these. A fixed time would keep step with the tick.
const SLEEP_NS: std::ops::Range<u64> = 500_000..1_500_000;

/// Of fewer wakeups, the 99th percentile would rest on fewer than two that were later.
const ENOUGH: usize = 200;

/// The probes of a turn.
pub struct Probes {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Vec<u64>>>>,
}

/// How late the wakeups of a turn were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lateness {
    /// Median in microseconds.
    pub p50: f64,
    /// 99th percentile in microseconds.
    pub p99: f64,
}

impl Probes {
    /// Starts the threads, which measure until [`Probes::end`].
    pub fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let threads = (0..THREADS).map(|seed| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || probe(seed, &is_over))
        });
        Self {
            threads: threads.collect(),
            is_over,
        }
    }

    /// Ends the threads. None if they woke so rarely that there are no percentiles.
    ///
    /// # Errors
    /// If the kernel refuses a clock or a timer.
    pub fn end(mut self) -> Result<Option<Lateness>> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut late = Vec::new();
        for thread in self.threads.drain(..) {
            let joined = thread.join().map_err(|_| anyhow!("a probe panicked"))?;
            late.extend(joined.context("a probe of the wakeup latency")?);
        }
        Ok(Lateness::of(late))
    }
}

impl Drop for Probes {
    /// Lets the threads end by themselves when a turn fails.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Lateness {
    /// Returns the percentiles of wakeups in nanoseconds, if there are enough.
    fn of(mut late: Vec<u64>) -> Option<Self> {
        late.sort_unstable();
        let at = |percent: usize| late[late.len() * percent / 100] as f64 / 1e3;
        (late.len() >= ENOUGH).then(|| Self {
            p50: at(50),
            p99: at(99),
        })
    }
}

/// Sleeps and wakes until it is over. Returns how late each wakeup was, in nanoseconds.
fn probe(seed: u64, is_over: &AtomicBool) -> Result<Vec<u64>> {
    // The kernel may otherwise delay a timer by 50 us, to join it with others.
    prctl::set_timerslack(1).context("ask for exact timers")?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut late = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let sleep = Duration::from_nanos(random.u64(SLEEP_NS));
        let due = now()? + sleep;
        let flags = ClockNanosleepFlags::TIMER_ABSTIME;
        clock_nanosleep(ClockId::CLOCK_MONOTONIC, flags, &due.into()).context("sleep")?;
        late.push(now()?.saturating_sub(due).as_nanos() as u64);
    }
    Ok(late)
}

fn now() -> Result<Duration> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).context("read the clock")?;
    Ok(time.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_wake_about_once_a_millisecond() {
        let probes = Probes::start();
        thread::sleep(Duration::from_secs(1));
        let lateness = probes.end().unwrap().unwrap();
        assert!(
            lateness.p50 > 0.0 && lateness.p50 <= lateness.p99,
            "{lateness:?}"
        );
    }

    #[test]
    fn percentiles_are_of_the_sorted_wakeups() {
        let late: Vec<u64> = (0..1000).rev().map(|us| us * 1000).collect();
        let lateness = Lateness::of(late).unwrap();
        assert_eq!((lateness.p50, lateness.p99), (500.0, 990.0));
        assert_eq!(Lateness::of(vec![1; ENOUGH - 1]), None);
    }
}
