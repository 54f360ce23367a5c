//! The `[virtual_time.memory]` table of a machine: what memory costs its CPUs. See
//! `docs/memory.md`.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// Most guest memory that the model takes: a cache entry of the plugin has 29 bits for a line.
const MOST_MIB: u64 = 30 * 1024;

/// Groups of lines that the plugin locks together. Each set of an LLC must be in one of them.
const LINE_LOCKS: u64 = 256;

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Caches and latencies. All latencies are those that a load sees from its begin to its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// First-level data cache of a core. A hit costs nothing but the instruction.
    pub l1: Cache,
    /// First-level cache of a core for code (`lab/vtime/fetch.c`). Without it, code costs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l1i: Option<Cache>,
    /// Second-level cache of a core.
    pub l2: SlowCache,
    /// Last-level cache, of each LLC.
    pub llc: SlowCache,
    /// Nanoseconds from one CPU to another of a line that the other has written, by distance.
    pub transfer_ns: Transfer,
    /// Nanoseconds of a line that no cache has.
    pub dram_ns: Dram,
    /// Which share of its latency an access waits.
    #[serde(default)]
    pub share: Share,
    /// Repeated string instructions, which copy and clear memory.
    #[serde(default)]
    pub string: StringCost,
    /// Bytes that a core, an LLC and a node's memory serve in a time (`lab/vtime/bandwidth.c`).
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// The cost of mode switches (`lab/vtime/mode.c`).
    #[serde(default)]
    pub switch_ns: Switch,
    /// Translations that a CPU keeps (`lab/vtime/tlb.c`). Without it, it keeps all.
    #[serde(default)]
    pub tlb: Option<Tlb>,
    /// Whether locked instructions on one line wait for each other (`lab/vtime/contention.c`).
    #[serde(default = "on")]
    pub contention: bool,
}

/// Size and ways of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Size in KiB.
    pub kib: u64,
    /// Lines of a set.
    pub ways: u64,
}

/// Size, ways and latency of a cache beyond the first level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowCache {
    /// Size in KiB.
    pub kib: u64,
    /// Lines of a set.
    pub ways: u64,
    /// Latency in nanoseconds.
    pub ns: f64,
}

/// Nanoseconds by the distance to the CPU that has a line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The other thread of the core.
    pub sibling: f64,
    /// Another core of the LLC.
    pub same_llc: f64,
    /// Another LLC of the node.
    pub other_llc: f64,
    /// Another node.
    pub other_node: f64,
}

/// Nanoseconds by the node of the memory: each node has an equal part of the machine's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dram {
    /// The CPU's own node.
    pub local: f64,
    /// Another node.
    pub remote: f64,
}

/// The share of its latency, from 0 to 1, that an access waits where a processor goes on meanwhile.
/// A load by a pointer that was just loaded, and a locked instruction, wait for the whole latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Share {
    /// A load soon after another miss.
    pub overlapped: f64,
    /// A store.
    pub stored: f64,
    /// The third and each later line of a walk through memory.
    pub streamed: f64,
}

/// The cost of repeated string instructions (`rep movs`, `rep stos`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StringCost {
    /// Nanoseconds of one such instruction before its first byte.
    pub start_ns: f64,
    /// Bytes per nanosecond, if L1 has them.
    pub bytes_per_ns: f64,
}

/// Bytes per nanosecond, which are GB/s, as STREAM counts them. What is left out has no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    /// Lines that one core gets from memory.
    pub core: Option<f64>,
    /// Lines that an LLC serves.
    pub llc: Option<f64>,
    /// Lines that a node's memory serves.
    pub node: Option<f64>,
}

/// Nanoseconds that the processor takes for mode switches, beyond the kernel's instructions. What
/// is left out costs nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Switch {
    /// A system call and its return.
    pub syscall: f64,
    /// An interrupt or an exception, and its return.
    pub interrupt: f64,
    /// A change of the address space.
    pub address_space: f64,
}

/// The TLB of each CPU, and what an access without a translation waits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tlb {
    /// Pages, of the second level.
    pub entries: u64,
    /// Pages of a set.
    pub ways: u64,
    /// Nanoseconds of a walk through the page tables.
    pub walk_ns: f64,
}

/// The default of a part of the model that can be switched off.
fn on() -> bool {
    true
}

impl Default for Share {
    fn default() -> Self {
        Share {
            overlapped: 0.25,
            stored: 0.3,
            streamed: 0.03,
        }
    }
}

impl Default for StringCost {
    fn default() -> Self {
        StringCost {
            start_ns: 10.0,
            bytes_per_ns: 100.0,
        }
    }
}

