//! KVM or TCG? Decided by booting a guest, since /dev/kvm exists on hosts where no guest runs.
//!
//! The verdict holds until the host boots again or QEMU is replaced; it is kept in the lab's folder.

use crate::guest::{Accelerator, Guest, GuestOptions};
use crate::kernel::Kernel;
use crate::{emulator, place};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::process::Command;
use std::time::Duration;

/// A guest on KVM boots in about a second; one that does not within this time never will.
const PROBE: Duration = Duration::from_secs(15);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Verdict {
    host_boot: String,
    qemu: String,
    accelerator: Accelerator,
    /// Why it is not KVM.
    reason: Option<String>,
}

/// The accelerator that works on this host with the QEMU of these options.
pub fn probe(options: &GuestOptions, kernel: &Kernel) -> Result<Accelerator> {
    if OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_err()
    {
        return Ok(Accelerator::Tcg);
    }
    let host_boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .context("cannot read the host's boot id")?
        .trim()
        .to_string();
    let emulator = emulator::find(options)?;
    let qemu = Command::new(&emulator.program)
        .envs(emulator.environment)
        .arg("--version")
        .output()
        .map(|output| {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .next()
                .unwrap_or("")
                .into()
        })
        // A missing QEMU is reported by the boot that follows.
        .unwrap_or_default();
    let path = place::lab_dir()?.join("accelerator.json");
    let _lock = place::lock(&path.with_extension("lock"))?;
    let known = fs::read(&path)
        .ok()
        .and_then(|text| serde_json::from_slice::<Verdict>(&text).ok());
    if let Some(known) = known.filter(|v| v.host_boot == host_boot && v.qemu == qemu) {
        return Ok(known.accelerator);
    }
    options.progress.say("trying KVM");
    let trial = GuestOptions {
        boot_timeout: PROBE,
        qemu_program: options.qemu_program.clone(),
        ..GuestOptions::default()
    };
    let reason = match Guest::boot_with(&trial, kernel, Accelerator::Kvm) {
        Ok(_) => None,
        Err(error) => Some(format!("{error:#}")),
    };
    let accelerator = if reason.is_none() {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    };
    let verdict = Verdict {
        host_boot,
        qemu,
        accelerator,
        reason,
    };
    place::write_atomically(&path, &serde_json::to_vec_pretty(&verdict)?)?;
    Ok(accelerator)
}
