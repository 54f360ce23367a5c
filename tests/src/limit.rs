//! Takes CPU time from a guest, as an overcommitted host does: a share of each vCPU's, or all of
//! one's.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const PERIOD_US: u64 = 100_000;

/// A limit on a guest's vCPUs. Dropping it ends it.
pub enum Limit {
    /// One cgroup with a quota per vCPU thread, and the cgroup from which the threads came.
    Quota(Vec<(PathBuf, u32)>, PathBuf),
    /// Where no cgroup can be made: a thread stops and continues all of QEMU.
    Signals(Arc<AtomicBool>, Option<JoinHandle<()>>),
}

impl Limit {
    /// Limits each vCPU to `percent` of a CPU.
    pub fn new(guest: &mut Guest, percent: u64) -> Result<Self> {
        ensure!(
            (1..=100).contains(&percent),
            "a limit of {percent} % is impossible"
        );
        match cpu_controller() {
            Some(root) => Self::quota(guest, percent, root),
            None => Ok(Self::signals(guest.qemu_pid(), percent)),
        }
    }

    /// Moves each vCPU thread into a cgroup of its own, with a quota.
    fn quota(guest: &mut Guest, percent: u64, root: PathBuf) -> Result<Self> {
        let mut groups = Vec::new();
        for thread in guest.qemu_threads()? {
            let group = root.join(format!("magpie-tests-{thread}"));
            let write = |file: &str, text: String| {
                let file = group.join(file);
                std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))
            };
            std::fs::create_dir(&group).with_context(|| format!("make {}", group.display()))?;
            groups.push((group.clone(), thread));
            write("cpu.cfs_period_us", PERIOD_US.to_string())?;
            write("cpu.cfs_quota_us", (PERIOD_US * percent / 100).to_string())?;
            write("tasks", thread.to_string())?;
        }
        Ok(Limit::Quota(groups, root))
    }

    /// Stops and continues QEMU in each period, so that it runs for `percent` of it.
    fn signals(pid: u32, percent: u64) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let pid = Pid::from_raw(pid.cast_signed());
        let on = Duration::from_micros(PERIOD_US * percent / 100);
        let off = Duration::from_micros(PERIOD_US) - on;
        let thread = std::thread::spawn(move || {
            // Ends by itself when QEMU is gone.
            while !end.load(Ordering::Relaxed) && kill(pid, Signal::SIGSTOP).is_ok() {
                std::thread::sleep(off);
                let _ = kill(pid, Signal::SIGCONT);
                std::thread::sleep(on);
            }
        });
        Limit::Signals(ended, Some(thread))
    }
}

/// A vCPU that its host does not run. Dropping it, on the thread that made it, lets the vCPU go on.
pub struct Taken(Pid, PhantomData<*const ()>);

impl Taken {
    /// Stops a vCPU of a guest in real time.
    pub fn new(guest: &mut Guest, vcpu: usize) -> Result<Self> {
        let threads = guest.qemu_threads()?;
        let thread = threads
            .get(vcpu)
            .with_context(|| format!("no vCPU {vcpu} among {}", threads.len()))?;
        let thread = Pid::from_raw(thread.cast_signed());
        let context = || format!("stop vCPU {vcpu}, thread {thread} of QEMU");
        ptrace::seize(thread, ptrace::Options::empty()).with_context(context)?;
        let taken = Self(thread, PhantomData);
        ptrace::interrupt(thread).with_context(context)?;
        let status = waitpid(thread, Some(WaitPidFlag::__WALL)).with_context(context)?;
        ensure!(
            matches!(status, WaitStatus::PtraceEvent(..)),
            "{}: it is in another state: {status:?}",
            context()
        );
        Ok(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // Fails if QEMU has ended.
        let _ = ptrace::detach(self.0, None);
    }
}

/// Returns the mounted cgroup v1 hierarchy of the CPU controller, if groups can be made in it.
fn cpu_controller() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let root = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (folder, kind, options) = (words.nth(1)?, words.next()?, words.next()?);
        let is_cpu = kind == "cgroup" && options.split(',').any(|option| option == "cpu");
        is_cpu.then(|| PathBuf::from(folder))
    })?;
    let probe = root.join(format!("magpie-tests-probe-{}", std::process::id()));
    std::fs::create_dir(&probe).ok()?;
    let has_quota = probe.join("cpu.cfs_quota_us").is_file();
    std::fs::remove_dir(&probe).ok()?;
    has_quota.then_some(root)
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Quota(..) => "a cgroup's quota for each",
            Limit::Signals(..) => "stopping QEMU",
        })
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        match self {
            Limit::Quota(groups, root) => {
                for (group, thread) in groups {
                    // Fails if the thread has ended, which has left the group by then.
                    let _ = std::fs::write(root.join("tasks"), thread.to_string());
                    if let Err(error) = std::fs::remove_dir(&*group) {
                        eprintln!("could not remove {}: {error}", group.display());
                    }
                }
            }
            Limit::Signals(ended, thread) => {
                ended.store(true, Ordering::Relaxed);
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
        }
    }
}
