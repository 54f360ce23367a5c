//! The `[virtual_time.frequency]` table of a machine: the guest's kernel makes its CPUs slower and
//! faster. See `docs/virtual-time.md`.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// Frequencies are multiples of this, as a CPU's ratios count.
const STEP_MHZ: u32 = 100;

/// Frequency of the guest's TSC.
const TSC_MHZ: u32 = 2000;

/// The highest frequency that the registers can name.
const MOST_MHZ: u32 = 6000;

/// Frequencies of a machine's CPUs. The speed of the table `[virtual_time]` is that at `max_mhz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frequency {
    /// The lowest frequency.
    pub min_mhz: u32,
    /// The highest frequency.
    pub max_mhz: u32,
    /// How long after a request a CPU has the new frequency, in virtual nanoseconds.
    #[serde(default = "default_transition_ns")]
    pub transition_ns: u64,
}

/// What the kernel's driver takes a transition to last.
fn default_transition_ns() -> u64 {
    20_000
}

impl Frequency {
    /// Fails for every value that the plugin would refuse, before a download or a boot.
    pub(super) fn check(&self) -> Result<()> {
        let Frequency {
            min_mhz,
            max_mhz,
            transition_ns,
        } = *self;
        ensure!(
            min_mhz.is_multiple_of(STEP_MHZ) && max_mhz.is_multiple_of(STEP_MHZ),
            "virtual_time.frequency: min_mhz and max_mhz must be multiples of {STEP_MHZ}, not \
             {min_mhz} and {max_mhz}"
        );
        ensure!(
            (STEP_MHZ..=TSC_MHZ).contains(&min_mhz),
            "virtual_time.frequency.min_mhz must be from {STEP_MHZ} to {TSC_MHZ}, the frequency of \
             the TSC, not {min_mhz}"
        );
        ensure!(
            (TSC_MHZ..=MOST_MHZ).contains(&max_mhz),
            "virtual_time.frequency.max_mhz must be from {TSC_MHZ}, the frequency of the TSC, to \
             {MOST_MHZ}, not {max_mhz}"
        );
        ensure!(
            transition_ns <= 1_000_000_000,
            "virtual_time.frequency.transition_ns must be at most 1000000000, not {transition_ns}"
        );
        Ok(())
    }

    /// The plugin's options.
    pub(crate) fn plugin_options(&self, slow: Option<SlowCores>) -> String {
        let Frequency {
            min_mhz,
            max_mhz,
            transition_ns,
        } = self;
        let mut options = format!("min_mhz={min_mhz},max_mhz={max_mhz},transition={transition_ns}");
        if let Some(SlowCores { from, mhz }) = slow {
            options += &format!(",slow_from={from},slow_mhz={mhz}");
        }
        options
    }
}

/// The slow cores of a hybrid machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlowCores {
    /// QEMU's number of the first CPU that is one; so are all later ones.
    pub from: u32,
    /// Their highest frequency.
    pub mhz: u32,
}

impl SlowCores {
    /// Fails for a frequency that the plugin would refuse.
    pub(super) fn check(&self, frequency: Option<&Frequency>) -> Result<()> {
        let Some(frequency) = frequency else {
            bail!("slow_mhz of an [[llc]] needs the table [virtual_time.frequency]");
        };
        ensure!(
            self.mhz.is_multiple_of(STEP_MHZ) && (TSC_MHZ..=frequency.max_mhz).contains(&self.mhz),
            "slow_mhz must be a multiple of {STEP_MHZ}, from {TSC_MHZ}, the frequency of the TSC, \
             to max_mhz, {}, not {}",
            frequency.max_mhz,
            self.mhz
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::tests::changed_preset_is_refused;

    fn is_refused(from: &str, to: &str, reason: &str) {
        changed_preset_is_refused("vt16freq", from, to, reason);
    }

    #[test]
    fn impossible_frequencies_are_refused_with_their_key() {
        is_refused("min_mhz = 800", "min_mhz = 850", "multiples of 100");
        is_refused("min_mhz = 800", "min_mhz = 2100", "min_mhz");
        is_refused("min_mhz = 800", "min_mhz = 0", "min_mhz");
        is_refused("max_mhz = 3200", "max_mhz = 1900", "the TSC");
        is_refused("max_mhz = 3200", "max_mhz = 6100", "max_mhz");
        is_refused(
            "max_mhz = 3200",
            "max_mhz = 3200\ntransition_ns = 2000000000",
            "transition_ns",
        );
        is_refused("max_mhz = 3200", "max_mhz = 3200\nboost = 1", "boost");
        is_refused(
            "[virtual_time]",
            "[virtual_time]\nphysical_cpus = 2",
            "physical_cpus",
        );
    }

    #[test]
    fn impossible_slow_cores_are_refused_with_their_key() {
        for (from, to, reason) in [
            ("slow_mhz = 2000", "slow_mhz = 1900", "the TSC"),
            ("slow_mhz = 2000", "slow_mhz = 3300", "max_mhz"),
            ("slow_mhz = 2000", "slow_mhz = 2050", "multiple of 100"),
            ("slow_mhz = 2000", "slow_mhz = 2000\nthreads = 2", "threads"),
            (
                "slow_mhz = 2000",
                "slow_mhz = 2000\n[[llc]]\ncores = 4",
                "after those without",
            ),
            ("[[llc]]\ncores = 4\n[[llc]]", "[[llc]]", "at least one"),
            (
                "[virtual_time.frequency]\nmin_mhz = 800\nmax_mhz = 3200",
                "",
                "[virtual_time.frequency]",
            ),
        ] {
            changed_preset_is_refused("vt8hybrid", from, to, reason);
        }
    }
}
