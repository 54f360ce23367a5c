//! The self-check of a machine's memory: whether a guest measures the latencies of its table.
//!
//! The program is `lab/vtime/check/memory-check.c`; every guest of a machine with memory has it.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::output::output_of;
use crate::guest::Guest;
use crate::machine::{Cpu, Machine, Memory};

/// How far a plateau of the pointer chase may be from the table, in percent.
const CHASE_PERCENT: f64 = 10.0;

/// How far a line's way from CPU to CPU may be from the table, in percent.
const TRANSFER_PERCENT: f64 = 15.0;

/// How far a repeated string instruction may be from its prediction, in percent.
const STRING_PERCENT: f64 = 10.0;

/// Pairs of CPUs that are measured for each distance.
const PAIRS: usize = 3;

/// Bytes of the string instructions that are measured. They fit into L1.
const STRINGS: [u64; 2] = [4096, 16384];

/// `memory-check` executes so many loads and other instructions in a round of its chase.
const LOADS: f64 = 8.0;
const OTHERS: f64 = 3.0;

/// What a guest measured of its memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryCheck {
    /// A pointer chase through memory of several sizes: plateaus and knees.
    pub chase: Vec<Figure>,
    /// A compare-and-swap of a line that another CPU has written: medians by distance.
    pub transfers: Vec<Figure>,
    /// A repeated string instruction.
    pub strings: Vec<Figure>,
}

/// One figure beside its prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub what: String,
    /// Nanoseconds of virtual time.
    pub measured_ns: f64,
    /// Nanoseconds that the machine's table predicts.
    pub predicted_ns: f64,
    /// How far they may be apart, in percent of the prediction.
    pub tolerance_percent: f64,
}

impl Figure {
    /// Whether the measurement is as near to the prediction as it must be.
    pub fn holds(&self) -> bool {
        let tolerance = self.predicted_ns * self.tolerance_percent / 100.0;
        (self.measured_ns - self.predicted_ns).abs() <= tolerance
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, measured, predicted) = (&self.what, self.measured_ns, self.predicted_ns);
        write!(f, "{what} {measured:.1} ns ({predicted:.1})")?;
        if !self.holds() {
            write!(f, " NOT within {} %", self.tolerance_percent)?;
        }
        Ok(())
    }
}

impl MemoryCheck {
    /// Whether all figures are near to their predictions.
    pub fn holds(&self) -> bool {
        let all = [&self.chase, &self.transfers, &self.strings];
        all.into_iter().flatten().all(Figure::holds)
    }
}

/// Runs the self-check of `memory` in a guest of that machine. A figure that is far from its
/// prediction is a result, no error.
///
/// # Errors
/// When the machine is not in virtual time, or a measurement does not finish within `timeout` (real
/// time).
pub fn run_memory(
    guest: &mut Guest,
    machine: &Machine,
    memory: &Memory,
    timeout: Duration,
) -> Result<MemoryCheck> {
    let time = machine
        .virtual_time
        .as_ref()
        .with_context(|| format!("the machine {} is not in virtual time", machine.name))?;
    let instruction_ns = 1000.0 / time.mips;
    let cpus: Vec<Cpu> = machine
        .layout()
        .into_iter()
        .filter(|cpu| !machine.offline.contains(&cpu.number))
        .collect();
    let mut measure = |arguments: &[String]| measure(guest, arguments, timeout);
    Ok(MemoryCheck {
        chase: chase(&mut measure, memory, instruction_ns, &cpus)?,
        transfers: transfers(&mut measure, memory, instruction_ns, &cpus)?,
        strings: strings(&mut measure, memory, instruction_ns, &cpus)?,
    })
}

/// Runs `memory-check` and returns the figures that it prints.
fn measure(guest: &mut Guest, arguments: &[String], timeout: Duration) -> Result<Vec<f64>> {
    let mut argv = vec!["memory-check".to_string()];
    argv.extend_from_slice(arguments);
    let text = output_of(guest, &argv, timeout, &[0])?;
    let figures = text.lines().map(|line| line.trim().parse::<f64>());
    figures
        .collect::<Result<_, _>>()
        .with_context(|| format!("{argv:?} printed no figures: {text}"))
}

