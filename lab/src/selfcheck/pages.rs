//! The part of the self-check of memory in which pages are more than a CPU keeps translations of.

use anyhow::{Result, ensure};

use super::memory::{Figure, LOADS, OTHERS, Run, Unit};

/// How far a load may be from its prediction, in percent.
const PAGES_PERCENT: f64 = 15.0;

/// Bytes of a cache line.
const LINE: u64 = 64;

impl Run<'_> {
    /// Measures a load in a random walk through one line of each of twice as many small pages as
    /// the TLB has entries, if L2 has all these lines and L1 none of them.
    pub(super) fn pages(&mut self) -> Result<Vec<Figure>> {
        let Some(tlb) = self.memory.tlb else {
            return Ok(Vec::new());
        };
        let pages = 2 * tlb.entries;
        let kib = pages * LINE / 1024;
        if kib < 2 * self.memory.l1.kib || kib > self.memory.l2.kib / 2 {
            return Ok(Vec::new());
        }
        let cpu = self.last_cpu().number.to_string();
        let measured = self.measure(&["pages".to_string(), cpu, pages.to_string()])?;
        ensure!(measured.len() == 1, "memory-check printed {measured:?}");
        Ok(vec![Figure {
            what: format!("{pages} pages"),
            unit: Unit::Nanoseconds,
            measured: measured[0],
            predicted: self.memory.l2.ns + tlb.walk_ns + self.instruction_ns * OTHERS / LOADS,
            tolerance_percent: PAGES_PERCENT,
        }])
    }
}
