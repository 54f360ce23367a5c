//! The part of the self-check of memory in which CPUs read and write as fast as they can.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::memory::{Figure, Run, Unit, spread};
use crate::machine::{Bandwidth, Cpu};

/// How far the bytes of a triad in a nanosecond may be from the table, in percent.
const BANDWIDTH_PERCENT: f64 = 15.0;

/// The memory through which the CPUs of an LLC sweep, as a multiple of the LLC: no line stays in it.
const BEYOND_LLC: u64 = 3;

impl Run<'_> {
    /// Measures the triad in memory by one, half and all CPUs, and in an LLC by its CPUs, as far as
    /// the machine's table limits them.
    pub(super) fn bandwidth(&mut self) -> Result<Vec<Figure>> {
        let all = self.cpus.clone();
        let mut figures = Vec::new();
        let numbers = BTreeSet::from([1, all.len().div_ceil(2), all.len()]);
        for nr in numbers {
            // Without a limit of the core, one CPU is as fast as its instructions.
            if nr == 1 && self.memory.bandwidth.core.is_none() {
                continue;
            }
            let cpus = spread(&all, nr);
            if let Some(predicted) = from_memory(&self.memory.bandwidth, &cpus) {
                let kib = self.memory.llc.kib * BEYOND_LLC / least_in_llc(&cpus);
                let what = format!("memory by {nr} CPUs");
                figures.push(self.triad(what, kib, &cpus, predicted)?);
            }
        }
        let first = all[0].llc;
        let cpus: Vec<Cpu> = all.into_iter().filter(|cpu| cpu.llc == first).collect();
        // Three quarters of the LLC, if the second-level caches keep nothing of it.
        let kib = self.memory.llc.kib * 3 / 4;
        if let Some(predicted) = self.memory.bandwidth.llc
            && kib >= 2 * self.memory.l2.kib * cores_of(&cpus)
        {
            let what = format!("LLC by {} CPUs", cpus.len());
            figures.push(self.triad(what, kib / cpus.len() as u64, &cpus, predicted)?);
        }
        Ok(figures)
    }

    /// Measures the triad by these CPUs, each in memory of that size.
    fn triad(&mut self, what: String, kib: u64, cpus: &[Cpu], predicted: f64) -> Result<Figure> {
        let mut arguments = vec!["triad".to_string(), kib.to_string()];
        arguments.extend(cpus.iter().map(|cpu| cpu.number.to_string()));
        let measured = self.measure(&arguments)?;
        ensure!(measured.len() == 1, "memory-check printed {measured:?}");
        Ok(Figure {
            what,
            unit: Unit::Bandwidth,
            measured: measured[0],
            predicted,
            tolerance_percent: BANDWIDTH_PERCENT,
        })
    }
}

/// Returns how many cores these CPUs are of.
fn cores_of(cpus: &[Cpu]) -> u64 {
    let cores: BTreeSet<u32> = cpus.iter().map(|cpu| cpu.core).collect();
    cores.len() as u64
}

/// Returns how many of the CPUs are in the LLC that has the fewest of them.
fn least_in_llc(cpus: &[Cpu]) -> u64 {
    let mut of_llc = BTreeMap::new();
    for cpu in cpus {
        *of_llc.entry(cpu.llc).or_insert(0) += 1;
    }
    of_llc.into_values().min().unwrap_or(1)
}

/// Returns what these CPUs together get from the memory of their own nodes, in bytes per
/// nanosecond, or `None` if nothing limits them.
fn from_memory(bandwidth: &Bandwidth, cpus: &[Cpu]) -> Option<f64> {
    let nodes: BTreeSet<u32> = cpus.iter().map(|cpu| cpu.node).collect();
    let of_nodes = nodes.into_iter().map(|node| {
        let there: Vec<Cpu> = cpus
            .iter()
            .filter(|cpu| cpu.node == node)
            .copied()
            .collect();
        let of_cores = bandwidth.core.map(|core| core * cores_of(&there) as f64);
        match (of_cores, bandwidth.node) {
            (Some(cores), Some(node)) => Some(cores.min(node)),
            (cores, node) => cores.or(node),
        }
    });
    of_nodes.sum()
}

#[cfg(test)]
mod tests {
    use super::{from_memory, spread};
    use crate::machine::Bandwidth;
    use crate::selfcheck::machine_with_memory;

    #[test]
    fn few_cores_are_limited_by_themselves_and_many_by_their_node() {
        let (machine, memory) = machine_with_memory();
        let mut bandwidth = memory.bandwidth;
        let cpus = machine.layout();
        let of = |bandwidth: &Bandwidth, nr| from_memory(bandwidth, &spread(&cpus, nr));
        // The first two CPUs are one core's.
        assert_eq!(from_memory(&bandwidth, &cpus[..2]), Some(8.0));
        assert_eq!(of(&bandwidth, 1), Some(8.0));
        assert_eq!(of(&bandwidth, 2), Some(16.0));
        assert_eq!(of(&bandwidth, 8), Some(20.0));
        bandwidth.node = None;
        assert_eq!(of(&bandwidth, 8), Some(32.0));
        bandwidth.core = None;
        assert_eq!(of(&bandwidth, 8), None);
    }
}
