//! One QEMU process: it is started, watched, asked and killed, and its logs explain its end.

mod command_line;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use self::command_line::{AGENT, CONSOLE, IMAGE, MONITOR};
use crate::emulator;
use crate::kernel::{Kernel, payload};
use crate::options::{Accelerator, GuestOptions};
use crate::run_folder::{self, RunFolder, lock_mutex};

/// QEMU's output, in the folder of a run.
const LOG: &str = "qemu.log";

/// Lines of the console and of QEMU's own output that an error shows.
const TAIL: usize = 30;

/// How long QEMU may take to answer on its monitor, in real time.
const MONITOR_TIMEOUT: Duration = Duration::from_secs(10);

/// A QEMU process that runs or has ended. Dropping it kills the process and removes its folder.
#[derive(Debug)]
pub(crate) struct Qemu {
    child: Arc<Mutex<Child>>,
    pid: u32,
    folder: RunFolder,
    agent: UnixListener,
    monitor: UnixListener,
    vcpu_threads: Option<Vec<u32>>,
}

/// The process ids of this process's QEMUs, for [`abandon_all`].
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Kills all QEMUs of this process and removes the folders of its runs. The thread that handles
/// Ctrl-C calls this, because destructors do not run when it exits the process next.
pub fn abandon_all() {
    for pid in lock_mutex(&RUNNING).iter() {
        let pid = nix::unistd::Pid::from_raw(*pid as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
    run_folder::remove_all();
}

impl Qemu {
    /// Starts QEMU. `make_image` writes the guest's image to the path it is given.
    pub fn start(
        options: &GuestOptions,
        kernel: &Kernel,
        accelerator: Accelerator,
        make_image: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Qemu> {
        let emulator = emulator::find(options)?;
        let program = &emulator.program;
        let folder = RunFolder::new()?;
        let image = folder.path().join(IMAGE);
        make_image(&image)?;
        let listen = |name: &str| {
            UnixListener::bind(folder.path().join(name))
                .with_context(|| format!("cannot create the socket {name} of the guest"))
        };
        let agent = listen(AGENT)?;
        let monitor = listen(MONITOR)?;
        let kernel = payload::boot_file(&kernel.image)?;
        let arguments = command_line::arguments(options, &kernel, accelerator, folder.path())?;
        let log = File::create(folder.path().join(LOG)).context("cannot create QEMU's log")?;
        let mut command = Command::new(program);
        command
            .args(&emulator.arguments)
            .args(arguments)
            .envs(emulator.environment.iter().cloned())
            .envs(options.qemu_environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot duplicate QEMU's log")?)
            .stderr(log)
            .process_group(0);
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
                Ok(())
            });
        }
        let (child, pid) = spawn_for_life(command).map_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                anyhow!(
                    "{} is not installed; install QEMU with `apt-get install qemu-system-x86`",
                    program.display()
                )
            } else {
                anyhow!("cannot start {}: {error}", program.display())
            }
        })?;
        lock_mutex(&RUNNING).insert(pid);
        Ok(Qemu {
            child,
            pid,
            folder,
            agent,
            monitor,
            vcpu_threads: None,
        })
    }

    /// The folder of this run. It is removed when `self` is dropped.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns how QEMU ended, or `None` while it runs.
    fn exited(&self) -> Option<ExitStatus> {
        lock_mutex(&self.child).try_wait().ok().flatten()
    }

    /// Waits for QEMU to end. Returns `None` if it still runs after `timeout`, in real time.
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

    /// Kills QEMU, and waits until it is gone.
    fn kill(&self) {
        let mut child = lock_mutex(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Returns the host's end of the agent's virtio-serial port, once QEMU has connected it.
    pub fn accept_agent(&self, deadline: Instant) -> Result<UnixStream> {
        self.accept(&self.agent, deadline)
    }

    /// Returns QEMU's connection to a socket, at most until `deadline`. Fails once QEMU has ended.
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

    /// Returns the host thread ids of the vCPUs, in Linux's order of CPUs. The first answer is
    /// kept, because QEMU connects its monitor once and the threads stay the same.
    pub fn vcpu_threads(&mut self) -> Result<Vec<u32>> {
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
            let order = ["socket-id", "core-id", "thread-id"].map(|key| cpu["props"][key].as_u64());
            let thread = cpu["thread-id"]
                .as_u64()
                .context("a vCPU has a thread-id")?;
            threads.push((order, thread as u32));
        }
        threads.sort_unstable();
        let threads: Vec<u32> = threads.into_iter().map(|(_, thread)| thread).collect();
        self.vcpu_threads = Some(threads.clone());
        Ok(threads)
    }

    /// Sends QEMU one command and returns its answer.
    fn ask_monitor(&self, command: &str) -> Result<Value> {
        let stream = self.accept(&self.monitor, Instant::now() + MONITOR_TIMEOUT)?;
        stream
            .set_read_timeout(Some(MONITOR_TIMEOUT))
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

    /// Returns true if the console shows a kernel panic.
    pub fn panicked(&self) -> bool {
        self.console().contains("Kernel panic - not syncing")
    }

    /// Returns all that the guest wrote to its serial console so far.
    pub fn console(&self) -> String {
        let bytes = fs::read(self.folder.path().join(CONSOLE)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Returns `what` with how QEMU ended (if it did), the tail of its output and of the console.
    pub fn report(&self, what: &str) -> String {
        let mut report = what.to_string();
        if self.panicked() {
            report.push_str(": the guest's kernel panicked");
        }
        if let Some(status) = self.exited() {
            report.push_str(&format!("\nQEMU ended with {status}"));
        }
        let log = fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default();
        let console = self.console();
        let (log, console) = (without_empty_lines(&log), without_empty_lines(&console));
        for (title, lines) in [
            ("QEMU said", tail(&log)),
            ("the guest's kernel warned first", warning(&console)),
            ("the guest's console ends with", tail(&console)),
        ] {
            if !lines.is_empty() {
                report.push_str(&format!("\n{title}:\n  {}", lines.join("\n  ")));
            }
        }
        report
    }
}

/// Returns the lines that say something.
fn without_empty_lines(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .collect()
}

/// Returns the last lines. If the kernel died, begins with the line that says why, which is above
/// the registers and the call trace.
fn tail<'a>(lines: &'a [&str]) -> &'a [&'a str] {
    let start = tail_begins(lines);
    &lines[start..lines.len().min(start.saturating_add(4 * TAIL))]
}

/// Returns the index of the first line of [`tail`].
fn tail_begins(lines: &[&str]) -> usize {
    let end = lines.len().saturating_sub(TAIL);
    // Who waits, and for what, is above the panic about it.
    let hangs = lines.iter().any(|line| line.contains("hung_task: "));
    let hung: &[&str] = if hangs { &["INFO: task "] } else { &[] };
    let reasons = ["Kernel panic - ", "BUG: ", "Oops: ", "sysrq: "];
    lines
        .iter()
        .position(|line| {
            reasons
                .iter()
                .chain(hung)
                .any(|reason| line.contains(reason))
        })
        .unwrap_or(end)
        .min(end)
}

/// Returns the first warning, if the kernel gave one before the lines of [`tail`]: what it warned of
/// may be why it died.
fn warning<'a>(lines: &'a [&str]) -> &'a [&'a str] {
    let before = &lines[..tail_begins(lines)];
    match before.iter().position(|line| line.contains("WARNING: ")) {
        Some(start) => &before[start..before.len().min(start.saturating_add(TAIL))],
        None => &[],
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
        lock_mutex(&RUNNING).remove(&self.pid);
    }
}

