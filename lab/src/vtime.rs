//! The virtual-time machine: many CPUs of a fixed speed, in step in *virtual* time, on any host.
//!
//! A machine file with a `[virtual_time]` table is such a machine. [`Guest::boot`](crate::Guest)
//! then runs QEMU 10 with the plugin of `lab/vtime/`, and everything the guest measures is what a
//! machine of that many CPUs would measure, however few the host has and whatever else it does.
//! The method and its limits: `docs/virtual-time.md`.
//!
//! ```text
//!   machine.toml, [virtual_time]
//!        |            emulator: QEMU >= 10, of the host or of Debian's backports
//!        v            plugin: built from the sources embedded here
//!     prepare() ----> GuestOptions ----> Guest  ----> fidelity: what the plugin reports
//!                          \-----------> batch: one job, no host, the same in every run
//! ```

pub mod batch;
pub mod fidelity;
pub mod plugin;
pub mod selfcheck;

use crate::emulator::{self, Emulator};
use crate::guest::{Accelerator, GuestOptions};
use crate::machine::Machine;
use anyhow::{Context, Result, ensure};
pub use fidelity::Fidelity;
pub use selfcheck::SelfCheck;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Name of the plugin's report in the folder of a run.
pub(crate) const REPORT: &str = "fidelity.json";

/// The one Intel model for which QEMU 10 gives a package several LLCs. MONITOR/MWAIT would keep idle
/// vCPUs spinning; x2APIC is what more than 255 CPUs need; the rest is what QEMU's translator lacks
/// and would complain about once per vCPU.
const CPU: &str = "SapphireRapids,-monitor,+x2apic,-pcid,-tsc-deadline,-hle,-invpcid,-rtm,-avx512f,-avx512dq,\
    -avx512ifma,-avx512cd,-avx512bw,-avx512vl,-avx512vbmi,-avx512vbmi2,-gfni,-vpclmulqdq,\
    -avx512vnni,-avx512bitalg,-avx512-vpopcntdq,-bus-lock-detect,-serialize,-tsx-ldtrk,\
    -amx-bf16,-avx512-fp16,-amx-tile,-amx-int8,-spec-ctrl,-arch-capabilities,-ssbd,-avx-vnni,\
    -avx512-bf16,-xfd,-xsavec,-xsaves";

/// Words of the kernel's command line. Parallel bring-up has all CPUs spin for the slowest, each
/// spin executed one after the other here.
/// The TSC has 2000 MHz, a jiffy of these kernels lasts 4 ms.
const CMDLINE: &[&str] = &["cpuhp.parallel=0", "lpj=8000000"];

/// Its plugin interface has what the plugin needs, and it was seen working.
const OLDEST_QEMU: (u32, u32) = (10, 0);

/// With more CPUs than this an x86 guest needs interrupt remapping.
const MOST_WITHOUT_REMAPPING: u32 = 255;

/// The `[virtual_time]` table of a machine: how fast its CPUs are, and how closely they are kept in
/// step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VirtualTime {
    /// Speed of one CPU in million instructions per second.
    pub mips: f64,
    /// Instructions between two looks of a running CPU at the others.
    pub quantum: u64,
    /// How far, in virtual nanoseconds, a CPU may be ahead of the one that is furthest behind.
    pub window_ns: u64,
    /// Speed of a hardware thread whose sibling is busy, as a fraction of its speed alone.
    pub smt_factor: f64,
    /// Most vCPUs that the host executes at once; the host's CPUs if 0.
    pub turns: u32,
    /// vCPUs and timers take turns in virtual-time order: the same in every run.
    pub deterministic: bool,
    /// Real seconds without progress after which the machine is described and ended.
    pub hang_seconds: u32,
}

// No field can be NaN: `check` refuses it.
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
        }
    }
}

impl VirtualTime {
    /// Refuses what the plugin would refuse, before anything is downloaded or booted.
    pub fn check(&self) -> Result<()> {
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
        Ok(())
    }

