//! The scheduler under test: the agent starts it, watches it, stops it, and explains its end with
//! its output and the kernel's log.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use magpie_guest::SchedulerExit;

use crate::process::{Process, Reaped};

const STATE: &str = "/sys/kernel/sched_ext/state";

/// Bytes of the scheduler's output that are kept.
const OUTPUT_KEPT: usize = 64 * 1024;

/// How long a scheduler may take to end after SIGINT before it is killed, and the kernel to move
/// all tasks back to the fair class after it has ended.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the kernel's sched_ext state; empty on a kernel without sched_ext.
pub fn state() -> String {
    fs::read_to_string(STATE)
        .unwrap_or_default()
        .trim()
        .to_string()
}

/// A scheduler that was started, until its end has been reported.
pub struct Scheduler {
    /// The scheduler's process.
    pub process: Process,
    /// The request that waits for a change: first the start, later a stop.
    pub waiting: Option<u64>,
    starting: bool,
    asked_to_stop: Option<Instant>,
    ended: Option<(Reaped, Instant)>,
    output: VecDeque<u8>,
    kernel_log: Option<File>,
}

/// A change of the scheduler's state.
pub enum Change {
    /// The kernel has enabled it. With the request that waited for that.
    Started(u64),
    /// It has ended. With the request that waited for that, if there is one.
    Exited(Option<u64>, SchedulerExit),
}

impl Scheduler {
    /// Starts a scheduler. The error says why that is impossible.
    pub fn start(id: u64, argv: &[String]) -> Result<Scheduler, String> {
        match state().as_str() {
            "disabled" => {}
            "" => return Err("this kernel has no sched_ext (no /sys/kernel/sched_ext)".into()),
            other => {
                return Err(format!(
                    "sched_ext is \"{other}\": another scheduler is loaded"
                ));
            }
        }
        let kernel_log = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg")
            .and_then(|mut log| log.seek(SeekFrom::End(0)).map(|_| log))
            .ok();
        Ok(Scheduler {
            process: Process::start(argv)?,
            waiting: Some(id),
            starting: true,
            asked_to_stop: None,
            ended: None,
            output: VecDeque::new(),
            kernel_log,
        })
    }

    /// Asks it to end with SIGINT, as a user does.
    pub fn stop(&mut self, id: u64) {
        self.waiting = Some(id);
        self.asked_to_stop = Some(Instant::now());
        self.process.signal(libc::SIGINT);
    }

    /// Returns whether the kernel's state must be looked at again soon. While the scheduler just
    /// runs, the agent sleeps: its end is a signal. When this process, which is a real-time task,
    /// looked at the state 50 times a second, the tasks of every scheduler but the kernel's own had
    /// that to wait for.
    pub fn is_changing(&self) -> bool {
        self.starting || self.asked_to_stop.is_some() || self.ended.is_some()
    }

    /// Keeps the tail of its output.
    pub fn read_output(&mut self) {
        let output = &mut self.output;
        self.process.read_output(&mut |_, bytes| {
            output.extend(bytes);
            let surplus = output.len().saturating_sub(OUTPUT_KEPT);
            output.drain(..surplus);
        });
    }

    /// Keeps how its process ended.
    pub fn note_end(&mut self, reaped: Reaped) {
        self.ended = Some((reaped, Instant::now()));
    }

    /// Returns a change of state, if there is one. Kills a scheduler that does not follow SIGINT.
    pub fn check(&mut self) -> Option<Change> {
        let state = state();
        if let Some((reaped, since)) = &self.ended {
            if state != "disabled" && since.elapsed() < STOP_TIMEOUT {
                return None;
            }
            let (code, signal) = (reaped.code, reaped.signal);
            self.read_output();
            let (front, back) = self.output.as_slices();
            let exit = SchedulerExit {
                code,
                signal,
                output: String::from_utf8_lossy(&[front, back].concat()).into_owned(),
                kernel_log: self.read_kernel_log(),
                state,
            };
            return Some(Change::Exited(self.waiting.take(), exit));
        }
        if self.starting && state == "enabled" {
            self.starting = false;
            return self.waiting.take().map(Change::Started);
        }
        if self
            .asked_to_stop
            .is_some_and(|since| since.elapsed() > STOP_TIMEOUT)
        {
            self.process.signal_group(libc::SIGKILL);
        }
        None
    }

    /// Returns the lines about sched_ext that the kernel has logged since the start, with the
    /// indented lines that follow them.
    fn read_kernel_log(&mut self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let Some(log) = &mut self.kernel_log else {
            return lines;
        };
        let mut record = [0; 8192];
        // Each read returns one record, "priority,sequence,time,flags;text". EPIPE says that the
        // kernel has overwritten records; the next read goes on after them.
        let mut in_report = false;
        loop {
            match log.read(&mut record) {
                Ok(0) => break,
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    let text = text.split_once(';').map_or("", |(_, text)| text);
                    let text = text.lines().next().unwrap_or_default();
                    in_report = text.contains("sched_ext") || (in_report && text.starts_with(' '));
                    if in_report {
                        lines.push(text.to_string());
                    }
                }
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        lines
    }
}
