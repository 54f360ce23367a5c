//! The part of the self-check of memory that measures a system call.

use anyhow::{Context, Result, ensure};

use super::memory::{Figure, Run, Unit};

/// How far a system call may be from its prediction, in percent.
const SWITCH_PERCENT: f64 = 15.0;

/// System calls that are measured. Their instructions are many more than those of the program's
/// start.
const CALLS: u64 = 200_000;

impl Run<'_> {
    /// Measures a system call. The prediction is the table's price and what the instructions take,
    /// of which the machine counts how many they are.
    pub(super) fn switches(&mut self) -> Result<Vec<Figure>> {
        if self.memory.switch_ns.syscall == 0.0 {
            return Ok(Vec::new());
        }
        let before = self.instructions()?;
        let cpu = self.last_cpu().number.to_string();
        let measured = self.measure(&["syscall".to_string(), cpu, CALLS.to_string()])?;
        ensure!(measured.len() == 1, "memory-check printed {measured:?}");
        let instructions = (self.instructions()? - before) as f64 / CALLS as f64;
        Ok(vec![Figure {
            what: "gettid".to_string(),
            unit: Unit::Nanoseconds,
            measured: measured[0],
            predicted: self.memory.switch_ns.syscall + instructions * self.instruction_ns,
            tolerance_percent: SWITCH_PERCENT,
        }])
    }

    /// How many instructions the last CPU has executed.
    fn instructions(&mut self) -> Result<u64> {
        let fidelity = self
            .guest
            .fidelity()?
            .context("a machine in virtual time")?;
        let last = fidelity.vcpus.last().context("a machine with CPUs")?;
        Ok(last.instructions)
    }
}
