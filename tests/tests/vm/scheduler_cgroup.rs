//! cpu-weight: cgroups get their shares. The bar is 5 % of the share over ten seconds, for siblings
//! of weights 100, 200 and 400 full of CPU hogs, two levels deep, on one, two and eight CPUs. A
//! cgroup with many tasks gets no more than one with few. The test prints the figures of the
//! kernel's own scheduler too. Without the mechanism each task gets the same, whatever its cgroup.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    MAGPIE, VT8, boot_for_magpie, counters, grown, number, shell, under, usage_ms,
};

const BAR_PERCENT: f64 = 5.0;

/// A cgroup below the root with CPU hogs. One without hogs has children.
struct Group {
    path: &'static str,
    weight: &'static str,
    hogs: u32,
}

const fn group(path: &'static str, weight: &'static str, hogs: u32) -> Group {
    Group { path, weight, hogs }
}

/// Weights 100, 200, 400 with the same number of tasks.
const SIBLINGS: [Group; 3] = [
    group("a", "100", 6),
    group("b", "200", 6),
    group("c", "400", 6),
];

/// The same one level deeper, beside a cgroup with the weight of their parent.
const DEEP: [Group; 6] = [
    group("p", "100", 0),
    group("q", "100", 0),
    group("p/a", "100", 6),
    group("p/b", "200", 6),
    group("p/c", "400", 6),
    group("q/d", "100", 6),
];
const DEEP_SHARES: [f64; 6] = [0.5, 0.5, 1.0 / 14.0, 2.0 / 14.0, 4.0 / 14.0, 0.5];

/// Two levels. In each pair the lighter cgroup has more tasks.
const NESTED: [Group; 6] = [
    group("p", "100", 0),
    group("q", "300", 0),
    group("p/a", "100", 5),
    group("p/b", "300", 2),
    group("q/c", "200", 2),
    group("q/d", "100", 7),
];
const NESTED_SHARES: [f64; 6] = [
    0.25,
    0.75,
    0.25 * 0.25,
    0.25 * 0.75,
    0.75 * 2.0 / 3.0,
    0.75 / 3.0,
];

/// Returns the CPU time of each cgroup within `seconds`, in seconds. Before, the shares have two
/// seconds to settle.
fn run(guest: &mut Guest, groups: &[Group], cpus: &str, seconds: u32) -> Result<Vec<f64>> {
    let mut start = String::from("cd /sys/fs/cgroup\n");
    for Group { path, weight, hogs } in groups {
        start += &match *weight {
            "idle" => format!("mkdir -p {path}; echo 1 > {path}/cpu.idle\n"),
            weight => format!("mkdir -p {path}; echo {weight} > {path}/cpu.weight\n"),
        };
        start += &match hogs {
            0 => format!("echo +cpu > {path}/cgroup.subtree_control\n"),
            hogs => format!(
                "(echo 0 > {path}/cgroup.procs; exec magpie-load hogs --count {hogs} --cpus {cpus} \
                 --seconds {}) > /dev/null &\n",
                seconds + 3
            ),
        };
    }
    let paths: Vec<_> = groups.iter().map(|group| group.path).collect();
    // One process reads all files: between two processes on a busy CPU, time passes that only the
    // later files count.
    let files: Vec<_> = paths.iter().map(|p| format!("{p}/cpu.stat")).collect();
    let read = format!("grep -h ^usage_usec {}", files.join(" "));
    let deepest_first: Vec<_> = paths.iter().rev().copied().collect();
    let script = format!(
        "{start}sleep 2; {read}; sleep {seconds}; {read}; wait; rmdir {}",
        deepest_first.join(" ")
    );
    let usage = usage_ms(&shell(guest, &script)?)?;
    let (before, after) = usage.split_at(groups.len());
    Ok(before
        .iter()
        .zip(after)
        .map(|(b, a)| (a - b) / 1e3)
        .collect())
}

/// Returns the largest deviation from the shares, in percent of the share. Only leaves count for
/// the sum: the time of a child is in its parent's too.
fn deviation(groups: &[Group], times: &[f64], shares: &[f64]) -> f64 {
    let leaves = || groups.iter().zip(times).filter(|(group, _)| group.hogs > 0);
    let all: f64 = leaves().map(|(_, time)| time).sum();
    times
        .iter()
        .zip(shares)
        .map(|(time, share)| 100.0 * (time / all / share - 1.0).abs())
        .fold(0.0, f64::max)
}

