//! How long tasks were ready before they ran: histograms and their percentiles.
//!
//! [`probe`] measures them in the kernel, with a BPF program that lives as long as it does.

pub mod probe;
mod skeleton;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Slots for each power of two, as in `bpf/latency.bpf.c`.
const SUBSLOT_BITS: u16 = 3;
const SUBSLOTS: u16 = 1 << SUBSLOT_BITS;

/// Times in nanoseconds, counted in slots of which each ends at most an eighth above its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram(BTreeMap<u16, u64>);

/// How long tasks were ready before they ran, since the measurement began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Tasks that woke, or were new.
    pub woken: Histogram,
    /// Tasks that were preempted, or whose slice ended.
    pub requeued: Histogram,
}

impl Histogram {
    /// Keeps the slots in which there are times.
    fn of(counts: &[u64]) -> Histogram {
        let slots = (0..).zip(counts.iter().copied());
        Histogram(slots.filter(|(_, count)| *count > 0).collect())
    }

    /// Returns how many times were counted.
    fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns what was counted since an earlier state of the same histogram.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let new = self.0.iter().map(|(slot, count)| {
            let before = earlier.0.get(slot).copied().unwrap_or(0);
            // A count that is smaller than before began anew.
            (*slot, count.checked_sub(before).unwrap_or(*count))
        });
        Histogram(new.filter(|(_, count)| *count > 0).collect())
    }

    /// Returns the time, in nanoseconds, that this part of all times did not exceed; the end of its
    /// slot, so at most an eighth too much. None if nothing was counted.
    pub fn percentile(&self, part: f64) -> Option<f64> {
        let wanted = (part * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        let slot = self.0.iter().find_map(|(slot, count)| {
            seen += count;
            (seen >= wanted.max(1)).then_some(*slot)
        })?;
        Some(end_of(slot))
    }
}

/// Returns the time at which a slot ends, in nanoseconds.
fn end_of(slot: u16) -> f64 {
    let next = slot + 1;
    let (octave, within) = (next / SUBSLOTS, next % SUBSLOTS);
    match octave {
        0 => f64::from(next),
        _ => f64::from(SUBSLOTS + within) * 2_f64.powi(i32::from(octave) - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(counts: &[(usize, u64)]) -> Histogram {
        let mut slots = vec![0; 256];
        for (slot, count) in counts {
            slots[*slot] = *count;
        }
        Histogram::of(&slots)
    }

    #[test]
    fn slots_end_where_the_next_one_begins() {
        // The slots of 0 to 7 ns, 8 to 15 ns, 16 and 17 ns, and 512 to 575 ns.
        let ends = [
            (0, 1.0),
            (7, 8.0),
            (8, 9.0),
            (15, 16.0),
            (16, 18.0),
            (56, 576.0),
        ];
        for (slot, end) in ends {
            assert_eq!(end_of(slot), end, "slot {slot}");
        }
    }

    #[test]
    fn percentiles_are_of_what_is_new() {
        let before = histogram(&[(8, 50), (40, 1)]);
        let now = histogram(&[(8, 149), (40, 2)]);
        let new = now.since(&before);
        assert_eq!(new.percentile(0.5), Some(9.0));
        assert_eq!(new.percentile(0.99), Some(9.0));
        assert_eq!(new.percentile(0.999), Some(end_of(40)));
        assert_eq!(now.since(&now).percentile(0.5), None);
        // A measurement that began anew.
        assert_eq!(before.since(&now).percentile(0.5), Some(9.0));
    }
}
