//! Children of the agent: started in a process group of their own, their output read as it comes,
//! reaped with their resource usage.

use magpie_guest::{ExecResult, Stream};
use nix::sys::signal::SigSet;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A running child.
pub struct Process {
    /// Process id, also its process group's.
    pub pid: i32,
    started: Instant,
    /// Pipes that have not reached their end.
    pub pipes: Vec<(File, Stream)>,
}

/// A child that was reaped.
pub struct Reaped {
    /// Process id.
    pub pid: i32,
    /// Exit code or 128 plus the signal.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    usage: libc::rusage,
}

impl Process {
    /// Starts `argv` with an environment of its own; the error says what could not be started.
    pub fn start(argv: &[String]) -> Result<Process, String> {
        let (program, arguments) = argv.split_first().ok_or("an empty command")?;
        let started = Instant::now();
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        // The agent blocks SIGCHLD for its signalfd and children inherit that: a shell that waits
        // for its background jobs would wait for ever.
        // SAFETY: between fork and exec only sigprocmask is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                SigSet::empty().thread_set_mask()?;
                Ok(())
            });
        }
        let mut child = command
            .spawn()
            .map_err(|e| format!("cannot start {program} in the guest: {e}"))?;
        let mut pipes = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            pipes.push((unblock(pipe.into()), Stream::Stdout));
        }
        if let Some(pipe) = child.stderr.take() {
            pipes.push((unblock(pipe.into()), Stream::Stderr));
        }
        Ok(Process {
            pid: child.id() as i32,
            started,
            pipes,
        })
    }

    /// Reads what is there without blocking and drops the pipes that have ended.
    pub fn read_output(&mut self, sink: &mut dyn FnMut(Stream, &[u8])) {
        let mut buffer = [0; 16384];
        self.pipes.retain_mut(|(pipe, stream)| {
            loop {
                match pipe.read(&mut buffer) {
                    Ok(0) => return false,
                    Ok(length) => {
                        sink(*stream, &buffer[..length]);
                        // One full buffer a turn: a command that floods its pipe must not keep
                        // the agent from reading requests, such as the one that kills it.
                        if length == buffer.len() {
                            return true;
                        }
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return e.kind() == ErrorKind::WouldBlock,
                }
            }
        });
    }

    /// Reads until the pipes are empty; for a child that has ended. The number of turns is bounded,
    /// since a grandchild that lives on may never stop writing; what the child itself left is at
    /// most one pipe's capacity, which is a few turns.
    pub fn drain_output(&mut self, sink: &mut dyn FnMut(Stream, &[u8])) {
        for _ in 0..64 {
            let mut some = false;
            self.read_output(&mut |stream, bytes| {
                some = true;
                sink(stream, bytes);
            });
            if !some {
                return;
            }
        }
    }

    /// Sends a signal to the process group.
    pub fn signal_group(&self, signal: i32) {
        // SAFETY: kill takes no pointers; the group is our child's, which has not been reaped.
        unsafe { libc::kill(-self.pid, signal) };
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: i32) {
        // SAFETY: as above.
        unsafe { libc::kill(self.pid, signal) };
    }

    /// What it used, from its reaping.
    pub fn result(&self, reaped: &Reaped) -> ExecResult {
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        ExecResult {
            code: reaped.code,
            signal: reaped.signal,
            wall_seconds: self.started.elapsed().as_secs_f64(),
            user_seconds: seconds(reaped.usage.ru_utime),
            system_seconds: seconds(reaped.usage.ru_stime),
            max_rss_kib: reaped.usage.ru_maxrss,
            voluntary_switches: reaped.usage.ru_nvcsw,
            involuntary_switches: reaped.usage.ru_nivcsw,
        }
    }
}

fn unblock(pipe: OwnedFd) -> File {
    // SAFETY: the descriptor is open and owned by `pipe`; F_SETFL takes no pointers.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    File::from(pipe)
}

/// Reaps one child if one has ended: our own, or an orphan that init inherited.
pub fn reap() -> Option<Reaped> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid: it is plain data.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals of the right types.
    let pid = unsafe { libc::wait4(-1, &mut status, libc::WNOHANG, &mut usage) };
    if pid <= 0 {
        return None;
    }
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    let code = signal.map_or_else(|| libc::WEXITSTATUS(status), |s| 128 + s);
    Some(Reaped {
        pid,
        code,
        signal,
        usage,
    })
}
