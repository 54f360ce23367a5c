//! The `[virtual_time.frequency]` table of a machine: the guest's kernel makes its CPUs slower and
//! faster. See `docs/virtual-time.md`.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::Machine;

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

    /// The plugin's options for a machine.
    pub(crate) fn plugin_options(&self, machine: &Machine) -> String {
        let Frequency {
            min_mhz,
            max_mhz,
            transition_ns,
        } = self;
        let mut options = format!("min_mhz={min_mhz},max_mhz={max_mhz},transition={transition_ns}");
        if let Some(SlowCores { from_llc, mhz }) = slow_cores(machine) {
            // QEMU numbers CPUs in the order of slots, and hybrid machines have no SMT.
            let from = from_llc * machine.most_cores();
            options += &format!(",slow_from={from},slow_mhz={mhz}");
        }
        options
    }
}

/// The slow cores of a hybrid machine: those of an LLC and of all later ones.
struct SlowCores {
    from_llc: u32,
    mhz: u32,
}

/// Returns the slow cores, if the machine is hybrid.
fn slow_cores(machine: &Machine) -> Option<SlowCores> {
    let first = machine.llc.iter().position(|llc| llc.slow_mhz.is_some())?;
    Some(SlowCores {
        from_llc: machine.llc[..first].iter().map(|llc| llc.count).sum(),
        mhz: machine.llc[first].slow_mhz?,
    })
}

/// Returns whether the machine has fast and slow cores.
pub(crate) fn is_hybrid(machine: &Machine) -> bool {
    slow_cores(machine).is_some()
}

/// Fails for slow cores that the plugin or the kernel would not take for such, with the key.
pub(super) fn check_slow_cores(machine: &Machine) -> Result<()> {
    let Some(slow) = slow_cores(machine) else {
        return Ok(());
    };
    let time = machine.virtual_time.as_ref();
    let Some(frequency) = time.and_then(|time| time.frequency) else {
        bail!("slow_mhz of an [[llc]] needs the table [virtual_time.frequency]");
    };
    let mhz = slow.mhz;
    ensure!(
        mhz.is_multiple_of(STEP_MHZ) && (TSC_MHZ..=frequency.max_mhz).contains(&mhz),
        "slow_mhz must be a multiple of {STEP_MHZ}, from {TSC_MHZ}, the frequency of the TSC, to \
         max_mhz, {}, not {mhz}",
        frequency.max_mhz
    );
    let kinds = machine.llc.iter().map(|llc| llc.slow_mhz);
    ensure!(
        slow.from_llc > 0
            && kinds
                .skip_while(Option::is_none)
                .all(|kind| kind == Some(mhz)),
        "each [[llc]] with slow_mhz must come after those without, of which there is at least one, \
         and have the same slow_mhz"
    );
    ensure!(
        machine.llc.iter().all(|llc| llc.threads == 1),
        "slow_mhz needs threads = 1 on all LLCs: with SMT the kernel gives all CPUs one capacity"
    );
    Ok(())
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
