//! The virtual-time machine: its CPUs have a fixed speed, and its clocks count executed
//! instructions, whatever the host is and does.
//!
//! A machine file with a `[virtual_time]` table describes one. [`Guest::boot`](crate::Guest) then
//! runs QEMU 10 with the plugin of `lab/vtime/`. Method and limits: `docs/virtual-time.md`.
//!
//! ```text
//!   machine file, [virtual_time]
//!        |            emulator: QEMU >= 10, the host's or that of Debian's backports
//!        v            plugin: built from the sources embedded here
//!     prepare() ----> GuestOptions ----> Guest  ----> fidelity: the plugin's report
//!                          \-----------> batch: one job, no host, every run the same
//!                          |\----------> snapshot: a job's end, again and again with other seeds
//!                           \----------> host: several guests on the CPUs of one host
//! ```

pub mod batch;
mod fidelity;
pub mod host;
mod plugin;
pub mod profile;
pub mod snapshot;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub use self::fidelity::{
    Fidelity, FrequencyCounts, MemoryCounts, Perturbation, Served, Span, VcpuFidelity,
};
pub use self::plugin::memory_program;

use crate::emulator::{self, Emulator};
use crate::machine::{Machine, VirtualTime};
use crate::options::{Accelerator, GuestOptions};

/// Name of the plugin's report in the folder of a run.
pub(crate) const REPORT: &str = "fidelity.json";

/// The CPU model: the only Intel one for which QEMU 10 gives a package several LLCs. An idle vCPU
/// would spin with MONITOR/MWAIT. More than 255 CPUs need x2APIC. QEMU's translator lacks the other
/// features and would warn of each once per vCPU.
const CPU: &str = "SapphireRapids,-monitor,+x2apic,-pcid,-tsc-deadline,-hle,-invpcid,-rtm,\
    -avx512f,-avx512dq,-avx512ifma,-avx512cd,-avx512bw,-avx512vl,-avx512vbmi,-avx512vbmi2,-gfni,\
    -vpclmulqdq,-avx512vnni,-avx512bitalg,-avx512-vpopcntdq,-bus-lock-detect,-serialize,\
    -tsx-ldtrk,-amx-bf16,-avx512-fp16,-amx-tile,-amx-int8,-spec-ctrl,-arch-capabilities,-ssbd,\
    -avx-vnni,-avx512-bf16,-xfd,-xsavec,-xsaves";

/// Words of the kernel's command line. With parallel bring-up, every CPU would spin until the
/// slowest one is up, and each spin is executed in full here. `lpj`: the TSC has 2000 MHz, and a
/// jiffy of these kernels lasts 4 ms.
const CMDLINE: &[&str] = &["cpuhp.parallel=0", "lpj=8000000"];

/// Word of the kernel's command line for a machine with frequencies: the plugin has the registers
/// that count cycles, and the TSC does not change with the frequency, but QEMU's translator has no
/// CPU that says so.
const HAS_FREQUENCIES: &str = "setcpuid=aperfmperf,constant_tsc,nonstop_tsc";

/// What a hybrid machine adds to [`HAS_FREQUENCIES`]: the kernel asks for levels of performance (HWP),
/// which say how fast each core is. With `intel_pstate=passive` the governors still choose them. The feature without a name,
/// 591, is X86_FEATURE_HYBRID_CPU: 18 x 32 + 15.
const HYBRID_FEATURES: &str = ",hwp,hwp_epp,591";

/// What a hybrid machine's CPU has beyond [`CPU`]: the number of the model Alder Lake, for which the
/// kernel knows how much the levels of the two kinds of cores differ.
const HYBRID_CPU: &str = "model=151";

/// The oldest QEMU that the plugins were seen to work with.
const OLDEST_QEMU: (u32, u32) = (10, 0);

/// With more CPUs than this an x86 guest needs interrupt remapping.
const MOST_WITHOUT_REMAPPING: u32 = 255;

/// Returns options that boot `options.machine` in virtual time. The first call may download QEMU 10
/// and builds the plugin; later ones take milliseconds.
pub(crate) fn prepare(options: &GuestOptions) -> Result<GuestOptions> {
    let machine = &options.machine;
    let time = machine.time()?;
    let threads = threads_per_core(machine)?;
    let emulator = find_emulator(options)?;
    let plugin = plugin::build(&options.progress)?;

    let mut options = options.clone();
    options.accelerator = Some(Accelerator::Tcg);
    options
        .files
        .push(plugin::check_program(&options.progress)?);
    // Other guests do without this program: each file of an image takes instructions of the boot.
    if time.memory.is_some() {
        options
            .files
            .push(plugin::memory_program(&options.progress)?);
    }
    let is_hybrid = machine.slow_cores().is_some();
    options.cpu.get_or_insert_with(|| {
        if is_hybrid {
            format!("{CPU},{HYBRID_CPU}")
        } else {
            CPU.to_string()
        }
    });
    run_on(&mut options, emulator);
    let path = |p: &Path| p.display().to_string();
    options
        .qemu_environment
        .push(("LD_PRELOAD".into(), path(&plugin)));
    let mut plugin = format!(
        "{},{},report={{folder}}/{REPORT}",
        path(&plugin),
        plugin_options(machine, time, threads)
    );
    if options.profile {
        plugin += &format!(",profile={{folder}}/{}", profile::COUNTS);
    }
    if let Some(socket) = &options.snapshot {
        plugin += &format!(",snapshot={}", path(socket));
    }
    if let Some(seat) = &options.seat {
        plugin += &format!(
            ",host={},guests={},guest={},first_vcpu={},host_vcpus={},background={},\
             host_weight={},host_cgroups={}",
            path(&seat.file),
            seat.guests,
            seat.guest,
            seat.first_cpu,
            seat.cpus,
            u8::from(seat.background),
            seat.weight,
            u8::from(seat.cgroups)
        );
    }
    let arguments = &mut options.extra_qemu_args;
    arguments.extend(["-plugin".into(), plugin]);
    // A wall clock and random numbers of the host would make each run different.
    let fixed = ["-rtc", "base=2026-01-01,clock=vm", "-seed", "1"];
    arguments.extend(fixed.map(String::from));
    if machine.cpus() > MOST_WITHOUT_REMAPPING {
        arguments.extend(["-device".into(), "intel-iommu,intremap=on,eim=on".into()]);
    }
    options
        .kernel_cmdline
        .extend(CMDLINE.iter().map(|word| word.to_string()));
    if time.frequency.is_some() {
        let more = if is_hybrid { HYBRID_FEATURES } else { "" };
        options
            .kernel_cmdline
            .push(format!("{HAS_FREQUENCIES}{more}"));
    }
    if is_hybrid {
        options.kernel_cmdline.push("intel_pstate=passive".into());
    }
    let slow = Duration::from_secs(120 + 4 * u64::from(machine.cpus()));
    options.boot_timeout = options.boot_timeout.max(slow);
    // Large schedulers load slowly: scx_lavd was not enabled within 128 s on two CPUs.
    options.scheduler_timeout = options.scheduler_timeout.max(3 * slow);
    options.answer_timeout = options.answer_timeout.max(slow);
    Ok(options)
}

