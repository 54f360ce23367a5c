//! The system calls that the load generators share. Each is wrapped once, and its error names the
//! thread, process or file on which it failed.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeSpec;
use nix::sys::wait::waitpid;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use nix::unistd::{ForkResult, Pid};

use crate::cpus::CpuSet;

/// Returns CLOCK_MONOTONIC in nanoseconds. The kernel's trace uses the same clock.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec for the call's duration; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until a time of [`now_ns`]'s clock; at once if it has passed.
pub fn sleep_until(time: u64) -> Result<()> {
    let time = TimeSpec::from_duration(Duration::from_nanos(time));
    loop {
        match clock_nanosleep(
            ClockId::CLOCK_MONOTONIC,
            ClockNanosleepFlags::TIMER_ABSTIME,
            &time,
        ) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("sleep until a time"),
        }
    }
}

/// Asks that the caller's timers expire without slack. By default the kernel wakes a thread that is
/// not a real-time one up to 50 us late, to save energy.
pub fn ask_for_exact_timers() -> Result<()> {
    nix::sys::prctl::set_timerslack(1).context("ask for exact timers")
}

/// Asks for a slice, in nanoseconds, for the caller, an ordinary task. The kernel bounds it by 0.1
/// and 100 ms, and ignores it before 6.12. The nice value stays.
pub fn ask_for_slice(slice: u64) -> Result<()> {
    let attr = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice()?,
        sched_priority: 0,
        sched_runtime: slice,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `attr.size` bytes of `attr`, which outlives the call.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if rc < 0 {
        return Err(io::Error::last_os_error()).context("ask for a slice");
    }
    Ok(())
}

/// The caller's nice value.
fn nice() -> Result<i32> {
    Errno::clear();
    // SAFETY: plain integers.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // -1 is also a nice value.
    if nice == -1 && Errno::last_raw() != 0 {
        return Err(io::Error::last_os_error()).context("read the nice value");
    }
    Ok(nice)
}

/// The CPU that the caller runs on at this moment.
pub fn current_cpu() -> usize {
    // SAFETY: no arguments, no memory involved; fails only on kernels without getcpu.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Returns the CPU on which a thread of this program runs or is queued; none if the thread sleeps.
pub fn cpu_of_running(tid: i32) -> Result<Option<usize>> {
    let file = format!("/proc/self/task/{tid}/stat");
    let stat = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    // proc_pid_stat(5): the third field, after a name that may contain anything, is the state, the
    // 39th the CPU.
    let fields = stat.rsplit(") ").next().map(str::split_ascii_whitespace);
    let Some((state, cpu)) = fields.and_then(|mut f| f.next().zip(f.nth(35))) else {
        bail!("{file} is not as proc_pid_stat(5) says: {stat}");
    };
    let cpu = cpu.parse().with_context(|| format!("CPU of {file}"))?;
    Ok((state == "R").then_some(cpu))
}

/// Restricts a thread (0: the caller) to a set of CPUs.
pub fn set_affinity(tid: i32, cpus: &CpuSet) -> Result<()> {
    let words = cpus.words();
    // SAFETY: the kernel reads size_of_val(words) bytes from the slice, which outlives the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            tid,
            size_of_val(words),
            words.as_ptr(),
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error()).with_context(|| {
            format!("restrict thread {tid} to CPUs {cpus}: are they online and in its cpuset?")
        });
    }
    Ok(())
}

/// The CPUs that a thread (0: the caller) may use.
pub fn affinity(tid: i32) -> Result<CpuSet> {
    let mut words = vec![0_u64; 8192 / 64];
    // SAFETY: the kernel writes at most the given number of bytes into the vector's buffer.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            tid,
            words.len() * 8,
            words.as_mut_ptr(),
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error())
            .with_context(|| format!("read the affinity of thread {tid}"));
    }
    words.truncate(rc as usize / 8);
    Ok(CpuSet::from_words(words))
}

/// Sets the nice value of a thread (0: the caller).
pub fn set_nice(tid: i32, nice: i32) -> Result<()> {
    // SAFETY: plain integers.
    let rc = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as libc::id_t, nice) };
    if rc < 0 {
        return Err(io::Error::last_os_error()).with_context(|| {
            format!("set nice {nice} on thread {tid}: negative values need root")
        });
    }
    Ok(())
}

/// A scheduling policy that needs no deadline parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// SCHED_OTHER, the default.
    Other,
    /// SCHED_BATCH: throughput before latency.
    Batch,
    /// SCHED_IDLE: only CPU time that no other task wants.
    Idle,
    /// SCHED_FIFO at the lowest real-time priority. sched_ext does not schedule such a task, and it
    /// preempts all tasks of the other policies.
    Fifo,
}

