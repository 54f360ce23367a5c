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
    let us = |q: f64| histogram.value_at_quantile(q) as f64 / 1e3;
    json!({ "p50": us(0.5), "p90": us(0.9), "p99": us(0.99), "p99_9": us(0.999), "max": histogram.max() as f64 / 1e3 })
}

/// The same for people.
pub fn describe(histogram: &Histogram<u64>) -> String {
    let us = |q: f64| histogram.value_at_quantile(q) as f64 / 1e3;
    format!(
        "p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1}",
        us(0.5),
        us(0.9),
        us(0.99),
        us(0.999),
        histogram.max() as f64 / 1e3
    )
}
