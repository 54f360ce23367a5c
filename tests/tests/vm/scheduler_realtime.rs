//! Beside real-time tasks: a task of the fair class does not wait behind one while another CPU that
//! it may use idles.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::TestGuest;
use magpie_tests::scheduler::{
    MAGPIE, VT8, boot_for_magpie, json, number, shell, under, with_and_without,
};

fn boot() -> Result<TestGuest> {
    boot_for_magpie(VT8, |options| {
        options.files.push("/usr/bin/chrt".into());
        options.files.push("/usr/bin/taskset".into());
    })
}

/// Measures the longest wait, in ms, under EEVDF, to print a figure to compare with, and then under
/// scx_magpie, where it must be about a tick.
fn must_not_wait(measure: impl Fn(&mut Guest, &str) -> Result<f64>) -> Result<()> {
    let mut guest = boot()?;
    measure(&mut guest, "EEVDF")?;
    let longest = under(&mut guest, MAGPIE, |guest| measure(guest, MAGPIE))?;
    ensure!(longest < 5.0, "a thread waited for {longest} ms");
    guest.into_guest().shutdown()
}

/// Four timer threads, a real-time CPU hog on CPU 1, and five other CPU hogs, for 20 s; at least
/// two CPUs idle. cyclictest pins each of its threads to a CPU of its own, but these are to move away.
const TIMERS_BESIDE_A_REALTIME_HOG: &str = "\
    taskset -c 1 chrt -f 50 magpie-load burn & hogs=$!; \
    for i in 1 2 3 4 5; do magpie-load burn & hogs=\"$hogs $!\"; done; \
    cyclictest -q -t 4 -i 1000 -d 0 --policy=other -D 20 & timers=$!; \
    sleep 0.1; taskset -ap ff $timers >/dev/null; \
    wait $timers; kill $hogs";

/// Returns how late the latest timer thread woke, in ms.
fn latest_beside_a_realtime_hog(guest: &mut Guest, scheduler: &str) -> Result<f64> {
    let printed = shell(guest, TIMERS_BESIDE_A_REALTIME_HOG)?;
    println!("{scheduler}:\n{printed}");
    let latest = printed
        .lines()
        .filter_map(|line| line.rsplit_once("Max:")?.1.trim().parse().ok())
        .collect::<Vec<f64>>();
    ensure!(latest.len() == 4, "not four threads: {printed}");
    Ok(latest.into_iter().fold(0.0, f64::max) / 1000.0)
}

/// The kernel's deadline server asks the scheduler for a task once a second while the real-time hog
/// runs. A CPU that then counts as idle is sent threads, which wait there for the rest of a second.
#[test]
fn no_timer_waits_for_a_realtime_hog_while_a_cpu_is_idle() -> Result<()> {
    must_not_wait(latest_beside_a_realtime_hog)
}

/// Returns the longest wait, in ms, of a task that is woken just after a real-time task has woken
/// on the idle CPU where the first one slept. The real-time task keeps that CPU for 20 ms.
fn wait_behind_a_waking_realtime_task(guest: &mut Guest, scheduler: &str) -> Result<f64> {
    let found = json(
        guest,
        "magpie-load wakeup --json --previous 2 --waker 4 --rounds 20 --realtime-us 20000",
    )?;
    println!("{scheduler}: {found}");
    Ok(number(&found, "/longest_wait_us")? / 1000.0)
}

#[test]
fn no_task_waits_for_a_realtime_task_that_wakes_on_the_same_idle_cpu() -> Result<()> {
    must_not_wait(wait_behind_a_waking_realtime_task)
}

/// Four hogs on eight CPUs. On each CPU a real-time thread wakes once a millisecond and runs for some
/// microseconds, as the thread of an interrupt does. Prints how often each hog has migrated, before
/// and after a second of that.
const HOGS_BENEATH_INTERRUPTS: &str = "\
    for i in 1 2 3 4; do magpie-load burn & hogs=\"$hogs $!\"; done; sleep 0.5; \
    moves() { for hog in $hogs; do grep se.nr_migrations /proc/$hog/sched; done; }; \
    moves; cyclictest -q -t 8 -a 0-7 -p 50 -i 1000 -D 1 >/dev/null; moves; kill $hogs";

/// Returns how often the hogs migrated, while real-time threads woke some 8000 times.
fn moves_beneath_interrupts(guest: &mut Guest, scheduler: &str) -> Result<f64> {
    let printed = shell(guest, HOGS_BENEATH_INTERRUPTS)?;
    let moves = printed
        .lines()
        .filter_map(|line| line.rsplit_once(':')?.1.trim().parse().ok())
        .collect::<Vec<f64>>();
    ensure!(moves.len() == 8, "not four hogs, twice: {printed}");
    let moved = moves[4..].iter().sum::<f64>() - moves[..4].iter().sum::<f64>();
    println!("{scheduler}: the hogs migrated {moved} times");
    Ok(moved)
}

/// A task that migrates for each interrupt would run with cold caches.
#[test]
fn hogs_stay_where_interrupts_take_their_cpu_for_moments() -> Result<()> {
    let mut guest = boot()?;
    moves_beneath_interrupts(&mut guest, "EEVDF")?;
    let (with, without) = with_and_without(&mut guest, "--no-patience", moves_beneath_interrupts)?;
    ensure!(with <= 20.0, "the hogs migrated {with} times");
    ensure!(
        without >= 100.0,
        "without patience the hogs migrated only {without} times"
    );
    guest.into_guest().shutdown()
}
