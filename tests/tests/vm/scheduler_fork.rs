//! Mechanism 2, continued: new tasks are spread over LLCs, also while none of them is busy.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    VT8, VT8_NODES, boot_for_magpie, counters, grown, shell, with_and_without,
};

const CHILDREN: usize = 12;

/// How many of a shell's children sleep on CPUs 4 to 7, and how many on the others: the smaller number.
/// None of them runs by the time that the next is forked.
fn fewer_of_children(guest: &mut Guest, scheduler: &str) -> Result<f64> {
    let command = format!(
        "for child in $(seq {CHILDREN}); do\n\
            sleep 60 & children=\"$children $!\"; sleep 0.02\n\
         done\n\
         for child in $children; do cut -d ' ' -f 39 /proc/$child/stat; done; kill $children"
    );
    let before = counters(guest)?;
    let found = shell(guest, &command)?;
    let away = grown(&before, &counters(guest)?, "fork_away")?;
    let cpus = found
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<Vec<u32>, _>>()?;
    ensure!(cpus.len() == CHILDREN, "not {CHILDREN} CPUs: {found}");
    println!("{scheduler}: children on CPUs {cpus:?}, {away} forked in another LLC");
    let far = cpus.iter().filter(|cpu| **cpu >= 4).count();
    Ok(far.min(CHILDREN - far) as f64)
}

fn children_are_spread(machine: &str) -> Result<()> {
    let mut guest = boot_for_magpie(machine, |_| {})?;
    let (with, without) = with_and_without(&mut guest, "--no-wakeup", fewer_of_children)?;
    ensure!(
        with >= 4.0,
        "of {CHILDREN} children only {with} are in one LLC"
    );
    ensure!(
        without <= 2.0,
        "with the kernel's own choice they are spread as well: {without} in one LLC"
    );
    guest.into_guest().shutdown()
}

#[test]
fn new_tasks_are_spread_over_llcs() -> Result<()> {
    children_are_spread(VT8)
}

#[test]
fn new_tasks_are_spread_over_nodes() -> Result<()> {
    children_are_spread(VT8_NODES)
}