/// Runs the groups, prints the CPU time of each, and returns the largest deviation in percent.
fn measure(
    guest: &mut Guest,
    scheduler: &str,
    (groups, shares): (&[Group], &[f64]),
    cpus: &str,
    seconds: u32,
) -> Result<f64> {
    let times = run(guest, groups, cpus, seconds)?;
    let deviation = deviation(groups, &times, shares);
    let named: Vec<_> = groups
        .iter()
        .zip(&times)
        .map(|(group, time)| format!("{}:{}:{} {time:.3} s", group.path, group.weight, group.hogs))
        .collect();
    println!(
        "{scheduler}, CPUs {cpus}: {}; worst deviation {deviation:.2} %",
        named.join(", ")
    );
    Ok(deviation)
}

const SEVENTHS: [f64; 3] = [1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0];
const CASES: [(&str, &[Group], &[f64]); 4] = [
    ("0", &NESTED, &NESTED_SHARES),
    ("0", &DEEP, &DEEP_SHARES),
    ("0-1", &DEEP, &DEEP_SHARES),
    ("0-7", &DEEP, &DEEP_SHARES),
];

#[test]
fn cgroups_share_by_weight() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    for (cpus, groups, shares) in CASES {
        measure(&mut guest, "EEVDF", (groups, shares), cpus, 3)?;
    }

    under(&mut guest, MAGPIE, |guest| {
        for (cpus, groups, shares) in CASES {
            let off = measure(guest, MAGPIE, (groups, shares), cpus, 10)?;
            ensure!(off <= BAR_PERCENT, "CPUs {cpus}: {off} % from fair");
        }

        // A cgroup with cpu.idle leaves nearly all to the other, and does not starve.
        let pair = [group("a", "100", 2), group("b", "idle", 1)];
        let times = run(guest, &pair, "0", 5)?;
        let share = 100.0 * times[1] / (times[0] + times[1]);
        println!("cpu.idle beside a hundred: {share:.2} %");
        ensure!((0.01..3.0).contains(&share), "cpu.idle: {share} %");

        let counted = counters(guest)?;
        let (updates, ns) = (
            number(&counted, "/share_update")?,
            number(&counted, "/share_ns")?,
        );
        println!("{updates} updates of shares, {:.0} ns each", ns / updates);
        ensure!(updates > 100.0, "shares were updated {updates} times");
        Ok(())
    })?;

    // Without the mechanism the shares must be wrong, or the bar above would show nothing.
    under(&mut guest, "scx_magpie --no-cpu-weight", |guest| {
        let off = measure(guest, "without", (&NESTED, &NESTED_SHARES), "0", 2)?;
        ensure!(
            off > 10.0 * BAR_PERCENT,
            "without the mechanism the shares are right too: {off} %"
        );
        let counted = counters(guest)?;
        ensure!(counted["share_update"] == 0, "{counted}");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// A script: two threads of one process in cgroups of their own, and a cgroup that is delegated to
/// a user, whose children have weights above its own, beside another cgroup. The children together
/// must get no more than the delegated cgroup's share. The script prints the CPU time of each,
/// before and after.
const THREADED_AND_DELEGATED: &str = "cd /sys/fs/cgroup\n\
    mkdir -p t/a t/b; echo threaded > t/a/cgroup.type; echo threaded > t/b/cgroup.type\n\
    echo +cpu > t/cgroup.subtree_control; echo 400 > t/b/cpu.weight\n\
    (echo 0 > t/cgroup.procs; exec magpie-load even-out --count 2 --from 0 --hold 60) > /dev/null &\n\
    sleep 1; set -- $(ls /proc/$(cat t/cgroup.procs)/task)\n\
    echo $2 > t/a/cgroup.threads; echo $3 > t/b/cgroup.threads\n\
    mkdir d e; echo 200 > d/cpu.weight\n\
    chown 1000 d d/cgroup.procs d/cgroup.subtree_control\n\
    /usr/bin/setpriv --reuid 1000 sh -ec 'cd d; mkdir x y; echo +cpu > cgroup.subtree_control\n\
      echo 9000 > x/cpu.weight; echo 3000 > y/cpu.weight'\n\
    for g in d/x d/y e; do\n\
      (echo 0 > $g/cgroup.procs; exec magpie-load hogs --count 3 --cpus 1 --seconds 60) > /dev/null &\n\
    done\n\
    sleep 2; all='t/a/cpu.stat t/b/cpu.stat d/x/cpu.stat d/y/cpu.stat e/cpu.stat'\n\
    grep -h ^usage_usec $all; sleep 5; grep -h ^usage_usec $all; scx_magpie cgroups >&2\n\
    for g in t d e; do echo 1 > $g/cgroup.kill; done; sleep 1; rmdir t/a t/b t d/x d/y d e";

#[test]
fn threaded_and_delegated_cgroups_get_their_shares() -> Result<()> {
    let mut guest = boot_for_magpie("vt4", |options| {
        options.packages.push("util-linux".into());
    })?;
    under(&mut guest, MAGPIE, |guest| {
        let usage = usage_ms(&shell(guest, THREADED_AND_DELEGATED)?)?;
        ensure!(usage.len() == 10, "{usage:?}");
        let ran: Vec<f64> = (0..5).map(|at| usage[at + 5] - usage[at]).collect();
        println!(
            "threads {:.0?} ms, of a user {:.0?} ms, beside {:.0} ms",
            &ran[..2],
            &ran[2..4],
            ran[4]
        );
        for (ratio, fair) in [
            (ran[1] / ran[0], 4.0),
            (ran[2] / ran[3], 3.0),
            ((ran[2] + ran[3]) / ran[4], 2.0),
        ] {
            let off = 100.0 * (ratio / fair - 1.0).abs();
            ensure!(off <= BAR_PERCENT, "{ratio} instead of {fair}: {ran:?}");
        }
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// Tasks move between cgroups, weights change, and cgroups are made and removed, all under load.
#[test]
fn a_thousand_cgroups_come_and_go() -> Result<()> {
    const CHURN: &str = "cd /sys/fs/cgroup\n\
        (while :; do hackbench -g 1 -l 100; done) >/dev/null 2>&1 & load=$!\n\
        for round in 0 1 2 3 4; do\n\
          for i in $(seq 200); do\n\
            d=c$i; mkdir $d; echo $((i * 50)) > $d/cpu.weight; echo 0 > $d/cgroup.procs\n\
            [ $((i % 8)) = 0 ] && echo $load > $d/cgroup.procs\n\
          done\n\
          echo 0 > cgroup.procs; for g in c*; do while read p; do echo $p > cgroup.procs; done < $g/cgroup.procs; done\n\
          for try in 1 2 3 4 5 6 7 8 9; do\n\
            rmdir c* 2>/dev/null; ls -d c[0-9]* >/dev/null 2>&1 || break\n\
            for g in c[0-9]*; do while read p; do echo $p > cgroup.procs; done < $g/cgroup.procs; done\n\
          done\n\
          ls -d c[0-9]* 2>/dev/null && exit 1\n\
        done\n\
        kill $load; killall hackbench; true";
    let mut guest = boot_for_magpie("vt4", |_| {})?;
    under(&mut guest, MAGPIE, |guest| {
        let before = counters(guest)?;
        shell(guest, CHURN)?;
        let after = counters(guest)?;
        ensure!(grown(&before, &after, "cgroup_lumped")? == 0, "{after}");
        // Removed cgroups leave nothing behind that changes the shares of others.
        let off = measure(guest, MAGPIE, (&SIBLINGS, &SEVENTHS), "0", 3)?;
        ensure!(off <= BAR_PERCENT, "after the churn: {off} % from fair");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// A script: a thousand cgroups, two of which have hogs.
const A_THOUSAND_CGROUPS: &str = "cd /sys/fs/cgroup; for i in $(seq 1000); do mkdir c$i; done\n\
    for i in 5 999; do\n\
      (echo 0 > c$i/cgroup.procs; exec magpie-load hogs --count 4 --seconds 3) >/dev/null &\n\
    done; sleep 0.5";

/// A timer makes the updates, and nothing else runs on its CPU meanwhile. In one go, an update took
/// 1.26 ms.
#[test]
fn an_update_of_a_thousand_shares_keeps_no_cpu_for_long() -> Result<()> {
    let mut guest = boot_for_magpie("vt16", |_| {})?;
    under(&mut guest, MAGPIE, |guest| {
        shell(guest, A_THOUSAND_CGROUPS)?;
        let before = counters(guest)?;
        shell(guest, "sleep 2")?;
        let after = counters(guest)?;
        let [updates, parts, ns] = ["share_update", "share_part", "share_ns"]
            .map(|counter| grown(&before, &after, counter).map(|count| count as f64));
        let (updates, parts, ns) = (updates?, parts?, ns?);
        println!(
            "{updates} updates in {parts} parts, {:.0} us each",
            ns / parts / 1e3
        );
        ensure!(updates >= 5.0, "only {updates} updates in two seconds");
        ensure!(ns / parts < 200e3, "a part takes {} ns", ns / parts);
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
