//! `services`: how long does a request take that many services answer together?
//!
//! This models a web shop in several tiers. Each client sends a request to its frontend and waits.
//! The frontend asks all of its backends at once and waits for all answers. A request is as slow as
//! its slowest backend, so a single late wakeup delays it.
//!
//! ```text
//!   client --> frontend --> backend 1     all over sockets; every arrow down is a wakeup,
//!          <--          <-- backend 2     and so is every answer
//!                           ...
//! ```
//!
//! Frontends and backends work a fixed number of operations per request.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::Finding;
use crate::sys;
use crate::times::{self, Length, Window};

/// Measure requests through tiers of services: latency and throughput.
#[derive(clap::Args)]
pub struct Args {
    /// Clients, each with a frontend
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// Backends of each frontend
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=256))]
    fanout: u32,
    /// Operations (dependent multiplications) of work per service and request
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    #[command(flatten)]
    length: Length,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs all tiers and reports latencies and the rate.
pub fn run(args: &Args) -> Result<Finding> {
    let window = args.length.window();
    let mut clients = Vec::new();
    let mut services = Vec::new();
    for _ in 0..args.clients {
        let (client, frontend) = pair()?;
        let mut backends = Vec::new();
        for _ in 0..args.fanout {
            let (near, far) = pair()?;
            backends.push(near);
            let operations = args.operations;
            services.push(thread::spawn(move || serve(&far, &[], operations)));
        }
        let operations = args.operations;
        services.push(thread::spawn(move || {
            serve(&frontend, &backends, operations)
        }));
        clients.push(thread::spawn(move || ask(&client, window)));
    }
    let mut all = times::histogram()?;
    for client in clients {
        let one = client
            .join()
            .map_err(|_| anyhow!("a client panicked"))?
            .context("a service did not answer")?;
        all.add(&one).context("sum up histograms")?;
    }
    // The clients have hung up, so the services end, tier by tier.
    for service in services {
        service
            .join()
            .map_err(|_| anyhow!("a service panicked"))??;
    }
    Ok(describe(&all, args.length.seconds.as_secs_f64()))
}

/// Makes the two ends of a connection between a client and its server.
pub fn pair() -> Result<(UnixStream, UnixStream)> {
    UnixStream::pair().context("make a pair of sockets: is the limit of open files high enough?")
}

/// A client: asks, waits, and notes the latency of each request that begins in the window.
fn ask(mut service: &UnixStream, window: Window) -> Result<Histogram<u64>> {
    let mut latencies = times::histogram()?;
    loop {
        let start = sys::now_ns();
        if start >= window.until {
            return Ok(latencies);
        }
        call(&mut service)?;
        if start >= window.from {
            latencies.saturating_record((sys::now_ns() - start).max(1));
        }
    }
}

/// Asks and waits for the answer.
pub fn call(service: &mut &UnixStream) -> Result<()> {
    service.write_all(b"?")?;
    service.read_exact(&mut [0])?;
    Ok(())
}

/// A service: for each request works, asks all services below at once, and answers; until the
/// client hangs up.
pub fn serve(mut above: &UnixStream, below: &[UnixStream], operations: u64) -> Result<()> {
    let mut byte = [0];
    while above.read(&mut byte).context("wait for a request")? == 1 {
        for mut service in below {
            service.write_all(b"?").context("ask a service")?;
        }
        sys::work(operations);
        for mut service in below {
            service
                .read_exact(&mut byte)
                .context("wait for a service")?;
        }
        above.write_all(b"!").context("answer")?;
    }
    Ok(())
}

fn describe(latencies: &Histogram<u64>, seconds: f64) -> Finding {
    let requests = latencies.len();
    let rate = requests as f64 / seconds;
    Finding {
        text: format!(
            "request us: {}\n{requests} requests in {seconds:.3} s: {rate:.1} requests/s",
            times::describe(latencies)
        ),
        json: json!({
            "requests": requests, "requests_per_s": rate, "seconds": seconds,
            "request_us": times::percentiles(latencies),
        }),
        // Fail if there was no request at all: a wakeup was lost.
        holds: requests > 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_request_waits_for_all_of_its_services() {
        let (client, frontend) = pair().unwrap();
        let (near, mut backend) = pair().unwrap();
        let service = thread::spawn(move || serve(&frontend, &[near], 10));
        (&client).write_all(b"?").unwrap();
        let mut byte = [0];
        backend.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"?");
        // The backend has not answered: neither has the frontend.
        client
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        assert!((&client).read_exact(&mut byte).is_err());
        backend.write_all(b"!").unwrap();
        client.set_read_timeout(None).unwrap();
        (&client).read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"!");
        drop(client);
        service.join().unwrap().unwrap();
    }

    #[test]
    fn a_short_run_measures_requests_and_ends() {
        let args = Args {
            clients: 2,
            fanout: 3,
            operations: 100,
            length: Length {
                seconds: Duration::from_millis(100),
                warmup: Duration::from_millis(10),
            },
            json: true,
        };
        let finding = run(&args).unwrap();
        assert!(finding.holds);
        let json = finding.json;
        assert!(json["requests"].as_u64().unwrap() > 5, "{json}");
        assert!(json["request_us"]["p50"].as_f64() <= json["request_us"]["max"].as_f64());
    }
}
