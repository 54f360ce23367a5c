//! Mechanism 0, continued: cgroups keep within their limit (`cpu.max`). The bar: within 3 % of it, at
//! 20, 50 and 150 % of a CPU, and one limit inside another; what was not used is kept up to the burst.
//! And nothing that waits for a limit is left behind: tasks that were killed, that may run elsewhere
//! from now on, that leave the cgroup, or whose CPU goes offline. Printed beside it: the kernel's own
//! scheduler. Without the mechanism the limit must be exceeded.

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{boot_for_magpie, counters, number, set_online, shell, under};

const MAGPIE: &str = "scx_magpie";
const BAR_PERCENT: f64 = 3.0;

/// How often many throttled tasks are killed. When a thread that had begun to end could still be
/// throttled, one of twenty times left some behind.
const KILLS: u32 = 25;

/// CPU time that cgroups have used, in ms, from what the script prints of `cpu.stat`.
fn usage_ms(text: &str) -> Result<Vec<f64>> {
    text.lines()
        .filter_map(|line| line.strip_prefix("usage_usec "))
        .map(|digits| {
            let us: f64 = digits.parse().with_context(|| format!("in {text}"))?;
            Ok(us / 1000.0)
        })
        .collect()
}

/// CPU time of hogs in cgroups with limits, in percent of a CPU. Of each cgroup: path, percent that it
/// may use, hogs.
fn run_limited(
    guest: &mut Guest,
    scheduler: &str,
    groups: &[(&str, u32, u32)],
    seconds: u32,
) -> Result<Vec<f64>> {
    let mut start = String::from("cd /sys/fs/cgroup\n");
    for (path, percent, hogs) in groups {
        start += &format!(
            "mkdir {path}; echo {} 100000 > {path}/cpu.max\n",
            percent * 1000
        );
        start += &match hogs {
            0 => format!("echo +cpu > {path}/cgroup.subtree_control\n"),
            hogs => format!(
                "(echo 0 > {path}/cgroup.procs; exec magpie-load hogs --count {hogs} --seconds {}) \
                 > /dev/null &\n",
                seconds + 2
            ),
        };
    }
    let paths: Vec<_> = groups.iter().map(|(path, ..)| *path).collect();
    let read = format!(
        "for g in {}; do grep ^usage_usec $g/cpu.stat; done",
        paths.join(" ")
    );
    let deepest_first: Vec<_> = paths.iter().rev().copied().collect();
    let script = format!(
        "{start}sleep 1; {read}; sleep {seconds}; {read}; wait; rmdir {}",
        deepest_first.join(" ")
    );
    let usage = usage_ms(&shell(guest, &script)?)?;
    let (before, after) = usage.split_at(groups.len());
    let percent = |(before, after): (&f64, &f64)| (after - before) / 10.0 / f64::from(seconds);
    let used: Vec<f64> = before.iter().zip(after).map(percent).collect();
    println!("{scheduler}: limits {groups:?}, used {used:.2?} % of a CPU");
    Ok(used)
}

fn is_near(used: f64, limit: u32) -> bool {
    100.0 * (used / f64::from(limit) - 1.0).abs() <= BAR_PERCENT
}

/// CPU time within two seconds, in ms, after one second of saving up.
fn run_with_burst(guest: &mut Guest, burst_us: u32) -> Result<f64> {
    let script = format!(
        "cd /sys/fs/cgroup; mkdir b; echo 20000 100000 > b/cpu.max; echo {burst_us} > b/cpu.max.burst\n\
         sleep 1; (echo 0 > b/cgroup.procs; exec magpie-load hogs --count 1 --seconds 2) > /dev/null\n\
         grep ^usage_usec b/cpu.stat; rmdir b"
    );
    let usage = usage_ms(&shell(guest, &script)?)?;
    usage.first().copied().context("no usage")
}

