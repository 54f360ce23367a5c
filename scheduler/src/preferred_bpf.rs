//! Writes the settings of preferred CPUs to the BPF side, and reads their status.
//!
//! Both are plain memory that is mapped here and in the kernel. The BPF side reads the settings
//! each period, and at once when `apply_settings` is run. It may see half of a change in between;
//! the run of `apply_settings` after the change puts that right.

use std::fs;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::{ProgramInput, ProgramMut};

use crate::bpf_skel::types;
use crate::cpu_set::CpuSet;
use crate::preferred::{Change, Preferred, PreferredStatus, governor_name, mode_name, source_name};
use crate::readings::read;

/// How long to wait for the kernel's timer, which can be late on an overcommitted host.
const APPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the CPUs that are online now.
///
/// # Errors
/// When sysfs cannot be read.
pub fn online_cpus() -> Result<CpuSet> {
    const FILE: &str = "/sys/devices/system/cpu/online";
    let text = fs::read_to_string(FILE).with_context(|| format!("reading {FILE}"))?;
    text.parse()
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("reading {FILE}"))
}

/// Writes a change to the settings as a whole, or not at all.
///
/// # Errors
/// When none of the CPUs is online, or the thresholds cross, with the remedy.
pub fn write(
    change: &Change,
    online: &CpuSet,
    settings: &mut types::preferred_settings,
    requested: &mut [u64],
) -> Result<(), String> {
    let knobs = &change.knobs;
    knobs.check(settings.high, settings.low)?;
    if let Some(Preferred::Cpus(cpus)) = &change.set {
        if cpus.and(online).is_empty() {
            return Err(format!(
                "none of CPUs {cpus} is online; online are {online}"
            ));
        }
        requested.copy_from_slice(&cpus.to_words());
    }
    if let Some(set) = &change.set {
        settings.mode = set.mode();
    }
    if let Some(period) = knobs.period {
        settings.period_ns = period * 1_000_000;
    }
    if let Some(governor) = knobs.governor {
        settings.governor = governor.kind();
    }
    settings.high = knobs.high.unwrap_or(settings.high);
    settings.low = knobs.low.unwrap_or(settings.low);
    Ok(())
}

/// Makes the BPF side act on its settings now. Its timer does so a moment later; this waits until
/// then, so that a status read next is true.
///
/// # Errors
/// When the kernel does not run the program.
pub fn apply(program: &ProgramMut, bss: &types::bss) -> Result<()> {
    let applied = || read(&bss.preferred_status.applied);
    let before = applied();
    let output = program
        .test_run(ProgramInput::default())
        .context("running the BPF program that applies changed settings")?;
    match output.return_value as i32 {
        0 => {}
        error => {
            return Err(io::Error::from_raw_os_error(-error))
                .context("applying changed settings in the kernel");
        }
    }
    let deadline = Instant::now() + APPLY_TIMEOUT;
    while applied() == before && Instant::now() < deadline {
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns the online CPUs that are preferred: all of them unless some are withheld.
pub fn preferred_cpus(bss: &types::bss, online: &CpuSet) -> CpuSet {
    let withheld = read(&bss.preferred_status.withheld);
    let bits = read(&bss.preferred_bits);
    match withheld {
        0 => online.clone(),
        _ => CpuSet::from_words(&bits).and(online),
    }
}

/// Returns the preferred CPUs and why these, without [`PreferredStatus::moved_away`].
pub fn status(bss: &types::bss, data: &types::data, online: &CpuSet) -> PreferredStatus {
    let (status, settings) = (read(&bss.preferred_status), read(&data.preferred_settings));
    PreferredStatus {
        preferred: preferred_cpus(bss, online).to_string(),
        online: online.to_string(),
        mode: mode_name(settings.mode).into(),
        governor: governor_name(settings.governor),
        source: source_name(status.source).into(),
        kernel_counts: u64::from(status.kernel_steal_ns != 0),
        steal_percent: f64::from(status.steal) / 100.0,
        wanted_cores: f64::from(status.wanted) / 100.0,
        given_cores: f64::from(status.given) / 100.0,
        direction: status.direction.into(),
        changes: status.changes,
        moved_away: 0,
        period: settings.period_ns / 1_000_000,
        high: settings.high.into(),
        low: settings.low.into(),
    }
}
