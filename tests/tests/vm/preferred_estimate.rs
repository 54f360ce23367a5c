//! Preferred CPUs: where the hypervisor exposes no steal time, the estimate from late ticks is
//! right. The host withholds a known share of each vCPU, and the estimate must be near it. In an
//! idle guest the estimate must be near zero. A measurement that others disturbed is made again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::limit::Limit;
use magpie_tests::scheduler::{boot_for_magpie_alone, json, number, shell, under};

const SCHEDULER: &str = "scx_magpie --preferred off --period 1000";
const PERIODS: u32 = 6;

/// CPUs of the host that others may use without disturbing the measurement.
const QUIET: f64 = 0.1;

/// How often a disturbed measurement is made.
const ATTEMPTS: u32 = 5;

/// Returns the estimated steal time of the last complete period, in percent.
fn estimate(guest: &mut Guest) -> Result<f64> {
    let status = json(guest, "scx_magpie preferred --json")?;
    ensure!(
        status["source"] != "kernel",
        "QEMU's TCG exposes steal time: {status}"
    );
    number(&status, "/steal_percent")
}

/// Returns the CPU time that the host has given to all vCPUs so far, in seconds.
fn vcpu_seconds(guest: &mut Guest) -> Result<f64> {
    let pid = guest.qemu_pid();
    let mut ns = 0.0;
    for thread in guest.qemu_threads()? {
        let file = format!("/proc/{pid}/task/{thread}/schedstat");
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        let ran = text.split_whitespace().next().context("schedstat")?;
        ns += ran.parse::<f64>()?;
    }
    Ok(ns / 1e9)
}

/// Adds up the numbers of these fields, counted from 0, of the first line of a file, in seconds.
fn ticks(file: &str, fields: &[usize]) -> Result<f64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    let line: Vec<&str> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let number = |field: &usize| line.get(*field)?.parse::<f64>().ok();
    let sum: Option<f64> = fields.iter().map(number).sum();
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?;
    Ok(sum.with_context(|| format!("{file}: {text}"))? / per_second.context("CLK_TCK")? as f64)
}

/// Returns the CPU time that the host has given to all but this guest so far, in seconds. If the host
/// is a guest itself, what its own host took from it is part of that.
fn others_seconds(guest: &Guest) -> Result<f64> {
    // User, nice, system, interrupts, steal; QEMU's name has no space that would move its fields.
    let all = ticks("/proc/stat", &[1, 2, 3, 6, 7, 8])?;
    Ok(all - ticks(&format!("/proc/{}/stat", guest.qemu_pid()), &[13, 14])?)
}

/// One comparison of the estimate with the host.
struct Look {
    /// Percent of the vCPUs' time.
    withheld: f64,
    estimated: f64,
    /// CPUs of the host that others took meanwhile: they withhold slices that are shorter than a
    /// tick, which the estimate does not see.
    others: f64,
}

/// Watches the estimate and the host for a few periods.
fn look(guest: &mut Guest, vcpus: f64) -> Result<Look> {
    let (began, before) = (Instant::now(), vcpu_seconds(guest)?);
    let others = others_seconds(guest)?;
    let mut sum = 0.0;
    for _ in 0..PERIODS {
        std::thread::sleep(Duration::from_secs(1));
        sum += estimate(guest)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let given = (vcpu_seconds(guest)? - before) / seconds / vcpus;
    Ok(Look {
        withheld: 100.0 * (1.0 - given),
        estimated: sum / f64::from(PERIODS),
        others: (others_seconds(guest)? - others) / seconds,
    })
}

#[test]
fn the_estimate_is_what_the_host_withholds() -> Result<()> {
    let mut guest = boot_for_magpie_alone("tiny2")?;
    let vcpus = guest.qemu_threads()?.len() as f64;
    under(&mut guest, SCHEDULER, |guest| {
        shell(guest, "sleep 3")?;
        let idle = estimate(guest)?;
        println!("idle: {idle:.1} %");
        ensure!(idle <= 1.0, "in an idle guest the estimate is {idle} %");

        shell(
            guest,
            "for i in 1 2; do sh -c 'while :; do :; done' >/dev/null 2>&1 & done",
        )?;
        for share in [30, 60] {
            let limit = Limit::new(guest, share)?;
            shell(guest, "sleep 2")?;
            for attempt in 1.. {
                let Look {
                    withheld,
                    estimated,
                    others,
                } = look(guest, vcpus)?;
                println!(
                    "vCPUs limited to {share} % by {limit}: withheld {withheld:.1} %, estimated \
                     {estimated:.1} %; others took {others:.2} CPUs"
                );
                let is_right = (estimated - withheld).abs() <= 10.0;
                ensure!(
                    is_right || (others > QUIET && attempt < ATTEMPTS),
                    "the host withheld {withheld:.1} %, the estimate is {estimated:.1} %, and others \
                     took {others:.2} CPUs"
                );
                if is_right {
                    break;
                }
            }
        }
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