impl Memory {
    /// Fails for every value that the plugin would refuse, and for caches and latencies in the
    /// wrong order. `memory_mib` is the machine's memory.
    pub(super) fn check(&self, memory_mib: u64) -> Result<()> {
        let l1i = self.l1i.map(|l1i| ("l1i", l1i.kib, l1i.ways));
        let levels = [
            ("l1", self.l1.kib, self.l1.ways),
            ("l2", self.l2.kib, self.l2.ways),
            ("llc", self.llc.kib, self.llc.ways),
        ];
        for (level, kib, ways) in levels.into_iter().chain(l1i) {
            let what = format!("virtual_time.memory.{level}");
            ensure!(
                (1..=64).contains(&ways),
                "{what}.ways must be from 1 to 64, not {ways}"
            );
            ensure!(
                (1..=1 << 20).contains(&kib) && (kib * 1024).is_multiple_of(ways * LINE),
                "{what}.kib must be from 1 to 1048576 and make whole sets of {ways} lines of 64 \
                 bytes; {kib} does not"
            );
        }
        ensure!(
            self.l1.kib < self.l2.kib && self.l2.kib < self.llc.kib,
            "virtual_time.memory: l1 ({} KiB) must be smaller than l2 ({} KiB), and that than llc \
             ({} KiB)",
            self.l1.kib,
            self.l2.kib,
            self.llc.kib
        );
        if let Some(l1i) = self.l1i {
            ensure!(
                l1i.kib < self.l2.kib,
                "virtual_time.memory: l1i ({} KiB) must be smaller than l2 ({} KiB)",
                l1i.kib,
                self.l2.kib
            );
        }
        let sets = self.llc.kib * 1024 / LINE / self.llc.ways;
        ensure!(
            sets.is_multiple_of(LINE_LOCKS),
            "virtual_time.memory.llc has {sets} sets, and a multiple of {LINE_LOCKS} is needed: \
             change kib or ways"
        );
        self.check_latencies()?;
        self.check_shares()?;
        self.check_bandwidth()?;
        self.check_switches()?;
        self.check_tlb()?;
        ensure!(
            memory_mib <= MOST_MIB,
            "memory_mib is {memory_mib}, and virtual_time.memory takes at most {MOST_MIB}"
        );
        Ok(())
    }

    /// Fails unless a greater distance costs more.
    fn check_latencies(&self) -> Result<()> {
        let transfer = &self.transfer_ns;
        let rows: [&[(&str, f64)]; 2] = [
            &[
                ("l2.ns", self.l2.ns),
                ("llc.ns", self.llc.ns),
                ("dram_ns.local", self.dram_ns.local),
                ("dram_ns.remote", self.dram_ns.remote),
            ],
            &[
                ("transfer_ns.sibling", transfer.sibling),
                ("transfer_ns.same_llc", transfer.same_llc),
                ("transfer_ns.other_llc", transfer.other_llc),
                ("transfer_ns.other_node", transfer.other_node),
            ],
        ];
        for row in rows {
            for (key, ns) in row {
                ensure!(
                    (0.0..=10_000.0).contains(ns),
                    "virtual_time.memory.{key} must be from 0 to 10000 ns, not {ns}"
                );
            }
            for pair in row.windows(2) {
                let [(near, near_ns), (far, far_ns)] = pair else {
                    continue;
                };
                ensure!(
                    near_ns <= far_ns,
                    "virtual_time.memory: {near} ({near_ns} ns) must not be more than {far} \
                     ({far_ns} ns)"
                );
            }
        }
        Ok(())
    }

    /// Fails unless every share is one, and strings cost what the plugin takes.
    fn check_shares(&self) -> Result<()> {
        let shares = [
            ("overlapped", self.share.overlapped),
            ("stored", self.share.stored),
            ("streamed", self.share.streamed),
        ];
        for (key, share) in shares {
            ensure!(
                (0.0..=1.0).contains(&share),
                "virtual_time.memory.share.{key} must be from 0 to 1, not {share}"
            );
        }
        ensure!(
            (0.0..=10_000.0).contains(&self.string.start_ns)
                && (0.01..=10_000.0).contains(&self.string.bytes_per_ns),
            "virtual_time.memory.string: start_ns must be from 0 to 10000, bytes_per_ns from 0.01 \
             to 10000"
        );
        Ok(())
    }

    /// Fails for a bandwidth that the plugin does not take, and for a core that gets more than a
    /// node's memory has.
    fn check_bandwidth(&self) -> Result<()> {
        let bandwidth = &self.bandwidth;
        let rows = [
            ("core", bandwidth.core),
            ("llc", bandwidth.llc),
            ("node", bandwidth.node),
        ];
        for (key, rate) in rows {
            ensure!(
                rate.is_none_or(|rate| (0.1..=10_000.0).contains(&rate)),
                "virtual_time.memory.bandwidth.{key} must be from 0.1 to 10000 GB/s"
            );
        }
        if let (Some(core), Some(node)) = (bandwidth.core, bandwidth.node) {
            ensure!(
                core <= node,
                "virtual_time.memory.bandwidth: core ({core} GB/s) must not be more than node \
                 ({node} GB/s)"
            );
        }
        Ok(())
    }

