//! Balancing: busy CPUs pull tasks from CPUs whose tasks get less, and the CPUs of an LLC take
//! turns to scan other LLCs.

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{VT8, boot_for_magpie, json, number, shell, under, with_and_without};

const ATTEMPTS: usize = 5;

/// Returns how long it takes, in ms, until twelve hogs that were confined to one LLC are evenly
/// spread over both: the longest of five attempts, or the limit of 300 ms if they never were.
fn even_out(guest: &mut Guest, scheduler: &str) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ATTEMPTS {
        let found = json(guest, "magpie-load even-out --json --from 0-3 --limit 0.3")?;
        times.push(found["even_ms"].as_f64().unwrap_or(300.0));
    }
    println!("{scheduler}: even after {times:.1?} ms");
    Ok(times.into_iter().fold(0.0, f64::max))
}

/// The bar is 50 ms.
#[test]
fn confined_hogs_spread_evenly_once_they_may() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    even_out(&mut guest, "EEVDF")?;
    let (with, without) = with_and_without(&mut guest, "--no-steal", even_out)?;
    ensure!(with <= 50.0, "it took {with} ms");
    ensure!(
        without > 50.0,
        "without stealing it takes no longer: {without} ms"
    );
    guest.into_guest().shutdown()
}

/// The balance duty rotates: no CPU has it more than twice as often as the mean of its LLC.
#[test]
fn the_balance_duty_rotates() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    under(&mut guest, "scx_magpie", |guest| {
        shell(guest, "magpie-load hogs --count 13 --seconds 2")?;
        let status = json(guest, "scx_magpie cpus --json")?;
        let turns = (0..8)
            .map(|cpu| number(&status, &format!("/cpus/{cpu}/turns")))
            .collect::<Result<Vec<_>>>()
            .context("read the turns of each CPU")?;
        println!("turns of each CPU: {turns:?}");
        for llc in turns.chunks(4) {
            let mean = llc.iter().sum::<f64>() / llc.len() as f64;
            ensure!(mean >= 5.0, "hardly any CPU scanned other LLCs: {turns:?}");
            let most = llc.iter().copied().fold(0.0, f64::max);
            ensure!(most <= 2.0 * mean, "one CPU scans for all: {turns:?}");
        }
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
