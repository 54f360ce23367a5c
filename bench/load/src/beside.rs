//! The load that runs beside a measurement: CPU hogs, a parallel build, or bursts of network
//! traffic.
//!
//! It starts before the measurement's threads do, because it forks. It ends when [`Beside`] is
//! dropped, so also after an error; and if a signal ends the program, the kernel kills each process
//! with its parent. The work of the load in the window is part of the result: a short latency is no
//! merit of a scheduler that starves the load to get it.

use std::ffi::CString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::counters::Counters;
use crate::sys::{self, Child};
use crate::times::{self, Window};

/// The options of every measurement that another load may run beside.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Args {
    /// The load that runs beside
    #[arg(long, value_enum, default_value_t = Kind::None)]
    beside: Kind,
    /// How many hogs, jobs of the build, or network connections [default: one per CPU]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1024))]
    beside_count: Option<u32>,
}

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Nothing
    None,
    /// Processes that never sleep
    Hogs,
    /// Jobs that each fork a short-lived process, which calls exec and computes, and then the next
    Build,
    /// Connections over loopback, each with a sender of bursts and a receiver that answers each
    /// burst
    Network,
}

impl Kind {
    /// The unit of the load's progress.
    fn unit(self) -> &'static str {
        match self {
            Kind::None => "nothing",
            Kind::Hogs => "CPU seconds",
            Kind::Build => "processes",
            Kind::Network => "messages",
        }
    }
}

/// The processes of the load. Dropping it kills and reaps them.
pub struct Beside {
    kind: Kind,
    count: u32,
    processes: Vec<Child>,
    /// One for each process that counts what it does.
    counters: Counters,
}

/// The work of the load in a span of time.
pub struct Done {
    kind: Kind,
    count: u32,
    amount: f64,
    seconds: f64,
}

impl Beside {
    /// Starts the load. The caller must not have started a thread yet, because this forks.
    ///
    /// # Errors
    /// If a process cannot be forked, or a loopback connection cannot be made.
    pub fn start(args: &Args) -> Result<Self> {
        let count = match (args.beside, args.beside_count) {
            (Kind::None, _) => 0,
            (_, Some(count)) => count,
            (_, None) => sys::affinity(0)?.len() as u32,
        };
        let counters = Counters::new(count as usize)?;
        let mut beside = Self {
            kind: args.beside,
            count,
            processes: Vec::new(),
            counters,
        };
        for index in 0..count as usize {
            beside
                .start_one(index)
                .with_context(|| format!("start the load beside ({:?} {index})", args.beside))?;
        }
        Ok(beside)
    }

    /// Starts the processes of one hog, job or connection.
    fn start_one(&mut self, index: usize) -> Result<()> {
        let counters = &self.counters;
        match self.kind {
            Kind::None => {}
            Kind::Hogs => self.processes.push(Child::fork(|| sys::burn_forever())?),
            Kind::Build => {
                let program = std::env::current_exe().context("find this program, to start it")?;
                let program = CString::new(program.into_os_string().into_encoded_bytes())?;
                self.processes
                    .push(Child::fork(|| build(&program, index, counters))?);
            }
            Kind::Network => {
                let (sender, receiver) = connection()?;
                self.processes
                    .push(Child::fork(|| receive(&receiver, index, counters))?);
                self.processes.push(Child::fork(|| send(&sender, index))?);
            }
        }
        Ok(())
    }

    /// Sleeps through the time of the measurement, and returns what the load did in it.
    ///
    /// # Errors
    /// If a process of the load ended by itself: the rest of the measurement then ran beside less.
    pub fn measure(&self, window: Window) -> Result<Done> {
        sys::sleep_until(window.from)?;
        let (before, start) = (self.progress()?, sys::now_ns());
        sys::sleep_until(window.until)?;
        let (after, end) = (self.progress()?, sys::now_ns());
        for process in &self.processes {
            if process.has_ended()? {
                bail!(
                    "process {} of the load beside ({:?}) ended before the measurement did: see \
                     its message above, or whether the kernel killed it for want of memory",
                    process.pid(),
                    self.kind
                );
            }
        }
        Ok(Done {
            kind: self.kind,
            count: self.count,
            amount: after - before,
            seconds: (end - start) as f64 / 1e9,
        })
    }

    /// The work of the load since its start.
    fn progress(&self) -> Result<f64> {
        if self.kind != Kind::Hogs {
            return Ok(self.counters.sum() as f64);
        }
        let mut ran = 0;
        for hog in &self.processes {
            ran += hog.schedstat()?.0;
        }
        Ok(ran as f64 / 1e9)
    }
}

impl Done {
    /// False if there was a load, and it made no progress at all.
    pub fn has_progressed(&self) -> bool {
        self.count == 0 || self.amount > 0.0
    }

