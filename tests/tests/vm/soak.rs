//! A short soak: what `make soak` does for as long as one likes, on other machines, too.

use anyhow::{Result, ensure};
use magpie_tests::scheduler::VT8;
use magpie_tests::soak::{Limits, cycles, soak, table};

/// CPUs go offline, tasks are frozen and real-time hogs run; the scheduler is killed twice and stopped
/// for a moment.
const SCENE: &str = "hackbench_again + hotplug 3,5,7,2,6,1,4 + freezer 4 + realtime 0,5 + \
                     many_cgroups 20 + Kill + OutOfMemory --no-steal + Stop";

#[test]
fn a_short_soak_finds_nothing() -> Result<()> {
    let limits = Limits {
        scenes: Some(1),
        ..Limits::default()
    };
    let report = soak(VT8, 1, Some(SCENE), limits, &mut |line| println!("{line}"))?;
    println!("{}", table(std::slice::from_ref(&report)));
    for what in [
        "kills of the scheduler",
        "out-of-memory kills of the scheduler",
        "stops of the scheduler",
        "hotplug",
        "freezes",
        "real-time hogs",
        "moves through cgroups",
        "switches watched",
    ] {
        ensure!(
            report.counts.get(what) > Some(&0),
            "no {what} in {report:?}"
        );
    }
    Ok(())
}

#[test]
fn loads_and_ends_leave_nothing_behind() -> Result<()> {
    // The fourth cycle ends with a kill.
    let cycles = cycles("smt8", 4, None, &mut |line| println!("{line}"))?;
    println!("{cycles}");
    let ended = cycles.reasons.values().sum::<u32>();
    ensure!(
        cycles.done == 4 && ended == 4 && cycles.rounds > 0,
        "{cycles}"
    );
    Ok(())
}
