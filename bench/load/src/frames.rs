//! `frames`: are the frames of a desktop's windows shown in time?
//!
//! ```text
//!   client 1 --frame--> +------------+
//!   client 2 --frame--> | compositor |    over sockets; the compositor answers each frame with the
//!   ...                 +------------+    time at which it was shown
//! ```
//!
//! A frame is due at each refresh of the display. A timer wakes the client, which draws and sends
//! the frame; the compositor composes it. Refreshes are the same for all clients, because they
//! share the display: all wake at once, and all then wait for the one compositor. A frame that is
//! not shown before the next refresh is missed.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;

use crate::Finding;
use crate::beside::{self, Beside, Done};
use crate::deadlines::{Deadlines, Kept};
use crate::services;
use crate::sys;
use crate::times::{self, Length};

/// Measure how late the frames of clients are shown by one compositor, and how many are missed.
#[derive(clap::Args)]
pub struct Args {
    /// Clients that draw
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// Frames a second of each client, dealt to the clients in turn
    #[arg(long, value_delimiter = ',', default_value = "60",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    hz: Vec<u32>,
    /// Operations (dependent multiplications) of a client to draw a frame
    #[arg(long, default_value_t = 4000)]
    draw_operations: u64,
    /// Operations of the compositor to compose a frame
    #[arg(long, default_value_t = 500)]
    compose_operations: u64,
    #[command(flatten)]
    beside: beside::Args,
    #[command(flatten)]
    length: Length,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The measurements of one client, or of all.
struct Shown {
    /// From a frame's due time until it was shown, in nanoseconds.
    latencies: Histogram<u64>,
    kept: Kept,
}

/// Runs the clients and the compositor, and reports latencies and missed frames.
pub fn run(args: &Args) -> Result<Finding> {
    let beside = Beside::start(&args.beside)?;
    let window = args.length.window();
    let first_due = sys::now_ns();
    let mut sockets = Vec::new();
    let mut clients = Vec::new();
    for index in 0..args.clients as usize {
        let (near, far) = services::pair()?;
        sockets.push(far);
        let period = 1_000_000_000 / u64::from(args.hz[index % args.hz.len()]);
        let deadlines = Deadlines::new(first_due + period, period, window);
        let operations = args.draw_operations;
        clients.push(thread::spawn(move || draw(&near, deadlines, operations)));
    }
    let operations = args.compose_operations;
    let compositor = thread::spawn(move || compose(sockets, operations));
    let done = beside.measure(window)?;
    let mut all = Shown {
        latencies: times::histogram()?,
        kept: Kept::default(),
    };
    for client in clients {
        let one = client.join().map_err(|_| anyhow!("a client panicked"))??;
        all.latencies
            .add(&one.latencies)
            .context("sum up histograms")?;
        all.kept.add(one.kept);
    }
    // The clients have hung up, so the compositor ends.
    compositor
        .join()
        .map_err(|_| anyhow!("the compositor panicked"))??;
    Ok(describe(&all, &done))
}

/// A client: waits until a frame is due, draws it, and waits until it was shown.
fn draw(mut compositor: &UnixStream, mut deadlines: Deadlines, operations: u64) -> Result<Shown> {
    sys::ask_for_exact_timers()?;
    let mut latencies = times::histogram()?;
    while let Some(due) = deadlines.due() {
        sys::sleep_until(due)?;
        sys::work(operations);
        compositor.write_all(b"f").context("send a frame")?;
        let mut shown_at = [0; 8];
        compositor
            .read_exact(&mut shown_at)
            .context("wait until a frame was shown")?;
        let shown_at = u64::from_ne_bytes(shown_at);
        if deadlines.finish(shown_at, sys::now_ns()) {
            latencies.saturating_record(shown_at.saturating_sub(due).max(1));
        }
    }
    Ok(Shown {
        latencies,
        kept: deadlines.kept(),
    })
}

/// The compositor: composes each frame that has come, and says when it was shown, until all clients
/// have hung up.
fn compose(mut clients: Vec<UnixStream>, operations: u64) -> Result<()> {
    while !clients.is_empty() {
        let mut waiting: Vec<PollFd> = clients
            .iter()
            .map(|client| PollFd::new(client.as_fd(), PollFlags::POLLIN))
            .collect();
        poll(&mut waiting, PollTimeout::NONE).context("wait for frames")?;
        let ready: Vec<bool> = waiting
            .iter()
            .map(|client| client.any().unwrap_or(true))
            .collect();
        let mut gone = vec![false; clients.len()];
        for (index, mut client) in clients
            .iter()
            .enumerate()
            .filter(|(index, _)| ready[*index])
        {
            if client.read(&mut [0]).context("read a frame")? == 0 {
                gone[index] = true;
                continue;
            }
            sys::work(operations);
            let shown_at = sys::now_ns().to_ne_bytes();
            client.write_all(&shown_at).context("answer a frame")?;
        }
        let mut gone = gone.into_iter();
        clients.retain(|_| gone.next() == Some(false));
    }
    Ok(())
}

fn describe(shown: &Shown, beside: &Done) -> Finding {
    let Kept { met, missed } = shown.kept;
    let in_time = shown.kept.percent();
    Finding {
        text: format!(
            "latency us: {}\n{} frames were due: {met} shown in time, {missed} missed ({:.2} %){}",
            times::describe(&shown.latencies),
            shown.kept.total(),
            100.0 - in_time.unwrap_or(0.0),
            beside.describe()
        ),
        json: json!({
            "frames": shown.kept.total(), "missed": missed, "in_time_percent": in_time,
            "latency_us": times::percentiles(&shown.latencies), "beside": beside.json(),
        }),
        holds: !shown.latencies.is_empty() && beside.has_progressed(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::times::Window;

    #[test]
    fn a_compositor_serves_all_clients_until_the_last_hangs_up() -> Result<()> {
        let (first, far) = UnixStream::pair()?;
        let (second, other) = UnixStream::pair()?;
        let compositor = thread::spawn(move || compose(vec![far, other], 10));
        let before = sys::now_ns();
        for client in [&first, &second, &first] {
            let (mut client, mut shown_at) = (client, [0; 8]);
            client.write_all(b"f")?;
            client.read_exact(&mut shown_at)?;
            assert!(u64::from_ne_bytes(shown_at) > before);
        }
        drop(first);
        (&second).write_all(b"f")?;
        (&second).read_exact(&mut [0; 8])?;
        drop(second);
        compositor.join().map_err(|_| anyhow!("panicked"))?
    }

    #[test]
    fn a_client_measures_from_the_due_time() -> Result<()> {
        let (near, far) = UnixStream::pair()?;
        let compositor = thread::spawn(move || compose(vec![far], 10));
        let window = Window::after(Duration::ZERO, Duration::from_millis(50));
        // Due times begin 25 ms ago, so that the first frames are late, and the others are in time.
        let period = 10_000_000;
        let late = Deadlines::new(window.from - 25_000_000, period, window);
        let shown = draw(&near, late, 10)?;
        assert!(shown.latencies.max() < 30_000_000);
        assert!((4..=6).contains(&shown.kept.total()), "{:?}", shown.kept);
        drop(near);
        compositor.join().map_err(|_| anyhow!("panicked"))?
    }
}