/// Starts the command from a thread that lives as long as the child does. The kernel kills a
/// process with PR_SET_PDEATHSIG when the *thread* that started it ends, and a thread of a caller's
/// pool may end long before the guest is done.
fn spawn_for_life(mut command: Command) -> io::Result<(Arc<Mutex<Child>>, u32)> {
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
            while !matches!(lock_mutex(&child).try_wait(), Ok(Some(_)) | Err(_)) {
                thread::sleep(Duration::from_millis(20));
            }
        })?;
    let child = receiver.recv().map_err(io::Error::other)??;
    let pid = lock_mutex(&child).id();
    Ok((child, pid))
}

#[cfg(test)]
mod tests {
    use super::{TAIL, tail, warning};

    #[test]
    fn a_report_begins_where_the_kernel_says_why() {
        let mut lines = vec!["boot"; 100];
        assert_eq!(tail(&lines).len(), TAIL);
        lines[50] = "BUG: unable to handle page fault";
        assert_eq!(tail(&lines)[0], lines[50]);
        lines.extend(["registers"; 1000]);
        assert_eq!((tail(&lines)[0], tail(&lines).len()), (lines[50], 4 * TAIL));
        lines[20] = "INFO: task sh:196 blocked for more than 120 seconds.";
        assert_eq!(tail(&lines)[0], lines[50]);
        lines[60] = "Kernel panic - not syncing: hung_task: blocked tasks";
        assert_eq!(tail(&lines)[0], lines[20]);
        assert!(tail(&[]).is_empty());
    }

    #[test]
    fn a_warning_before_the_death_is_told() {
        let mut lines = vec!["boot"; 100];
        lines[60] = "Oops: divide error";
        assert!(warning(&lines).is_empty());
        lines[61] = "WARNING: after it";
        assert!(warning(&lines).is_empty());
        lines[50] = "WARNING: kernel/sched/fair.c";
        assert_eq!((warning(&lines)[0], warning(&lines).len()), (lines[50], 10));
        assert!(warning(&[]).is_empty());
    }
}
