//! Preemption. A task that sleeps often and has short bursts does not wait behind CPU hogs, whether
//! or not the hogs' cgroup has a limit. A task that waits for the end of a slice does not wait for
//! a tick. The tests print the figures of the kernel's own scheduler too.

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    CYCLICTEST, VT8, boot_for_magpie, hogs_in, late_by_cyclictest, shell, with_and_without,
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

/// Returns the 98th percentile of the wakeup latencies of a thread that sleeps a millisecond at a
/// time on one CPU, in ms, while hogs that have just slept begin to run on all CPUs.
fn late_as_bursts_begin(guest: &mut Guest, scheduler: &str) -> Result<f64> {
    let histogram = shell(
        guest,
        &format!("magpie-load hogs --count 16 --seconds 1 >/dev/null & {CYCLICTEST} -D 1; wait"),
    )?;
    let late_us = late_by_cyclictest(&histogram)?;
    let p98 = late_us[late_us.len() * 98 / 100] / 1e3;
    println!("{scheduler}: as long bursts begin, 98 % late by {p98} ms at most");
    Ok(p98)
}

#[test]
fn a_task_that_sleeps_does_not_wait_behind_a_task_that_begins_a_long_burst() -> Result<()> {
    let mut guest = boot_for_magpie("vt16", |_| {})?;
    late_as_bursts_begin(&mut guest, "EEVDF")?;
    let (with, without) = with_and_without(&mut guest, "--no-shorter-first", late_as_bursts_begin)?;
    ensure!(with <= 0.2, "the 98th percentile is {with} ms");
    ensure!(
        without >= 1.0,
        "without the part, the 98th percentile is only {without} ms"
    );
    guest.into_guest().shutdown()
}

/// Returns how long two CPU hogs that share a CPU run at a time, in ms: their CPU time of a second,
/// divided by how often the CPU switched from one to the other. Kernel threads that run in between
/// make it shorter, so this is the least disturbed of four seconds.
fn measure_slices(guest: &mut Guest, scheduler: &str) -> Result<f64> {
    let said = shell(
        guest,
        "for i in 1 2; do taskset -c 1 sh -c 'while :; do :; done' & pids=\"$pids $!\"; done\n\
         read_both() {\n\
             for pid in $pids; do\n\
                 sed -n 's/^\\(se.sum_exec_runtime\\|nr_switches\\) *: *//p' /proc/$pid/sched\n\
             done\n\
         }\n\
         sleep 0.5; for i in 0 1 2 3 4; do read_both; sleep 1; done; kill $pids",
    )?;
    let numbers = said.split_whitespace().map(str::parse);
    let numbers: Vec<f64> = numbers.collect::<Result<_, _>>().context(said.clone())?;
    ensure!(numbers.len() == 20, "not two hogs, five times: {said}");
    let slices = numbers.windows(8).step_by(4).map(|both| {
        let [run_1, switches_1, run_2, switches_2] = [0, 1, 2, 3].map(|i| both[i + 4] - both[i]);
        ensure!(run_1 > 0.0 && run_2 > 0.0, "the hogs did not run: {said}");
        Ok((run_1 + run_2) / (switches_1 + switches_2))
    });
    let slices: Vec<f64> = slices.collect::<Result<_>>()?;
    println!("{scheduler}: a hog runs for this many ms at a time: {slices:.3?}");
    Ok(slices.into_iter().fold(0.0, f64::max))
}

#[test]
fn a_slice_ends_in_time_where_a_task_waits() -> Result<()> {
    for machine in ["vt2", VT8] {
        let mut guest = boot_for_magpie(machine, |_| {})?;
        measure_slices(&mut guest, "EEVDF")?;
        let (with, without) = with_and_without(&mut guest, "--no-hrtick", measure_slices)?;
        ensure!(
            with <= 3.2,
            "{machine}: a hog runs for {with} ms, not for a slice of 3 ms"
        );
        ensure!(
            without >= 3.8,
            "{machine}: without the timer a hog runs for {without} ms, not for a tick of 4 ms"
        );
        guest.into_guest().shutdown()?;
    }
    Ok(())
}