/// A step of the chase: what it shows, so many KiB, and the latency that the table has for that.
struct Step {
    what: String,
    kib: u64,
    latency_ns: f64,
}

/// The sizes of a chase: of each level its plateau, and just below and above each knee. A level
/// that is hardly larger than the one before has no plateau.
fn steps(memory: &Memory, l1_ns: f64) -> Vec<Step> {
    let (l1, l2, llc) = (memory.l1.kib, memory.l2.kib, memory.llc.kib);
    let levels = [
        ("L1", 0, l1, l1_ns),
        ("L2", l1, l2, memory.l2.ns),
        ("LLC", l2, llc, memory.llc.ns),
        ("DRAM", llc, 4 * llc, memory.dram_ns.local),
    ];
    let mut steps = Vec::new();
    for (name, below, size, latency_ns) in levels {
        for kib in [below * 3 / 2, below * 3, size / 2, size * 3 / 4] {
            let is_repeated = steps.last().is_some_and(|last: &Step| last.kib >= kib);
            if kib >= below * 3 / 2 && kib <= size * 3 / 4 && kib > 0 && !is_repeated {
                steps.push(Step {
                    what: format!("{name} ({kib} KiB)"),
                    kib,
                    latency_ns,
                });
            }
        }
    }
    steps
}

fn chase(
    measure: &mut dyn FnMut(&[String]) -> Result<Vec<f64>>,
    memory: &Memory,
    instruction_ns: f64,
    cpus: &[Cpu],
) -> Result<Vec<Figure>> {
    let steps = steps(memory, instruction_ns);
    let cpu = cpus[cpus.len() - 1];
    let arguments = |home: &Cpu, sizes: &[u64]| -> Vec<String> {
        let numbers = [u64::from(cpu.number), u64::from(home.number)];
        let words = numbers.iter().chain(sizes).map(u64::to_string);
        ["chase".to_string()].into_iter().chain(words).collect()
    };
    let sizes: Vec<u64> = steps.iter().map(|step| step.kib).collect();
    let mut measured = measure(&arguments(&cpu, &sizes))?;
    let mut all = steps;
    if let Some(home) = cpus.iter().find(|home| home.node != cpu.node) {
        let kib = memory.llc.kib * 3;
        measured.extend(measure(&arguments(home, &[kib]))?);
        all.push(Step {
            what: format!("remote DRAM ({kib} KiB)"),
            kib,
            latency_ns: memory.dram_ns.remote,
        });
    }
    ensure!(
        measured.len() == all.len(),
        "memory-check printed {} figures for {} sizes",
        measured.len(),
        all.len()
    );
    let figures = all
        .into_iter()
        .zip(measured)
        .map(|(step, measured_ns)| Figure {
            what: step.what,
            measured_ns,
            // A latency contains its load, and no load takes less than an instruction.
            predicted_ns: step.latency_ns.max(instruction_ns) + instruction_ns * OTHERS / LOADS,
            tolerance_percent: CHASE_PERCENT,
        });
    Ok(figures.collect())
}

/// Returns up to [`PAIRS`] pairs of CPUs for which `is_so`, spread over the machine.
fn pairs(cpus: &[Cpu], is_so: &dyn Fn(&Cpu, &Cpu) -> bool) -> Vec<(u32, u32)> {
    let partners: Vec<(u32, u32)> = cpus
        .iter()
        .filter_map(|a| {
            let b = cpus.iter().find(|b| a.number != b.number && is_so(a, b))?;
            Some((a.number, b.number))
        })
        .collect();
    let step = partners.len().div_ceil(PAIRS).max(1);
    partners.into_iter().step_by(step).collect()
}

