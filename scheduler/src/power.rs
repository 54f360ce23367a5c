//! Reads how much power the machine should save, for the mechanism "power".
//!
//! ```text
//! --power saver, balanced, performance -> that level
//! --power auto -> energy-performance preference of the CPUs, which desktops and
//!                 power-profiles-daemon set; where there is none, the platform's profile
//! ```
//!
//! Both are files, so nothing has to be asked over D-Bus. The reader of `scx_utils` also takes the
//! frequency governor `powersave` for a wish to save power. Under intel_pstate that governor is the
//! default of every server, so the governor is not asked here. `balance_performance` is the default
//! of the kernel's drivers, and so no wish to save power.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use scx_utils::pm;

/// The folder of the CPUs' frequencies, and the file of the platform's profile, below the root.
const POLICIES: &str = "sys/devices/system/cpu/cpufreq";
const PROFILE: &str = "sys/firmware/acpi/platform_profile";

/// The values of the energy-performance preference that some drivers show as numbers.
const BALANCE_POWER: u32 = 192;
const POWER: u32 = 255;

/// The option `--power`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Power {
    /// Fewest cores.
    Saver,
    /// Few cores.
    Balanced,
    /// All cores.
    Performance,
    /// As the machine prefers.
    Auto,
}

/// How much power is saved, in the order of the BPF side's `enum power_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// None.
    Performance,
    /// Some.
    Balanced,
    /// As much as possible.
    Saver,
}

impl Level {
    /// Returns the BPF side's `enum power_level`.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Level::Performance => "performance",
            Level::Balanced => "balanced",
            Level::Saver => "saver",
        }
    }

    /// Returns whether any power is saved.
    pub fn saves(self) -> bool {
        self != Level::Performance
    }
}

/// Where the level comes from: the option and the machine's files.
#[derive(Clone, Debug)]
pub struct PowerSource {
    option: Power,
    root: PathBuf,
}

impl PowerSource {
    /// A source that reads `sys` below this folder.
    pub fn new(option: Power, root: &Path) -> PowerSource {
        PowerSource {
            option,
            root: root.into(),
        }
    }

    /// Returns the level now, and why, as the end of a sentence.
    pub fn level(&self) -> (Level, String) {
        let chosen = |level| (level, "as --power says".into());
        match self.option {
            Power::Saver => chosen(Level::Saver),
            Power::Balanced => chosen(Level::Balanced),
            Power::Performance => chosen(Level::Performance),
            Power::Auto => self.preference(),
        }
    }

    /// Returns the level that the machine prefers. Where CPUs differ, the fastest one decides.
    fn preference(&self) -> (Level, String) {
        let policies = fs::read_dir(self.root.join(POLICIES));
        let policies = policies.into_iter().flatten().flatten();
        let preferences: BTreeSet<_> = policies
            .filter_map(|policy| {
                fs::read_to_string(policy.path().join("energy_performance_preference")).ok()
            })
            .map(|text| text.trim().to_string())
            .collect();
        let least = preferences.iter().min_by_key(|text| of_preference(text));
        if let Some(text) = least {
            let why = format!("as the energy-performance preference {text} says");
            return (of_preference(text), why);
        }
        match fs::read_to_string(self.root.join(PROFILE)) {
            Ok(text) => {
                let text = text.trim();
                (
                    of_profile(text),
                    format!("as the platform's profile {text} says"),
                )
            }
            Err(_) => (
                Level::Performance,
                "because the machine has neither an energy-performance preference nor a profile"
                    .into(),
            ),
        }
    }
}

/// Returns what a value of `energy_performance_preference` means.
fn of_preference(text: &str) -> Level {
    match (text, text.parse::<u32>()) {
        ("power", _) | (_, Ok(POWER..)) => Level::Saver,
        ("balance_power", _) | (_, Ok(BALANCE_POWER..)) => Level::Balanced,
        _ => Level::Performance,
    }
}

/// Returns what a value of `platform_profile` means.
fn of_profile(text: &str) -> Level {
    match text {
        "low-power" => Level::Saver,
        "cool" | "quiet" => Level::Balanced,
        _ => Level::Performance,
    }
}

/// Limits how long waking an idle CPU may take, for all CPUs, for as long as the file is open.
///
/// # Errors
/// When the kernel has no such limit, or this process may not set it.
pub fn limit_idle_resume(us: i32) -> Result<File> {
    pm::update_global_idle_resume_latency(us).context(
        "limiting the resume latency of idle CPUs by /dev/cpu_dma_latency; leave --idle-resume-us \
         out, or let the service use the file: no PrivateDevices=, and \
         DeviceAllow=/dev/cpu_dma_latency rw",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(option: Power, files: &[(&str, &str)]) -> (Level, String) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        }
        PowerSource::new(option, root.path()).level()
    }

    fn preference(policy: usize) -> String {
        format!("{POLICIES}/policy{policy}/energy_performance_preference")
    }

    #[test]
    fn the_option_overrules_the_machine() {
        let file = preference(0);
        let files = [(file.as_str(), "power")];
        let (chosen, why) = level(Power::Performance, &files);
        assert_eq!(
            (chosen, why.as_str()),
            (Level::Performance, "as --power says")
        );
        assert_eq!(level(Power::Balanced, &files).0, Level::Balanced);
    }

    #[test]
    fn the_machine_decides_by_preference_and_then_by_profile() {
        let file = preference(0);
        for (text, expected) in [
            ("power", Level::Saver),
            ("255", Level::Saver),
            ("balance_power", Level::Balanced),
            ("192", Level::Balanced),
            ("balance_performance", Level::Performance),
            ("128", Level::Performance),
            ("performance", Level::Performance),
            ("default", Level::Performance),
        ] {
            let files = [(file.as_str(), text), (PROFILE, "low-power")];
            let (found, why) = level(Power::Auto, &files);
            assert_eq!(found, expected, "{text}");
            assert!(why.contains(text), "{why}");
        }
        assert_eq!(
            level(Power::Auto, &[(PROFILE, "low-power")]).0,
            Level::Saver
        );
        assert_eq!(level(Power::Auto, &[(PROFILE, "quiet")]).0, Level::Balanced);
        assert_eq!(
            level(Power::Auto, &[(PROFILE, "balanced")]).0,
            Level::Performance
        );
    }

    #[test]
    fn a_machine_without_any_saves_nothing_and_the_fastest_cpu_decides() {
        let (found, why) = level(Power::Auto, &[]);
        assert!(!found.saves() && why.contains("neither"), "{why}");
        let (first, second) = (preference(0), preference(1));
        let files = [(first.as_str(), "power"), (second.as_str(), "performance")];
        assert_eq!(level(Power::Auto, &files).0, Level::Performance);
    }
}
