//! Mechanism 4a: busy CPUs even out what idle ones cannot, for the whole LLC by turns.

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{VT8, boot_for_magpie, json, number, shell, under, with_and_without};

const ATTEMPTS: usize = 5;

/// Milliseconds until twelve hogs that were held on one LLC are even over both, the longest of some
/// attempts; the limit if they never were.
fn even_out(guest: &mut Guest, scheduler: &str) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ATTEMPTS {
        let found = json(guest, "magpie-load even-out --json --from 0-3 --limit 0.3")?;
        times.push(found["even_ms"].as_f64().unwrap_or(300.0));
    }
    println!("{scheduler}: even after {times:.1?} ms");
    Ok(times.into_iter().fold(0.0, f64::max))
}

/// The bar: 50 ms.
#[test]
fn what_affinity_held_together_evens_out_once_it_may() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    even_out(&mut guest, "EEVDF")?;
    let (with, without) = with_and_without(&mut guest, "--no-steal", even_out)?;
    ensure!(with <= 50.0, "it took {with} ms");
    ensure!(
        without > 50.0,
        "without stealing it takes as long: {without} ms"
    );
    guest.into_guest().shutdown()
}

/// Each busy CPU of an LLC looks at the others for it: the bar is twice the mean.
#[test]
fn no_cpu_looks_around_for_all_others() -> Result<()> {
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
            ensure!(mean >= 5.0, "nobody looked around: {turns:?}");
            let most = llc.iter().copied().fold(0.0, f64::max);
            ensure!(most <= 2.0 * mean, "one CPU does it for all: {turns:?}");
        }
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