/// A distance between CPUs: its name, its latency, and the pairs of CPUs that are measured.
struct Distance {
    what: &'static str,
    latency_ns: f64,
    pairs: Vec<(u32, u32)>,
}

/// Returns all distances. One that the machine does not have has no pairs.
fn distances(memory: &Memory, cpus: &[Cpu]) -> [Distance; 4] {
    let distance = |what, latency_ns, is_so: &dyn Fn(&Cpu, &Cpu) -> bool| Distance {
        what,
        latency_ns,
        pairs: pairs(cpus, is_so),
    };
    let ns = &memory.transfer_ns;
    [
        distance("sibling", ns.sibling, &|a, b| a.core == b.core),
        distance("same LLC", ns.same_llc, &|a, b| {
            a.llc == b.llc && a.core != b.core
        }),
        distance("other LLC", ns.other_llc, &|a, b| {
            a.node == b.node && a.llc != b.llc
        }),
        distance("other node", ns.other_node, &|a, b| a.node != b.node),
    ]
}

fn transfers(
    measure: &mut dyn FnMut(&[String]) -> Result<Vec<f64>>,
    memory: &Memory,
    instruction_ns: f64,
    cpus: &[Cpu],
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for distance in distances(memory, cpus) {
        let mut measured = Vec::new();
        for (a, b) in distance.pairs {
            measured.extend(measure(&[
                "transfer".to_string(),
                a.to_string(),
                b.to_string(),
            ])?);
        }
        measured.sort_by(f64::total_cmp);
        if let Some(&measured_ns) = measured.get(measured.len() / 2) {
            figures.push(Figure {
                what: distance.what.to_string(),
                // The program prints the difference to an own line, which takes an instruction.
                measured_ns: measured_ns + instruction_ns,
                predicted_ns: distance.latency_ns,
                tolerance_percent: TRANSFER_PERCENT,
            });
        }
    }
    Ok(figures)
}

fn strings(
    measure: &mut dyn FnMut(&[String]) -> Result<Vec<f64>>,
    memory: &Memory,
    instruction_ns: f64,
    cpus: &[Cpu],
) -> Result<Vec<Figure>> {
    let cpu = cpus[cpus.len() - 1].number.to_string();
    let mut arguments = vec!["copy".to_string(), cpu];
    arguments.extend(STRINGS.map(|bytes| bytes.to_string()));
    let figures = STRINGS.into_iter().zip(measure(&arguments)?);
    Ok(figures
        .map(|(bytes, measured_ns)| Figure {
            what: format!("rep stosb of {bytes} bytes"),
            measured_ns,
            predicted_ns: memory.string.start_ns
                + bytes as f64 / memory.string.bytes_per_ns
                + instruction_ns,
            tolerance_percent: STRING_PERCENT,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::{distances, steps};
    use crate::Machine;

    #[test]
    fn each_level_has_a_plateau_and_knees() {
        let machine = Machine::preset("vt8-mem").expect("preset");
        let memory = machine.virtual_time.and_then(|time| time.memory);
        let memory = memory.expect("a machine with memory");
        let kib: Vec<u64> = steps(&memory, 0.3).iter().map(|step| step.kib).collect();
        assert_eq!(
            kib,
            [16, 24, 48, 96, 128, 192, 384, 768, 1024, 1536, 3072, 6144]
        );
    }

    #[test]
    fn pairs_are_at_their_distance() {
        let machine = Machine::preset("vt8-mem").expect("preset");
        let memory = machine
            .virtual_time
            .as_ref()
            .and_then(|time| time.memory.as_ref());
        let cpus = machine.layout();
        let all = distances(memory.expect("a machine with memory"), &cpus);
        let numbers = all.map(|distance| distance.pairs);
        assert_eq!(
            numbers,
            [
                vec![(0, 1), (3, 2), (6, 7)],
                vec![(0, 2), (3, 0), (6, 4)],
                vec![(0, 4), (3, 4), (6, 0)],
                vec![]
            ]
        );
    }
}