    /// The plugin's options.
    fn plugin_options(&self, threads: u32) -> String {
        format!(
            "mips={},quantum={},window={},smt_factor={},threads={threads},turns={},\
             deterministic={},hang={}",
            self.mips,
            self.quantum,
            self.window_ns,
            self.smt_factor,
            self.turns,
            u8::from(self.deterministic),
            self.hang_seconds
        )
    }
}

/// Options that boot the machine in virtual time. The machine must have a `[virtual_time]` table.
///
/// Finds or downloads QEMU 10 and builds the plugin, once; later calls take milliseconds.
pub fn prepare(options: &GuestOptions) -> Result<GuestOptions> {
    let machine = &options.machine;
    let time = machine
        .virtual_time
        .as_ref()
        .context("the machine has no [virtual_time] table")?;
    let threads = threads(machine)?;
    let emulator = find_emulator(options)?;
    let plugin = plugin::build(&options.progress)?;

    let mut options = options.clone();
    options.accelerator = Some(Accelerator::Tcg);
    options
        .files
        .push(plugin::check_program(&options.progress)?);
    options.cpu.get_or_insert_with(|| CPU.to_string());
    options.qemu_program = Some(emulator.program);
    let path = |p: &std::path::Path| p.display().to_string();
    options
        .qemu_environment
        .push(("LD_PRELOAD".into(), path(&plugin)));
    // With a program given, `find` no longer names its parts.
    options.qemu_environment.extend(emulator.environment);
    let arguments = &mut options.extra_qemu_args;
    arguments.extend(emulator.arguments);
    arguments.extend([
        "-plugin".into(),
        format!(
            "{},{},report={{folder}}/{REPORT}",
            path(&plugin),
            time.plugin_options(threads)
        ),
    ]);
    // The guest's wall clock and its random numbers must not tell one run from the next.
    let fixed = ["-rtc", "base=2026-01-01,clock=vm", "-seed", "1"];
    arguments.extend(fixed.map(String::from));
    if machine.cpus() > MOST_WITHOUT_REMAPPING {
        arguments.extend(["-device".into(), "intel-iommu,intremap=on,eim=on".into()]);
    }
    options
        .kernel_cmdline
        .extend(CMDLINE.iter().map(|word| word.to_string()));
    let slow = Duration::from_secs(120 + 4 * u64::from(machine.cpus()));
    options.boot_timeout = options.boot_timeout.max(slow);
    // Others are larger than ours: with two CPUs, scx_lavd was not loaded within 128 s.
    options.scheduler_timeout = options.scheduler_timeout.max(3 * slow);
    options.answer_timeout = options.answer_timeout.max(slow);
    Ok(options)
}

/// The lab's QEMU if it is new enough, else that of the backports.
fn find_emulator(options: &GuestOptions) -> Result<Emulator> {
    let found = emulator::find(options)?;
    if found
        .version()
        .is_some_and(|version| version >= OLDEST_QEMU)
    {
        return Ok(found);
    }
    let (major, minor) = OLDEST_QEMU;
    let private = emulator::private(&options.progress).with_context(|| {
        format!(
            "virtual time needs QEMU {major}.{minor} or later and {} is older: install one and \
             point MAGPIE_QEMU at it",
            found.program.display()
        )
    })?;
    ensure!(
        private
            .version()
            .is_some_and(|version| version >= OLDEST_QEMU),
        "virtual time needs QEMU {major}.{minor} or later, and this host's backports have an older \
         one: install one and point MAGPIE_QEMU at it"
    );
    Ok(private)
}

/// Hardware threads per core. The plugin finds siblings by their numbers, so all cores must be alike.
fn threads(machine: &Machine) -> Result<u32> {
    let threads = machine.llc[0].threads;
    ensure!(
        machine.llc.iter().all(|llc| llc.threads == threads),
        "machine {}: in virtual time all cores must have the same number of threads",
        machine.name
    );
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        VirtualTime::default().check().expect("valid");
    }

    #[test]
    fn a_quantum_longer_than_the_window_is_refused() {
        let time = VirtualTime {
            quantum: 2000,
            ..VirtualTime::default()
        };
        let error = time.check().expect_err("6667 ns do not fit 5000");
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
            time.check().expect_err("must be refused");
        }
    }
}
