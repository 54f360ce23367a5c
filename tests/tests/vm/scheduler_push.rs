//! Push: a task that loses its CPU has an idle CPU kicked for it at once. The bar: it waits beside
//! an idle CPU for one tick at most, and without the mechanism for longer.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    VT8, add_tools, boot_for_magpie, counters, grown, json, number, shell, with_and_without,
};

/// Four hogs that may run on all eight CPUs. Ten times, a real-time task takes each CPU for 20 ms.
const LOAD: &str = "magpie-load hogs --count 4 --seconds 5 >/dev/null &\n\
    for cpu in $(seq 0 7); do\n\
      taskset -c $cpu sh -c \"sleep 0.$((cpu * 4 + 60)); for i in $(seq -s ' ' 10); do\n\
        chrt -f 60 /usr/bin/timeout 0.02 chrt -f 50 magpie-load burn; sleep 0.3\n\
      done\" >/dev/null 2>&1 &\n\
    done\n\
    sleep 0.5";

/// How tasks waited beside an idle CPU.
struct Waits {
    /// The number of waits of more than a quarter of a tick.
    long: f64,
    /// The longest wait, in ticks.
    longest: f64,
}

/// Runs the load under the scheduler that runs, and returns how its hogs waited.
fn watch(guest: &mut Guest, scheduler: &str) -> Result<Waits> {
    let before = counters(guest)?;
    let script = format!(
        "{{ {LOAD}; }} >/dev/null; magpie-load idle-watch --json --seconds 4 --threshold-ms 1"
    );
    let found = json(guest, &script)?;
    let pushes = grown(&before, &counters(guest)?, "push")?;
    let watch = found.pointer("/watches/0").cloned().unwrap_or_default();
    let waits = Waits {
        long: number(&watch, "/violations")?,
        longest: number(&watch, "/longest_ns")? / number(&watch, "/tick_ns")?,
    };
    println!(
        "{scheduler}: {} waits, {} for long beside an idle CPU, the longest {:.3} ticks; {pushes} pushes",
        watch["waits"], waits.long, waits.longest
    );
    let preferred = json(guest, "scx_magpie preferred --json")?;
    ensure!(
        preferred["changes"] == 0,
        "real-time tasks were taken for an overcommitted host: {preferred}"
    );
    shell(guest, "sleep 2")?;
    Ok(waits)
}

#[test]
fn a_task_that_loses_its_cpu_migrates_at_once() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, add_tools)?;
    let (with, without) = with_and_without(&mut guest, "--no-push", watch)?;
    ensure!(
        with.longest <= 1.0,
        "a task waited for {} ticks",
        with.longest
    );
    ensure!(
        without.longest > with.longest,
        "without push no task waits longer: {} ticks, with it {}",
        without.longest,
        with.longest
    );
    // The next tick finds a task that was not pushed; the work of the tick takes a little itself.
    ensure!(
        without.longest <= 1.1,
        "without push, a task waited for {} ticks",
        without.longest
    );
    ensure!(
        without.long >= 10.0,
        "without push, hardly any task waits: {}",
        without.long
    );
    ensure!(
        4.0 * with.long <= without.long,
        "{} long waits, without push {}",
        with.long,
        without.long
    );
    guest.into_guest().shutdown()
}
