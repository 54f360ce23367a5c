//! scx_magpie stays loaded, and every task makes progress, through CPU hotplug, changes of
//! affinity, cpuset, nice value and policy, fork storms, tasks that yield all the time, and
//! real-time tasks.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    MAGPIE, VT8, boot_for_magpie, json, number, set_online, shell, under,
};
use serde_json::Value;

/// Runs hogs, each of which must get at least `least` seconds of CPU time.
fn must_progress(guest: &mut Guest, arguments: &str, least: f64) -> Result<Value> {
    let found = json(guest, &format!("magpie-load hogs --json {arguments}"))?;
    let min = number(&found, "/min_s")?;
    println!("hogs {arguments}: at least {min:.3} s each");
    ensure!(min >= least, "hogs {arguments}: a hog got only {min} s");
    Ok(found)
}

/// Starts a command that runs again and again beside the test, until [`end_load`].
fn start_load(guest: &mut Guest, command: &str) -> Result<()> {
    let script = format!("(while :; do {command}; done) >/dev/null 2>&1 & echo $! > /tmp/load");
    shell(guest, &script).map(|_| ())
}

/// Ends the command that [`start_load`] started.
fn end_load(guest: &mut Guest) -> Result<()> {
    let script = "kill $(cat /tmp/load); killall hackbench; true";
    shell(guest, script).map(|_| ())
}

#[test]
fn it_survives_cpu_hotplug_under_load() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    // CPU 5 is offline when the scheduler starts. The scheduler then cannot see the CPU's caches,
    // and must serve it later.
    set_online(&mut guest, 5, false)?;
    under(&mut guest, MAGPIE, |guest| {
        start_load(guest, "hackbench -g 1 -l 100")?;
        set_online(guest, 5, true)?;
        must_progress(guest, "--count 2 --cpus 5 --seconds 0.2", 0.01)?;
        let spread = json(guest, "magpie-load spread --json --hold 0.1 --limit 0.5")?;
        ensure!(
            spread["covered"] == 8,
            "a CPU that came online later gets no work: {spread}"
        );

        // Each of these CPUs goes offline and online; then tasks run that may use no other.
        for cpu in [1, 3, 4, 7] {
            set_online(guest, cpu, false)?;
            set_online(guest, cpu, true)?;
            must_progress(
                guest,
                &format!("--count 2 --cpus {cpu} --seconds 0.1"),
                0.01,
            )?;
        }

        // Tasks wait in the queue of a CPU that goes offline: the kernel lets them run elsewhere.
        let away = "(sleep 0.2; cd /sys/devices/system/cpu; echo 0 > cpu3/online; sleep 0.3; \
                    echo 1 > cpu3/online) >/dev/null 2>&1 &";
        shell(guest, away)?;
        must_progress(guest, "--count 3 --cpus 3 --seconds 0.7", 0.05)?;
        // Half of the CPUs go offline at once, and come back.
        for online in [false, true] {
            for cpu in [4, 5, 6, 7] {
                set_online(guest, cpu, online)?;
            }
            // Beside hackbench each hog's share is a tenth of a CPU. In less than 0.6 s chance
            // would decide, because that is too few slices.
            must_progress(guest, "--count 10 --seconds 0.6", 0.04)?;
        }
        end_load(guest)
    })?;
    guest.into_guest().shutdown()
}

#[test]
fn it_survives_changes_of_tasks_fork_storms_and_cpusets() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |options| {
        options.files.push(PathBuf::from("/usr/bin/chrt"));
    })?;
    under(&mut guest, MAGPIE, |guest| {
        let churn = "magpie-load churn --json --seconds 1 --tasks 12 --seed 7 --pause-us 300 \
                     --with affinity,nice,policy,forks,stop";
        let changes = json(guest, churn)?;
        println!("{changes}");

        // The cpuset of running tasks changes, down to one CPU and to the other LLC.
        let cpuset = "cd /sys/fs/cgroup && mkdir moving && \
            (echo 0 > moving/cgroup.procs; exec magpie-load hogs --json --count 5 --seconds 1) > /tmp/moving & \
            sleep 0.1; for cpus in 0-3 4-7 2 6 1,5 0-7 3 7 0-1 4; do \
            echo $cpus > /sys/fs/cgroup/moving/cpuset.cpus; sleep 0.08; done; wait; \
            rmdir /sys/fs/cgroup/moving; cat /tmp/moving";
        let moved: Value =
            serde_json::from_str(&shell(guest, cpuset)?).context("read what the hogs printed")?;
        let min = number(&moved, "/min_s")?;
        println!("hogs of a changing cpuset: at least {min:.3} s each");
        ensure!(min > 0.05, "a hog of a changing cpuset got only {min} s");

        // A task that yields gives up the rest of its slice, and is not starved.
        let yielders = "--count 4 --cpus 2 --yielding 2 --seconds 0.5";
        must_progress(guest, yielders, 0.02)?;
        must_progress(guest, "--count 3 --cpus 2 --yielding 3 --seconds 0.3", 0.05)?;

        // Real-time tasks hold two CPUs for a second. Hogs run on the other CPUs meanwhile.
        let realtime = "for cpu in 2 6; do (timeout 1 taskset -c $cpu chrt -f 50 \
            magpie-load burn) >/dev/null 2>&1 & done";
        shell(guest, realtime)?;
        must_progress(guest, "--count 6 --seconds 0.8", 0.4)?;
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
