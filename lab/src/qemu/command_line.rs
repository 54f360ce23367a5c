//! QEMU's command line for a guest: its devices, the kernel's command line, and the machine's CPUs
//! and nodes in QEMU's words.

use std::ffi::OsString;
use std::path::Path;
#[cfg(target_arch = "x86_64")]
use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use magpie_guest::PORT_NAME;

use crate::machine::Machine;
use crate::options::{Accelerator, GuestOptions};

/// The agent's socket, in the folder of a run.
pub(super) const AGENT: &str = "agent";

/// The socket of QEMU's monitor, in the folder of a run.
pub(super) const MONITOR: &str = "monitor";

/// The guest's serial console, in the folder of a run.
pub(super) const CONSOLE: &str = "console.log";

/// The guest's image, in the folder of a run.
pub(super) const IMAGE: &str = "image.cpio";

/// The CPU model. It is an Intel one, because QEMU gives AMD models (such as `max`) no threads and
/// no LLC per socket.
const CPU: &str = "Skylake-Server";

/// Features of the model that QEMU's translator lacks, and would warn of once per vCPU. MONITOR is
/// left out with KVM too: an idle vCPU would spin.
const NOT_IN_TCG: &str = "-monitor,-pcid,-tsc-deadline,-x2apic,-avx512bw,-avx512cd,-avx512dq,\
    -avx512f,-avx512vl,-hle,-invpcid,-rdseed,-rtm,-xsavec,-3dnowprefetch";

/// CPUs that QEMU's x86 machine has room for without interrupt remapping.
const MOST_SLOTS: u32 = 255;

/// Words of every guest's kernel command line, each with its reason.
const CMDLINE: &[&str] = &[
    "console=ttyS0",
    // The console tells where a boot is stuck. The agent lowers the level when it starts.
    "loglevel=7",
    // A panic reboots at once, and `-no-reboot` makes QEMU end instead.
    "panic=-1",
    "oops=panic",
    "mitigations=off",
    // The TSC of a vCPU is the host's. The kernel's watchdog would take a vCPU that the host
    // preempted for a CPU with a broken clock.
    "tsc=reliable",
    // The boot's test of the timer interrupt fails on a host that is busy at that moment, and the
    // kernel panics: 1 of 28 guests did.
    "no_timer_check",
    // With parallel bring-up, the CPUs that wait for others spin on host CPUs that those need.
    "cpuhp.parallel=0",
    // The self-tests of cryptographic algorithms would keep two kernel threads busy for seconds
    // after the boot, beside the workload that is measured.
    "cryptomgr.notests=1",
    // A kernel that unpacks itself would use them where the CPU has them, and others do not
    // (kernel/payload.rs): the two would not compare.
    "no5lvl",
];

/// Returns QEMU's arguments. `kernel` is the file to boot, `folder` the folder of this run.
pub(super) fn arguments(
    options: &GuestOptions,
    kernel: &Path,
    accelerator: Accelerator,
    folder: &Path,
) -> Result<Vec<OsString>> {
    let machine = &options.machine;
    let path = |name: &str| folder.join(name).display().to_string();
    let (accel, cpu) = match accelerator {
        Accelerator::Kvm => ("kvm", format!("{CPU},-monitor")),
        Accelerator::Tcg => ("tcg,thread=multi", format!("{CPU},{NOT_IN_TCG}")),
    };
    let cpu = options.cpu.clone().unwrap_or(cpu);
    let mut all: Vec<String> = [
        "-no-user-config -nodefaults -display none -no-reboot",
        "-machine q35",
        &format!("-accel {accel}"),
        &format!("-cpu {cpu}"),
        &format!("-m {}M", machine.memory_mib),
        &format!("-serial file:{}", path(CONSOLE)),
        "-device virtio-serial-pci",
        &format!("-chardev socket,id=agent,path={}", path(AGENT)),
        &format!("-device virtserialport,chardev=agent,name={PORT_NAME}"),
        &format!("-chardev socket,id=monitor,path={}", path(MONITOR)),
        "-mon chardev=monitor,mode=control",
    ]
    .iter()
    .flat_map(|words| words.split(' '))
    .map(str::to_string)
    .collect();
    all.extend(cpus(machine, cpu.split(',').next().unwrap_or(CPU))?);
    all.extend(nodes(machine));
    all.extend(["-append".to_string(), kernel_command_line(options)]);
    all.extend(["-initrd".to_string(), path(IMAGE)]);
    let here = folder.display().to_string();
    let extra = options.extra_qemu_args.iter();
    all.extend(extra.map(|word| word.replace("{folder}", &here)));
    let mut all: Vec<OsString> = all.into_iter().map(OsString::from).collect();
    all.extend([OsString::from("-kernel"), kernel.into()]);
    Ok(all)
}

/// Returns the kernel's command line.
fn kernel_command_line(options: &GuestOptions) -> String {
    let machine = &options.machine;
    let mut words: Vec<String> = CMDLINE.iter().map(|word| word.to_string()).collect();
    // In virtual time the TSC is not the host's.
    if machine.virtual_time.is_none()
        && let Some(lpj) = loops_per_jiffy()
    {
        words.push(format!("lpj={lpj}"));
    }
    // The CPUs that an uneven machine has no CPU for are slots only.
    words.push(format!("possible_cpus={}", machine.cpus()));
    if !machine.offline.is_empty() {
        let list: Vec<_> = machine.offline.iter().map(u32::to_string).collect();
        words.push(format!("magpie.offline={}", list.join(",")));
    }
    words.extend(options.kernel_cmdline.iter().cloned());
    words.join(" ")
}

