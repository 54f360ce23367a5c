//! Measures in the kernel how long tasks are ready before they run.

use std::mem::MaybeUninit;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, OpenObject};

use super::Latency;
use super::skeleton::{LatencySkel, LatencySkelBuilder};

/// The BPF programs, which count until this is dropped.
pub struct Probe<'a>(LatencySkel<'a>);

impl<'a> Probe<'a> {
    /// Begins to measure. The programs live in `object`.
    ///
    /// # Errors
    /// If the kernel refuses the programs; mostly because this is not root.
    pub fn start(object: &'a mut MaybeUninit<OpenObject>) -> Result<Probe<'a>> {
        let mut skel = LatencySkelBuilder::default()
            .open(object)
            .and_then(OpenSkel::load)
            .context("load the BPF programs (that takes root and a kernel with BTF)")?;
        skel.attach().context("attach the BPF programs")?;
        Ok(Probe(skel))
    }

    /// Returns what was counted so far, on all CPUs.
    ///
    /// # Errors
    /// If the kernel does not give the counts.
    pub fn read(&self) -> Result<Latency> {
        let key = 0_u32.to_ne_bytes();
        let cpus = self.0.maps.histograms.lookup_percpu(&key, MapFlags::ANY);
        let mut latency = Latency::default();
        for bytes in cpus.context("read the histograms")?.unwrap_or_default() {
            let (counts, _) = bytes.as_chunks();
            let counts = counts.iter().map(|count| u64::from_ne_bytes(*count));
            let half = counts.len() / 2;
            latency.woken.add(counts.clone().take(half));
            latency.requeued.add(counts.skip(half));
        }
        Ok(latency)
    }
}
