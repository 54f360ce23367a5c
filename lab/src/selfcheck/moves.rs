//! The part of the self-check of memory that moves a thread between CPUs: what does it cost to find
//! one's memory in the caches of another CPU?

use anyhow::{Result, ensure};

use super::distance::Distance;
use super::memory::{Figure, LOADS, OTHERS, Run, Unit};
use crate::machine::Memory;

/// How far a load after a move may be from its prediction, in percent.
const MOVE_PERCENT: f64 = 15.0;

impl Run<'_> {
    /// Measures a random walk through memory that belonged to another CPU, at each distance that
    /// the machine has: memory of a half of each cache, and of three times the largest one. For a
    /// sibling a quarter of L2, and not what L1 holds, because the kernel's own data and code on the
    /// way decide what is left in the same caches.
    pub(super) fn moves(&mut self) -> Result<Vec<Figure>> {
        let memory = self.memory;
        let mut figures = Vec::new();
        for distance in Distance::ALL {
            let Some(&(from, to)) = distance.pairs(&self.cpus).first() else {
                continue;
            };
            let (l1, l2, llc) = (memory.l1.kib, memory.l2.kib, memory.llc.kib);
            let sizes = match distance {
                Distance::Sibling => vec![l2 / 4, llc / 2, llc * 3],
                _ => vec![l1 / 2, l2 / 2, llc / 2, llc * 3],
            };
            let mut arguments = vec!["move".to_string(), from.to_string(), to.to_string()];
            arguments.extend(sizes.iter().map(u64::to_string));
            let measured = self.measure(&arguments)?;
            ensure!(
                measured.len() == 2 * sizes.len(),
                "memory-check printed {measured:?}"
            );
            for (kib, times) in sizes.into_iter().zip(measured.chunks_exact(2)) {
                let latency_ns = after_move(memory, distance, kib);
                figures.push(Figure {
                    what: format!("{distance}, {kib} KiB, before {:.1},", times[0]),
                    unit: Unit::Nanoseconds,
                    measured: times[1],
                    predicted: latency_ns + self.instruction_ns * OTHERS / LOADS,
                    tolerance_percent: MOVE_PERCENT,
                });
            }
        }
        Ok(figures)
    }
}

/// Returns the mean latency of the lines of a walk through `kib`, which the table predicts for the
/// first walk after a move over that distance. The caches that the thread left have as many of the
/// lines as they hold, and memory has the others.
fn after_move(memory: &Memory, distance: Distance, kib: u64) -> f64 {
    let (l2, llc) = (memory.l2.kib, memory.llc.kib);
    let transfer_ns = distance.transfer_ns(memory);
    let dram_ns = match distance {
        Distance::OtherNode => memory.dram_ns.remote,
        _ => memory.dram_ns.local,
    };
    let part = |size: u64| size.min(kib) as f64 / kib as f64;
    match distance {
        // The sibling has the same caches.
        Distance::Sibling if kib <= l2 => memory.l2.ns,
        Distance::Sibling if kib <= llc => memory.llc.ns,
        Distance::Sibling => dram_ns,
        // The lines of the other core's L2 are taken from there. If the LLC is too small, the walk
        // replaces each of its lines before it comes to it.
        Distance::SameLlc => {
            let shared_ns = if kib <= llc { memory.llc.ns } else { dram_ns };
            part(l2) * transfer_ns + (1.0 - part(l2)) * shared_ns
        }
        Distance::OtherLlc | Distance::OtherNode => {
            part(llc) * transfer_ns + (1.0 - part(llc)) * dram_ns
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Distance, after_move};
    use crate::selfcheck::machine_with_memory;

    #[test]
    fn a_move_costs_what_the_caches_that_were_left_hold() {
        let (_, memory) = machine_with_memory();
        let ns = |distance, kib| after_move(&memory, distance, kib);
        assert_eq!(ns(Distance::Sibling, 128), 4.0);
        assert_eq!(ns(Distance::SameLlc, 128), 25.0);
        assert_eq!(ns(Distance::SameLlc, 1024), 0.25 * 25.0 + 0.75 * 10.0);
        assert_eq!(ns(Distance::OtherLlc, 1024), 100.0);
        let remote = ns(Distance::OtherNode, 6144);
        assert!((remote - (200.0 + 2.0 * 150.0) / 3.0).abs() < 1e-9);
    }
}