#[test]
fn cgroups_keep_within_their_limits() -> Result<()> {
    let mut guest = boot_for_magpie("vt4", |_| {})?;
    for (limit, hogs) in [(20, 2), (50, 4), (150, 4)] {
        run_limited(&mut guest, "EEVDF", &[("a", limit, hogs)], 3)?;
    }

    under(&mut guest, MAGPIE, |guest| {
        for (limit, hogs) in [(20, 2), (50, 4), (150, 4)] {
            let used = run_limited(guest, MAGPIE, &[("a", limit, hogs)], 6)?[0];
            ensure!(is_near(used, limit), "{used} % of {limit} %");
        }
        // Each of the children may use what the parent must not.
        let nested = [("p", 60, 0), ("p/a", 10, 2), ("p/b", 100, 2)];
        let used = run_limited(guest, MAGPIE, &nested, 4)?;
        ensure!(is_near(used[0], 60) && is_near(used[1], 10), "{used:?}");

        let (plain, burst) = (run_with_burst(guest, 0)?, run_with_burst(guest, 20_000)?);
        println!("within 2 s: {plain:.1} ms, with a burst of 20 ms {burst:.1} ms");
        ensure!((10.0..30.0).contains(&(burst - plain)), "{plain} {burst}");

        let counted = counters(guest)?;
        println!(
            "throttled {} times, {} ns, parked {}",
            counted["throttle"], counted["throttle_ns"], counted["park"]
        );
        ensure!(number(&counted, "/throttle")? > 50.0, "{counted}");
        ensure!(number(&counted, "/throttle_ns")? > 1e9, "{counted}");
        Ok(())
    })?;

    under(&mut guest, "scx_magpie --no-cpu-max", |guest| {
        let used = run_limited(guest, "without", &[("a", 50, 4)], 1)?[0];
        ensure!(used > 300.0, "limited without: {used} %");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// With a hundredth of a CPU for a hundred tasks, each waits for longer than the kernel's watchdog
/// allows.
#[test]
fn a_small_limit_for_many_tasks_strands_none() -> Result<()> {
    const LONG: &str = "cd /sys/fs/cgroup; mkdir t; echo 1000 100000 > t/cpu.max\n\
        (echo 0 > t/cgroup.procs; exec magpie-load hogs --count 100 --seconds 60) >/dev/null 2>&1 &\n\
        sleep 36; grep ^usage_usec t/cpu.stat; echo 1 > t/cgroup.kill; sleep 1; rmdir t";
    let kills = format!(
        "cd /sys/fs/cgroup; i=0; while [ $i -lt {KILLS} ]; do i=$((i + 1))\n\
         mkdir k; echo 10000 100000 > k/cpu.max\n\
         (echo 0 > k/cgroup.procs; exec magpie-load hogs --count 100 --seconds 60) >/dev/null 2>&1 &\n\
         sleep 1.$((i % 10)); echo 1 > k/cgroup.kill; n=0\n\
         while ! rmdir k 2>/dev/null && [ $n -lt 100 ]; do n=$((n + 1)); sleep 0.05; done; echo $n\n\
         done"
    );
    let mut guest = boot_for_magpie("vt4", |_| {})?;
    under(&mut guest, MAGPIE, |guest| {
        let used = usage_ms(&shell(guest, LONG)?)?;
        println!("a hundred tasks, 1 %, within 36 s: {used:.0?} ms");
        let looks: Vec<u32> = shell(guest, &kills)?
            .lines()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        println!("50 ms until a killed cgroup was empty: {looks:?}");
        // A killed task waits for the end of a period of 100 ms, and then for its like.
        ensure!(looks.iter().all(|looks| *looks <= 6), "{looks:?}");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// CPU time of 8 hogs in a cgroup with a thousandth of a CPU in the second before and the one after
/// `change`, in ms. They end by themselves, so the cgroup can be removed.
fn run_with_change(guest: &mut Guest, change: &str) -> Result<(f64, f64)> {
    let script = format!(
        "cd /sys/fs/cgroup; mkdir -p u v; echo 1000 1000000 > u/cpu.max\n\
         (echo 0 > u/cgroup.procs; exec magpie-load hogs --count 8 --seconds 6) >/dev/null 2>&1 &\n\
         sleep 2; all() {{ cat u/cpu.stat v/cpu.stat | grep ^usage_usec; }}\n\
         all; sleep 1; all; {change}\nall; sleep 1; all\n\
         echo max > u/cpu.max; wait; rmdir u v"
    );
    let usage = usage_ms(&shell(guest, &script)?)?;
    ensure!(usage.len() == 8, "{usage:?}");
    let used = |at: usize| usage[at + 2] + usage[at + 3] - usage[at] - usage[at + 1];
    let (before, after) = (used(0), used(4));
    println!("{change}: {before:.0} ms of CPU time, then {after:.0}");
    Ok((before, after))
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
            ensure!(before < 300.0 && after > 2000.0, "{change}");
        }
        for change in [
            "for p in $(cat u/cgroup.procs); do taskset -ap 2 $p; done > /dev/null",
            "echo 10 > u/cpu.weight",
        ] {
            let (before, after) = run_with_change(guest, change)?;
            ensure!(before < 300.0 && after < 300.0, "{change}");
        }

        // The kernel waits until nothing is left on a CPU that goes offline.
        shell(
            guest,
            "cd /sys/fs/cgroup; mkdir w; echo 1000 1000000 > w/cpu.max\n\
             (echo 0 > w/cgroup.procs; exec magpie-load hogs --count 16 --seconds 60) >/dev/null 2>&1 &\n\
             sleep 2",
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

    // It ends with tasks throttled: they are the kernel's again, and keep its limit.
    shell(
        &mut guest,
        "cd /sys/fs/cgroup; mkdir x; echo 1000 1000000 > x/cpu.max\n\
         (echo 0 > x/cgroup.procs; exec magpie-load hogs --count 16 --seconds 60) >/dev/null 2>&1 &",
    )?;
    under(&mut guest, MAGPIE, |guest| {
        shell(guest, "sleep 3").map(|_| ())
    })?;
    let removed = "cd /sys/fs/cgroup; echo 1 > x/cgroup.kill; sleep 2; rmdir x";
    shell(&mut guest, removed)?;
    guest.into_guest().shutdown()
}