/// Sets the policy of a thread (0: the caller).
pub fn set_policy(tid: i32, policy: Policy) -> Result<()> {
    let (number, priority) = match policy {
        Policy::Other => (libc::SCHED_OTHER, 0),
        Policy::Batch => (libc::SCHED_BATCH, 0),
        Policy::Idle => (libc::SCHED_IDLE, 0),
        Policy::Fifo => (libc::SCHED_FIFO, 1),
    };
    let param = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: `param` is valid for the call's duration.
    if unsafe { libc::sched_setscheduler(tid, number, &param) } < 0 {
        return Err(io::Error::last_os_error()).with_context(|| {
            format!("set policy {policy:?} on thread {tid}: SCHED_FIFO needs root")
        });
    }
    Ok(())
}

/// Returns the kernel's load weight of a nice value (a step is 1.25, nice 0 is 1024; the kernel's table
/// holds these rounded values) and of SCHED_IDLE, which has 3 whatever its nice value.
pub fn weight(nice: i32, policy: Policy) -> u32 {
    const WEIGHTS: [u32; 40] = [
        88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100,
        4904, 3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172,
        137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
    ];
    match policy {
        Policy::Idle => 3,
        _ => WEIGHTS[(nice + 20).clamp(0, 39) as usize],
    }
}

/// Returns the names in a folder that are numbers: the processes of `/proc`, the threads of
/// `/proc/PID/task`. None if the process has ended.
pub fn numbers(folder: &str) -> Vec<i32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// A forked process that runs a function. Killed and reaped when dropped, with its process group if it
/// leads one; dies with its parent.
#[derive(Debug)]
pub struct Child(Pid);

impl Child {
    /// Forks a process that runs `work` and exits: 0, or 1 with the error on stderr.
    ///
    /// Call this before the program starts threads. Only the calling thread lives on in the child,
    /// so a lock that another thread held would stay locked for ever.
    pub fn fork(work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let parent = nix::unistd::getpid();
        // SAFETY: the callers fork before they start any thread, so the child's heap and locks are
        // in a consistent state; it never returns into the caller's code.
        match unsafe { nix::unistd::fork() }.context("fork a load process")? {
            ForkResult::Parent { child } => Ok(Self(child)),
            ForkResult::Child => {
                // SAFETY: plain integers. A killed parent must not leave hogs behind.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let code = if nix::unistd::getppid() != parent {
                    1
                } else {
                    // A panic must not unwind into the parent's code, whose values would be dropped
                    // here, too.
                    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
                        Ok(Ok(())) => 0,
                        Ok(Err(error)) => {
                            eprintln!("magpie-load: {error:#}");
                            1
                        }
                        Err(_) => 101,
                    }
                };
                // SAFETY: ends the child without running the parent's exit handlers twice.
                unsafe { libc::_exit(code) }
            }
        }
    }

    /// Waits until the process ends by itself.
    pub fn wait(self) -> Result<()> {
        let ended = waitpid(self.0, None).context("wait for a load process");
        // Do not kill on drop: the process is reaped, and another one may have its number by now.
        std::mem::forget(self);
        ended.map(|_| ())
    }

    /// Waits without sleeping, so that this CPU stays busy, until the process ends by itself.
    pub fn wait_busily(self) -> Result<()> {
        use nix::sys::wait::{WaitPidFlag, WaitStatus};
        let ended = loop {
            match waitpid(self.0, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => std::hint::spin_loop(),
                ended => break ended.context("wait for a load process"),
            }
        };
        std::mem::forget(self);
        ended.map(|_| ())
    }

    /// Waits as [`Self::wait`] does; an exit code other than 0, or an end by a signal, is an error.
    pub fn wait_for_success(self) -> Result<()> {
        use nix::sys::wait::WaitStatus;
        let ended = waitpid(self.0, None).context("wait for a load process");
        std::mem::forget(self);
        match ended? {
            WaitStatus::Exited(_, 0) => Ok(()),
            other => bail!("a load process failed: {other:?}"),
        }
    }

    /// Has the process ended by itself? Does not reap it.
    pub fn has_ended(&self) -> Result<bool> {
        use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = waitid(Id::Pid(self.0), flags)
            .with_context(|| format!("look whether load process {} has ended", self.0))?;
        Ok(status != WaitStatus::StillAlive)
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.0.as_raw()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.0, signal).with_context(|| format!("send {signal} to load process {}", self.0))
    }

    /// Waits until the process is stopped, after SIGSTOP. Its CPU time stands still from then on.
    pub fn wait_stopped(&self) -> Result<()> {
        use nix::sys::wait::{WaitPidFlag, WaitStatus};
        match waitpid(self.0, Some(WaitPidFlag::WUNTRACED))
            .context("wait for a load process to stop")?
        {
            WaitStatus::Stopped(..) => Ok(()),
            other => bail!("load process {} ended too early: {other:?}", self.0),
        }
    }

    /// The process's CPU time and time spent waiting in a runqueue, in nanoseconds.
    pub fn schedstat(&self) -> Result<(u64, u64)> {
        let path = format!("/proc/{}/schedstat", self.0);
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let mut fields = text.split_whitespace().map(str::parse);
        match (fields.next(), fields.next()) {
            (Some(Ok(ran)), Some(Ok(waited))) => Ok((ran, waited)),
            _ => bail!("{path} says {text:?}: does the kernel have CONFIG_SCHED_INFO?"),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let leads_group = nix::unistd::getpgid(Some(self.0)) == Ok(self.0);
        let group = Pid::from_raw(-self.0.as_raw());
        let _ = kill(if leads_group { group } else { self.0 }, Signal::SIGKILL);
        let _ = waitpid(self.0, None);
    }
}

