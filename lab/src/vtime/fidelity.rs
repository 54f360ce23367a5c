//! The plugin's report: how well a virtual-time machine keeps its promises.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// How long QEMU may take to write its report, in real time. The host may be busy.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);

/// The plugin's report. Counts begin with the machine's start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fidelity {
    /// Why the report was written: "running" (the lab asked for it), "exit", "mark" (the
    /// end mark of a seed), "over" (the other guests of a host have ended) or "hang".
    pub end: String,
    /// The guest's architecture, as QEMU names it.
    pub target: String,
    /// Number of CPUs.
    pub cpus: u32,
    /// Speed of one CPU in million instructions per second.
    pub mips: f64,
    /// Instructions that a vCPU executes between two looks at the others.
    pub quantum: u64,
    /// How far the local times of two vCPUs may be apart, in virtual nanoseconds.
    pub window_ns: u64,
    /// Speed of a CPU whose sibling is busy, as a fraction of its speed alone.
    pub smt_factor: f64,
    /// Hardware threads per core.
    pub threads_per_core: u32,
    /// How many vCPUs the host executes at once.
    pub turns: u32,
    /// Whether every run is the same.
    pub deterministic: bool,
    /// Real seconds since QEMU was started.
    pub real_seconds: f64,
    /// Virtual seconds since the machine was started.
    pub virtual_seconds: f64,
    /// Instructions executed by all CPUs.
    pub instructions: u64,
    /// Million instructions per second of real time.
    pub real_mips: f64,
    /// How often a vCPU was found beyond the end of its turn by more than a translated block.
    pub windows_broken: u64,
    /// How far a vCPU was found beyond the end of its turn at most, in virtual nanoseconds. Up to a
    /// quantum where a turn was shortened.
    pub beyond_turn_max_ns: i64,
    /// How late a timer was served at most, in virtual nanoseconds.
    pub timer_late_max_ns: i64,
    /// Turns given to vCPUs.
    pub turns_given: u64,
    /// Quantum ends.
    pub quanta: u64,
    /// Quantum ends at which the vCPU looked at the others.
    pub slow_quanta: u64,
    /// How often all CPUs were idle and virtual time jumped to the next timer.
    pub idle_jumps: u64,
    /// How often a due timer called QEMU's main loop.
    pub timer_calls: u64,
    /// How often a vCPU called the main loop.
    pub notify_calls: u64,
    /// How often the host called the main loop. A run with many repeats less closely.
    pub host_calls: u64,
    /// Readings of the clock by vCPUs.
    pub clock_reads: u64,
    /// Breakpoints that a vCPU would have executed after the kernel had removed them
    /// (`breakpoint.c`).
    pub stale_breakpoints: u64,
    /// The perturbation by a seed; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
    /// What the guest had between its marks; `None` where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<Span>,
    /// Misses of all CPUs, and what they cost; `None` for a machine without memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryCounts>,
    /// One entry for each vCPU.
    pub vcpus: Vec<VcpuFidelity>,
}

/// The schedule that followed from a seed since the guest's begin mark (`lab/vtime/perturb.c`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Perturbation {
    /// The seed.
    pub seed: u64,
    /// Turns given to vCPUs.
    pub turns: u64,
    /// Fingerprint of these turns: which vCPU began when. Equal for equal schedules.
    pub schedule: String,
    /// How often a vCPU was stopped.
    pub stops: u64,
    /// Virtual nanoseconds that all stops took together.
    pub stopped_ns: i64,
}

/// What all CPUs of a guest had between its marks (`lab/vtime/span.c`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Virtual time of the begin mark, since the machine's start.
    pub begin_ns: i64,
    /// Virtual time of the end mark, or of the report if there was none.
    pub end_ns: i64,
    /// Instructions executed.
    pub instructions: u64,
    /// Virtual nanoseconds halted.
    pub idle_ns: i64,
    /// Virtual nanoseconds without a physical CPU while it wanted to execute.
    pub steal_ns: i64,
}

/// Counts of one vCPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VcpuFidelity {
    /// Instructions executed.
    pub instructions: u64,
    /// Virtual nanoseconds halted.
    pub idle_ns: i64,
    /// Virtual nanoseconds of endless loops that were not executed (`lab/vtime/work.c`).
    pub work_ns: i64,
    /// Virtual nanoseconds executed while a sibling was busy.
    pub shared_ns: i64,
    /// Virtual nanoseconds in which it wanted to execute and had no physical CPU: the true steal
    /// time, which the guest does not see (`lab/vtime/host.c`).
    #[serde(default)]
    pub steal_ns: i64,
    /// Frequencies of the CPU; `None` where they do not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency: Option<FrequencyCounts>,
    /// Misses of the CPU, and what they cost; `None` for a machine without memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryCounts>,
}

