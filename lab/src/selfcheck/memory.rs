//! The self-check of a machine's memory: whether a guest measures the latencies of its table.
//!
//! The program is `lab/vtime/check/memory-check.c`; every guest of a machine with memory has it.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::distance::Distance;
use super::output::output_of;
use crate::guest::Guest;
use crate::machine::{Cpu, Machine, Memory};

/// How far a plateau of the pointer chase may be from the table, in percent.
const CHASE_PERCENT: f64 = 10.0;

/// How far a line's way from CPU to CPU may be from the table, in percent.
const TRANSFER_PERCENT: f64 = 15.0;

/// How far a repeated string instruction may be from its prediction, in percent.
const STRING_PERCENT: f64 = 10.0;

/// How far an addition to a line that all CPUs want may be from its prediction, in percent.
const CONTENDED_PERCENT: f64 = 33.0;

/// Numbers of CPUs that add to one line, as far as the machine has so many.
const ADDERS: [usize; 3] = [2, 8, 32];

/// Bytes of the string instructions that are measured. They fit into L1.
const STRINGS: [u64; 2] = [4096, 16384];

/// Loads in a round of the chase's loop in `memory-check`.
pub(super) const LOADS: f64 = 8.0;

/// Other instructions in that round.
pub(super) const OTHERS: f64 = 3.0;

/// The costs of memory that a guest measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryCheck {
    /// A pointer chase through memory of several sizes: plateaus and knees.
    pub chase: Vec<Figure>,
    /// A compare-and-swap of a line that another CPU has written: medians by distance.
    pub transfers: Vec<Figure>,
    /// A walk through a thread's memory after the thread has moved to another CPU: by distance and
    /// size.
    pub moves: Vec<Figure>,
    /// A repeated string instruction.
    pub strings: Vec<Figure>,
    /// A `fetch_add` on a line to which several CPUs add at once: the time of one addition of each.
    pub contended: Vec<Figure>,
    /// STREAM's triad by one, half and all CPUs, and in an LLC by its CPUs.
    pub bandwidth: Vec<Figure>,
    /// A walk through one line of each of many small pages.
    pub pages: Vec<Figure>,
    /// A system call that does nothing.
    pub switches: Vec<Figure>,
    /// A jump through code of several sizes: plateaus of the caches that the code is in.
    pub code: Vec<Figure>,
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Nanoseconds of virtual time.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Bytes per nanosecond of virtual time.
    #[serde(rename = "GB/s")]
    Bandwidth,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Nanoseconds => "ns",
            Unit::Bandwidth => "GB/s",
        })
    }
}

/// One figure beside its prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The name of the figure.
    pub what: String,
    /// Of `measured` and `predicted`.
    pub unit: Unit,
    /// The figure that the guest measured.
    pub measured: f64,
    /// The figure that the machine's table predicts.
    pub predicted: f64,
    /// How far they may be apart, in percent of the prediction.
    pub tolerance_percent: f64,
}

impl Figure {
    /// Whether the measurement is as near to the prediction as it must be.
    pub fn holds(&self) -> bool {
        let tolerance = self.predicted * self.tolerance_percent / 100.0;
        (self.measured - self.predicted).abs() <= tolerance
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, measured, predicted) = (&self.what, self.measured, self.predicted);
        write!(f, "{what} {measured:.1} {} ({predicted:.1})", self.unit)?;
        if !self.holds() {
            write!(f, " NOT within {} %", self.tolerance_percent)?;
        }
        Ok(())
    }
}

impl MemoryCheck {
    /// Whether all figures are near to their predictions.
    pub fn holds(&self) -> bool {
        self.figures().all(Figure::holds)
    }

    /// All figures.
    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        let all = [
            &self.chase,
            &self.transfers,
            &self.moves,
            &self.strings,
            &self.contended,
            &self.bandwidth,
            &self.pages,
            &self.switches,
            &self.code,
        ];
        all.into_iter().flatten()
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
    let mut run = Run::new(guest, machine, memory, timeout)?;
    Ok(MemoryCheck {
        chase: run.chase()?,
        transfers: run.transfers()?,
        moves: run.moves()?,
        strings: run.strings()?,
        contended: run.contended()?,
        bandwidth: run.bandwidth()?,
        pages: run.pages()?,
        switches: run.switches()?,
        code: run.code()?,
    })
}

