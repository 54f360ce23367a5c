//! Latencies of many requests: histograms in nanoseconds, told in microseconds.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// From a nanosecond to a minute, three digits; record what may be longer with `saturating_record`.
pub fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).context("make a histogram")
}

/// In microseconds: `p50`, `p90`, `p99`, `p99_9` and `max`.
pub fn percentiles(histogram: &Histogram<u64>) -> Value {
    let [p50, p90, p99, p99_9, max] = microseconds(histogram);
    json!({ "p50": p50, "p90": p90, "p99": p99, "p99_9": p99_9, "max": max })
}

/// The same for people.
pub fn describe(histogram: &Histogram<u64>) -> String {
    let [p50, p90, p99, p99_9, max] = microseconds(histogram);
    format!("p50 {p50:.1}  p90 {p90:.1}  p99 {p99:.1}  p99.9 {p99_9:.1}  max {max:.1}")
}

fn microseconds(histogram: &Histogram<u64>) -> [f64; 5] {
    let at = |quantile: f64| histogram.value_at_quantile(quantile);
    [at(0.5), at(0.9), at(0.99), at(0.999), histogram.max()].map(|ns| ns as f64 / 1e3)
}