/// Returns the ticks of the TSC in a jiffy. Without this number the guest measures it on each CPU
/// that comes up, which takes several jiffies of undisturbed time. A vCPU of a busy host does not
/// get those: 64 CPUs did not come up in minutes.
fn loops_per_jiffy() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        const HZ: f64 = 250.0;
        // SAFETY: every x86_64 CPU has the instruction, and Linux lets user space use it.
        let now = || unsafe { std::arch::x86_64::_rdtsc() };
        let (began, ticks) = (Instant::now(), now());
        thread::sleep(Duration::from_millis(5));
        let (ticks, seconds) = (now() - ticks, began.elapsed().as_secs_f64());
        Some((ticks as f64 / seconds / HZ) as u64)
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// QEMU's sockets for a machine, and its dies per socket. An LLC is a socket, or a die if the
/// machine says which LLCs share a package.
fn sockets_and_dies(machine: &Machine) -> (u32, u32) {
    let sockets = machine.packages.unwrap_or(machine.llcs());
    (sockets, machine.llcs() / sockets)
}

/// The arguments for the CPUs. All sockets of QEMU are alike, so an uneven machine gets the
/// smallest even one that holds it, with one CPU; the others are plugged one by one where the
/// machine has them.
fn cpus(machine: &Machine, model: &str) -> Result<Vec<String>> {
    let (sockets, dies) = sockets_and_dies(machine);
    let cores = machine.most_cores();
    let threads = machine.llc.iter().map(|llc| llc.threads).max().unwrap_or(1);
    let slots = sockets * dies * cores * threads;
    // A larger machine in virtual time gets interrupt remapping (vtime.rs).
    ensure!(
        slots <= MOST_SLOTS || machine.virtual_time.is_some(),
        "machine {} needs {slots} CPU slots; QEMU's x86 machine has {MOST_SLOTS} without interrupt \
         remapping: use a smaller machine, or one in virtual time",
        machine.name
    );
    let is_even = slots == machine.cpus();
    let at_boot = if is_even { slots } else { 1 };
    let shape = if dies > 1 {
        format!("sockets={sockets},dies={dies},cores={cores},threads={threads}")
    } else {
        format!("sockets={sockets},cores={cores},threads={threads}")
    };
    let mut all = vec![
        "-smp".to_string(),
        format!("cpus={at_boot},maxcpus={slots},{shape}"),
    ];
    for cpu in machine.layout().iter().skip(at_boot as usize) {
        let (socket, core, thread) = (cpu.llc, cpu.core_in_llc, cpu.thread);
        all.push("-device".to_string());
        all.push(format!(
            "{model}-x86_64-cpu,socket-id={socket},core-id={core},thread-id={thread}"
        ));
    }
    Ok(all)
}

/// The arguments for the nodes: memory for each, and the LLCs that belong to it.
fn nodes(machine: &Machine) -> Vec<String> {
    let count = machine.nodes();
    if count == 1 {
        return Vec::new();
    }
    let mut all = Vec::new();
    let even = machine.memory_mib / u64::from(count);
    for node in 0..count {
        let is_last = node + 1 == count;
        let size = if is_last {
            machine.memory_mib - even * u64::from(count - 1)
        } else {
            even
        };
        all.push("-object".to_string());
        all.push(format!("memory-backend-ram,id=ram{node},size={size}M"));
        all.push("-numa".to_string());
        all.push(format!("node,nodeid={node},memdev=ram{node}"));
    }
    let (_, dies) = sockets_and_dies(machine);
    let mut llcs: Vec<_> = machine.layout().iter().map(|c| (c.llc, c.node)).collect();
    llcs.dedup();
    for (llc, node) in llcs {
        let (socket, die) = (llc / dies, llc % dies);
        all.push("-numa".to_string());
        all.push(if dies > 1 {
            format!("cpu,node-id={node},socket-id={socket},die-id={die}")
        } else {
            format!("cpu,node-id={node},socket-id={socket}")
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::cpus;
    use crate::Machine;

    #[test]
    fn an_even_machine_needs_no_plugging() {
        let machine = Machine::preset("smt8").expect("preset");
        assert_eq!(
            cpus(&machine, "M").expect("fits"),
            ["-smp", "cpus=8,maxcpus=8,sockets=2,cores=2,threads=2"]
        );
    }

    #[test]
    fn an_uneven_machine_is_plugged_cpu_by_cpu() {
        let machine = Machine::preset("uneven12").expect("preset");
        let all = cpus(&machine, "M").expect("fits");
        assert_eq!(all[1], "cpus=1,maxcpus=18,sockets=3,cores=6,threads=1");
        assert_eq!(
            all.iter()
                .filter(|word| word.starts_with("M-x86_64-cpu"))
                .count(),
            11
        );
        assert!(
            !all.iter()
                .any(|word| word.contains("socket-id=0,core-id=2"))
        );
    }
}
