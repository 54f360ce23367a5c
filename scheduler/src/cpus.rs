//! The measurements of each CPU: how long it idles, how much its searches for work cost, how often
//! it scanned other LLCs on balance duty, and what performance it asks for.
//!
//! The gate of stealing compares the first two. `scx_magpie cpus` prints them, to show why a CPU
//! does or does not search beyond its LLC.

use std::collections::BTreeMap;
use std::io::{self, Write};

use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};

use crate::bpf_intf;

/// The number of distances that a search can have, the nearest first.
const NR_DISTANCES: usize = bpf_intf::magpie_distance_NR_DISTANCES as usize;

/// The measurements of one CPU. A new sample moves an average by an eighth of the difference.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Stats)]
#[stat(desc = "Measurements of a CPU")]
pub struct CpuStatus {
    #[stat(
        desc = "Average idle period in ns; each is capped at twice the costliest search, or 1 ms if that is more"
    )]
    pub avg_idle_ns: u64,
    #[stat(desc = "Average cost of a search at the SMT siblings, ns; 0: none made")]
    pub search_sibling_ns: u64,
    #[stat(desc = "Average cost of a search in the LLC, ns; 0: none made")]
    pub search_llc_ns: u64,
    #[stat(desc = "Average cost of a search in other LLCs of the node, ns; 0: none made")]
    pub search_node_ns: u64,
    #[stat(desc = "Average cost of a search in other nodes, ns; 0: none made")]
    pub search_remote_ns: u64,
    #[stat(desc = "Scans of other LLCs that it made on balance duty, for all CPUs of its LLC")]
    pub turns: u64,
    #[stat(
        desc = "Utilisation when last measured, of 1024, the capacity of the fastest CPU; 0 without the mechanism frequency"
    )]
    pub utilisation: u64,
    #[stat(desc = "Performance target, of 1024, as the kernel has it; 0: asks for nothing")]
    pub perf_target: u64,
    #[stat(desc = "Performance targets set since the start")]
    pub targets_set: u64,
}

/// The utilisation of a CPU, and the performance that it asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Performance {
    /// Of 1024.
    pub utilisation: u64,
    /// Of 1024.
    pub target: u64,
    /// How often it was set.
    pub targets_set: u64,
}

impl CpuStatus {
    /// Makes a status of the BPF side's numbers; `search_ns` has the cost at each distance.
    pub fn new(
        avg_idle_ns: u64,
        search_ns: [u64; NR_DISTANCES],
        turns: u64,
        performance: Performance,
    ) -> CpuStatus {
        let [
            search_sibling_ns,
            search_llc_ns,
            search_node_ns,
            search_remote_ns,
        ] = search_ns;
        CpuStatus {
            avg_idle_ns,
            search_sibling_ns,
            search_llc_ns,
            search_node_ns,
            search_remote_ns,
            turns,
            utilisation: performance.utilisation,
            perf_target: performance.target,
            targets_set: performance.targets_set,
        }
    }
}

/// The measurements of all online CPUs.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Stats)]
#[stat(desc = "Measurements of all CPUs; ask for the target \"cpus\"")]
pub struct CpusStatus {
    #[stat(desc = "By CPU number")]
    pub cpus: BTreeMap<usize, CpuStatus>,
}

impl CpusStatus {
    /// Writes a table with a line for each CPU.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn tell<W: Write>(&self, output: &mut W) -> io::Result<()> {
        writeln!(
            output,
            "average in ns     idle    search: sibling      LLC     node   remote    turns     used    target"
        )?;
        for (number, cpu) in &self.cpus {
            writeln!(
                output,
                "CPU {number:<6} {:>11} {:>18} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}",
                cpu.avg_idle_ns,
                cpu.search_sibling_ns,
                cpu.search_llc_ns,
                cpu.search_node_ns,
                cpu.search_remote_ns,
                cpu.turns,
                cpu.utilisation,
                cpu.perf_target
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_cpu_in_columns() {
        let status = CpusStatus {
            cpus: [(
                3,
                CpuStatus::new(
                    700_000,
                    [1, 22, 333, 4_444],
                    55_555,
                    Performance {
                        utilisation: 102,
                        target: 115,
                        targets_set: 7,
                    },
                ),
            )]
            .into(),
        };
        let mut text = Vec::new();
        status.tell(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(lines[0].len(), lines[1].len(), "{text}");
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(
            words,
            [
                "CPU", "3", "700000", "1", "22", "333", "4444", "55555", "102", "115"
            ]
        );
    }
}