    /// Fails for a mode switch whose cost the plugin does not take.
    fn check_switches(&self) -> Result<()> {
        let rows = [
            ("syscall", self.switch_ns.syscall),
            ("interrupt", self.switch_ns.interrupt),
            ("address_space", self.switch_ns.address_space),
        ];
        for (key, ns) in rows {
            ensure!(
                (0.0..=10_000.0).contains(&ns),
                "virtual_time.memory.switch_ns.{key} must be from 0 to 10000 ns, not {ns}"
            );
        }
        Ok(())
    }

    /// Fails for a TLB that the plugin does not take.
    fn check_tlb(&self) -> Result<()> {
        let Some(tlb) = &self.tlb else {
            return Ok(());
        };
        ensure!(
            (1..=64).contains(&tlb.ways)
                && (1..=1 << 16).contains(&tlb.entries)
                && tlb.entries.is_multiple_of(tlb.ways),
            "virtual_time.memory.tlb: entries must be from 1 to 65536, ways from 1 to 64, and \
             {} entries make whole sets of {} ways",
            tlb.entries,
            tlb.ways
        );
        ensure!(
            (0.0..=10_000.0).contains(&tlb.walk_ns),
            "virtual_time.memory.tlb.walk_ns must be from 0 to 10000 ns, not {}",
            tlb.walk_ns
        );
        Ok(())
    }

    /// The plugin's options for the model.
    pub(crate) fn plugin_options(&self) -> String {
        let (transfer, dram, share) = (&self.transfer_ns, &self.dram_ns, &self.share);
        let (bandwidth, switch) = (&self.bandwidth, &self.switch_ns);
        let tlb = self.tlb.map(|tlb| {
            let Tlb {
                entries,
                ways,
                walk_ns,
            } = tlb;
            format!(",tlb_entries={entries},tlb_ways={ways},walk_ns={walk_ns}")
        });
        let mut options = format!(
            "memory=1,l1_kib={},l1_ways={},l2_kib={},l2_ways={},llc_kib={},llc_ways={},l2_ns={},\
             llc_ns={},sibling_ns={},same_llc_ns={},other_llc_ns={},other_node_ns={},dram_ns={},\
             remote_dram_ns={},overlapped={},stored={},streamed={},string_start_ns={},\
             string_bytes_per_ns={},contention={},core_bytes_per_ns={},llc_bytes_per_ns={},\
             node_bytes_per_ns={},syscall_ns={},interrupt_ns={},address_space_ns={}",
            self.l1.kib,
            self.l1.ways,
            self.l2.kib,
            self.l2.ways,
            self.llc.kib,
            self.llc.ways,
            self.l2.ns,
            self.llc.ns,
            transfer.sibling,
            transfer.same_llc,
            transfer.other_llc,
            transfer.other_node,
            dram.local,
            dram.remote,
            share.overlapped,
            share.stored,
            share.streamed,
            self.string.start_ns,
            self.string.bytes_per_ns,
            u8::from(self.contention),
            bandwidth.core.unwrap_or(0.0),
            bandwidth.llc.unwrap_or(0.0),
            bandwidth.node.unwrap_or(0.0),
            switch.syscall,
            switch.interrupt,
            switch.address_space
        );
        options += &tlb.unwrap_or_default();
        if let Some(Cache { kib, ways }) = self.l1i {
            options += &format!(",l1i_kib={kib},l1i_ways={ways}");
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::tests::changed_preset_is_refused;

    fn is_refused(from: &str, to: &str, reason: &str) {
        changed_preset_is_refused("vt8-mem", from, to, reason);
    }

    #[test]
    fn an_impossible_memory_is_refused_with_its_key() {
        is_refused("ns = 10.0", "ns = nan", "llc.ns");
        is_refused("ns = 10.0", "ns = 1.0", "l2.ns (4 ns)");
        is_refused("kib = 32, ways = 8", "kib = 32, ways = 7", "l1.kib");
        is_refused("kib = 32", "kib = 1024", "smaller than l2");
        is_refused("kib = 2048, ways = 16", "kib = 2048, ways = 0", "llc.ways");
        is_refused("kib = 2048, ways = 16", "kib = 2064, ways = 16", "256");
        is_refused("other_llc = 100", "other_llc = 300", "other_node");
        is_refused("syscall = 30", "syscall = -1", "switch_ns.syscall");
        is_refused("l1i = { kib = 32", "l1i = { kib = 256", "l1i (256 KiB)");
        is_refused("entries = 512", "entries = 511", "tlb");
        is_refused("core = 8", "core = 0", "bandwidth.core");
        is_refused("core = 8", "core = 80", "not be more than node");
        is_refused(
            "mips = 3000",
            "mips = 3000\nmemory_speed = 1",
            "memory_speed",
        );
    }
}
