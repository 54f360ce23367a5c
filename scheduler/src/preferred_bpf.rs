//! Writes the settings of preferred CPUs to the BPF side, and reads their status.
//!
//! Both are plain memory that is mapped here and in the kernel. The BPF side reads the settings
//! each period, and at once when `apply_settings` is run. A read in the middle of a change sees
//! half of the change; the run of `apply_settings` after the change puts that right.

use std::fs;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::{ProgramInput, ProgramMut};

use crate::bpf_intf::{
    preferred_mode_PREFERRED_AUTO as MODE_AUTO, preferred_mode_PREFERRED_KERNEL as MODE_KERNEL,
};
use crate::bpf_skel::types;
use crate::cpu_set::CpuSet;
use crate::kernel_mask::{Core, KernelMask};
use crate::power::Level;
use crate::preferred::{Change, Preferred, PreferredStatus, governor_name, mode_name, source_name};
use crate::readings::read;
use crate::topology::NO_PLACE;

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

/// Returns the cores of this machine, in the order in which the governor prefers them.
pub fn cores(rodata: &types::rodata) -> Vec<Core> {
    let ranked = &rodata.core_at_rank[..rodata.nr_cores as usize];
    let core = |first: &u16| {
        let first = usize::from(*first);
        let topology = &rodata.cpu_topology[usize::from(rodata.cpu_at_place[first])];
        let places = &rodata.cpu_at_place[first..first + usize::from(topology.core_size)];
        let cpus = places.iter().filter(|cpu| **cpu != NO_PLACE);
        Core {
            node: topology.node,
            cpus: cpus.map(|cpu| usize::from(*cpu)).collect(),
        }
    };
    ranked.iter().map(core).collect()
}

/// Returns whether the user leaves the choice to the governor or to the kernel's own mask.
pub fn is_auto(settings: &types::preferred_settings) -> bool {
    matches!(settings.mode, MODE_AUTO | MODE_KERNEL)
}

/// Prefers these CPUs because the kernel's mask says so; without any lets the governor decide.
/// Returns whether that is a change.
pub fn follow_kernel(
    cpus: Option<&CpuSet>,
    settings: &mut types::preferred_settings,
    requested: &mut [u64],
) -> bool {
    let before = (settings.mode, requested.to_vec());
    settings.mode = match cpus {
        Some(cpus) => {
            requested.copy_from_slice(&cpus.to_words());
            MODE_KERNEL
        }
        None => MODE_AUTO,
    };
    before != (settings.mode, requested.to_vec())
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

/// Returns whether the CPUs are preferred to save power.
pub fn saves_power(bss: &types::bss) -> bool {
    let status = read(&bss.preferred_status);
    status.power != 0 && status.withheld != 0
}

/// Returns the preferred CPUs and why these, without [`PreferredStatus::moved_away`].
pub fn status(
    bss: &types::bss,
    data: &types::data,
    online: &CpuSet,
    kernel: &KernelMask,
    power: (Level, String),
) -> PreferredStatus {
    let (status, settings) = (read(&bss.preferred_status), read(&data.preferred_settings));
    let (mode, governor) = (mode_name(settings.mode), governor_name(settings.governor));
    let why = match mode {
        "auto" if saves_power(bss) => "as few whole cores as the load needs, to save power".into(),
        "auto" => format!("as the {governor} governor says{}", kernel.why_not()),
        "kernel" => kernel.why(),
        "set" => "as set by the user".into(),
        _ => "all, because it is switched off".into(),
    };
    PreferredStatus {
        preferred: preferred_cpus(bss, online).to_string(),
        online: online.to_string(),
        mode: mode.into(),
        why,
        kernel_mask: match mode {
            "kernel" => kernel.list(),
            _ => String::new(),
        },
        power: power.0.name().into(),
        power_why: power.1,
        power_rules: saves_power(bss).into(),
        governor,
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
