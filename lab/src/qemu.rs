//! One QEMU process: its command line, its life and what it leaves to read when it dies.

use crate::emulator;
use crate::guest::{Accelerator, GuestOptions};
use crate::kernel::Kernel;
use crate::machine::Machine;
use anyhow::{Context, Result, anyhow, bail, ensure};
use magpie_guest::PORT_NAME;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The emulator when the options name none.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// An Intel model, because QEMU gives the AMD ones (such as `max`) no threads and no LLC per socket.
/// MONITOR/MWAIT would keep idle vCPUs spinning.
const CPU: &str = "Skylake-Server";

/// Features of the model that QEMU's translator lacks and would complain about once per vCPU.
const NOT_IN_TCG: &str = "-monitor,-pcid,-tsc-deadline,-x2apic,-avx512bw,-avx512cd,-avx512dq,\
    -avx512f,-avx512vl,-hle,-invpcid,-rdseed,-rtm,-xsavec,-3dnowprefetch";

/// Lines of the console and of QEMU's own output that an error shows.
const TAIL: usize = 30;

/// Words of every guest's kernel command line. A panic reboots at once, which `-no-reboot` turns
/// into the end of QEMU. The TSC of a vCPU is the host's, so it needs no watchdog, which on a busy
/// host would take a preempted vCPU for a broken clock. For the same reason the timer's interrupt is
/// not tested at boot: on a host that was busy just then 1 of 28 guests panicked for want of it.
/// Up to the start of the agent, which lowers it, the log level lets the console tell where a boot is
/// stuck. Bringing up CPUs in parallel makes those that wait spin on host CPUs that others need. The
/// self-tests of cryptographic algorithms would keep two kernel threads busy for seconds after the boot,
/// beside whatever is measured then.
const CMDLINE: &[&str] = &[
    "console=ttyS0",
    "loglevel=7",
    "panic=-1",
    "oops=panic",
    "mitigations=off",
    "tsc=reliable",
    "no_timer_check",
    "cpuhp.parallel=0",
    "cryptomgr.notests=1",
];

/// A running (or ended) QEMU; dropping it kills the process and removes its folder.
#[derive(Debug)]
pub struct Qemu {
    child: Arc<Mutex<Child>>,
    pid: u32,
    folder: TempDir,
    agent: UnixListener,
    monitor: UnixListener,
    vcpu_threads: Option<Vec<u32>>,
}

/// QEMUs of this process and their folders, for [`abandon_all`].
static RUNNING: Mutex<BTreeMap<u32, PathBuf>> = Mutex::new(BTreeMap::new());

