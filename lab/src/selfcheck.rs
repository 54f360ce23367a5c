//! The self-check of a machine in virtual time: whether a guest measures the times that the
//! machine's speed predicts.
//!
//! The program is `lab/vtime/check/vtime-check.c`; every guest in virtual time has it. Guests of
//! machines with memory have a second program, see [`run_memory`].

mod bandwidth;
mod code;
mod distance;
mod memory;
mod moves;
mod output;
mod pages;
mod switches;

use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

pub use self::memory::{Figure, MemoryCheck, Unit, run_contended, run_memory};

use self::output::output_of;
use crate::guest::Guest;
use crate::machine::Machine;

/// The figures of a self-check. A percentage is the greatest deviation of any CPU from the
/// predicted time, and the figure of each CPU is a median.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelfCheck {
    /// CPUs that took part.
    pub cpus: u32,
    /// Cores that took part.
    pub cores: u32,
    /// Deviation of a loop of known length on one CPU.
    pub loop_alone_percent: f64,
    /// Deviation of that loop on one thread of every core at once.
    pub loop_all_percent: f64,
    /// Deviation of that loop on all threads of all cores, from the SMT model's prediction; `None`
    /// without SMT.
    pub loop_siblings_percent: Option<f64>,
    /// Deviation of that loop on a thread whose sibling passes time (`lab/vtime/work.c`), from the
    /// SMT model's prediction; `None` without SMT.
    pub beside_work_percent: Option<f64>,
    /// By how much 20 ms of sleep took more than 10 ms longer than 10 ms of sleep, in nanoseconds.
    pub sleep_error_ns: f64,
    /// Time from an inter-processor interrupt to its answer, in nanoseconds, system call included;
    /// `None` with one core.
    pub ipi_round_trip_ns: Option<f64>,
    /// Whether the loops are within 1 %, the sleep within a window and the interrupt within two.
    pub holds: bool,
}

/// Runs the self-check in a guest of that machine. A check that does not hold is a result, no
/// error.
///
/// # Errors
/// When the machine is not in virtual time, or the check does not finish within `timeout` (real
/// time).
pub fn run(guest: &mut Guest, machine: &Machine, timeout: Duration) -> Result<SelfCheck> {
    let time = machine.time()?;
    if time.frequency.is_some() {
        set_governor(guest, "performance", timeout)?;
    }
    let argv = [
        "vtime-check".to_string(),
        time.mips.to_string(),
        time.window_ns.to_string(),
        time.smt_factor.to_string(),
    ];
    // A check that does not hold ends with 1.
    let text = output_of(guest, &argv, timeout, &[0, 1]);
    if time.frequency.is_some() {
        set_governor(guest, "schedutil", timeout)?;
    }
    let text = text?;
    match serde_json::from_str(&text) {
        Ok(check) => Ok(check),
        Err(error) => bail!("the self-check printed no report ({error}): {text}"),
    }
}

/// Sets the governor of the frequencies of all CPUs. The speed of the machine file is that at the
/// highest frequency, at which the governor "performance" keeps a CPU.
fn set_governor(guest: &mut Guest, governor: &str, timeout: Duration) -> Result<()> {
    let script = format!(
        "for file in /sys/devices/system/cpu/cpufreq/policy*/scaling_governor; do \
         echo {governor} > $file || exit; done"
    );
    let argv = ["sh", "-c", &script].map(String::from);
    output_of(guest, &argv, timeout, &[0]).map(|_| ())
}

/// Returns a machine with memory, and its table.
#[cfg(test)]
fn machine_with_memory() -> (Machine, crate::machine::Memory) {
    let machine = Machine::preset("vt8-mem").expect("preset");
    let time = machine.virtual_time.as_ref();
    let memory = time.and_then(|time| time.memory.clone());
    (machine, memory.expect("a machine with memory"))
}
