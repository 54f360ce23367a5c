//! A short soak: what `make soak` does for as long as one likes, on other machines, too.

use anyhow::{Result, ensure};
use magpie_tests::scheduler::VT8;
use magpie_tests::soak::{Limits, soak, table};

/// The two first scenes of this seed: all CPUs but one go offline while the scheduler is killed and
/// tasks are frozen, then real-time hogs run.
const SEED: u64 = 2;
const SCENES: u32 = 2;

#[test]
fn a_short_soak_finds_nothing() -> Result<()> {
    let limits = Limits {
        scenes: Some(SCENES),
        ..Limits::default()
    };
    let report = soak(VT8, SEED, limits, &mut |line| println!("{line}"))?;
    println!("{}", table(std::slice::from_ref(&report)));
    for what in [
        "kills of the scheduler",
        "hotplug",
        "freezes",
        "real-time hogs",
        "switches watched",
    ] {
        ensure!(
            report.counts.get(what) > Some(&0),
            "no {what} in {report:?}"
        );
    }
    Ok(())
}
