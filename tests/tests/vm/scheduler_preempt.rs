//! Mechanism 0, continued: who sleeps often does not wait behind CPU hogs, be they in a cgroup with a
//! limit or not: no longer than under the kernel's own scheduler.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{boot_for_magpie, json, number, shell, with_and_without};

/// Milliseconds that workers wait at wakeups beside hogs: 99th percentile of a second.
fn measure(guest: &mut Guest, scheduler: &str, limit: &str) -> Result<f64> {
    shell(
        guest,
        &format!(
            "mkdir /sys/fs/cgroup/hogs; cd /sys/fs/cgroup/hogs; echo {limit} > cpu.max\n\
             (echo 0 > cgroup.procs; exec magpie-load hogs --count 6 --seconds 60) > /dev/null 2>&1 &\n\
             sleep 0.5"
        ),
    )?;
    let found = json(guest, "magpie-load latency --json --seconds 1")?;
    shell(
        guest,
        "cd /sys/fs/cgroup; echo 1 > hogs/cgroup.kill; sleep 0.5; rmdir hogs",
    )?;
    let [median, p99] = ["p50", "p99"].map(|name| number(&found, &format!("/wakeup_us/{name}")));
    let (median, p99) = (median?, p99? / 1e3);
    println!(
        "{scheduler}, cpu.max of the hogs {limit}: half within {median} us, 99 % within {p99} ms"
    );
    Ok(p99)
}

#[test]
fn who_sleeps_does_not_wait_behind_hogs() -> Result<()> {
    let mut guest = boot_for_magpie("vt4", |_| {})?;
    for limit in ["max", "'200000 100000'"] {
        let eevdf = measure(&mut guest, "EEVDF", limit)?;
        let (with, without) = with_and_without(&mut guest, "--no-preempt", |guest, scheduler| {
            measure(guest, scheduler, limit)
        })?;
        ensure!(
            with <= eevdf,
            "cpu.max {limit}: 99 % wait up to {with} ms, under EEVDF {eevdf}"
        );
        ensure!(
            without >= 3.0,
            "cpu.max {limit}: without preemption 99 % wait only {without} ms"
        );
    }
    guest.into_guest().shutdown()
}
