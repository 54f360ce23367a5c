//! Where workloads run: on this host, or in a guest of the lab. The runner knows only [`Place`].

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::guest::explain;
use magpie_lab::{Guest, GuestOptions, Stream};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::candidate::Candidate;

/// How a command ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    /// Exit code; 0 is success.
    pub code: i32,
    /// Standard output and standard error together, in the order of their writes.
    pub output: String,
    /// How long it ran, on the clock of the place.
    pub seconds: f64,
}

/// A machine that runs commands and schedulers.
pub trait Place {
    /// The description of the machine in a result file.
    fn machine(&self) -> BTreeMap<String, Value>;
    /// The kernel release.
    fn kernel(&self) -> String;
    /// Runs a command until it ends.
    ///
    /// # Errors
    /// If it cannot be started or does not end within `timeout`. A bad exit code is no error.
    fn run(&mut self, argv: &[String], timeout: Duration) -> Result<Ran>;
    /// Reads a file of /proc or /sys.
    fn read(&mut self, path: &str) -> Result<String>;
    /// Starts a scheduler and waits until the kernel has enabled it.
    fn start_scheduler(&mut self, argv: &[String]) -> Result<()>;
    /// Stops the scheduler and waits until the kernel uses its own again.
    ///
    /// # Errors
    /// If the scheduler had already ended; with the kernel's reason.
    fn stop_scheduler(&mut self) -> Result<()>;
    /// The reason why the scheduler ended without being stopped; None while it runs, and at a place
    /// whose schedulers do not end by themselves.
    fn scheduler_died(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Does a run leave anything behind that the next one finds, such as files in memory? Then the
    /// first round is a warm-up, and is dropped.
    fn needs_warm_up(&self) -> bool {
        true
    }

    /// Puts the candidate's kernel and settings into use, for its turn.
    ///
    /// # Errors
    /// If the place has only one kernel, or the kernel refuses a setting.
    fn enter(&mut self, candidate: &Candidate) -> Result<()> {
        ensure!(
            !candidate.needs_guest(),
            "{} asks for a kernel or settings, which only guests have",
            candidate.name
        );
        Ok(())
    }

    /// Puts the settings back that were in force before the turn.
    ///
    /// # Errors
    /// If one does not come back.
    fn leave(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A booted guest.
pub struct Vm {
    guest: Guest,
    machine: BTreeMap<String, Value>,
}

impl Vm {
    /// Boots a guest.
    pub fn boot(options: &GuestOptions) -> Result<Self> {
        let guest = Guest::boot(options)?;
        let machine = BTreeMap::from([
            ("in".into(), "vm".into()),
            (
                "machine".into(),
                serde_json::to_value(&options.machine).context("encode the machine")?,
            ),
            (
                "accelerator".into(),
                serde_json::to_value(guest.accelerator()).context("encode the accelerator")?,
            ),
            ("cpus".into(), options.machine.cpus().into()),
            ("host_cpus".into(), host_cpus().into()),
        ]);
        Ok(Self { guest, machine })
    }

    /// Stops a guest in virtual time until [`Vm::resume`], because its time would run ahead. A
    /// guest in real time goes on idling, because it would miss time if it were stopped.
    ///
    /// # Errors
    /// If QEMU is gone.
    pub fn pause(&self) -> Result<()> {
        self.guest.pause()
    }

    /// Lets a guest go on.
    ///
    /// # Errors
    /// If QEMU is gone.
    pub fn resume(&self) -> Result<()> {
        self.guest.resume()
    }
}

impl Place for Vm {
    fn machine(&self) -> BTreeMap<String, Value> {
        self.machine.clone()
    }

    fn kernel(&self) -> String {
        self.guest.kernel_release().into()
    }

    fn run(&mut self, argv: &[String], timeout: Duration) -> Result<Ran> {
        let mut output = Vec::new();
        let result = self.guest.exec(argv, timeout, &mut |_: Stream, bytes| {
            output.extend_from_slice(bytes)
        })?;
        Ok(Ran {
            code: result.code,
            output: String::from_utf8_lossy(&output).into_owned(),
            seconds: result.wall_seconds,
        })
    }

    fn read(&mut self, path: &str) -> Result<String> {
        self.guest.capture(&["cat", path], Duration::from_secs(30))
    }

    fn start_scheduler(&mut self, argv: &[String]) -> Result<()> {
        self.guest.start_scheduler(argv)
    }

    fn stop_scheduler(&mut self) -> Result<()> {
        let exit = self.guest.stop_scheduler()?;
        if exit.code != 0 {
            bail!("the scheduler did not end cleanly: {}", explain(&exit));
        }
        Ok(())
    }

    fn scheduler_died(&mut self) -> Result<Option<String>> {
        Ok(self.guest.scheduler_died()?.map(|exit| explain(&exit)))
    }
}

/// This host.
#[derive(Default)]
pub struct Host {
    scheduler: Option<HostScheduler>,
}

/// A scheduler that was started on this host. It is stopped when it is dropped, so that the host
/// uses the kernel's own scheduler again, however the bench ends.
struct HostScheduler {
    process: Child,
    log: tempfile::NamedTempFile,
}

const STATE: &str = "/sys/kernel/sched_ext/state";
const ENABLED: &str = "/sys/kernel/sched_ext/enable_seq";

/// The number of this host's CPUs that this process may use.
pub fn host_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// `enabled` while a sched_ext scheduler is loaded on this host.
fn sched_ext_state() -> String {
    fs::read_to_string(STATE)
        .unwrap_or_default()
        .trim()
        .to_string()
}

/// How many schedulers this host's kernel has enabled since boot, as it says so.
///
/// A kernel counts a scheduler after it has set the state to `enabled`.
pub fn schedulers_enabled() -> Option<String> {
    fs::read_to_string(ENABLED).ok()
}

impl Host {
    /// This host.
    ///
    /// # Errors
    /// If a sched_ext scheduler is loaded already, because the baseline must be the kernel's own.
    pub fn new() -> Result<Self> {
        Self::check_none_loaded()?;
        Ok(Self::default())
    }

    /// Checks that this host runs the kernel's own scheduler.
    ///
    /// # Errors
    /// If a sched_ext scheduler is loaded; with its name.
    pub fn check_none_loaded() -> Result<()> {
        if sched_ext_state() == "enabled" {
            let name = fs::read_to_string("/sys/kernel/sched_ext/root/ops").unwrap_or_default();
            bail!(
                "the sched_ext scheduler {} is loaded on this host: stop it first",
                name.trim()
            );
        }
        Ok(())
    }

    /// Checks that this host can load a scheduler, so that a run fails before it measures anything.
    ///
    /// # Errors
    /// If the kernel has no sched_ext, or this process is not root.
    pub fn check_schedulers_possible() -> Result<()> {
        if !Path::new(STATE).exists() {
            bail!(
                "this host's kernel has no sched_ext, so no scheduler can be loaded: measure in a \
                 guest, with `magpie bench --in vtime` (or `--in vm`)"
            );
        }
        if !nix::unistd::geteuid().is_root() {
            bail!(
                "loading a scheduler on this host needs root: use sudo, or measure in a guest, \
                 with `magpie bench --in vtime` (or `--in vm`)"
            );
        }
        Ok(())
    }
}

impl Place for Host {
    fn machine(&self) -> BTreeMap<String, Value> {
        let model = fs::read_to_string("/proc/cpuinfo")
            .ok()
            .and_then(|text| {
                text.lines().find_map(|l| {
                    Some(
                        l.strip_prefix("model name")?
                            .split_once(':')?
                            .1
                            .trim()
                            .to_string(),
                    )
                })
            })
            .unwrap_or_default();
        BTreeMap::from([
            ("in".into(), "host".into()),
            ("model".into(), model.into()),
            ("cpus".into(), host_cpus().into()),
        ])
    }

    fn kernel(&self) -> String {
        fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .into()
    }

    fn run(&mut self, argv: &[String], timeout: Duration) -> Result<Ran> {
        let log = tempfile::NamedTempFile::new().context("make a temporary file")?;
        let mut command = logged(argv, &log)?;
        command.env("PATH", path_with_our_programs());
        let started = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("run {}", argv[0]))?;
        let deadline = started + timeout;
        let status = loop {
            if let Some(status) = child.try_wait().context("wait for the workload")? {
                break status;
            }
            if Instant::now() > deadline || crate::interrupt::is_requested() {
                let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
                let _ = child.wait();
                bail!(
                    "{argv:?} was ended: interrupted, or longer than {} s",
                    timeout.as_secs()
                );
            }
            // Long enough not to disturb the workload, short enough for a metric that is the time
            // of the run.
            std::thread::sleep(Duration::from_millis(2));
        };
        let seconds = started.elapsed().as_secs_f64();
        Ok(Ran {
            code: status.code().unwrap_or(128),
            output: read_log(&log),
            seconds,
        })
    }

    fn read(&mut self, path: &str) -> Result<String> {
        fs::read_to_string(path).with_context(|| format!("read {path}"))
    }

    fn start_scheduler(&mut self, argv: &[String]) -> Result<()> {
        let log = tempfile::NamedTempFile::new().context("make a temporary file")?;
        let mut command = logged(argv, &log)?;
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                // However this program ends, the host has its own scheduler again.
                nix::sys::prctl::set_pdeathsig(Signal::SIGINT)?;
                Ok(())
            });
        }
        let before = schedulers_enabled();
        let process = command.spawn();
        let program = &argv[0];
        let process = process.with_context(|| format!("start the scheduler {program}"))?;
        self.scheduler = Some(HostScheduler { process, log });
        let deadline = Instant::now() + Duration::from_secs(60);
        while sched_ext_state() != "enabled" || schedulers_enabled() == before {
            if let Some(why) = self.scheduler_died()? {
                bail!("{program} ended before it was enabled: {why}");
            }
            if Instant::now() > deadline {
                self.scheduler = None;
                bail!("{program} was not enabled within 60 s");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn stop_scheduler(&mut self) -> Result<()> {
        if let Some(why) = self.scheduler_died()? {
            bail!("the scheduler had ended by itself: {why}");
        }
        let Some(mut scheduler) = self.scheduler.take() else {
            bail!("no scheduler was started")
        };
        scheduler.stop()
    }

    fn scheduler_died(&mut self) -> Result<Option<String>> {
        let Some(scheduler) = &mut self.scheduler else {
            return Ok(None);
        };
        let Some(status) = scheduler
            .process
            .try_wait()
            .context("look after the scheduler")?
        else {
            return Ok(None);
        };
        let why = format!("{status}\n{}", read_log(&scheduler.log));
        self.scheduler = None;
        Ok(Some(why))
    }
}

impl HostScheduler {
    /// Ends the scheduler with SIGINT, and waits until the kernel has unloaded it.
    ///
    /// # Errors
    /// If it ends with a failure, or not within 30 s.
    fn stop(&mut self) -> Result<()> {
        let pid = Pid::from_raw(self.process.id() as i32);
        kill(pid, Signal::SIGINT).context("stop the scheduler")?;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let ended = self
                .process
                .try_wait()
                .context("look after the scheduler")?;
            match ended {
                Some(status) if status.success() && sched_ext_state() == "disabled" => {
                    return Ok(());
                }
                Some(status) if !status.success() => {
                    bail!(
                        "the scheduler did not end cleanly: {status}\n{}",
                        read_log(&self.log)
                    )
                }
                _ if Instant::now() > deadline => {
                    bail!("the scheduler did not end within 30 s of SIGINT")
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for HostScheduler {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) && self.stop().is_err() {
            // The kernel unloads the scheduler when its process is gone.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// PATH with the folder of this program in front, because scripts of workloads call our load
/// generators by name.
fn path_with_our_programs() -> std::ffi::OsString {
    let ours = std::env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.to_path_buf()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = ours.into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or(path.clone())
}

/// A command whose output goes to a file and not to a pipe, because a full pipe would block it. It
/// has a process group of its own, so that a kill reaches all of its processes.
fn logged(argv: &[String], log: &tempfile::NamedTempFile) -> Result<Command> {
    let [program, arguments @ ..] = argv else {
        bail!("an empty command")
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(shared(log)?).stderr(shared(log)?);
    command.process_group(0);
    Ok(command)
}

/// Another handle with the same file position, so that two streams do not overwrite each other.
fn shared(log: &tempfile::NamedTempFile) -> Result<fs::File> {
    log.as_file().try_clone().context("open a temporary file")
}

/// Everything that was written to the file; if it cannot be read, the reason.
fn read_log(log: &tempfile::NamedTempFile) -> String {
    let mut bytes = Vec::new();
    let read = log
        .reopen()
        .and_then(|mut file| file.read_to_end(&mut bytes));
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("(its output could not be read: {error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        shell_words::split(line).unwrap()
    }

    #[test]
    fn the_host_runs_commands_and_keeps_their_output() {
        let mut host = Host::default();
        let ran = host
            .run(
                &words("sh -c 'echo out; echo err >&2; exit 3'"),
                Duration::from_secs(10),
            )
            .unwrap();
        assert_eq!((ran.code, ran.output.as_str()), (3, "out\nerr\n"));
        assert!(ran.seconds > 0.0 && ran.seconds < 10.0, "{ran:?}");
        assert!(
            host.run(&words("no-such-program"), Duration::from_secs(1))
                .is_err()
        );
        assert!(host.read("/proc/stat").unwrap().contains("ctxt"));
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_its_children() {
        let mut host = Host::default();
        let start = Instant::now();
        let error = host
            .run(
                &words("sh -c 'sleep 60 & sleep 60'"),
                Duration::from_millis(200),
            )
            .unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(error.to_string().contains("longer than"), "{error}");
    }
}
