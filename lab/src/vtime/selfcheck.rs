//! Does a virtual-time machine keep the time that it promises? Asked from within the guest.
//!
//! The program is `lab/vtime/check/vtime-check.c`; every guest in virtual time has it.

use crate::guest::{Guest, Stream};
use crate::machine::Machine;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What the self-check measured. Percentages are the greatest deviation of any CPU from the
/// predicted time, each CPU's figure a median.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelfCheck {
    /// CPUs that took part.
    pub cpus: u32,
    /// Cores that took part.
    pub cores: u32,
    /// A loop of known length on one CPU.
    pub loop_alone_percent: f64,
    /// The same on one thread of every core at once.
    pub loop_all_percent: f64,
    /// The same on all threads of all cores, against the SMT model's prediction; none without SMT.
    pub loop_siblings_percent: Option<f64>,
    /// The same on one thread whose sibling works (`lab/vtime/work.c`); none without SMT.
    pub beside_work_percent: Option<f64>,
    /// How much longer than 10 ms the second half of 20 ms of sleep took, in nanoseconds.
    pub sleep_error_ns: f64,
    /// An inter-processor interrupt and its answer, system call included; none with one core.
    pub ipi_round_trip_ns: Option<f64>,
    /// Loops within 1 %, sleep within the window, the interrupt within two.
    pub holds: bool,
}

/// Runs the self-check in a guest of that machine. One that does not hold is a result, not an error.
pub fn run(guest: &mut Guest, machine: &Machine, timeout: Duration) -> Result<SelfCheck> {
    let time = machine
        .virtual_time
        .as_ref()
        .with_context(|| format!("the machine {} is not in virtual time", machine.name))?;
    let argv = [
        "vtime-check".to_string(),
        time.mips.to_string(),
        time.window_ns.to_string(),
        time.smt_factor.to_string(),
    ];
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let result = guest.exec(&argv, timeout, &mut |stream, bytes| match stream {
        Stream::Stdout => stdout.extend_from_slice(bytes),
        Stream::Stderr => stderr.extend_from_slice(bytes),
    })?;
    let (stdout, stderr) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    ensure!(
        matches!(result.code, 0 | 1),
        "the self-check ended with code {}: {stderr}",
        result.code
    );
    match serde_json::from_str(&stdout) {
        Ok(check) => Ok(check),
        Err(error) => bail!("the self-check printed no report ({error}): {stdout}{stderr}"),
    }
}
