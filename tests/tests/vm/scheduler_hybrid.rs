//! Hybrid machines: whether a task runs on a fast or a slow CPU.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{boot_for_magpie, json, under};

/// CPUs 4 to 7, an LLC, are slow: they have 499 of the capacity 1024 of the others, in virtual time.
const MACHINE: &str = "vt8hybrid";

const ROUNDS: u64 = 20;

/// Tasks that sleep on a slow CPU, and which part of their wakeups is on a fast one.
///
/// A short burst runs on any CPU, a long one prefers a fast one. Of those, some wakeups are on the
/// slow CPU until the scheduler knows how long the burst is.
const TASKS: [(&str, &str, std::ops::RangeInclusive<f64>); 6] = [
    ("", "", 0.0..=0.1),
    ("uclampset -m 400", "", 0.0..=0.1),
    ("uclampset -m 512", "", 0.9..=1.0),
    ("", "--work-us 4000", 0.6..=1.0),
    ("uclampset -M 600", "--work-us 4000", 0.6..=1.0),
    ("uclampset -M 400", "--work-us 4000", 0.0..=0.1),
];

/// Wakes a task on CPU 6, its previous one, and returns which part of the wakeups is on a fast CPU.
fn fast_part(guest: &mut Guest, clamp: &str, work: &str) -> Result<f64> {
    let wake = format!("magpie-load wakeup --json --previous 6 --waker 0 --rounds {ROUNDS}");
    let found = json(guest, &format!("{clamp} {wake} {work}"))?;
    let of = |cpu: u32| found["cpus"][cpu.to_string()].as_u64().unwrap_or(0);
    println!("{clamp} {work}: {}", found["cpus"]);
    Ok((0..4).map(of).sum::<u64>() as f64 / ROUNDS as f64)
}

#[test]
fn uclamp_chooses_between_fast_and_slow_cpus() -> Result<()> {
    let mut guest = boot_for_magpie(MACHINE, |options| {
        options.packages.push("util-linux".into())
    })?;
    under(&mut guest, "scx_magpie", |guest| {
        for (clamp, work, expected) in TASKS {
            let part = fast_part(guest, clamp, work)?;
            ensure!(
                expected.contains(&part),
                "`{clamp}` {work}: {part} of the wakeups on a fast CPU"
            );
        }
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
