//! `pairs`: how long does a server take to answer a client that thinks in between?
//!
//! A client sleeps for its think time, writes a request into a socket and waits; its server wakes,
//! works a fixed number of operations and answers. Client and server of a pair wake each other one
//! to one and by sync wakeups, as a program and its database, X or D-Bus do. Both sleep most of the
//! time, so a fair scheduler owes them the CPU as soon as they wake, whatever runs beside.

use std::os::unix::net::UnixStream;
use std::thread;

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::Finding;
use crate::beside::{self, Beside, Done};
use crate::services::{call, pair, serve};
use crate::sys;
use crate::times::{self, Length, Window};

/// Measure the response time of request/response pairs over unix sockets.
#[derive(clap::Args)]
pub struct Args {
    /// Pairs of a client and a server
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pairs: u32,
    /// Think time of a client between a response and its next request, in microseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    think_us: u64,
    /// Think for the same time always [default: exponentially distributed, with that mean]
    #[arg(long)]
    fixed_think: bool,
    /// Operations (dependent multiplications) of a server's work per request
    #[arg(long, default_value_t = 4000)]
    operations: u64,
    #[command(flatten)]
    beside: beside::Args,
    #[command(flatten)]
    length: Length,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs the pairs and reports percentiles of their response times.
pub fn run(args: &Args) -> Result<Finding> {
    let beside = Beside::start(&args.beside)?;
    let window = args.length.window();
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    for index in 0..args.pairs {
        let (near, far) = pair()?;
        let operations = args.operations;
        servers.push(thread::spawn(move || serve(&far, &[], operations)));
        let thinking = Thinking::new(args, index);
        clients.push(thread::spawn(move || ask(&near, thinking, window)));
    }
    let done = beside.measure(window)?;
    let mut all = times::histogram()?;
    for client in clients {
        let one = client.join().map_err(|_| anyhow!("a client panicked"))??;
        all.add(&one).context("sum up histograms")?;
    }
    // The clients have hung up, so the servers end.
    for server in servers {
        server.join().map_err(|_| anyhow!("a server panicked"))??;
    }
    Ok(describe(&all, args.length.seconds.as_secs_f64(), &done))
}

/// A client's think times.
struct Thinking {
    mean_ns: f64,
    /// None for a fixed time.
    random: Option<fastrand::Rng>,
}

impl Thinking {
    /// The think times of a client follow from its index, so that every run has the same.
    fn new(args: &Args, index: u32) -> Self {
        Self {
            mean_ns: args.think_us as f64 * 1e3,
            random: (!args.fixed_think).then(|| fastrand::Rng::with_seed(u64::from(index))),
        }
    }

    fn next_ns(&mut self) -> u64 {
        let mean = self.mean_ns;
        self.random
            .as_mut()
            .map_or(mean, |random| times::exponential(random, mean)) as u64
    }
}

/// A client: thinks, asks, waits, and notes the response time of each request that begins in the
/// window.
fn ask(mut server: &UnixStream, mut thinking: Thinking, window: Window) -> Result<Histogram<u64>> {
    sys::ask_for_exact_timers()?;
    let mut responses = times::histogram()?;
    loop {
        sys::sleep_until(sys::now_ns() + thinking.next_ns())?;
        let start = sys::now_ns();
        if start >= window.until {
            return Ok(responses);
        }
        call(&mut server).context("ask the server")?;
        if start >= window.from {
            responses.saturating_record((sys::now_ns() - start).max(1));
        }
    }
}

fn describe(responses: &Histogram<u64>, seconds: f64, beside: &Done) -> Finding {
    let requests = responses.len();
    let rate = requests as f64 / seconds;
    Finding {
        text: format!(
            "response us: {}\n{requests} requests in {seconds:.3} s: {rate:.1} requests/s{}",
            times::describe(responses),
            beside.describe()
        ),
        json: json!({
            "requests": requests, "requests_per_s": rate, "seconds": seconds,
            "response_us": times::percentiles(responses), "beside": beside.json(),
        }),
        // Fail if there was no request at all: a wakeup was lost.
        holds: requests > 0 && beside.has_progressed(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_server_answers_each_request_and_ends_with_its_client() -> Result<()> {
        let (client, server) = UnixStream::pair()?;
        let server = thread::spawn(move || serve(&server, &[], 10));
        for _ in 0..3 {
            (&client).write_all(b"?")?;
            let mut byte = [0];
            (&client).read_exact(&mut byte)?;
            assert_eq!(byte, *b"!");
        }
        drop(client);
        server.join().map_err(|_| anyhow!("panicked"))?
    }

    #[test]
    fn think_times_are_fixed_or_have_the_mean() {
        let mut fixed = Thinking {
            mean_ns: 5e5,
            random: None,
        };
        assert_eq!([fixed.next_ns(), fixed.next_ns()], [500_000; 2]);
        let mut random = Thinking {
            mean_ns: 5e5,
            random: Some(fastrand::Rng::with_seed(0)),
        };
        let sum: u64 = (0..10_000).map(|_| random.next_ns()).sum();
        assert!((4_800..5_200).contains(&(sum / 1_000_000)), "{sum}");
    }
}
