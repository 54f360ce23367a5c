//! Forks: new tasks are spread over LLCs, even if all CPUs are idle.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    VT8, VT8_NODES, boot_for_magpie, counters, grown, shell, with_and_without,
};

const CHILDREN: usize = 12;

/// A shell forks children that sleep. Returns how many of them are in the LLC that has fewer. Each
/// has gone to sleep before the next is forked, so all CPUs are idle at each fork.
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

/// Fails unless four children of twelve or more are in the LLC that has fewer, and at most two
/// without the mechanism.
fn children_are_spread(machine: &str) -> Result<()> {
    let mut guest = boot_for_magpie(machine, |_| {})?;
    let (with, without) = with_and_without(&mut guest, "--no-wakeup", fewer_of_children)?;
    ensure!(
        with >= 4.0,
        "one LLC has only {with} of {CHILDREN} children"
    );
    ensure!(
        without <= 2.0,
        "the kernel's own choice spreads them too: the LLC with fewer has {without}"
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