/// Holds processes back until all are ready, then lets them go together. The processes block in a
/// read of a pipe, whose only writer the parent closes to start them.
pub struct StartGate {
    ready: (OwnedFd, OwnedFd),
    start: (OwnedFd, OwnedFd),
}

impl StartGate {
    /// A closed gate; make it before forking the processes.
    pub fn new() -> Result<Self> {
        let pipe = || nix::unistd::pipe().context("make a pipe");
        Ok(Self {
            ready: pipe()?,
            start: pipe()?,
        })
    }

    /// In the process: says "ready" and waits for the start.
    pub fn wait(self) -> Result<()> {
        drop(self.start.1);
        std::fs::File::from(self.ready.1)
            .write_all(b"r")
            .context("report ready")?;
        std::fs::File::from(self.start.0)
            .read_to_end(&mut Vec::new())
            .context("wait for the start")?;
        Ok(())
    }

    /// In the parent: waits until `count` processes are ready.
    pub fn wait_ready(self, count: usize) -> Result<OpenableGate> {
        drop(self.ready.1);
        let mut ready = vec![0; count];
        std::fs::File::from(self.ready.0)
            .read_exact(&mut ready)
            .context("a load process died before the start")?;
        Ok(OpenableGate(self.start.1))
    }
}

/// A gate behind which all processes wait.
pub struct OpenableGate(OwnedFd);

impl OpenableGate {
    /// Lets all processes go at once.
    pub fn open(self) {
        drop(self.0);
    }
}

/// Keeps the CPU for a time.
pub fn spin_for(time: Duration) {
    let until = now_ns() + time.as_nanos() as u64;
    while now_ns() < until {
        std::hint::spin_loop();
    }
}

/// Burns CPU until killed.
///
/// The loop is a no-op that a machine in virtual time recognizes (`lab/vtime/work.c`): nothing else
/// follows before the next interrupt, so that the machine need not emulate the loop. On every other
/// machine the no-op has no meaning.
pub fn burn_forever() -> ! {
    loop {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a no-op, whose operand is never accessed.
        unsafe {
            std::arch::asm!(
                "nop dword ptr [rax + 0x4d41574b]",
                options(nomem, nostack, preserves_flags)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::spin_loop();
    }
}

/// Works a fixed number of operations: dependent multiplications, no memory, no system call.
pub fn work(operations: u64) {
    let mut state = 1_u64;
    for _ in 0..operations {
        state = std::hint::black_box(
            state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        );
    }
}

/// Calls sched_yield until killed.
pub fn yield_forever() -> ! {
    loop {
        std::thread::yield_now();
    }
}

/// Parses seconds from a command line: more than zero, at most a day.
pub fn parse_seconds(text: &str) -> Result<Duration> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => bail!("`{text}` is not a time in seconds such as 10 or 0.5"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_the_kernels() {
        assert_eq!(weight(0, Policy::Other), 1024);
        assert_eq!(weight(-20, Policy::Batch), 88761);
        assert_eq!(weight(19, Policy::Other), 15);
        assert_eq!(weight(0, Policy::Idle), 3);
    }
}