/// Runs the part of [`run_memory`] in which several CPUs add to one line.
///
/// # Errors
/// As [`run_memory`].
pub fn run_contended(
    guest: &mut Guest,
    machine: &Machine,
    memory: &Memory,
    timeout: Duration,
) -> Result<Vec<Figure>> {
    Run::new(guest, machine, memory, timeout)?.contended()
}

/// A run of the self-check, and what its predictions depend on.
pub(super) struct Run<'a> {
    pub(super) guest: &'a mut Guest,
    timeout: Duration,
    pub(super) memory: &'a Memory,
    pub(super) instruction_ns: f64,
    pub(super) cpus: Vec<Cpu>,
}

impl<'a> Run<'a> {
    /// A run on that machine.
    fn new(
        guest: &'a mut Guest,
        machine: &Machine,
        memory: &'a Memory,
        timeout: Duration,
    ) -> Result<Self> {
        Ok(Run {
            guest,
            timeout,
            memory,
            instruction_ns: 1000.0 / machine.time()?.mips,
            cpus: machine.online(),
        })
    }

    /// Runs `memory-check` and returns the figures that it prints.
    pub(super) fn measure(&mut self, arguments: &[String]) -> Result<Vec<f64>> {
        let mut argv = vec!["memory-check".to_string()];
        argv.extend_from_slice(arguments);
        let text = output_of(self.guest, &argv, self.timeout, &[0])?;
        let figures = text.lines().map(|line| line.trim().parse::<f64>());
        figures
            .collect::<Result<_, _>>()
            .with_context(|| format!("{argv:?} printed no figures: {text}"))
    }

    /// The CPU that measures what one CPU measures alone.
    pub(super) fn last_cpu(&self) -> Cpu {
        self.cpus[self.cpus.len() - 1]
    }

    /// Measures a load in a random walk through each of the sizes, and through memory of another
    /// node if there is one.
    fn chase(&mut self) -> Result<Vec<Figure>> {
        let steps = steps(self.memory, self.instruction_ns);
        let cpu = self.last_cpu();
        let arguments = |home: &Cpu, sizes: &[u64]| -> Vec<String> {
            let numbers = [u64::from(cpu.number), u64::from(home.number)];
            let words = numbers.iter().chain(sizes).map(u64::to_string);
            ["chase".to_string()].into_iter().chain(words).collect()
        };
        let sizes: Vec<u64> = steps.iter().map(|step| step.kib).collect();
        let mut measured = self.measure(&arguments(&cpu, &sizes))?;
        let mut all = steps;
        if let Some(home) = self.cpus.iter().find(|home| home.node != cpu.node).copied() {
            let kib = self.memory.llc.kib * 3;
            measured.extend(self.measure(&arguments(&home, &[kib]))?);
            all.push(Step {
                what: format!("remote DRAM ({kib} KiB)"),
                kib,
                latency_ns: self.memory.dram_ns.remote,
            });
        }
        ensure!(
            measured.len() == all.len(),
            "memory-check printed {} figures for {} sizes",
            measured.len(),
            all.len()
        );
        let instruction_ns = self.instruction_ns;
        let figures = all
            .into_iter()
            .zip(measured)
            .map(|(step, measured)| Figure {
                what: step.what,
                unit: Unit::Nanoseconds,
                measured,
                // A latency contains its load, and no load takes less than an instruction.
                predicted: step.latency_ns.max(instruction_ns) + instruction_ns * OTHERS / LOADS,
                tolerance_percent: CHASE_PERCENT,
            });
        Ok(figures.collect())
    }

    /// Measures a write to a line that another CPU has written, at each distance that the machine
    /// has.
    fn transfers(&mut self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for distance in Distance::ALL {
            let mut measured = Vec::new();
            for (a, b) in distance.pairs(&self.cpus) {
                measured.extend(self.measure(&[
                    "transfer".to_string(),
                    a.to_string(),
                    b.to_string(),
                ])?);
            }
            measured.sort_by(f64::total_cmp);
            if let Some(&measured) = measured.get(measured.len() / 2) {
                figures.push(Figure {
                    what: distance.to_string(),
                    unit: Unit::Nanoseconds,
                    // The program prints the difference to an own line, which takes an instruction.
                    measured: measured + self.instruction_ns,
                    predicted: distance.transfer_ns(self.memory),
                    tolerance_percent: TRANSFER_PERCENT,
                });
            }
        }
        Ok(figures)
    }

