//! Preferred CPUs: where the hypervisor exposes no steal time, the estimate from late ticks is
//! right. The host withholds a known share of each vCPU, and the estimate must be near it. In an
//! idle guest the estimate must be near zero.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::limit::Limit;
use magpie_tests::scheduler::{boot_for_magpie_alone, json, number, shell, under};

const SCHEDULER: &str = "scx_magpie --preferred off --period 1000";
const PERIODS: u32 = 6;

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
            let (began, before) = (Instant::now(), vcpu_seconds(guest)?);
            let mut sum = 0.0;
            for _ in 0..PERIODS {
                std::thread::sleep(Duration::from_secs(1));
                sum += estimate(guest)?;
            }
            let given = (vcpu_seconds(guest)? - before) / began.elapsed().as_secs_f64() / vcpus;
            let (withheld, estimated) = (100.0 * (1.0 - given), sum / f64::from(PERIODS));
            println!(
                "vCPUs limited to {share} % by {limit}: withheld {withheld:.1} %, estimated {estimated:.1} %"
            );
            ensure!(
                (estimated - withheld).abs() <= 10.0,
                "the host withheld {withheld:.1} %, the estimate is {estimated:.1} %"
            );
        }
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
