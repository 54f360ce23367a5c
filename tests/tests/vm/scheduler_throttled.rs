//! cpu-max: no parked task is left behind, whether it waits for longer than the kernel's watchdog
//! allows, is killed, leaves the cgroup, or gets another affinity or limit, or whether its CPU goes
//! offline or the scheduler ends.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    MAGPIE, boot_for_magpie, hogs_in, hogs_with, set_online, shell, under, usage_ms,
};

/// How often a hundred parked tasks are killed. When exiting threads could still be parked, eight
/// of sixty kills left some behind for half a second.
const KILLS: u32 = 10;

/// A limit of 1 % of a CPU for a hundred tasks makes each wait for longer than the kernel's
/// watchdog allows.
#[test]
fn a_small_limit_for_many_tasks_strands_none() -> Result<()> {
    let long = format!(
        "cd /sys/fs/cgroup; mkdir t; echo 1000 100000 > t/cpu.max\n\
         {}\
         sleep 33; grep ^usage_usec t/cpu.stat; echo 1 > t/cgroup.kill; sleep 1; rmdir t",
        hogs_in("t", 100)
    );
    let kills = format!(
        "cd /sys/fs/cgroup; i=0; while [ $i -lt {KILLS} ]; do i=$((i + 1))\n\
         mkdir k; echo 10000 100000 > k/cpu.max\n\
         {}\
         sleep 0.8; echo 1 > k/cgroup.kill; n=0\n\
         while ! rmdir k 2>/dev/null && [ $n -lt 100 ]; do n=$((n + 1)); sleep 0.05; done; echo $n\n\
         done",
        hogs_in("k", 100)
    );
    let mut guest = boot_for_magpie("vt4", |_| {})?;
    under(&mut guest, MAGPIE, |guest| {
        let used = usage_ms(&shell(guest, &long)?)?;
        println!("a hundred tasks, 1 %, within 33 s: {used:.0?} ms");
        let looks: Vec<u32> = shell(guest, &kills)?
            .lines()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        println!("50 ms until a killed cgroup was empty: {looks:?}");
        // A killed task stays parked until the period of 100 ms ends, and then waits for the
        // others.
        ensure!(looks.iter().all(|looks| *looks <= 6), "{looks:?}");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// Runs 8 hogs in a cgroup with a limit of 0.1 % of a CPU. Returns their CPU time in the half
/// second before `change` and in the one after it, in ms. Killed tasks stay parked until the period
/// of 1 s ends.
fn run_with_change(guest: &mut Guest, change: &str) -> Result<(f64, f64)> {
    let hogs = hogs_in("u", 8);
    let script = format!(
        "cd /sys/fs/cgroup; mkdir -p u v; echo 1000 1000000 > u/cpu.max\n\
         {hogs}\
         sleep 1; all() {{ cat u/cpu.stat v/cpu.stat | grep ^usage_usec; }}\n\
         all; sleep 0.5; all; {change}\nall; sleep 0.5; all\n\
         echo 1 > u/cgroup.kill; echo 1 > v/cgroup.kill; sleep 2; rmdir u v"
    );
    let usage = usage_ms(&shell(guest, &script)?)?;
    ensure!(usage.len() == 8, "{usage:?}");
    let used = |at: usize| usage[at + 2] + usage[at + 3] - usage[at] - usage[at + 1];
    let (before, after) = (used(0), used(4));
    println!("{change}: {before:.0} ms of CPU time, then {after:.0}");
    Ok((before, after))
}

/// A task that leaves its throttled cgroup is owed nothing for the time for which it was parked: a
/// hog on the same CPU has its share from the first moment on. Without that it had 31 ms of 400.
fn leaves_without_credit(guest: &mut Guest) -> Result<()> {
    let hog_in = |cgroup| hogs_with(cgroup, "--count 1 --cpus 3");
    let script = format!(
        "cd /sys/fs/cgroup; mkdir p r n\n\
         {}{}sleep 0.5; echo 1000 1000000 > p/cpu.max; sleep 0.7\n\
         all() {{ cat r/cpu.stat n/cpu.stat | grep ^usage_usec; }}\n\
         all; for p in $(cat p/cgroup.procs); do echo $p > n/cgroup.procs; done; sleep 0.4; all\n\
         for i in p r n; do echo 1 > $i/cgroup.kill; done; sleep 1; rmdir p r n",
        hog_in("p"),
        hog_in("r")
    );
    let usage = usage_ms(&shell(guest, &script)?)?;
    ensure!(usage.len() == 4, "{usage:?}");
    let (resident, newcomer) = (usage[2] - usage[0], usage[3] - usage[1]);
    println!("in 400 ms: the resident {resident:.0} ms, the newcomer {newcomer:.0}");
    ensure!(newcomer > 100.0, "the newcomer had {newcomer} ms of 400");
    ensure!(resident > 150.0, "the resident had {resident} ms of 400");
    Ok(())
}

#[test]
fn throttled_tasks_follow_every_change() -> Result<()> {
    let mut guest = boot_for_magpie("vt4", |_| {})?;
    under(&mut guest, MAGPIE, |guest| {
        for change in [
            "echo max > u/cpu.max",
            "echo 4000000 1000000 > u/cpu.max",
            "for p in $(cat u/cgroup.procs); do echo $p > v/cgroup.procs; done",
        ] {
            let (before, after) = run_with_change(guest, change)?;
            ensure!(before < 300.0 && after > 1000.0, "{change}");
        }
        for change in [
            "for p in $(cat u/cgroup.procs); do taskset -ap 2 $p; done > /dev/null",
            "echo 10 > u/cpu.weight",
        ] {
            let (before, after) = run_with_change(guest, change)?;
            ensure!(before < 300.0 && after < 300.0, "{change}");
        }

        leaves_without_credit(guest)?;

        // A CPU that goes offline must have no task left, or the kernel waits without end.
        shell(
            guest,
            &format!(
                "cd /sys/fs/cgroup; mkdir w; echo 1000 1000000 > w/cpu.max\n{}sleep 1",
                hogs_in("w", 16)
            ),
        )?;
        for cpu in [1, 2, 3] {
            set_online(guest, cpu, false)?;
        }
        for cpu in [1, 2, 3] {
            set_online(guest, cpu, true)?;
        }
        let removed = "cd /sys/fs/cgroup; sleep 1; echo 1 > w/cgroup.kill; sleep 2; rmdir w";
        shell(guest, removed).map(|_| ())
    })?;

    // The scheduler ends while tasks are parked: the kernel's own scheduler then runs them.
    shell(
        &mut guest,
        &format!(
            "cd /sys/fs/cgroup; mkdir x; echo 1000 1000000 > x/cpu.max\n{}",
            hogs_in("x", 16)
        ),
    )?;
    under(&mut guest, MAGPIE, |guest| {
        shell(guest, "sleep 2").map(|_| ())
    })?;
    let removed =
        "cd /sys/fs/cgroup; echo max > x/cpu.max; echo 1 > x/cgroup.kill; sleep 2; rmdir x";
    shell(&mut guest, removed)?;
    guest.into_guest().shutdown()
}
