//! `pipe`: how long does a round trip between two tasks take?
//!
//! Two processes pass one byte back and forth over two pipes. Every step is a sleep, a wakeup and a
//! switch, so the time per round trip is the cost of the scheduler's shortest path. `perf bench
//! sched pipe` measures the same, but depends on perl, python and a perf of the kernel's version.

use std::fs::File;
use std::io::{Read, Write};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::Finding;
use crate::cpus::CpuSet;
use crate::sys::{self, Child};

/// Measure the time of a round trip between two processes over pipes.
#[derive(clap::Args)]
pub struct Args {
    /// How many round trips
    #[arg(long, short, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    loops: u64,
    /// Restrict the first process to these CPUs
    #[arg(long)]
    cpus_a: Option<CpuSet>,
    /// Restrict the second process to these CPUs
    #[arg(long)]
    cpus_b: Option<CpuSet>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Plays ping-pong and reports the time per round trip.
pub fn run(args: &Args) -> Result<Finding> {
    let (ping_read, ping_write) = nix::unistd::pipe().context("make a pipe")?;
    let (pong_read, pong_write) = nix::unistd::pipe().context("make a pipe")?;
    let (ping_read, ping_write) = (File::from(ping_read), File::from(ping_write));
    let (pong_read, pong_write) = (File::from(pong_read), File::from(pong_write));
    // Close the descriptors that a process does not use. If one process ends, the other then reads
    // an end of file and does not wait for ever.
    let mut ends = Some((ping_read, ping_write, pong_read, pong_write));
    let echo = Child::fork(|| {
        let Some((read, ping_write, pong_read, write)) = ends.take() else {
            return Ok(());
        };
        drop((ping_write, pong_read));
        if let Some(cpus) = &args.cpus_b {
            sys::set_affinity(0, cpus)?;
        }
        bounce(&read, &write, args.loops + 1)
    })?;
    let Some((ping_read, write, read, pong_write)) = ends else {
        bail!("the pipes went to the child")
    };
    drop((ping_read, pong_write));
    if let Some(cpus) = &args.cpus_a {
        sys::set_affinity(0, cpus)?;
    }
    // Make one round trip before measuring, so that the other process has started.
    send_and_wait(&read, &write, 1)?;
    let start = sys::now_ns();
    send_and_wait(&read, &write, args.loops)?;
    let seconds = (sys::now_ns() - start) as f64 / 1e9;
    drop(echo);

    let us = seconds * 1e6 / args.loops as f64;
    Ok(Finding {
        text: format!(
            "{} round trips in {seconds:.3} s: {us:.3} us each",
            args.loops
        ),
        json: json!({ "loops": args.loops, "seconds": seconds, "us_per_round_trip": us }),
        holds: true,
    })
}

/// Sends a byte and waits for it to come back, as often as told.
fn send_and_wait(mut read: &File, mut write: &File, loops: u64) -> Result<()> {
    let mut byte = [0];
    for _ in 0..loops {
        write.write_all(&byte).context("write to the pipe")?;
        read.read_exact(&mut byte)
            .context("read from the pipe: the other process died")?;
    }
    Ok(())
}

/// Waits for a byte and sends it back, as often as told.
fn bounce(mut read: &File, mut write: &File, loops: u64) -> Result<()> {
    let mut byte = [0];
    for _ in 0..loops {
        read.read_exact(&mut byte).context("read from the pipe")?;
        write.write_all(&byte).context("write to the pipe")?;
    }
    Ok(())
}