/// Returns options whose machine, which runs in real time without KVM, does not execute breakpoints
/// that the kernel has removed. A host without a C compiler or with an older QEMU goes without,
/// because few guests meet one.
pub(crate) fn watch_breakpoints(options: &GuestOptions) -> GuestOptions {
    let mut options = options.clone();
    let emulator = emulator::find(&options).ok();
    let Some(emulator) = emulator.filter(is_new_enough) else {
        return options;
    };
    run_on(&mut options, emulator);
    match plugin::breakpoint_plugin(&options.progress) {
        Ok(plugin) => {
            let plugin = plugin.display().to_string();
            options.extra_qemu_args.extend(["-plugin".into(), plugin]);
        }
        Err(error) => options.progress.say(&format!(
            "the guest may die of \"Oops: int3\" when its kernel patches code: {error:#}"
        )),
    }
    options
}

/// Has the guest run on this QEMU, so that its start does not look for one again.
fn run_on(options: &mut GuestOptions, emulator: Emulator) {
    options.qemu_program = Some(emulator.program);
    // `emulator::find` names no folders for a program of the options, so they are named here.
    options.qemu_environment.extend(emulator.environment);
    options.extra_qemu_args.extend(emulator.arguments);
}

/// Returns whether the plugins work with this QEMU.
fn is_new_enough(emulator: &Emulator) -> bool {
    emulator.version().is_some_and(|v| v >= OLDEST_QEMU)
}

/// The plugin's options, as QEMU's `-plugin` takes them.
fn plugin_options(machine: &Machine, time: &VirtualTime, threads: u32) -> String {
    let mut options = format!(
        "mips={},quantum={},window={},smt_factor={},threads={threads},turns={},\
         deterministic={},hang={}",
        time.mips,
        time.quantum,
        time.window_ns,
        time.smt_factor,
        time.turns,
        u8::from(time.deterministic),
        time.hang_seconds
    );
    if let Some(cpus) = time.physical_cpus {
        options += &format!(",physical_cpus={cpus},host_slice={}", time.host_slice_ns);
    }
    if let Some(frequency) = &time.frequency {
        options += &format!(",{}", frequency.plugin_options(machine.slow_cores()));
    }
    if let Some(memory) = &time.memory {
        // QEMU numbers CPUs in the order of slots, so the plugin must know those of an LLC.
        let slots = machine.most_cores();
        let nodes = machine
            .llc
            .iter()
            .flat_map(|llc| (0..llc.count).map(|_| llc.node.to_string()));
        options += &format!(
            ",{},llc_cores={slots},llc_nodes={},ram_mib={}",
            memory.plugin_options(),
            nodes.collect::<Vec<_>>().join("-"),
            machine.memory_mib
        );
    }
    options
}

/// Returns the lab's QEMU if it is new enough, else that of the backports.
fn find_emulator(options: &GuestOptions) -> Result<Emulator> {
    let found = emulator::find(options)?;
    if is_new_enough(&found) {
        return Ok(found);
    }
    let (major, minor) = OLDEST_QEMU;
    let backported = emulator::backported(&options.progress).with_context(|| {
        format!(
            "virtual time needs QEMU {major}.{minor} or later and {} is older: install one and \
             point MAGPIE_QEMU at it",
            found.program.display()
        )
    })?;
    ensure!(
        is_new_enough(&backported),
        "virtual time needs QEMU {major}.{minor} or later, and this host's backports have an older \
         one: install one and point MAGPIE_QEMU at it"
    );
    Ok(backported)
}

/// Returns the number of hardware threads of every core. The plugin finds siblings by their
/// numbers, so all cores must have the same number of threads.
fn threads_per_core(machine: &Machine) -> Result<u32> {
    let threads = machine.llc[0].threads;
    ensure!(
        machine.llc.iter().all(|llc| llc.threads == threads),
        "machine {}: in virtual time all cores must have the same number of threads",
        machine.name
    );
    Ok(threads)
}