    /// Measures string instructions that clear memory in L1.
    fn strings(&mut self) -> Result<Vec<Figure>> {
        let cpu = self.last_cpu().number.to_string();
        let mut arguments = vec!["copy".to_string(), cpu];
        arguments.extend(STRINGS.map(|bytes| bytes.to_string()));
        let figures = STRINGS.into_iter().zip(self.measure(&arguments)?);
        Ok(figures
            .map(|(bytes, measured)| Figure {
                what: format!("rep stosb of {bytes} bytes"),
                unit: Unit::Nanoseconds,
                measured,
                predicted: self.memory.string.start_ns
                    + bytes as f64 / self.memory.string.bytes_per_ns
                    + self.instruction_ns,
                tolerance_percent: STRING_PERCENT,
            })
            .collect())
    }

    /// Measures additions to one line by 2, 8 and 32 CPUs.
    fn contended(&mut self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for nr in ADDERS {
            let adders = spread(&self.cpus, nr);
            if adders.len() < nr {
                continue;
            }
            let mut arguments = vec!["contend".to_string()];
            arguments.extend(adders.iter().map(|cpu| cpu.number.to_string()));
            let measured = self.measure(&arguments)?;
            ensure!(measured.len() == 1, "memory-check printed {measured:?}");
            figures.push(Figure {
                what: format!("{nr} CPUs"),
                unit: Unit::Nanoseconds,
                measured: measured[0],
                // The line visits all of them between two additions of one.
                predicted: nr as f64 * mean_transfer(self.memory, &adders),
                tolerance_percent: CONTENDED_PERCENT,
            });
        }
        Ok(figures)
    }
}

/// Returns `nr` of the CPUs, as evenly spread over the machine as possible, or fewer if there are
/// not so many.
pub(super) fn spread(cpus: &[Cpu], nr: usize) -> Vec<Cpu> {
    let nr = nr.min(cpus.len());
    (0..nr).map(|i| cpus[i * cpus.len() / nr]).collect()
}

/// A step of the chase: its name, its size, and the latency that the table has for that size.
struct Step {
    what: String,
    kib: u64,
    latency_ns: f64,
}

/// Returns the sizes of a chase: in the plateau of each level, and below and above each knee. A
/// level that is hardly larger than the one before has no plateau.
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

/// Returns the mean of a line's way between two different CPUs of these.
fn mean_transfer(memory: &Memory, cpus: &[Cpu]) -> f64 {
    let pairs = cpus.iter().flat_map(|a| cpus.iter().map(move |b| (a, b)));
    let ways: Vec<f64> = pairs
        .filter(|(a, b)| a.number != b.number)
        .map(|(a, b)| Distance::of(a, b).transfer_ns(memory))
        .collect();
    ways.iter().sum::<f64>() / ways.len() as f64
}

#[cfg(test)]
mod tests {
    use super::{mean_transfer, spread, steps};
    use crate::selfcheck::machine_with_memory;

    #[test]
    fn each_level_has_a_plateau_and_knees() {
        let (_, memory) = machine_with_memory();
        let kib: Vec<u64> = steps(&memory, 0.3).iter().map(|step| step.kib).collect();
        assert_eq!(
            kib,
            [16, 24, 48, 96, 128, 192, 384, 768, 1024, 1536, 3072, 6144]
        );
    }

    #[test]
    fn a_line_visits_all_cpus_between_two_additions_of_one() {
        let (machine, memory) = machine_with_memory();
        let two = spread(&machine.layout(), 2);
        assert_eq!([two[0].number, two[1].number], [0, 4]);
        assert_eq!(mean_transfer(&memory, &two), 100.0);
        // Of the others of each CPU 1 is its sibling, 2 are in its LLC and 4 in another.
        let all = spread(&machine.layout(), 8);
        let mean = (8.0 + 2.0 * 25.0 + 4.0 * 100.0) / 7.0;
        assert!((mean_transfer(&memory, &all) - mean).abs() < 1e-9);
        assert_eq!(spread(&machine.layout(), 32).len(), 8);
    }
}
