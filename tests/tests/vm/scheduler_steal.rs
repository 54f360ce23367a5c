//! Stealing: idle CPUs take queued tasks, from near CPUs first, and only tasks that may run on
//! them.

use anyhow::{Context, Result, ensure};
use magpie_bench::stats::median;
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    MAGPIE, VT8, VT8_NODES, boot_for_magpie, counters, grown, json, number, profile_of, shell,
    under, with_and_without,
};

/// A load: seven CPUs become idle at once while hogs wait on the eighth.
const SPREAD: &str = "magpie-load spread --busy --json --hold 0.05 --limit 0.1";

/// Returns how long it takes, in ms, until every CPU has work: the median of five attempts. An
/// attempt in which a CPU never gets work counts as its limit of 100 ms.
fn spread(guest: &mut Guest, scheduler: &str) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let found = json(guest, SPREAD)?;
        times.push(found["spread_ms"].as_f64().unwrap_or(100.0));
    }
    println!("{scheduler}: work on every CPU after {times:.3?} ms");
    Ok(median(&times))
}

/// The tasks that were stolen, by victim: a sibling, another core of the LLC, another LLC of the
/// node, another node.
#[derive(Debug)]
struct Steals {
    sibling: u64,
    llc: u64,
    node: u64,
    remote: u64,
}

/// Returns how many tasks were stolen while a command ran.
fn steals(guest: &mut Guest, command: &str) -> Result<Steals> {
    let before = counters(guest)?;
    shell(guest, command)?;
    let after = counters(guest)?;
    let steals = Steals {
        sibling: grown(&before, &after, "steal_sibling")?,
        llc: grown(&before, &after, "steal_llc")?,
        node: grown(&before, &after, "steal_node")?,
        remote: grown(&before, &after, "steal_remote")?,
    };
    println!("{command}: {steals:?}");
    Ok(steals)
}

#[test]
fn work_that_piles_up_on_one_cpu_spreads() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    spread(&mut guest, "EEVDF")?;
    let (with, without) = with_and_without(&mut guest, "--no-steal", spread)?;
    ensure!(
        with < 1.0,
        "it took {with} ms, a quarter of a tick or more, until every CPU had work"
    );
    // Without stealing, a tick finds an idle CPU for a queued task, on average after half its
    // period.
    ensure!(
        without > 2.0 * with,
        "without stealing the hogs spread as fast: {without} ms, with it {with} ms"
    );
    guest.into_guest().shutdown()
}

#[test]
fn near_work_is_taken_first_and_only_what_may_run_here() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    under(&mut guest, "scx_magpie", |guest| {
        let hackbench = "hackbench -g 1 -l 200";

        let core = steals(guest, &format!("taskset -c 2,3 {hackbench}"))?;
        ensure!(core.sibling > 0, "nothing stolen in a core: {core:?}");
        let llc = steals(guest, &format!("taskset -c 0-3 {hackbench}"))?;
        ensure!(
            llc.sibling > 0 && llc.llc > 0,
            "nothing stolen in an LLC: {llc:?}"
        );
        // The few tasks of other programs may be stolen by other LLCs, those of hackbench may not.
        for confined in [&core, &llc] {
            ensure!(
                10 * (confined.node + confined.remote) <= confined.sibling + confined.llc,
                "confined tasks were stolen by another LLC: {confined:?}"
            );
        }
        // With one CPU per LLC there is no nearer victim. hackbench runs for longer here, so that
        // the system's other tasks count little.
        let far = steals(guest, "taskset -c 1,6 hackbench -g 1 -l 1000")?;
        ensure!(
            far.node > 10 * (far.sibling + far.llc),
            "two LLCs must steal from each other: {far:?}"
        );
        // With all CPUs allowed there is usually a victim nearby.
        let all = steals(guest, "hackbench -g 2 -l 50")?;
        ensure!(
            all.sibling + all.llc > all.node,
            "more tasks are stolen from far than from near: {all:?}"
        );
        ensure!(
            all.remote == 0,
            "a task was stolen from another node, and there is only one: {all:?}"
        );

        // Two hogs pinned to one CPU, beside seven idle ones: together they get one CPU, so no
        // thief took them.
        let pinned = "magpie-load hogs --json --count 2 --cpus 5 --seconds 0.5 > /tmp/hogs";
        let none = steals(guest, pinned)?;
        let hogs = json(guest, "cat /tmp/hogs")?;
        ensure!(
            number(&hogs, "/cpu_s")? <= 1.02 * number(&hogs, "/elapsed_s")?,
            "pinned hogs ran elsewhere: {hogs} {none:?}"
        );
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// Two processes wake each other, and nothing waits on any CPU. A CPU that goes idle visits no other
/// LLC, in its node or beyond. Otherwise a wakeup that comes meanwhile waits for as many visits as the
/// machine has LLCs.
#[test]
fn an_idle_machine_visits_no_other_llc() -> Result<()> {
    for machine in [VT8, VT8_NODES] {
        let mut guest = boot_for_magpie(machine, |options| options.profile = true)?;
        under(&mut guest, MAGPIE, |guest| {
            let load = "magpie-load pipe --loops 1000 --cpus-a 0 --cpus-b 4";
            let profile = profile_of(guest, load)?;
            let calls = |name: &str| profile.function(name).map(|f| f.calls);
            let searches = calls("is_any_overloaded [bpf]").context("searches beyond the LLC")?;
            let visits = calls("steal_from_llcs [bpf]").unwrap_or(0);
            println!("{machine}: {searches} searches beyond the LLC, {visits} visits");
            ensure!(searches >= 1000, "{machine}: {searches} searches");
            ensure!(visits <= searches / 10, "{machine}: {visits} visits");
            Ok(())
        })?;
        guest.into_guest().shutdown()?;
    }
    Ok(())
}
