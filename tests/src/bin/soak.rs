//! `soak`: scenes that follow from a seed try to break scx_magpie on several machines, one after
//! the other. `make soak` runs it.
//!
//! From the environment: MAGPIE_SOAK_SECONDS, the time of each guest (60); MAGPIE_SOAK_MINUTES, the
//! most that a machine may take of the host's time; MAGPIE_SEED, the seed (random); MAGPIE_MACHINE,
//! names of presets, with commas (all); MAGPIE_SCENE, one scene again and again, instead of those of
//! the seed; MAGPIE_CYCLES, instead of scenes, how often the scheduler is loaded and ended on each
//! machine. An empty text counts as absent. It ends at the first violation.

use std::env;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use magpie_tests::soak::{Limits, MACHINES, Report, cycles, soak, table};

fn main() -> Result<ExitCode> {
    let seconds = number("MAGPIE_SOAK_SECONDS")?.unwrap_or(60.0);
    let minutes: Option<f64> = number("MAGPIE_SOAK_MINUTES")?;
    let seed = number("MAGPIE_SEED")?.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let machines = text("MAGPIE_MACHINE").unwrap_or_else(|| MACHINES.join(","));
    let calls = text("MAGPIE_SCENE");
    let until = || minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes));
    if let Some(count) = number("MAGPIE_CYCLES")? {
        for machine in machines.split(',') {
            let say = &mut |line: &str| println!("{machine}, {line}");
            let cycles = cycles(machine, count, until(), say)?;
            println!("{machine}: {cycles}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut reports: Vec<Report> = Vec::new();
    for machine in machines.split(',') {
        let limits = Limits {
            seconds: Some(seconds),
            until: until(),
            scenes: None,
        };
        let report = soak(machine, seed, calls.as_deref(), limits, &mut |line| {
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
fn number<T: FromStr>(name: &str) -> Result<Option<T>> {
    let parse = |text: String| {
        text.parse()
            .map_err(|_| anyhow!("{name} is no number: {text}"))
    };
    text(name).map(parse).transpose()
}

/// Returns a variable of the environment that is not empty.
fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|text| !text.is_empty())
}
