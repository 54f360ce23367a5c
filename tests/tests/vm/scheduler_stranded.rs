//! No queued task waits for longer than a tick while a CPU that it may use is idle: such a task is
//! *stranded*. In virtual time the host delays no vCPU, so a single stranded task is a fault.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{MAGPIE, VT8, boot_for_magpie, code_and_output, shell, under};

/// Runs loads and watches them. Returns whether any task was stranded, and the report.
fn watch(guest: &mut Guest, arguments: &str) -> Result<(bool, String)> {
    let command = format!("magpie-load idle-watch --explain --seed 1 {arguments}");
    let (code, report) = code_and_output(guest, &command)?;
    println!("{arguments}\n{report}");
    match code {
        0 => Ok((false, report)),
        2 => Ok((true, report)),
        code => bail!("{command} ended with {code}:\n{report}"),
    }
}

/// Watches under the kernel's own scheduler, to print figures to compare with, then under
/// scx_magpie, which must strand no task.
fn must_not_strand(guest: &mut Guest, arguments: &str) -> Result<()> {
    watch(guest, arguments)?;
    let (stranded, report) = under(guest, MAGPIE, |guest| watch(guest, arguments))?;
    ensure!(!stranded, "with {arguments}, {MAGPIE} strands:\n{report}");
    Ok(())
}

#[test]
fn nothing_is_stranded_by_wakeups_forks_affinity_and_hotplug() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    for loads in ["hackbench,affinity,forks,hotplug", "hogs,hotplug"] {
        must_not_strand(&mut guest, &format!("--seconds 1 --with {loads}"))?;
    }
    guest.into_guest().shutdown()
}

/// Other CPUs find a task that a real-time task preempted, and one that waits behind it.
#[test]
fn nothing_is_stranded_behind_a_realtime_task() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |options| {
        options.files.push(PathBuf::from("/usr/bin/chrt"));
    })?;
    // The hogs start after idle-watch. Each `timeout` is no real-time task and may run on any CPU,
    // so that it can end its hog.
    let hogs = "sleep 0.7; for cpu in 1 2; do \
                (timeout 1 taskset -c $cpu chrt -f 50 magpie-load burn; echo $?) & done; wait";
    let watch_beside_hogs = |guest: &mut Guest| {
        shell(guest, &format!("({hogs}) >/tmp/hogs 2>&1 &"))?;
        let found = watch(guest, "--seconds 1 --with hackbench")?;
        let ended = shell(guest, "sleep 1; cat /tmp/hogs")?;
        ensure!(
            ended.lines().filter(|line| *line == "143").count() == 2,
            "the real-time hogs did not run until their time was over: {ended}"
        );
        Ok(found)
    };
    watch_beside_hogs(&mut guest)?;
    let (stranded, report) = under(&mut guest, MAGPIE, watch_beside_hogs)?;
    ensure!(
        !stranded,
        "beside real-time hogs, {MAGPIE} strands:\n{report}"
    );
    guest.into_guest().shutdown()
}

/// The watcher finds tasks that are really stranded: its self-test strands some on purpose, under
/// the kernel's own scheduler.
#[test]
fn the_watcher_finds_stranded_tasks() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    println!(
        "{}",
        shell(&mut guest, "magpie-load idle-watch --self-test")?
    );
    guest.into_guest().shutdown()
}

/// Without stealing, ticks still find idle CPUs for queued tasks. The idle CPU that the first tick
/// kicks may come too late, so the threshold is two ticks.
#[test]
fn nothing_is_stranded_without_stealing() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    let (stranded, report) = under(&mut guest, "scx_magpie --no-steal", |guest| {
        watch(
            guest,
            "--seconds 0.5 --with hackbench,hotplug --threshold-ms 9",
        )
    })?;
    ensure!(!stranded, "without stealing, tasks are stranded:\n{report}");
    guest.into_guest().shutdown()
}
