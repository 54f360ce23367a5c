//! Beside real-time tasks: a task of the fair class does not wait behind one while another CPU that
//! it may use idles.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::TestGuest;
use magpie_tests::scheduler::{MAGPIE, VT8, boot_for_magpie, json, number, under};

fn boot() -> Result<TestGuest> {
    boot_for_magpie(VT8, |options| {
        options.files.push("/usr/bin/chrt".into());
    })
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
    let mut guest = boot()?;
    wait_behind_a_waking_realtime_task(&mut guest, "EEVDF")?;
    let longest = under(&mut guest, MAGPIE, |guest| {
        wait_behind_a_waking_realtime_task(guest, MAGPIE)
    })?;
    ensure!(longest < 5.0, "the task waited for {longest} ms");
    guest.into_guest().shutdown()
}
