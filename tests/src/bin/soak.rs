//! `soak`: scenes that follow from a seed try to break scx_magpie on several machines, one after the
//! other. `make soak` runs it.
//!
//! From the environment: MAGPIE_SOAK_SECONDS, the time of each guest (60); MAGPIE_SOAK_MINUTES, the most
//! that a machine may take of the host's time; MAGPIE_SEED, the first seed (random); MAGPIE_MACHINE,
//! names of presets, with commas (all). It ends at the first violation.

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use magpie_tests::soak::{MACHINES, Report, soak, table};

fn main() -> Result<ExitCode> {
    let seconds = number("MAGPIE_SOAK_SECONDS")?.unwrap_or(60.0);
    let minutes = number("MAGPIE_SOAK_MINUTES")?;
    let seed = match env::var("MAGPIE_SEED") {
        Ok(seed) => seed.parse().context("MAGPIE_SEED is no number")?,
        Err(_) => fastrand::u64(..1_000_000),
    };
    let machines = env::var("MAGPIE_MACHINE").unwrap_or_else(|_| MACHINES.join(","));
    let mut reports: Vec<Report> = Vec::new();
    for machine in machines.split(',') {
        let until = minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes));
        let report = soak(machine, seed, seconds, until, &mut |line| {
            println!("{line}")
        });
        match report {
            Ok(report) => reports.push(report),
            Err(error) => {
                println!("{}\n\nVIOLATION: {error:#}", table(&reports));
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    println!("\nseed {seed}, no violation\n{}", table(&reports));
    Ok(ExitCode::SUCCESS)
}

/// Returns a number of the environment.
fn number(name: &str) -> Result<Option<f64>> {
    match env::var(name) {
        Ok(text) if !text.is_empty() => Ok(Some(
            text.parse().with_context(|| format!("{name}: {text}"))?,
        )),
        _ => Ok(None),
    }
}
