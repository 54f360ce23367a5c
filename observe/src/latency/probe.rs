//! Measures in the kernel how long tasks are ready before they run: on a busy machine, of a part of
//! all waits, so that it costs little there too.

use std::mem::MaybeUninit;
use std::time::Instant;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, OpenObject, set_print};

use super::skeleton::{LatencySkel, LatencySkelBuilder};
use super::{Histogram, Latency};

/// About how many waits are measured in a second, of however many there are. A percentile of 1,000
/// is as good as the screen can show.
const WANTED_PER_SECOND: f64 = 1_000.0;

/// One wait in so many is measured at least. The BPF side has 16 bits for it.
const MOST_LEFT_OUT: u32 = 1 << 16;

/// The BPF program, which counts until this is dropped.
pub struct Probe<'a> {
    skel: LatencySkel<'a>,
    /// How many waits had been counted at the last reading, and when that was.
    last: (u64, Instant),
}

impl<'a> Probe<'a> {
    /// Begins to measure. The program lives in `object`.
    ///
    /// # Errors
    /// If the kernel refuses the program; mostly because this is not root.
    pub fn start(object: &'a mut MaybeUninit<OpenObject>) -> Result<Probe<'a>> {
        // libbpf would write its warnings across the screen.
        set_print(None);
        let mut skel = LatencySkelBuilder::default()
            .open(object)
            .and_then(OpenSkel::load)
            .context("load the BPF program (that takes root and a kernel with BTF)")?;
        skel.attach().context("attach the BPF program")?;
        let last = (0, Instant::now());
        Ok(Probe { skel, last })
    }

    /// Returns what was counted so far, on all CPUs. Chooses which part of the waits is counted from
    /// now on.
    ///
    /// # Errors
    /// If the kernel does not give the counts.
    pub fn read(&mut self) -> Result<Latency> {
        let key = 0_u32.to_ne_bytes();
        let cpus = self.skel.maps.histograms.lookup_percpu(&key, MapFlags::ANY);
        let mut counts = Vec::new();
        for bytes in cpus.context("read the histograms")?.unwrap_or_default() {
            let (added, _) = bytes.as_chunks();
            counts.resize(added.len(), 0);
            for (count, bytes) in counts.iter_mut().zip(added) {
                *count += u64::from_ne_bytes(*bytes);
            }
        }
        let (woken, requeued) = counts.split_at(counts.len() / 2);
        let latency = Latency {
            woken: Histogram::of(woken),
            requeued: Histogram::of(requeued),
        };
        let (count, now) = (
            latency.woken.count() + latency.requeued.count(),
            Instant::now(),
        );
        let (before, then) = std::mem::replace(&mut self.last, (count, now));
        let bss = self.skel.maps.bss_data.as_mut();
        let mask = &mut bss.context("the BPF program has no variables")?.mask;
        *mask = next_mask(*mask, count - before, (now - then).as_secs_f64());
        Ok(latency)
    }
}

/// Returns the mask with which about [`WANTED_PER_SECOND`] waits will be measured, if with this mask
/// so many were measured in so many seconds.
fn next_mask(mask: u32, measured: u64, seconds: f64) -> u32 {
    let all_per_second = f64::from(mask + 1) * measured as f64 / seconds.max(0.01);
    let one_of = (all_per_second / WANTED_PER_SECOND).clamp(1.0, f64::from(MOST_LEFT_OUT));
    (one_of.ceil() as u32).next_power_of_two() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_leaves_waits_out() {
        assert_eq!(next_mask(0, 0, 1.0), 0);
        assert_eq!(next_mask(0, 1_000, 1.0), 0);
        assert_eq!(next_mask(0, 24_000, 1.0), 31);
        assert_eq!(next_mask(31, 24_000 / 32, 1.0), 31);
        assert_eq!(next_mask(31, 24_000 / 32, 2.0), 15);
        assert_eq!(next_mask(31, 3, 1.0), 0);
        assert_eq!(next_mask(0, u64::MAX / 2, 1.0), MOST_LEFT_OUT - 1);
    }
}
