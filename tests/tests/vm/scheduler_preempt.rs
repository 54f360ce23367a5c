//! Wakeup preemption: a task that sleeps often and has short bursts does not wait behind CPU hogs,
//! whether or not the hogs' cgroup has a limit. The test prints the figures of the kernel's own
//! scheduler too.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    CYCLICTEST, boot_for_magpie, hogs_in, late_by_cyclictest, shell, with_and_without,
};

/// Returns the 99th percentile of the wakeup latencies of a thread that sleeps a millisecond at a
/// time beside hogs, in ms.
fn measure(guest: &mut Guest, scheduler: &str, limit: &str) -> Result<f64> {
    let hogs = hogs_in(".", 6);
    let histogram = shell(
        guest,
        &format!(
            "mkdir /sys/fs/cgroup/hogs; cd /sys/fs/cgroup/hogs; echo {limit} > cpu.max\n\
             {hogs}sleep 0.5; {CYCLICTEST} -D 2\n\
             echo 1 > cgroup.kill; sleep 0.5; rmdir /sys/fs/cgroup/hogs"
        ),
    )?;
    let late_us = late_by_cyclictest(&histogram)?;
    let [p99, p999] = [990, 999].map(|permille| late_us[late_us.len() * permille / 1000] / 1e3);
    println!(
        "{scheduler}, cpu.max of the hogs {limit}: 99 % late by {p99} ms at most, 99.9 % {p999}"
    );
    Ok(p99)
}

#[test]
fn a_task_that_sleeps_does_not_wait_behind_hogs() -> Result<()> {
    let mut guest = boot_for_magpie("vt4", |_| {})?;
    for limit in ["max", "'200000 100000'"] {
        measure(&mut guest, "EEVDF", limit)?;
        let (with, without) = with_and_without(&mut guest, "--no-preempt", |guest, scheduler| {
            measure(guest, scheduler, limit)
        })?;
        ensure!(
            with <= 1.0,
            "cpu.max {limit}: the 99th percentile is {with} ms"
        );
        ensure!(
            without >= 3.0,
            "cpu.max {limit}: without preemption the 99th percentile is only {without} ms"
        );
    }
    guest.into_guest().shutdown()
}
