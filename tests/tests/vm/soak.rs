//! A short soak: what `make soak` does for as long as one likes, on other machines, too.

use anyhow::{Result, ensure};
use magpie_tests::scheduler::VT8;
use magpie_tests::soak::{soak, table};

/// The scenes of this seed reload the scheduler and kill it, besides what loads do.
const SEED: u64 = 1;
const SECONDS: f64 = 6.0;

#[test]
fn a_short_soak_finds_nothing() -> Result<()> {
    let report = soak(VT8, SEED, SECONDS, None, &mut |line| println!("{line}"))?;
    println!("{}", table(std::slice::from_ref(&report)));
    ensure!(report.counts["loads"] > 1, "{report:?}");
    ensure!(report.counts["switches watched"] > 1000, "{report:?}");
    Ok(())
}
