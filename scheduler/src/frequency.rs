//! Who decides how fast the CPUs run. scx_magpie leaves that alone; `scx_magpie check` says what
//! follows from it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::Serialize;

/// The driver and the governors of the CPUs' frequencies.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Frequency {
    /// As in `scaling_driver`.
    drivers: BTreeSet<String>,
    /// As in `scaling_governor`.
    governors: BTreeSet<String>,
    /// What that means for scx_magpie, with the remedy.
    pub note: &'static str,
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
        let note = match (drivers.is_empty(), governors.contains("schedutil")) {
            (true, _) => "the kernel has no driver for it; the host or the firmware decides",
            (false, true) => {
                "schedutil stays at the highest frequency, because scx_magpie asks for none. To save \
                 power, let the CPU's load decide: cpupower frequency-set -g ondemand"
            }
            (false, false) => "it does not depend on the scheduler",
        };
        Frequency {
            drivers,
            governors,
            note,
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
    fn schedutil_comes_with_a_remedy() {
        let found = with(&[("acpi-cpufreq", "schedutil"), ("acpi-cpufreq", "schedutil")]);
        assert_eq!(found.names(), "acpi-cpufreq, schedutil, ");
        assert!(found.note.contains("-g ondemand"), "{found:?}");
        let mixed = with(&[
            ("acpi-cpufreq", "performance"),
            ("acpi-cpufreq", "schedutil"),
        ]);
        assert_eq!(mixed.note, found.note);
    }

    #[test]
    fn other_governors_and_no_driver_are_no_concern() {
        let found = with(&[("intel_pstate", "powersave")]);
        assert_eq!(found.names(), "intel_pstate, powersave, ");
        assert!(found.note.contains("does not depend"), "{found:?}");
        let none = with(&[]);
        assert_eq!(none.names(), "");
        assert!(none.note.contains("no driver"), "{none:?}");
    }
}
