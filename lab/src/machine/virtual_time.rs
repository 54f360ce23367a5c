//! The `[virtual_time]` table of a machine: how fast its CPUs are and how closely their local times
//! keep together. See `docs/virtual-time.md`.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::frequency::Frequency;
use super::memory::Memory;

/// Speed and windows of a machine in virtual time. Absent keys have the values of `default()`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VirtualTime {
    /// Speed of one CPU in million instructions per second.
    pub mips: f64,
    /// Instructions that a vCPU executes between two looks at the others.
    pub quantum: u64,
    /// How far the local times of two vCPUs may be apart, in virtual nanoseconds.
    pub window_ns: u64,
    /// Speed of a hardware thread whose sibling is busy, as a fraction of its speed alone.
    pub smt_factor: f64,
    /// How many vCPUs the host executes at once; 0 stands for the number of its CPUs.
    pub turns: u32,
    /// Whether vCPUs and timers run one at a time, in the order of virtual time, so that every run
    /// is the same.
    pub deterministic: bool,
    /// Real seconds without progress after which the plugin prints the machine's state and ends it.
    pub hang_seconds: u32,
    /// Physical CPUs of the host on which the CPUs take turns; absent: one for each
    /// (`lab/vtime/host.c`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_cpus: Option<u32>,
    /// For how long a CPU has a physical CPU while others wait for one, in virtual nanoseconds. The
    /// default is the slice of Linux's fair scheduler on 8 CPUs and more; it does not keep step with
    /// the guest's ticks.
    pub host_slice_ns: u64,
    /// Caches, and what memory costs. Without it every access costs the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Frequencies that the guest's kernel sets. Without it every CPU always has its speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency: Option<Frequency>,
}

// Equality is total, because `check` refuses NaN.
impl Eq for VirtualTime {}

impl Default for VirtualTime {
    fn default() -> Self {
        VirtualTime {
            mips: 500.0,
            quantum: 1000,
            window_ns: 5000,
            smt_factor: 0.6,
            turns: 0,
            deterministic: false,
            hang_seconds: 60,
            physical_cpus: None,
            host_slice_ns: 2_800_000,
            memory: None,
            frequency: None,
        }
    }
}

impl VirtualTime {
    /// Fails for every value that the plugin would refuse, before a download or a boot.
    /// `memory_mib` is the machine's memory, `has_smt` says that cores have several threads.
    pub(super) fn check(&self, memory_mib: u64, has_smt: bool) -> Result<()> {
        ensure!(
            (1.0..=100_000.0).contains(&self.mips),
            "virtual_time.mips must be from 1 to 100000, not {}",
            self.mips
        );
        ensure!(
            (0.05..=1.0).contains(&self.smt_factor),
            "virtual_time.smt_factor must be from 0.05 to 1, not {}",
            self.smt_factor
        );
        ensure!(
            self.quantum >= 10 && self.window_ns >= 100 && self.hang_seconds >= 1,
            "virtual_time.quantum must be at least 10, window_ns 100, hang_seconds 1"
        );
        let quantum_ns = self.quantum as f64 * 1000.0 / self.mips / self.smt_factor;
        ensure!(
            quantum_ns <= self.window_ns as f64,
            "virtual_time.quantum lasts up to {quantum_ns:.0} ns, longer than the window of {} ns: \
             lower quantum or raise window_ns",
            self.window_ns
        );
        ensure!(
            self.physical_cpus
                .is_none_or(|cpus| (1..=1024).contains(&cpus))
                && (10_000..=1_000_000_000).contains(&self.host_slice_ns),
            "virtual_time.physical_cpus must be from 1 to 1024, host_slice_ns from 10000 to 1000000000"
        );
        ensure!(
            self.physical_cpus.is_none()
                || !(has_smt || self.memory.is_some() || self.frequency.is_some()),
            "virtual_time.physical_cpus takes neither SMT nor virtual_time.memory nor \
             virtual_time.frequency, because neither cores nor caches nor frequencies follow a CPU to \
             another physical one: give threads = 1 and no such table"
        );
        self.frequency.as_ref().map_or(Ok(()), Frequency::check)?;
        self.memory
            .as_ref()
            .map_or(Ok(()), |memory| memory.check(memory_mib))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        VirtualTime::default().check(2048, false).expect("valid");
    }

    #[test]
    fn a_quantum_longer_than_the_window_is_refused() {
        let time = VirtualTime {
            quantum: 2000,
            ..VirtualTime::default()
        };
        let error = time
            .check(2048, false)
            .expect_err("6667 ns do not fit 5000");
        assert!(error.to_string().contains("6667 ns"), "{error}");
    }

    #[test]
    fn nonsense_is_refused() {
        for time in [
            VirtualTime {
                mips: f64::NAN,
                ..VirtualTime::default()
            },
            VirtualTime {
                smt_factor: 1.5,
                ..VirtualTime::default()
            },
            VirtualTime {
                hang_seconds: 0,
                ..VirtualTime::default()
            },
        ] {
            time.check(2048, false).expect_err("must be refused");
        }
    }
}
