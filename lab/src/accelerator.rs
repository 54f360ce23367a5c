//! The accelerator of guests on this host: KVM where a guest boots on it, else QEMU's translator.
//!
//! A trial decides, because `/dev/kvm` also exists on hosts where no guest runs. The verdict is
//! kept in the lab's folder until the host reboots or QEMU changes.

use std::fs::{self, OpenOptions};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::options::{Accelerator, GuestOptions};
use crate::{emulator, files};

/// Limit of the trial, in real time. A guest on KVM boots in about a second.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(15);

/// The result of a trial, as `accelerator.json` keeps it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Verdict {
    /// Boot id of the host.
    host_boot: String,
    /// First line of `qemu-system-x86_64 --version`.
    qemu: String,
    accelerator: Accelerator,
    /// Why KVM does not work, if it does not.
    reason: Option<String>,
}

/// Returns the accelerator that works on this host with the QEMU of `options`. `boot_on_kvm` boots
/// a guest with the options it is given; it is called only if no verdict is known.
pub fn probe(
    options: &GuestOptions,
    boot_on_kvm: impl FnOnce(&GuestOptions) -> Result<()>,
) -> Result<Accelerator> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if device.is_err() {
        return Ok(Accelerator::Tcg);
    }
    let host_boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .context("cannot read the host's boot id")?
        .trim()
        .to_string();
    let qemu = first_line_of_version(options)?;
    let path = files::lab_dir()?.join("accelerator.json");
    let _lock = files::lock(&path.with_extension("lock"))?;
    let known = fs::read(&path)
        .ok()
        .and_then(|text| serde_json::from_slice::<Verdict>(&text).ok());
    if let Some(known) = known.filter(|v| v.host_boot == host_boot && v.qemu == qemu) {
        return Ok(known.accelerator);
    }
    options.progress.say("trying KVM");
    let trial = GuestOptions {
        boot_timeout: TRIAL_TIMEOUT,
        qemu_program: options.qemu_program.clone(),
        ..GuestOptions::default()
    };
    let (accelerator, reason) = match boot_on_kvm(&trial) {
        Ok(()) => (Accelerator::Kvm, None),
        Err(error) => (Accelerator::Tcg, Some(format!("{error:#}"))),
    };
    let verdict = Verdict {
        host_boot,
        qemu,
        accelerator,
        reason,
    };
    files::write_atomically(&path, &serde_json::to_vec_pretty(&verdict)?)?;
    Ok(accelerator)
}

/// Identifies QEMU. Empty if QEMU does not run: the boot that follows reports that better.
fn first_line_of_version(options: &GuestOptions) -> Result<String> {
    let emulator = emulator::find(options)?;
    let output = Command::new(&emulator.program)
        .envs(emulator.environment)
        .arg("--version")
        .output();
    let text = output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    Ok(text.lines().next().unwrap_or_default().to_string())
}
