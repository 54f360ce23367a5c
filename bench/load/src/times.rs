//! Times: the window in which to measure, random think times, and histograms of latencies, which
//! are in nanoseconds and printed in microseconds.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::sys;

/// The time in which events are measured, on the clock of [`sys::now_ns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// When measuring begins.
    pub from: u64,
    /// When measuring, and the threads, end.
    pub until: u64,
}

impl Window {
    /// A window of some length that begins when the warm-up, which begins now, is over.
    pub fn after(warmup: Duration, length: Duration) -> Self {
        let from = sys::now_ns() + warmup.as_nanos() as u64;
        Self {
            from,
            until: from + length.as_nanos() as u64,
        }
    }
}

/// The options of every measurement that has a length.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Length {
    /// How long to measure
    #[arg(long, default_value = "5", value_parser = sys::parse_seconds)]
    pub seconds: Duration,
    /// How long to run before measuring
    #[arg(long, default_value = "0.3", value_parser = sys::parse_seconds)]
    pub warmup: Duration,
}

impl Length {
    /// The window of a run that begins now.
    pub fn window(&self) -> Window {
        Window::after(self.warmup, self.seconds)
    }
}

/// Draws from the exponential distribution with a mean: the times between events that happen
/// independently of each other.
pub fn exponential(random: &mut fastrand::Rng, mean: f64) -> f64 {
    // The random number is below 1, so that the logarithm is finite.
    -mean * (1.0 - random.f64()).ln()
}

/// Makes a histogram from a nanosecond to a minute, with three digits. Longer times need
/// `saturating_record`.
pub fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).context("make a histogram")
}

/// Returns `p50`, `p90`, `p99`, `p99_9` and `max` in microseconds, and `curve`: pairs of a
/// percentage and the time within which so many were done.
pub fn percentiles(histogram: &Histogram<u64>) -> Value {
    let [p50, p90, p99, p99_9, max] = microseconds(histogram);
    json!({
        "p50": p50, "p90": p90, "p99": p99, "p99_9": p99_9, "max": max, "curve": curve(histogram),
    })
}

/// Returns only percentiles above which there are values: the 99.9th of a hundred values is just
/// their maximum.
fn curve(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    const PERCENT: [f64; 11] = [
        50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.8, 99.9, 99.95, 99.99,
    ];
    PERCENT
        .into_iter()
        // Rounded: 100.0 - 99.9 is a little less than 0.1.
        .filter(|percent| (histogram.len() as f64 * (100.0 - percent)).round() >= 100.0)
        .map(|percent| (percent, histogram.value_at_percentile(percent) as f64 / 1e3))
        .collect()
}

/// Formats the percentiles for people.
pub fn describe(histogram: &Histogram<u64>) -> String {
    let [p50, p90, p99, p99_9, max] = microseconds(histogram);
    format!("p50 {p50:.1}  p90 {p90:.1}  p99 {p99:.1}  p99.9 {p99_9:.1}  max {max:.1}")
}

fn microseconds(histogram: &Histogram<u64>) -> [f64; 5] {
    let at = |quantile: f64| histogram.value_at_quantile(quantile);
    [at(0.5), at(0.9), at(0.99), at(0.999), histogram.max()].map(|ns| ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_times_have_the_mean_and_the_median() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut drawn: Vec<f64> = (0..100_000)
            .map(|_| exponential(&mut random, 200.0))
            .collect();
        drawn.sort_by(f64::total_cmp);
        assert!(drawn[0] >= 0.0);
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        assert!((mean - 200.0).abs() < 3.0, "{mean}");
        let median = drawn[drawn.len() / 2];
        assert!((median - 200.0 * 2_f64.ln()).abs() < 3.0, "{median}");
    }

    #[test]
    fn a_window_follows_the_warm_up() {
        let window = Window::after(Duration::from_secs(1), Duration::from_secs(2));
        assert!(window.from > sys::now_ns());
        assert_eq!(window.until - window.from, 2_000_000_000);
    }

    #[test]
    fn a_curve_ends_where_the_values_do() -> Result<()> {
        let mut histogram = histogram()?;
        for value in 1..=1000 {
            histogram.record(value * 1000)?;
        }
        let curve = curve(&histogram);
        assert_eq!(curve.last().map(|(percent, _)| *percent), Some(99.9));
        for (percent, us) in curve {
            assert!((us / percent - 10.0).abs() <= 0.02, "{percent} %: {us}");
        }
        Ok(())
    }
}
