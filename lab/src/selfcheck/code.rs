//! The part of the self-check of memory in which code is more than a core's caches for it hold.

use anyhow::{Result, ensure};

use super::memory::{Figure, Run, Unit};
use crate::machine::Memory;

/// How far a jump may be from its prediction, in percent.
const CODE_PERCENT: f64 = 15.0;

/// A program of jumps, one in each line: its name, order and size, and what a jump waits for.
struct Step {
    what: String,
    order: &'static str,
    kib: u64,
    latency_ns: f64,
}

impl Run<'_> {
    /// Measures a jump from line to line: in random order through code that L1I, L2 and the LLC
    /// have, and straight on through what L2 has.
    pub(super) fn code(&mut self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for step in steps(self.memory, self.instruction_ns) {
            let cpu = self.last_cpu().number.to_string();
            let order = step.order.to_string();
            let measured = self.measure(&["code".to_string(), cpu, order, step.kib.to_string()])?;
            ensure!(measured.len() == 1, "memory-check printed {measured:?}");
            figures.push(Figure {
                what: step.what,
                unit: Unit::Nanoseconds,
                measured: measured[0],
                predicted: step.latency_ns,
                tolerance_percent: CODE_PERCENT,
            });
        }
        Ok(figures)
    }
}

/// Returns the programs: none if code costs nothing, and of those that L2 has only what is well
/// below its size.
fn steps(memory: &Memory, instruction_ns: f64) -> Vec<Step> {
    let Some(l1i) = memory.l1i else {
        return Vec::new();
    };
    let step = |level, order, kib, latency_ns| Step {
        what: format!("{level} ({kib} KiB, {order})"),
        order,
        kib,
        latency_ns,
    };
    // A latency contains its jump, and no jump takes less than an instruction.
    let of =
        |latency_ns: f64, share| instruction_ns + (latency_ns - instruction_ns).max(0.0) * share;
    let (l2_ns, llc_ns) = (memory.l2.ns, memory.llc.ns);
    let mut steps = vec![step("L1I", "random", l1i.kib / 2, instruction_ns)];
    if l1i.kib * 2 <= memory.l2.kib / 2 {
        let straight_ns = of(l2_ns, memory.share.streamed);
        steps.push(step("L2", "random", l1i.kib * 2, of(l2_ns, 1.0)));
        steps.push(step("L2", "straight", l1i.kib * 2, straight_ns));
    }
    if memory.l2.kib * 3 / 2 <= memory.llc.kib / 2 {
        steps.push(step(
            "LLC",
            "random",
            memory.l2.kib * 3 / 2,
            of(llc_ns, 1.0),
        ));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::steps;
    use crate::selfcheck::machine_with_memory;

    #[test]
    fn code_is_measured_in_each_cache() {
        let (_, mut memory) = machine_with_memory();
        let all: Vec<_> = steps(&memory, 0.5)
            .into_iter()
            .map(|step| (step.order, step.kib, step.latency_ns))
            .collect();
        assert_eq!(
            all,
            [
                ("random", 16, 0.5),
                ("random", 64, 4.0),
                ("straight", 64, 0.5 + 3.5 * 0.03),
                ("random", 384, 10.0)
            ]
        );
        memory.l1i = None;
        assert!(steps(&memory, 0.5).is_empty());
    }
}
