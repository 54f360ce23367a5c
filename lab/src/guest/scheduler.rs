//! The scheduler under test in a guest: started, watched, stopped, and its end put into words.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use magpie_guest::{Event, Request, SchedulerExit};

use super::connection::Connection;
use crate::text;

/// How long a scheduler that the kernel has disabled may take to come back by itself, as one does
/// that restarts after CPU hotplug.
const RESTART_TIMEOUT: Duration = Duration::from_secs(10);

/// Lines of the scheduler's output and of the kernel's log that an explanation shows.
const LINES_SHOWN: usize = 40;

/// The scheduler of one guest, if there is one.
#[derive(Debug)]
pub struct Scheduler {
    /// Name of the scheduler that was started and not stopped.
    name: Option<String>,
    /// How it ended, if it ended by itself.
    exit: Option<SchedulerExit>,
    /// How long it may take to be enabled, or to end after it was asked to, in real time.
    timeout: Duration,
}

impl Scheduler {
    /// No scheduler yet.
    pub fn none(timeout: Duration) -> Scheduler {
        Scheduler {
            name: None,
            exit: None,
            timeout,
        }
    }

    /// Starts a scheduler. Returns when the kernel's sched_ext state is "enabled".
    pub fn start(&mut self, connection: &mut Connection, argv: &[String]) -> Result<()> {
        let name = argv.first().context("an empty scheduler command")?.clone();
        ensure!(
            self.name.is_none(),
            "{} is already running in the guest; stop it first",
            self.name.as_deref().unwrap_or_default()
        );
        self.exit = None;
        let id = connection.new_id();
        connection.send(&Request::StartScheduler {
            id,
            argv: argv.to_vec(),
        })?;
        let deadline = Instant::now() + self.timeout;
        loop {
            match connection.next_event(deadline)? {
                Some(Event::SchedulerStarted { id: of }) if of == id => {
                    self.name = Some(name);
                    return Ok(());
                }
                Some(Event::SchedulerExited { exit, .. }) => {
                    bail!("{name} ended before it was enabled\n{}", explain(&exit));
                }
                Some(Event::Failed { id: of, message }) if of == id => bail!(message),
                Some(event) => self.note(event),
                None => {
                    let limit = self.timeout.as_secs_f64();
                    let what = format!("{name} was not enabled within {limit} s");
                    let exit = self.end(connection).with_context(|| what.clone())?;
                    bail!("{what}\n{}", explain(&exit));
                }
            }
        }
    }

    /// Sends SIGINT and waits until the kernel's state is "disabled". Returns the earlier exit of a
    /// scheduler that has ended by itself.
    pub fn stop(&mut self, connection: &mut Connection) -> Result<SchedulerExit> {
        ensure!(
            self.name.is_some(),
            "no scheduler was started in the guest, so there is none to stop"
        );
        while let Some(event) = connection.arrived_event()? {
            self.note(event);
        }
        self.name = None;
        match self.exit.take() {
            Some(exit) => Ok(exit),
            None => self.end(connection),
        }
    }

    /// Returns how the scheduler ended if it exited by itself, or if the kernel has disabled it and
    /// it does not come back in time.
    pub fn died(&mut self, connection: &mut Connection) -> Result<Option<SchedulerExit>> {
        if self.name.is_none() {
            return Ok(None);
        }
        let deadline = Instant::now() + RESTART_TIMEOUT;
        loop {
            let (running, state) = self.status(connection)?;
            if let Some(exit) = &self.exit {
                return Ok(Some(exit.clone()));
            }
            if running && state == "enabled" {
                return Ok(None);
            }
            if Instant::now() > deadline {
                let exit = self.end(connection)?;
                self.exit = Some(exit.clone());
                return Ok(Some(exit));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Keeps the exit of a scheduler that ended unasked. Every other event here answers a request
    /// that was given up, and is dropped.
    pub fn note(&mut self, event: Event) {
        if let Event::SchedulerExited { exit, .. } = event {
            self.exit = Some(exit);
        }
    }

    /// Asks the agent to end the scheduler, and waits for the exit.
    fn end(&mut self, connection: &mut Connection) -> Result<SchedulerExit> {
        let id = connection.new_id();
        connection.send(&Request::StopScheduler { id })?;
        let deadline = Instant::now() + self.timeout;
        loop {
            match connection.next_event(deadline)? {
                Some(Event::SchedulerExited { exit, .. }) => return Ok(exit),
                Some(Event::Failed { id: of, message }) if of == id => bail!(message),
                Some(event) => self.note(event),
                None => bail!("{}", connection.report("the scheduler does not end")),
            }
        }
    }

    /// Whether the scheduler's process lives, and the kernel's sched_ext state.
    fn status(&mut self, connection: &mut Connection) -> Result<(bool, String)> {
        let id = connection.new_id();
        connection.send(&Request::SchedulerStatus { id })?;
        let deadline = connection.answer_deadline();
        loop {
            match connection.next_event(deadline)? {
                Some(Event::Scheduler {
                    id: of,
                    running,
                    state,
                }) if of == id => return Ok((running, state)),
                Some(event) => self.note(event),
                None => bail!(
                    "{}",
                    connection.report("the guest does not answer: it hangs")
                ),
            }
        }
    }
}

/// Puts a scheduler's end into words: exit code or signal, the kernel's reason, the tail of the
/// scheduler's output.
pub fn explain(exit: &SchedulerExit) -> String {
    let mut text = match exit.signal {
        Some(signal) => format!("signal {signal} ended it"),
        None => format!("exit code {}", exit.code),
    };
    if exit.state != "disabled" {
        text.push_str(&format!("; sched_ext is \"{}\"", exit.state));
    }
    for (title, part) in [
        ("kernel", exit.kernel_log.join("\n")),
        ("output", exit.output.clone()),
    ] {
        let part = text::last_lines(&part, LINES_SHOWN);
        if !part.is_empty() {
            text.push_str(&format!("\n{title}:\n  {}", text::indented(&part)));
        }
    }
    text
}
