//! Reads which driver and governors set the CPUs' frequencies. Under the governor schedutil
//! scx_magpie asks for performance (mechanism "frequency"); `scx_magpie check` and the log say
//! whether it does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::options::Settings;

/// The driver and the governors of the CPUs' frequencies.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Frequency {
    /// As in `scaling_driver`.
    drivers: BTreeSet<String>,
    /// As in `scaling_governor`.
    governors: BTreeSet<String>,
}

/// The same, and what it means for scx_magpie.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct FrequencyReport {
    /// Driver and governors.
    #[serde(flatten)]
    pub found: Frequency,
    /// The consequence for scx_magpie, with the remedy.
    pub note: &'static str,
}

impl FrequencyReport {
    /// Judges what was found, for a start with these settings.
    pub fn new(found: Frequency, settings: &Settings) -> FrequencyReport {
        let note = found.note(settings.asks_for_performance(found.has_schedutil()));
        FrequencyReport { found, note }
    }
}

impl Frequency {
    /// Reads them from `sys` below this folder.
    pub fn of(root: &Path) -> Frequency {
        let values = |file: &str| -> BTreeSet<String> {
            let policies = fs::read_dir(root.join("sys/devices/system/cpu/cpufreq"));
            let policies = policies.into_iter().flatten().flatten();
            policies
                .filter_map(|policy| fs::read_to_string(policy.path().join(file)).ok())
                .map(|text| text.trim().to_string())
                .collect()
        };
        let (drivers, governors) = (values("scaling_driver"), values("scaling_governor"));
        Frequency { drivers, governors }
    }

    /// Returns whether the governor of some CPU follows the scheduler.
    pub fn has_schedutil(&self) -> bool {
        self.governors.contains("schedutil")
    }

    /// Returns what that means for a scx_magpie that asks for performance, or does not.
    pub fn note(&self, asks: bool) -> &'static str {
        match (self.drivers.is_empty(), self.has_schedutil(), asks) {
            (true, ..) => "the kernel has no driver for it; the host or the firmware decides",
            (false, true, true) => "schedutil follows what scx_magpie asks for",
            (false, true, false) => {
                "schedutil lowers no frequency, because scx_magpie asks for none. Leave \
                 --no-frequency out, or let the CPU's load decide: cpupower frequency-set -g ondemand"
            }
            (false, false, _) => "it does not depend on the scheduler",
        }
    }

    /// Returns the driver and its governors as words; nothing without a driver.
    pub fn names(&self) -> String {
        let words: Vec<_> = self.drivers.iter().chain(&self.governors).collect();
        words.into_iter().map(|word| format!("{word}, ")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(policies: &[(&str, &str)]) -> Frequency {
        let root = tempfile::tempdir().unwrap();
        for (at, (driver, governor)) in policies.iter().enumerate() {
            let folder = format!("sys/devices/system/cpu/cpufreq/policy{at}");
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("scaling_driver"), format!("{driver}\n")).unwrap();
            fs::write(folder.join("scaling_governor"), format!("{governor}\n")).unwrap();
        }
        Frequency::of(root.path())
    }

    #[test]
    fn schedutil_follows_or_comes_with_a_remedy() {
        let found = with(&[("acpi-cpufreq", "schedutil"), ("acpi-cpufreq", "schedutil")]);
        assert_eq!(found.names(), "acpi-cpufreq, schedutil, ");
        assert!(found.has_schedutil());
        assert!(found.note(true).contains("follows"), "{found:?}");
        assert!(found.note(false).contains("-g ondemand"), "{found:?}");
        let mixed = with(&[
            ("acpi-cpufreq", "performance"),
            ("acpi-cpufreq", "schedutil"),
        ]);
        assert_eq!(mixed.note(true), found.note(true));
    }

    #[test]
    fn other_governors_and_no_driver_are_no_concern() {
        let found = with(&[("intel_pstate", "powersave")]);
        assert_eq!(found.names(), "intel_pstate, powersave, ");
        assert!(found.note(true).contains("does not depend"), "{found:?}");
        let none = with(&[]);
        assert_eq!(none.names(), "");
        assert!(!none.has_schedutil() && !found.has_schedutil());
        assert!(none.note(false).contains("no driver"), "{none:?}");
    }
}
