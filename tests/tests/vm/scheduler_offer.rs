//! A tick offers the tasks in its CPU's queue to idle CPUs, and costs little although none of them
//! may run elsewhere: because they are pinned, or because all CPUs of their cpuset are busy.

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    MAGPIE, VT8, boot_for_magpie, counters, grown, json, number, shell, under,
};

/// Returns how often idle CPUs searched for work, and how often such a search tried a queue, while
/// two threads wake 1000 times a second each beside a queue of forty pinned hogs.
fn looks_at_pinned_tasks(guest: &mut Guest) -> Result<(u64, u64)> {
    let hogs = "for i in $(seq 40); do taskset -c 3 magpie-load burn & done >/dev/null 2>&1
        sleep 0.5";
    shell(guest, hogs)?;
    let before = counters(guest)?;
    json(
        guest,
        "taskset -c 0-2 magpie-load latency --json --threads 2 --timer-us 1000 --operations 1000 \
         --seconds 1",
    )?;
    let after = counters(guest)?;
    shell(guest, "killall magpie-load; sleep 0.2")?;
    let [searches, looks] =
        ["steal_attempt", "steal_look"].map(|counter| grown(&before, &after, counter));
    Ok((searches?, looks?))
}

#[test]
fn idle_cpus_do_not_look_at_a_long_queue_of_pinned_tasks() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    let (searches, looks) = under(&mut guest, MAGPIE, looks_at_pinned_tasks)?;
    println!("{searches} searches looked at {looks} queues");
    ensure!(
        searches >= 1000,
        "only {searches} searches: the load did not idle"
    );
    ensure!(
        10 * looks <= searches,
        "{searches} searches looked at {looks} queues"
    );
    guest.into_guest().shutdown()
}

/// Returns the average time of ops.tick(), in ns, while forty hogs run in a cpuset of two CPUs. Six
/// CPUs idle outside of the cpuset.
fn cost_of_offers(guest: &mut Guest) -> Result<f64> {
    shell(
        guest,
        "sysctl -q kernel.bpf_stats_enabled=1; cd /sys/fs/cgroup; echo +cpuset > cgroup.subtree_control
         mkdir full; echo 0-1 > full/cpuset.cpus
         (echo 0 > /sys/fs/cgroup/full/cgroup.procs
          exec magpie-load hogs --count 40 --seconds 1.5) >/dev/null 2>&1 & sleep 0.5",
    )?;
    let before = programs(guest)?;
    shell(guest, "sleep 0.5")?;
    let after = programs(guest)?;
    let tick_ns = (after.1 - before.1) / (after.0 - before.0);
    println!("a tick takes {tick_ns:.0} ns");
    Ok(tick_ns)
}

/// Returns how often ops.tick() was called, and the time in it, in ns.
fn programs(guest: &mut Guest) -> Result<(f64, f64)> {
    let found = json(guest, "magpie-load programs --json")?;
    let programs = found["programs"].as_array().context("no programs")?;
    let tick = programs
        .iter()
        .find(|program| program["name"] == "magpie_tick")
        .context("no magpie_tick")?;
    Ok((number(tick, "/calls")?, number(tick, "/ns")?))
}

#[test]
fn a_tick_in_a_full_cpuset_searches_once() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    let tick_ns = under(&mut guest, MAGPIE, cost_of_offers)?;
    // A search for each of the tasks took 370,000 ns.
    ensure!(tick_ns <= 150_000.0, "a tick takes {tick_ns} ns");
    guest.into_guest().shutdown()
}
