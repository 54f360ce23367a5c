//! Mechanism 4c: a task that loses its CPU has an idle one woken for it at once. The bar: it waits
//! beside an idle CPU for one tick at most, and for longer without the mechanism.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    VT8, boot_for_magpie, counters, grown, json, number, shell, with_and_without,
};

/// Four hogs that may run on all of eight CPUs, and real-time tasks that take each CPU in turn.
const LOAD: &str = "(magpie-load hogs --count 4 --seconds 2 & sleep 0.5; \
                    for cpu in 0 1 2 3 4 5 6 7 0 1 2 3 4 5 6 7; do \
                    timeout 0.02 taskset -c $cpu chrt -f 50 sh -c 'while :; do :; done'; \
                    done; wait) >/dev/null 2>&1 &";

/// Ticks that the unluckiest task waited beside an idle CPU.
fn longest_wait(guest: &mut Guest, scheduler: &str) -> Result<f64> {
    let before = counters(guest)?;
    shell(guest, LOAD)?;
    let found = json(guest, "magpie-load idle-watch --json --seconds 1.3")?;
    let pushes = grown(&before, &counters(guest)?, "push")?;
    let watch = found.pointer("/watches/0").cloned().unwrap_or_default();
    let ticks = number(&watch, "/longest_ns")? / number(&watch, "/tick_ns")?;
    println!(
        "{scheduler}: {} waits, the longest {ticks:.3} ticks beside an idle CPU; {pushes} pushes",
        watch["waits"]
    );
    let preferred = json(guest, "scx_magpie preferred --json")?;
    ensure!(
        preferred["changes"] == 0,
        "real-time tasks were taken for a host that is short of CPUs: {preferred}"
    );
    shell(guest, "sleep 1")?;
    Ok(ticks)
}

#[test]
fn who_loses_its_cpu_is_moved_at_once() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |options| {
        options.packages.push("util-linux".into());
    })?;
    let (with, without) = with_and_without(&mut guest, "--no-push", longest_wait)?;
    ensure!(with <= 1.0, "one waited for {with} ticks");
    ensure!(
        without > with,
        "without push none waits longer: {without} ticks, with it {with}"
    );
    guest.into_guest().shutdown()
}
