//! Never a queued task beside an idle CPU that it may use for longer than a tick. In virtual time
//! no vCPU is ever held back by the host, so one such task is one too many.

use anyhow::{Result, bail, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{PATIENCE, VT8, boot_for_magpie, shell, under, words};
use std::path::PathBuf;

const MAGPIE: &str = "scx_magpie";

/// Watches meanwhile; whether any task was stranded, and the report.
fn watch(guest: &mut Guest, arguments: &str) -> Result<(bool, String)> {
    let command = format!("magpie-load idle-watch --explain --seed 1 {arguments}");
    let mut report = Vec::new();
    let result = guest.exec(&words(&command), PATIENCE, &mut |_, bytes| {
        report.extend_from_slice(bytes);
    })?;
    let report = String::from_utf8_lossy(&report).into_owned();
    println!("{arguments}\n{report}");
    match result.code {
        0 => Ok((false, report)),
        2 => Ok((true, report)),
        code => bail!("{command} ended with {code}:\n{report}"),
    }
}

/// Watches under the kernel's own scheduler, for a figure to compare with, then under scx_magpie.
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

/// A task that a real-time task preempts, or that waits behind one, is not lost to other CPUs.
#[test]
fn nothing_is_stranded_behind_a_realtime_task() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |options| {
        options.files.push(PathBuf::from("/usr/bin/chrt"));
    })?;
    // Later than idle-watch has begun; itself not real-time, so that the end comes.
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

/// The watcher sees what it is for: tasks that are really stranded, planted under the kernel's own
/// scheduler.
#[test]
fn the_watcher_finds_stranded_tasks() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    println!(
        "{}",
        shell(&mut guest, "magpie-load idle-watch --self-test")?
    );
    guest.into_guest().shutdown()
}

/// What stealing may be switched off for is to be measured, not to strand tasks: ticks still find
/// idle CPUs for them. At the first tick the idle CPU may come in vain, hence two.
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
