//! What each CPU has learned about itself: how long it idles, what its searches for work cost; and how
//! often it looked at other LLCs for its own.
//!
//! The gate of stealing compares the two. `scx_magpie cpus` shows them, so that one can see why a CPU
//! does or does not look beyond its last-level cache.

use std::collections::BTreeMap;
use std::io::{self, Write};

use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};

use crate::bpf_intf;

/// Distances of searches, near ones first.
pub const NR_DISTANCES: usize = bpf_intf::magpie_distance_NR_DISTANCES as usize;

/// One CPU. Averages move by an eighth with each new sample.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Stats)]
#[stat(desc = "What a CPU has learned about itself")]
pub struct CpuStatus {
    #[stat(
        desc = "Average idle period in ns, each capped at twice the costliest search, but not below 1 ms"
    )]
    pub avg_idle_ns: u64,
    #[stat(desc = "Average cost of looking for work at the sibling, ns; 0: never done")]
    pub search_sibling_ns: u64,
    #[stat(desc = "In the LLC")]
    pub search_llc_ns: u64,
    #[stat(desc = "In other LLCs of the node")]
    pub search_node_ns: u64,
    #[stat(desc = "In other nodes")]
    pub search_remote_ns: u64,
    #[stat(desc = "Looks at other LLCs that it made for its own while it was busy")]
    pub turns: u64,
}

impl CpuStatus {
    /// From what the BPF side keeps.
    pub fn new(avg_idle_ns: u64, search_ns: [u64; NR_DISTANCES], turns: u64) -> CpuStatus {
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
        }
    }
}

/// All CPUs.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Stats)]
#[stat(desc = "What CPUs have learned about themselves; ask for the target \"cpus\"")]
pub struct CpusStatus {
    #[stat(desc = "By number")]
    pub cpus: BTreeMap<usize, CpuStatus>,
}

impl CpusStatus {
    /// Writes it as a table.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn tell<W: Write>(&self, output: &mut W) -> io::Result<()> {
        writeln!(
            output,
            "average in ns     idle    search: sibling      LLC     node   remote    turns"
        )?;
        for (number, cpu) in &self.cpus {
            writeln!(
                output,
                "CPU {number:<6} {:>11} {:>18} {:>8} {:>8} {:>8} {:>8}",
                cpu.avg_idle_ns,
                cpu.search_sibling_ns,
                cpu.search_llc_ns,
                cpu.search_node_ns,
                cpu.search_remote_ns,
                cpu.turns
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
            cpus: [(3, CpuStatus::new(700_000, [1, 22, 333, 4_444], 55_555))].into(),
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
            ["CPU", "3", "700000", "1", "22", "333", "4444", "55555"]
        );
    }
}
