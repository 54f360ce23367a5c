//! Children of the agent. Each has a process group of its own; the agent reads its output as it
//! comes and reaps it with its resource usage.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use magpie_guest::{ExecResult, Stream};
use nix::sys::signal::SigSet;

/// A running child.
pub struct Process {
    /// Process id, which is also the id of its process group.
    pub pid: i32,
    started: Instant,
    /// Its output, as far as it has not closed it.
    pub pipes: Vec<(File, Stream)>,
}

/// How a child ended.
pub struct Reaped {
    /// Process id.
    pub pid: i32,
    /// Exit code, or 128 plus the signal's number.
    pub code: i32,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    usage: libc::rusage,
}

impl Process {
    /// Starts a command. The error names the program that could not be started.
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
        // Unblocks SIGCHLD, which the agent blocks for its signalfd and children inherit. A shell
        // would otherwise wait for its background jobs for ever.
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

    /// Reads the output that is there, without blocking, and closes the pipes that have ended.
    /// Reads at most one full buffer of each pipe, so that a command that floods its pipe does not
    /// keep the agent from the request that kills it.
    pub fn read_output(&mut self, sink: &mut dyn FnMut(Stream, &[u8])) {
        let mut buffer = [0; 16384];
        self.pipes.retain_mut(|(pipe, stream)| {
            loop {
                match pipe.read(&mut buffer) {
                    Ok(0) => return false,
                    Ok(length) => {
                        sink(*stream, &buffer[..length]);
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

    /// Reads the output that a child has left in its pipes. Call it once the child has ended: the
    /// output is then at most a pipe's capacity, for which a few of the rounds suffice. The number
    /// of rounds is bounded, because a grandchild that lives on may never stop writing.
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
        // SAFETY: kill takes no pointers, and the child has not been reaped, so the group is its
        // own.
        unsafe { libc::kill(-self.pid, signal) };
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes no pointers, and the child has not been reaped, so the id is its own.
        unsafe { libc::kill(self.pid, signal) };
    }

    /// Returns how it ended and what it used.
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

/// Makes reads of a pipe return at once.
fn unblock(pipe: OwnedFd) -> File {
    // SAFETY: the descriptor is open and owned by `pipe`; F_SETFL takes no pointers.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    File::from(pipe)
}

/// Reaps a child that has ended, if there is one. It may be an orphan that init has inherited.
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