    /// One line for people; empty without a load.
    pub fn describe(&self) -> String {
        if self.count == 0 {
            return String::new();
        }
        format!(
            "\nbeside {} x{}: {:.1} {}, {:.1} a second",
            format!("{:?}", self.kind).to_lowercase(),
            self.count,
            self.amount,
            self.kind.unit(),
            self.per_second()
        )
    }

    /// For programs; null without a load.
    pub fn json(&self) -> Value {
        if self.count == 0 {
            return Value::Null;
        }
        json!({
            "kind": self.kind, "count": self.count, "done": self.amount, "unit": self.kind.unit(),
            "per_s": self.per_second(),
        })
    }

    fn per_second(&self) -> f64 {
        self.amount / self.seconds
    }
}

/// The first argument, in place of a program's name, with which a job of the build starts this
/// program. It is looked at before the command line is parsed, because parsing takes longer than
/// many a process of a build lives.
const STEP: &str = "magpie-build-step";

/// Works and returns an exit code, if a job of the build started this program.
pub fn build_step() -> Option<ExitCode> {
    let mut args = std::env::args();
    args.next().filter(|name| name == STEP)?;
    let Some(operations) = args.next().and_then(|text| text.parse().ok()) else {
        return Some(ExitCode::FAILURE);
    };
    sys::work(operations);
    Some(ExitCode::SUCCESS)
}

/// A job of the build: one process after the other, as a compiler driver starts them.
fn build(program: &CString, index: usize, counters: &Counters) -> Result<()> {
    /// Half a millisecond of work, on average, on a CPU of 200 million instructions a second.
    const MEAN_OPERATIONS: f64 = 20_000.0;
    let name = CString::new(STEP)?;
    let mut random = fastrand::Rng::with_seed(index as u64);
    loop {
        let operations = times::exponential(&mut random, MEAN_OPERATIONS) as u64;
        let operations = CString::new(operations.to_string())?;
        let step = Child::fork(|| {
            nix::unistd::execv(program, &[&name, &operations])
                .with_context(|| format!("start {}", program.to_string_lossy()))?;
            Ok(())
        })?;
        step.wait_for_success()?;
        counters.add(index, 1);
    }
}

const MESSAGE: usize = 1000;
const MESSAGES_IN_BURST: usize = 32;
/// The mean pause between two bursts.
const PAUSE_NS: f64 = 2e6;

/// The two ends of a TCP connection over loopback.
fn connection() -> Result<(TcpStream, TcpStream)> {
    let connect = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let sender = TcpStream::connect(listener.local_addr()?)?;
        let (receiver, _) = listener.accept()?;
        for end in [&sender, &receiver] {
            end.set_nodelay(true)?;
        }
        std::io::Result::Ok((sender, receiver))
    };
    connect().context("connect to 127.0.0.1: is the interface `lo` up?")
}

/// Sends bursts of messages, waits for the answer to each burst, and pauses.
fn send(mut connection: &TcpStream, index: usize) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(index as u64);
    let message = [b'm'; MESSAGE];
    loop {
        for _ in 0..MESSAGES_IN_BURST {
            connection.write_all(&message).context("send a message")?;
        }
        connection
            .read_exact(&mut [0])
            .context("wait for the answer to a burst")?;
        let pause = times::exponential(&mut random, PAUSE_NS);
        thread::sleep(Duration::from_nanos(pause as u64));
    }
}

/// Receives messages, counts them, and answers each burst.
fn receive(mut connection: &TcpStream, index: usize, counters: &Counters) -> Result<()> {
    let mut message = [0; MESSAGE];
    loop {
        for _ in 0..MESSAGES_IN_BURST {
            connection
                .read_exact(&mut message)
                .context("receive a message")?;
            counters.add(index, 1);
        }
        connection.write_all(b"!").context("answer a burst")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(kind: Kind, count: u32, amount: f64) -> Done {
        Done {
            kind,
            count,
            amount,
            seconds: 2.0,
        }
    }

    #[test]
    fn progress_is_told_per_second_and_in_its_unit() {
        let hogs = done(Kind::Hogs, 8, 12.0);
        assert_eq!(hogs.json()["per_s"], 6.0);
        assert_eq!(hogs.json()["unit"], "CPU seconds");
        assert!(hogs.describe().contains("hogs x8: 12.0 CPU seconds, 6.0"));
        assert!(hogs.has_progressed());
    }

    #[test]
    fn a_starved_load_has_not_progressed_and_no_load_need_not() {
        assert!(!done(Kind::Build, 8, 0.0).has_progressed());
        let none = done(Kind::None, 0, 0.0);
        assert!(none.has_progressed());
        assert!(none.json().is_null() && none.describe().is_empty());
    }
}