/// Frequencies of one vCPU (`lab/vtime/frequency.c`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrequencyCounts {
    /// Requests of the guest's kernel for a frequency.
    pub requests: u64,
    /// How often the vCPU changed its frequency, as its sibling's requests had it do, too.
    pub changes: u64,
    /// Virtual nanoseconds for which the vCPU was not halted, by its frequency in MHz.
    pub busy_ns: BTreeMap<u32, i64>,
}

/// Accesses, by the source of the line or by the other cause for which they waited. Accesses to L1
/// are counted only if the model looked up the physical address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryCounts {
    /// The core's L1.
    pub l1: Served,
    /// The core's L2.
    pub l2: Served,
    /// The core's LLC.
    pub llc: Served,
    /// The other thread of the core had written the line.
    pub sibling: Served,
    /// Another core of the LLC.
    pub same_llc: Served,
    /// Another LLC of the node.
    pub other_llc: Served,
    /// Another node.
    pub other_node: Served,
    /// The memory of the own node.
    pub dram: Served,
    /// The memory of another node.
    pub remote_dram: Served,
    /// Locked instructions that waited for those of other CPUs on the same line.
    pub contention: Served,
    /// Lines from memory that waited because their core gets no more in that time.
    #[serde(default)]
    pub core_bandwidth: Served,
    /// Lines from the LLC that waited because it serves no more in that time.
    #[serde(default)]
    pub llc_bandwidth: Served,
    /// Lines from memory that waited because their node's memory serves no more in that time.
    #[serde(default)]
    pub node_bandwidth: Served,
    /// System calls.
    #[serde(default)]
    pub syscall: Served,
    /// Interrupts, exceptions, and system calls that return as these do.
    #[serde(default)]
    pub interrupt: Served,
    /// Changes of the address space.
    #[serde(default)]
    pub address_space: Served,
    /// Walks through the page tables.
    #[serde(default)]
    pub page_walk: Served,
    /// Lines of code that L1I lacked, from anywhere.
    #[serde(default)]
    pub fetch: Served,
    /// Bytes that repeated string instructions wrote.
    pub string_bytes: u64,
    /// Virtual nanoseconds that all repeated string instructions took, without their misses.
    pub string_ns: u64,
}

/// How many accesses one source served, or waited for one other cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Served {
    /// Accesses.
    pub count: u64,
    /// Virtual nanoseconds that they waited beyond their instruction.
    pub stall_ns: u64,
}

impl MemoryCounts {
    /// Each cause of stalls, most of them a source of lines beyond L1, with its name in reports.
    pub fn causes(&self) -> [(&'static str, Served); 17] {
        [
            ("L2", self.l2),
            ("LLC", self.llc),
            ("sibling", self.sibling),
            ("same LLC", self.same_llc),
            ("other LLC", self.other_llc),
            ("other node", self.other_node),
            ("DRAM", self.dram),
            ("remote DRAM", self.remote_dram),
            ("contention", self.contention),
            ("core's bandwidth", self.core_bandwidth),
            ("LLC's bandwidth", self.llc_bandwidth),
            ("node's bandwidth", self.node_bandwidth),
            ("system call", self.syscall),
            ("interrupt", self.interrupt),
            ("address space", self.address_space),
            ("page walk", self.page_walk),
            ("instruction fetch", self.fetch),
        ]
    }
}

impl Fidelity {
    /// Reads a report from a file.
    pub(super) fn read(path: &Path) -> Result<Fidelity> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the fidelity report {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("the fidelity report {} is malformed", path.display()))
    }

    /// For how many virtual nanoseconds all vCPUs were not halted, by their frequency in MHz; empty for
    /// a machine without frequencies.
    pub fn busy_ns(&self) -> BTreeMap<u32, i64> {
        let mut all = BTreeMap::new();
        for counts in self.vcpus.iter().filter_map(|v| v.frequency.as_ref()) {
            for (mhz, ns) in &counts.busy_ns {
                *all.entry(*mhz).or_default() += ns;
            }
        }
        all
    }

    /// Asks a running QEMU for its report and waits until the report is there.
    pub(crate) fn of_running(qemu: u32, path: &Path) -> Result<Fidelity> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).context("cannot remove the last fidelity report");
            }
            _ => {}
        }
        kill(Pid::from_raw(qemu as i32), Signal::SIGUSR2)
            .context("cannot ask QEMU for the fidelity report: QEMU has ended")?;
        let deadline = Instant::now() + REPORT_TIMEOUT;
        while !path.exists() {
            if Instant::now() > deadline {
                bail!(
                    "QEMU did not write its fidelity report within {} s",
                    REPORT_TIMEOUT.as_secs()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
        Fidelity::read(path)
    }
}
