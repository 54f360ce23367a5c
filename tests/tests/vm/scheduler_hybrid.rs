//! Hybrid machines: whether a task runs on a fast or a slow CPU.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{VT8, boot_for_magpie, json, shell, under};

/// A machine whose CPUs 4 to 7, an LLC, are slow: they have 499 of the capacity 1024 of the others, in
/// virtual time.
const HYBRID: &str = "vt8hybrid";

/// Has a kernel say that CPUs 4 to 7, an LLC, have half of the capacity of the others, although the
/// machine's CPUs are equal. So cores of two threads can be slow, too.
const SLOW_LLC: &str = "echo 512 > /tmp/slow\n\
    for cpu in 4 5 6 7; do \
    mount --bind /tmp/slow /sys/devices/system/cpu/cpu$cpu/cpu_capacity || exit 1; done";

const ROUNDS: u64 = 20;

/// Tasks that sleep on a slow CPU: the option of uclampset, how much it names beyond the capacity of
/// that CPU, the work, and which part of the wakeups is on a fast CPU.
///
/// A short burst runs on any CPU, a long one prefers a fast one. Of those, some wakeups are on the
/// slow CPU until the scheduler knows how long the burst is.
const TASKS: [(&str, u32, &str, std::ops::RangeInclusive<f64>); 6] = [
    ("", 0, "", 0.0..=0.1),
    ("-m", 0, "", 0.0..=0.1),
    ("-m", 1, "", 0.9..=1.0),
    ("", 0, "--work-us 4000", 0.6..=1.0),
    ("-M", 1, "--work-us 4000", 0.6..=1.0),
    ("-M", 0, "--work-us 4000", 0.0..=0.1),
];

/// Wakes a task on CPU 6, its previous one, and returns which part of the wakeups is on a fast CPU.
fn fast_part(guest: &mut Guest, clamp: &str, work: &str) -> Result<f64> {
    let wake = format!("magpie-load wakeup --json --previous 6 --waker 0 --rounds {ROUNDS}");
    let found = json(guest, &format!("{clamp} {wake} {work}"))?;
    let of = |cpu: u32| found["cpus"][cpu.to_string()].as_u64().unwrap_or(0);
    println!("{clamp} {work}: {}", found["cpus"]);
    Ok((0..4).map(of).sum::<u64>() as f64 / ROUNDS as f64)
}

/// Boots a machine, prepares it by a script, and looks where the tasks are woken.
fn must_choose(machine: &str, prepare: &str, capacity: u32) -> Result<()> {
    let mut guest = boot_for_magpie(machine, |options| {
        options.packages.push("util-linux".into())
    })?;
    shell(&mut guest, prepare)?;
    under(&mut guest, "scx_magpie", |guest| {
        for (option, beyond, work, expected) in TASKS {
            let clamp = match option {
                "" => String::new(),
                option => format!("uclampset {option} {}", capacity + beyond),
            };
            let part = fast_part(guest, &clamp, work)?;
            ensure!(
                expected.contains(&part),
                "`{clamp}` {work}: {part} of the wakeups on a fast CPU"
            );
        }
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

#[test]
fn uclamp_chooses_between_fast_and_slow_cpus() -> Result<()> {
    must_choose(HYBRID, "true", 499)
}

#[test]
fn uclamp_chooses_between_fast_and_slow_cores_of_two_threads() -> Result<()> {
    must_choose(VT8, SLOW_LLC, 512)
}