/// Kills all QEMUs of this process and removes their folders: for a signal handler's thread, after
/// which the process must exit.
pub fn abandon_all() {
    for (pid, folder) in lock(&RUNNING).iter() {
        let pid = nix::unistd::Pid::from_raw(*pid as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        let _ = fs::remove_dir_all(folder);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Qemu {
    /// Starts QEMU. The image is written into the folder of this run by `make_image`.
    pub fn start(
        options: &GuestOptions,
        kernel: &Kernel,
        accelerator: Accelerator,
        make_image: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Qemu> {
        let emulator = emulator::find(options)?;
        let program = &emulator.program;
        // Not below the source tree: a socket's path may have at most 107 bytes.
        let folder = tempfile::Builder::new()
            .prefix("magpie-vm-")
            .tempdir()
            .context("cannot create a temporary folder for the guest")?;
        let image = folder.path().join("image.cpio");
        make_image(&image)?;
        let listen = |name: &str| {
            UnixListener::bind(folder.path().join(name))
                .with_context(|| format!("cannot create the socket {name} of the guest"))
        };
        let agent = listen("agent")?;
        let monitor = listen("monitor")?;
        let arguments = arguments(options, kernel, accelerator, folder.path())?;
        let log = File::create(folder.path().join("qemu.log")).context("cannot create qemu.log")?;
        let mut command = Command::new(program);
        command
            .args(&emulator.arguments)
            .args(arguments)
            .envs(emulator.environment.iter().cloned())
            .envs(options.qemu_environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot duplicate qemu.log")?)
            .stderr(log)
            .process_group(0);
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
                Ok(())
            });
        }
        let (child, pid) = keep(command).map_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                anyhow!(
                    "{} is not installed; install QEMU with `apt-get install qemu-system-x86`",
                    program.display()
                )
            } else {
                anyhow!("cannot start {}: {error}", program.display())
            }
        })?;
        lock(&RUNNING).insert(pid, folder.path().to_path_buf());
        Ok(Qemu {
            child,
            pid,
            folder,
            agent,
            monitor,
            vcpu_threads: None,
        })
    }

    /// The folder of this run; removed with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, none while it runs.
    pub fn exited(&self) -> Option<ExitStatus> {
        lock(&self.child).try_wait().ok().flatten()
    }

    /// Waits for its end.
    pub fn wait(&self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            let status = self.exited();
            if status.is_some() || Instant::now() > deadline {
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills it.
    pub fn kill(&self) {
        let mut child = lock(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// The agent's end of the virtio-serial port.
    pub fn accept_agent(&self, deadline: Instant) -> Result<UnixStream> {
        self.accept(&self.agent, deadline)
    }

    fn accept(&self, listener: &UnixListener, deadline: Instant) -> Result<UnixStream> {
        listener
            .set_nonblocking(true)
            .context("make a socket non-blocking")?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream
                        .set_nonblocking(false)
                        .context("make a socket blocking")?;
                    return Ok(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot accept QEMU's connection"),
            }
            if self.exited().is_some() {
                bail!("{}", self.report("QEMU ended before the guest could boot"));
            }
            ensure!(
                Instant::now() < deadline,
                "{}",
                self.report("QEMU does not come up")
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Host thread ids of the vCPUs, in Linux's order of CPUs.
    pub fn vcpu_threads(&mut self) -> Result<Vec<u32>> {
        // QEMU connects to us once, and the threads stay the same.
        if let Some(known) = &self.vcpu_threads {
            return Ok(known.clone());
        }
        let answer = self
            .ask_monitor("query-cpus-fast")
            .context("ask QEMU for its vCPU threads")?;
        let cpus = answer
            .as_array()
            .context("query-cpus-fast answers with a list")?;
        let mut threads = Vec::new();
        for cpu in cpus {
            let place = ["socket-id", "core-id", "thread-id"].map(|key| cpu["props"][key].as_u64());
            let thread = cpu["thread-id"]
                .as_u64()
                .context("a vCPU has a thread-id")?;
            threads.push((place, thread as u32));
        }
        threads.sort_unstable();
        let threads: Vec<u32> = threads.into_iter().map(|(_, thread)| thread).collect();
        self.vcpu_threads = Some(threads.clone());
        Ok(threads)
    }

    fn ask_monitor(&self, command: &str) -> Result<Value> {
        let patience = Duration::from_secs(10);
        let stream = self.accept(&self.monitor, Instant::now() + patience)?;
        stream
            .set_read_timeout(Some(patience))
            .context("set a socket's timeout")?;
        let mut writer = stream.try_clone().context("duplicate a socket")?;
        let mut lines = BufReader::new(stream).lines();
        let mut request = |command: &str| -> Result<Value> {
            writeln!(writer, "{}", json!({ "execute": command })).context("write to QEMU")?;
            loop {
                let line = lines.next().context("QEMU closed its monitor")?;
                let mut message: Value = serde_json::from_str(&line.context("read from QEMU")?)?;
                if let Some(error) = message.get("error") {
                    bail!("QEMU refuses {command}: {error}");
                }
                if let Some(answer) = message.get_mut("return") {
                    return Ok(answer.take());
                }
            }
        };
        request("qmp_capabilities")?;
        request(command)
    }

    /// True if the console shows a kernel panic.
    pub fn panicked(&self) -> bool {
        self.console().contains("Kernel panic - not syncing")
    }

    /// What the guest wrote to its serial console so far.
    pub fn console(&self) -> String {
        let bytes = fs::read(self.folder.path().join("console.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// `what`, how QEMU ended if it did, what it said, and the console's tail.
    pub fn report(&self, what: &str) -> String {
        let mut report = what.to_string();
        if self.panicked() {
            report.push_str(": the guest's kernel panicked");
        }
        if let Some(status) = self.exited() {
            report.push_str(&format!("\nQEMU ended with {status}"));
        }
        let log = fs::read_to_string(self.folder.path().join("qemu.log")).unwrap_or_default();
        for (title, text) in [
            ("QEMU said", log),
            ("the guest's console ends with", self.console()),
        ] {
            let lines: Vec<_> = text
                .lines()
                .filter(|line| !line.trim().is_empty())
                .collect();
            if !lines.is_empty() {
                let tail = tail(&lines).join("\n  ");
                report.push_str(&format!("\n{title}:\n  {tail}"));
            }
        }
        report
    }
}

/// The last lines; of a kernel that died also what comes before its registers and call trace, which
/// is where it says why.
fn tail<'a>(lines: &'a [&str]) -> &'a [&'a str] {
    let end = lines.len().saturating_sub(TAIL);
    let why = ["Kernel panic - ", "BUG: ", "Oops: ", "sysrq: "];
    let death = lines
        .iter()
        .position(|line| why.iter().any(|w| line.contains(w)))
        .unwrap_or(end);
    let start = death.min(end);
    &lines[start..lines.len().min(start.saturating_add(3 * TAIL))]
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
        lock(&RUNNING).remove(&self.pid);
    }
}

/// Starts the command from a thread that lives as long as the process does. The kernel kills a
/// process with PR_SET_PDEATHSIG when the *thread* that started it ends; a thread of a caller's pool
/// may end long before the guest is done.
fn keep(mut command: Command) -> std::io::Result<(Arc<Mutex<Child>>, u32)> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("qemu-keeper".into())
        .spawn(move || {
            let child = match command.spawn() {
                Ok(child) => Arc::new(Mutex::new(child)),
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return;
                }
            };
            let _ = sender.send(Ok(child.clone()));
            while !matches!(lock(&child).try_wait(), Ok(Some(_)) | Err(_)) {
                thread::sleep(Duration::from_millis(20));
            }
        })?;
    let child = receiver.recv().map_err(std::io::Error::other)??;
    let pid = lock(&child).id();
    Ok((child, pid))
}

fn arguments(
    options: &GuestOptions,
    kernel: &Kernel,
    accelerator: Accelerator,
    folder: &Path,
) -> Result<Vec<OsString>> {
    let machine = &options.machine;
    let mut cmdline: Vec<String> = CMDLINE.iter().map(|word| word.to_string()).collect();
    // In virtual time the TSC is not the host's.
    if machine.virtual_time.is_none()
        && let Some(lpj) = loops_per_jiffy()
    {
        cmdline.push(format!("lpj={lpj}"));
    }
    cmdline.push(format!("possible_cpus={}", machine.cpus()));
    if !machine.offline.is_empty() {
        let list: Vec<_> = machine.offline.iter().map(u32::to_string).collect();
        cmdline.push(format!("magpie.offline={}", list.join(",")));
    }
    cmdline.extend(options.kernel_cmdline.iter().cloned());
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
        &format!("-serial file:{}", path("console.log")),
        "-device virtio-serial-pci",
        &format!("-chardev socket,id=agent,path={}", path("agent")),
        &format!("-device virtserialport,chardev=agent,name={PORT_NAME}"),
        &format!("-chardev socket,id=monitor,path={}", path("monitor")),
        "-mon chardev=monitor,mode=control",
    ]
    .iter()
    .flat_map(|words| words.split(' '))
    .map(str::to_string)
    .collect();
    all.extend(topology(machine, cpu.split(',').next().unwrap_or(CPU))?);
    all.extend(["-append".to_string(), cmdline.join(" ")]);
    all.extend(["-initrd".to_string(), path("image.cpio")]);
    let here = folder.display().to_string();
    let extra = options.extra_qemu_args.iter();
    all.extend(extra.map(|word| word.replace("{folder}", &here)));
    let mut all: Vec<OsString> = all.into_iter().map(OsString::from).collect();
    all.extend([OsString::from("-kernel"), kernel.image.clone().into()]);
    Ok(all)
}

/// What a CPU of the guest would measure when it comes up: ticks of the TSC, which is the host's, in
/// a jiffy. Measuring takes each CPU several ticks of undisturbed time, which a vCPU of a busy host
/// does not get: 64 CPUs did not come up in minutes.
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

/// How QEMU is told about CPUs and nodes. A socket of QEMU is an LLC of the machine, or, if the
/// machine says which LLCs are in one package, a die of QEMU is an LLC. QEMU's sockets are all alike: for an uneven machine it gets the smallest even one that holds it, with one CPU,
/// and the others are plugged one by one where the machine has them.
fn topology(machine: &Machine, model: &str) -> Result<Vec<String>> {
    let places = machine.places();
    let sockets = machine.packages.unwrap_or(machine.llcs());
    let dies = machine.llcs() / sockets;
    let cores = machine.llc.iter().map(|llc| llc.cores).max().unwrap_or(1);
    let threads = machine.llc.iter().map(|llc| llc.threads).max().unwrap_or(1);
    let slots = sockets * dies * cores * threads;
    // In virtual time the machine has interrupt remapping.
    ensure!(
        slots <= 255 || machine.virtual_time.is_some(),
        "machine {} needs {slots} CPU slots; QEMU's x86 machine has 255 without interrupt remapping",
        machine.name
    );
    let even = slots == machine.cpus();
    let now = if even { slots } else { 1 };
    let shape = if dies > 1 {
        format!("sockets={sockets},dies={dies},cores={cores},threads={threads}")
    } else {
        format!("sockets={sockets},cores={cores},threads={threads}")
    };
    let mut all = vec![
        "-smp".to_string(),
        format!("cpus={now},maxcpus={slots},{shape}"),
    ];
    for place in places.iter().skip(now as usize) {
        let (socket, core, thread) = (place.llc, place.core_in_llc, place.thread);
        all.push("-device".to_string());
        all.push(format!(
            "{model}-x86_64-cpu,socket-id={socket},core-id={core},thread-id={thread}"
        ));
    }
    if machine.nodes() > 1 {
        let memory = machine.memory_mib / u64::from(machine.nodes());
        let last = machine.memory_mib - memory * u64::from(machine.nodes() - 1);
        for node in 0..machine.nodes() {
            let size = if node + 1 == machine.nodes() {
                last
            } else {
                memory
            };
            all.push("-object".to_string());
            all.push(format!("memory-backend-ram,id=ram{node},size={size}M"));
            all.push("-numa".to_string());
            all.push(format!("node,nodeid={node},memdev=ram{node}"));
        }
        let mut sockets: Vec<_> = places.iter().map(|place| (place.llc, place.node)).collect();
        sockets.dedup();
        for (llc, node) in sockets {
            let (socket, die) = (llc / dies, llc % dies);
            all.push("-numa".to_string());
            all.push(if dies > 1 {
                format!("cpu,node-id={node},socket-id={socket},die-id={die}")
            } else {
                format!("cpu,node-id={node},socket-id={socket}")
            });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::{TAIL, tail, topology};
    use crate::Machine;

    #[test]
    fn a_report_begins_where_the_kernel_says_why() {
        let mut lines = vec!["boot"; 100];
        assert_eq!(tail(&lines).len(), TAIL);
        lines[50] = "BUG: unable to handle page fault";
        assert_eq!(tail(&lines)[0], lines[50]);
        lines.extend(["registers"; 1000]);
        assert_eq!((tail(&lines)[0], tail(&lines).len()), (lines[50], 3 * TAIL));
        assert!(tail(&[]).is_empty());
    }

    #[test]
    fn an_even_machine_needs_no_plugging() {
        let machine = Machine::preset("smt8").expect("preset");
        assert_eq!(
            topology(&machine, "M").expect("fits"),
            ["-smp", "cpus=8,maxcpus=8,sockets=2,cores=2,threads=2"]
        );
    }

    #[test]
    fn an_uneven_machine_is_plugged_cpu_by_cpu() {
        let machine = Machine::preset("uneven12").expect("preset");
        let all = topology(&machine, "M").expect("fits");
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
