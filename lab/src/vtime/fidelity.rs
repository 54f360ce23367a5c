//! How well a virtual-time machine kept its promises: what the plugin reports.

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long a machine may take to report. It is a thread of QEMU that does, on a host that may be
/// busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// The plugin's report. Counts are since the machine was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fidelity {
    /// Why it was written: "running" (asked for), "exit", "hang".
    pub end: String,
    /// The guest's architecture in QEMU's words.
    pub target: String,
    /// Number of CPUs.
    pub cpus: u32,
    /// Speed of one CPU in million instructions per second.
    pub mips: f64,
    /// Instructions between two looks of a running CPU at the others.
    pub quantum: u64,
    /// How far a CPU may be ahead of the last one, in virtual nanoseconds.
    pub window_ns: u64,
    /// Speed of a CPU whose sibling is busy, as a fraction.
    pub smt_factor: f64,
    /// Hardware threads per core.
    pub threads_per_core: u32,
    /// vCPUs that the host executed at once.
    pub turns: u32,
    /// The same in every run?
    pub deterministic: bool,
    /// Real time since QEMU was started.
    pub real_seconds: f64,
    /// Virtual time since the machine was switched on.
    pub virtual_seconds: f64,
    /// Instructions executed by all CPUs.
    pub instructions: u64,
    /// Million instructions per second of real time.
    pub real_mips: f64,
    /// How often a CPU was found beyond the end of its turn by more than a translated block.
    pub windows_broken: u64,
    /// How far beyond at most, in virtual nanoseconds.
    pub beyond_turn_max_ns: i64,
    /// How late a timer was served at most, in virtual nanoseconds.
    pub timer_late_max_ns: i64,
    /// Turns given to vCPUs.
    pub turns_given: u64,
    /// Quantum ends.
    pub quanta: u64,
    /// Quantum ends that took the lock.
    pub slow_quanta: u64,
    /// Times that all CPUs were idle and virtual time jumped to the next timer.
    pub idle_jumps: u64,
    /// Times that QEMU's main loop was called because a timer was due.
    pub timer_calls: u64,
    /// Times that a vCPU called it.
    pub notify_calls: u64,
    /// Times that something outside of the machine called it.
    pub host_calls: u64,
    /// Readings of the clock by vCPUs.
    pub clock_reads: u64,
    /// Breakpoints that a CPU would have executed after the kernel had taken them away (`breakpoint.c`).
    pub stale_breakpoints: u64,
    /// What each vCPU did.
    pub vcpus: Vec<VcpuFidelity>,
}

/// What one vCPU did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VcpuFidelity {
    /// Instructions executed.
    pub instructions: u64,
    /// Virtual nanoseconds halted.
    pub idle_ns: i64,
    /// Virtual nanoseconds of work that was not executed (`lab/vtime/work.c`).
    pub work_ns: i64,
    /// Virtual nanoseconds executed while a sibling was busy.
    pub shared_ns: i64,
}

impl Fidelity {
    /// Reads a finished report.
    pub fn read(path: &Path) -> Result<Fidelity> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the fidelity report {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("the fidelity report {} is malformed", path.display()))
    }

    /// Asks a running machine for its report and waits for it.
    pub(crate) fn of_running(qemu: u32, path: &Path) -> Result<Fidelity> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context("cannot remove the last fidelity report");
            }
            _ => {}
        }
        kill(Pid::from_raw(qemu as i32), Signal::SIGUSR2)
            .context("cannot ask QEMU for the fidelity report: it has ended")?;
        let deadline = Instant::now() + PATIENCE;
        while !path.exists() {
            if Instant::now() > deadline {
                bail!(
                    "QEMU did not write its fidelity report within {} s",
                    PATIENCE.as_secs()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
        Fidelity::read(path)
    }
}
