//! The connection to the agent of one guest: requests go out, events come in.
//!
//! Every wait has a limit. A guest that panics or whose QEMU ends is an error with the tail of its
//! console.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use magpie_guest::{Event, Request};

use crate::qemu::Qemu;

/// How long the host may take to hand a request to QEMU, in real time.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long QEMU may take to end after the guest's kernel panicked, in real time.
const PANIC_TIMEOUT: Duration = Duration::from_secs(5);

/// A socket to the agent, and the QEMU that it ends with.
#[derive(Debug)]
pub struct Connection {
    requests: UnixStream,
    events: Receiver<Result<Event>>,
    last_id: u64,
    qemu: Qemu,
    answer_timeout: Duration,
}

impl Connection {
    /// Waits until QEMU connects the agent's port, at most until `deadline`.
    pub fn open(qemu: Qemu, deadline: Instant, answer_timeout: Duration) -> Result<Connection> {
        let stream = qemu.accept_agent(deadline)?;
        stream
            .set_write_timeout(Some(WRITE_TIMEOUT))
            .context("set a socket's timeout")?;
        let events = read_events(stream.try_clone().context("duplicate a socket")?);
        Ok(Connection {
            requests: stream,
            events,
            last_id: 1,
            qemu,
            answer_timeout,
        })
    }

    /// The QEMU that runs the guest.
    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// The same, for queries that QEMU answers once.
    pub fn qemu_mut(&mut self) -> &mut Qemu {
        &mut self.qemu
    }

    /// An id that no request of this guest has had.
    pub fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// How long the guest may take for an answer that needs no work, in real time.
    pub fn answer_timeout(&self) -> Duration {
        self.answer_timeout
    }

    /// The latest moment for an answer that needs no work.
    pub fn answer_deadline(&self) -> Instant {
        Instant::now() + self.answer_timeout
    }

    /// `what` with the state of QEMU and the tail of the console.
    pub fn report(&self, what: &str) -> String {
        self.qemu.report(what)
    }

    /// Sends a request to the agent.
    pub fn send(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request).context("encode a request")?;
        line.push(b'\n');
        self.requests.write_all(&line).map_err(|error| {
            self.qemu.wait(PANIC_TIMEOUT);
            let what = format!("the guest takes no requests ({error})");
            anyhow!("{}", self.report(&what))
        })
    }

    /// Returns the next event, or `None` at the deadline. Fails once the guest is gone.
    pub fn next_event(&mut self, deadline: Instant) -> Result<Option<Event>> {
        let mut panicked_at = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left.min(Duration::from_secs(1))) {
                Ok(event) => return event.map(Some),
                Err(RecvTimeoutError::Disconnected) => {
                    self.qemu.wait(PANIC_TIMEOUT);
                    bail!("{}", self.report("the guest is gone"));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.qemu.panicked() {
                let since = *panicked_at.get_or_insert_with(Instant::now);
                ensure!(
                    since.elapsed() < PANIC_TIMEOUT,
                    "{}",
                    self.report("the guest is gone")
                );
            }
        }
    }

    /// Returns an event that has arrived, or `None`. Does not wait.
    pub fn arrived_event(&mut self) -> Result<Option<Event>> {
        self.events.try_recv().ok().transpose()
    }
}

/// Reads events in a thread of their own, until the socket closes or the receiver is dropped.
fn read_events(stream: UnixStream) -> Receiver<Result<Event>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            let event = serde_json::from_str(&line).with_context(|| {
                let start: String = line.chars().take(200).collect();
                format!("the guest's agent sent a line that is no event: {start}")
            });
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    receiver
}
