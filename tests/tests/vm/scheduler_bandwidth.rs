//! cpu-max: cgroups stay within their limits. The bar is 3 % of the limit, at 20, 50 and 150 % of a
//! CPU and with one limit inside another. CPU time that a cgroup did not use is kept up to the
//! burst. The test prints the figures of the kernel's own scheduler too. Without the mechanism the
//! limit must be exceeded.

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    MAGPIE, boot_for_magpie, counters, hogs_in, number, shell, under, usage_ms,
};

const BAR_PERCENT: f64 = 3.0;

/// Runs hogs in cgroups with limits, and returns what each cgroup used, in percent of a CPU.
/// `groups` has the path, the limit in percent of a CPU, and the number of hogs of each; parents
/// come first.
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
            hogs => hogs_in(path, *hogs),
        };
    }
    let paths: Vec<_> = groups.iter().map(|(path, ..)| *path).collect();
    let read = format!(
        "for g in {}; do grep ^usage_usec $g/cpu.stat; done",
        paths.join(" ")
    );
    let deepest_first: Vec<_> = paths.iter().rev().copied().collect();
    let script = format!(
        "{start}sleep 1; {read}; sleep {seconds}; {read}\n\
         for g in {last}; do echo 1 > $g/cgroup.kill; done; sleep 1; rmdir {last}",
        last = deepest_first.join(" ")
    );
    let usage = usage_ms(&shell(guest, &script)?)?;
    let (before, after) = usage.split_at(groups.len());
    let percent = |(before, after): (&f64, &f64)| (after - before) / 10.0 / f64::from(seconds);
    let used: Vec<f64> = before.iter().zip(after).map(percent).collect();
    println!("{scheduler}: limits {groups:?}, used {used:.2?} % of a CPU");
    Ok(used)
}

/// Returns whether the CPU time of a cgroup is within the bar of its limit; both in percent of a
/// CPU.
fn is_near(used: f64, limit: u32) -> bool {
    100.0 * (used / f64::from(limit) - 1.0).abs() <= BAR_PERCENT
}

/// Returns the CPU time, in ms, of a hog that runs for two seconds in a cgroup that has idled for
/// one.
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
fn cgroups_stay_within_their_limits() -> Result<()> {
    let mut guest = boot_for_magpie("vt4", |_| {})?;
    for (limit, hogs) in [(20, 2), (50, 4), (150, 4)] {
        run_limited(&mut guest, "EEVDF", &[("a", limit, hogs)], 2)?;
    }

    under(&mut guest, MAGPIE, |guest| {
        for (limit, hogs) in [(20, 2), (50, 4), (150, 4)] {
            let used = run_limited(guest, MAGPIE, &[("a", limit, hogs)], 5)?[0];
            ensure!(is_near(used, limit), "{used} % of {limit} %");
        }
        // The children's limits together exceed that of their parent, which must hold.
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
        ensure!(
            used > 300.0,
            "without the mechanism the limit still holds: {used} %"
        );
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
