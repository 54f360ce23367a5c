//! Preferred CPUs: tasks, interrupts and workqueues use them, no affinity changes, and interrupts
//! and workqueues are back where they were however the scheduler ends.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::TestGuest;
use magpie_tests::scheduler::{
    VT8, boot_for_magpie, counters, grown, json, set_online, shell, under, words,
};
use serde_json::Value;

/// The CPUs of everything that follows the preferred ones, by file: interrupts, and the mask of
/// unbound workqueues.
pub type Following = BTreeMap<String, String>;

/// Reads the affinity of every interrupt, and the CPUs of unbound workqueues.
pub fn following(guest: &mut Guest) -> Result<Following> {
    let script = "cd /; for file in proc/irq/*/smp_affinity_list \
                  sys/devices/virtual/workqueue/cpumask; do echo $file $(cat $file); done";
    let text = shell(guest, script)?;
    let split = |line: &str| {
        let (file, cpus) = line.split_once(' ')?;
        Some((file.to_string(), cpus.to_string()))
    };
    let all: Following = text.lines().filter_map(split).collect();
    ensure!(all.len() > 2, "no interrupts in {text}");
    Ok(all)
}

/// Fails unless the workqueue mask and some interrupts have changed, all of them to CPUs 0 and 1.
fn must_have_followed(before: &Following, now: &Following) -> Result<()> {
    let moved = now
        .iter()
        .filter(|(file, cpus)| before.get(*file) != Some(cpus));
    let mut interrupts = 0;
    for (file, cpus) in moved {
        match file.starts_with("proc/irq") {
            true => {
                interrupts += 1;
                ensure!(cpus == "0-1", "{file} contains {cpus}");
            }
            false => ensure!(
                cpus.trim_start_matches('0') == "3",
                "{file} contains {cpus}"
            ),
        }
    }
    ensure!(
        interrupts > 0 && before.values().last() != now.values().last(),
        "not everything follows: {before:?} {now:?}"
    );
    Ok(())
}

/// Returns the affinity of every task, except for threads whose affinity follows an interrupt or a
/// workqueue.
fn affinities(guest: &mut Guest) -> Result<BTreeMap<String, String>> {
    let script = "for task in /proc/[0-9]*/task/[0-9]*; do \
                  echo $task $(sed -n 's/^Name:\\|^Cpus_allowed_list:/=/p' $task/status 2>/dev/null); \
                  done";
    let text = shell(guest, script)?;
    // Workers of unbound workqueues, their rescuers, threads of interrupts.
    let follows = ["kworker/u", "kworker/R-", "irq/"];
    let mut tasks = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.split('=').map(|part| part.trim().to_string());
        let (Some(task), Some(name), Some(cpus)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if !follows.iter().any(|start| name.starts_with(start)) {
            tasks.insert(format!("{task} {name}"), cpus);
        }
    }
    ensure!(tasks.len() > 20, "too few tasks in {text}");
    Ok(tasks)
}

/// Fails unless every task that is still there has the affinity that it had before.
fn must_have_kept(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Result<()> {
    for (task, cpus) in now {
        let was = before.get(task).unwrap_or(cpus);
        ensure!(was == cpus, "{task} was allowed on {was}, now on {cpus}");
    }
    let kept = now.keys().filter(|task| before.contains_key(*task)).count();
    ensure!(kept > 20, "only {kept} tasks are the same as before");
    Ok(())
}

/// Runs `scx_magpie preferred` with options, and returns what it printed.
pub fn preferred(guest: &mut Guest, options: &str) -> Result<Value> {
    json(guest, &format!("scx_magpie preferred --json {options}"))
}

/// Starts hogs behind a command such as taskset (`prefix`), and keeps their process numbers in a
/// file. They are nice, or the tests' own commands would wait for them.
fn start_hogs(guest: &mut Guest, file: &str, count: u32, prefix: &str) -> Result<()> {
    let script = format!(
        "for i in $(seq {count}); do {prefix} sh -c 'renice 19 $$; exec magpie-load burn' \
         >/dev/null 2>&1 & echo $!; done > {file}"
    );
    shell(guest, &script).map(|_| ())
}

/// Starts hogs that may run everywhere, and one that may run on CPU 5 only. Call it after the
/// scheduler was loaded: beside hogs, loading takes a minute.
pub fn start_all_hogs(guest: &mut Guest, count: u32) -> Result<()> {
    start_hogs(guest, "/tmp/hogs", count, "")?;
    start_hogs(guest, "/tmp/pinned", 1, "taskset -c 5")
}

/// Returns the CPUs on which hogs run, in that many looks, ten milliseconds apart.
pub fn cpus_of(guest: &mut Guest, file: &str, looks: u32) -> Result<Vec<u32>> {
    let script = format!(
        "for i in $(seq {looks}); do for hog in $(cat {file}); do \
         cut -d ' ' -f 39 /proc/$hog/stat; done; sleep 0.01; done | sort -nu"
    );
    let text = shell(guest, &script)?;
    let numbers: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
    numbers.with_context(|| format!("CPUs of hogs: {text}"))
}

/// Returns the CPU time of the hogs of a file together, in clock ticks.
fn ran(guest: &mut Guest, file: &str) -> Result<u64> {
    let script = format!("for hog in $(cat {file}); do cut -d ' ' -f 14 /proc/$hog/stat; done");
    let text = shell(guest, &script)?;
    text.split_whitespace()
        .map(|ticks| ticks.parse::<u64>().with_context(|| text.clone()))
        .sum()
}

/// Fails unless both groups of hogs still run.
fn must_progress(guest: &mut Guest) -> Result<()> {
    for file in ["/tmp/hogs", "/tmp/pinned"] {
        let before = ran(guest, file)?;
        shell(guest, "sleep 1")?;
        let more = ran(guest, file)? - before;
        ensure!(more > 2, "the hogs of {file} ran {more} ticks in a second");
    }
    Ok(())
}

/// Fails unless these CPUs are preferred within two seconds. The scheduler acts on hotplug at once,
/// but on a busy host that can take a moment.
fn must_prefer(guest: &mut Guest, expected: &str) -> Result<()> {
    let mut seen = String::new();
    for _ in 0..20 {
        let status = preferred(guest, "")?;
        seen = status["preferred"].as_str().unwrap_or_default().to_string();
        if seen == expected {
            return Ok(());
        }
        shell(guest, "sleep 0.1")?;
    }
    anyhow::bail!("preferred are {seen}, not {expected}");
}

#[test]
fn tasks_interrupts_and_workqueues_use_preferred_cpus_and_no_affinity_changes() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    let before = following(&mut guest)?;
    let mut allowed = affinities(&mut guest)?;

    under(&mut guest, "scx_magpie --preferred off", |guest| {
        // More hogs than CPUs: with seven, a command beside them may move one to CPU 0 or 1 by
        // itself.
        start_all_hogs(guest, 10)?;
        allowed.extend(affinities(guest)?);
        let status = preferred(guest, "")?;
        ensure!(
            status["preferred"] == "0-7" && status["mode"] == "off",
            "{status}"
        );
        let counted = counters(guest)?;
        let status = preferred(guest, "--set 0-1")?;
        ensure!(
            status["preferred"] == "0-1" && status["mode"] == "set",
            "{status}"
        );
        // Hogs move at a tick. A vCPU that the host does not run has none, so this is many ticks.
        shell(guest, "sleep 0.3")?;
        let cpus = cpus_of(guest, "/tmp/hogs", 30)?;
        ensure!(cpus == [0, 1], "hogs run on {cpus:?}");
        let pinned = cpus_of(guest, "/tmp/pinned", 5)?;
        ensure!(
            pinned == [5],
            "the hog that may only use CPU 5 is on {pinned:?}"
        );
        must_progress(guest)?;
        must_have_followed(&before, &following(guest)?)?;
        must_have_kept(&allowed, &affinities(guest)?)?;
        let away = grown(&counted, &counters(guest)?, "backoff")?;
        ensure!(away >= 5, "{away} tasks were moved away");
        let status = preferred(guest, "")?;
        ensure!(status["moved_away"].as_u64() >= Some(5), "{status}");

        let text = shell(guest, "scx_magpie preferred")?;
        println!("{text}");
        for part in ["0-1 of 0-7", "set by the user", "an estimate"] {
            ensure!(text.contains(part), "no {part:?} in {text}");
        }
        let refused = shell(
            guest,
            "scx_magpie preferred --set 40 2>&1 && echo accepted || true",
        )?;
        ensure!(refused.contains("online are 0-7"), "{refused}");

        preferred(guest, "--set off")?;
        shell(guest, "sleep 1")?;
        let cpus = cpus_of(guest, "/tmp/hogs", 50)?;
        ensure!(
            cpus.len() >= 6,
            "with preferred CPUs off, the hogs run only on {cpus:?}"
        );
        ensure!(
            following(guest)? == before,
            "with preferred CPUs off, interrupts or workqueues are not where they were"
        );

        // Stopped while restricted.
        preferred(
            guest,
            "--set 0-1 --period 100 --high 300 --low 200 --governor step",
        )?;
        must_have_followed(&before, &following(guest)?)?;
        let knobs = preferred(guest, "")?;
        ensure!(
            knobs["period"] == 100
                && knobs["high"] == 300
                && knobs["low"] == 200
                && knobs["governor"] == "step",
            "{knobs}"
        );
        Ok(())
    })?;
    ensure!(
        following(&mut guest)? == before,
        "interrupts or workqueues are not where they were"
    );
    must_have_kept(&allowed, &affinities(&mut guest)?)?;
    guest.into_guest().shutdown()
}

#[test]
fn preferred_cpus_may_go_offline() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    under(&mut guest, "scx_magpie --preferred 1-2", |guest| {
        start_all_hogs(guest, 4)?;
        must_prefer(guest, "1-2")?;
        for _ in 0..2 {
            set_online(guest, 1, false)?;
            must_prefer(guest, "2")?;
            must_progress(guest)?;
            let cpus = cpus_of(guest, "/tmp/hogs", 10)?;
            ensure!(cpus == [2], "hogs run on {cpus:?}");
            // No preferred CPU is left online: then all online CPUs are preferred.
            set_online(guest, 2, false)?;
            must_prefer(guest, "0,3-7")?;
            must_progress(guest)?;
            set_online(guest, 1, true)?;
            must_prefer(guest, "1")?;
            set_online(guest, 2, true)?;
            must_prefer(guest, "1-2")?;
        }
        must_progress(guest)
    })?;
    guest.into_guest().shutdown()
}

/// Kills the scheduler with SIGKILL, so that it cannot put anything back.
fn kill(guest: &mut TestGuest) -> Result<()> {
    shell(guest, "kill -9 $(pidof scx_magpie)")?;
    let exit = guest.stop_scheduler()?;
    ensure!(exit.state == "disabled", "{exit:?}");
    Ok(())
}

#[test]
fn everything_is_put_back_after_a_kill_and_after_an_error() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    let before = following(&mut guest)?;
    let allowed = affinities(&mut guest)?;

    guest.start_scheduler(&words("scx_magpie --preferred 0-1"))?;
    must_have_followed(&before, &following(&mut guest)?)?;
    let refused = shell(
        &mut guest,
        "scx_magpie restore 2>&1 && echo restored || true",
    )?;
    ensure!(refused.contains("stop it first"), "{refused}");
    kill(&mut guest)?;
    must_have_followed(&before, &following(&mut guest)?).context("after kill -9")?;
    shell(&mut guest, "scx_magpie restore")?;
    ensure!(
        following(&mut guest)? == before,
        "restore did not restore all"
    );

    guest.start_scheduler(&words("scx_magpie --preferred 0-1"))?;
    kill(&mut guest)?;
    under(&mut guest, "scx_magpie --preferred off", |guest| {
        let now = following(guest)?;
        ensure!(now == before, "the next start did not restore: {now:?}");
        Ok(())
    })?;
    must_have_kept(&allowed, &affinities(&mut guest)?)?;

    // Now the kernel ends the scheduler, as after an error.
    guest.start_scheduler(&words("scx_magpie --preferred 0-1"))?;
    shell(
        &mut guest,
        "echo S > /proc/sysrq-trigger; cd /sys/kernel/sched_ext; for i in $(seq 100); do \
         [ $(cat state) = disabled ] && exit; sleep 0.1; done; cat state; exit 1",
    )?;
    guest
        .scheduler_died()?
        .context("the kernel did not end the scheduler")?;
    guest.stop_scheduler()?;
    ensure!(
        following(&mut guest)? == before,
        "after an error, interrupts or workqueues are not where they were"
    );
    shell(&mut guest, "test ! -e /run/scx_magpie/host-state.json")?;
    guest.into_guest().shutdown()
}

#[test]
fn alone_it_loads_no_other_mechanism() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    under(
        &mut guest,
        "scx_magpie --only preferred --preferred 4-7",
        |guest| {
            // Nothing that is loaded spreads them over these CPUs, and chance left one of them out of
            // twelve hogs. With so many it leaves none out.
            start_hogs(guest, "/tmp/hogs", 48, "")?;
            shell(guest, "sleep 0.5")?;
            let cpus = cpus_of(guest, "/tmp/hogs", 8)?;
            ensure!(cpus == [4, 5, 6, 7], "hogs run on {cpus:?}");
            let counters = counters(guest)?;
            ensure!(
                counters["steal_gated"] == 0,
                "the gate of stealing is loaded: {counters}"
            );
            shell(guest, "kill $(cat /tmp/hogs)").map(|_| ())
        },
    )?;
    for left_out in ["--no-preferred", "--only steal"] {
        under(&mut guest, &format!("scx_magpie {left_out}"), |guest| {
            let refused = shell(guest, "scx_magpie preferred 2>&1 && echo accepted || true")?;
            ensure!(refused.contains("not in use"), "{refused}");
            Ok(())
        })?;
    }
    guest.into_guest().shutdown()
}

/// Where no CPU is withheld, one that comes online is not, either, even if a period of the governor
/// ended without it.
#[test]
fn a_cpu_that_comes_back_is_preferred() -> Result<()> {
    let mut guest = boot_for_magpie("vt2", |_| {})?;
    under(&mut guest, "scx_magpie", |guest| {
        for _ in 0..3 {
            set_online(guest, 1, false)?;
            shell(guest, "sleep 1.3")?;
            set_online(guest, 1, true)?;
            shell(guest, "sleep 0.05")?;
            let status = preferred(guest, "")?;
            ensure!(status["preferred"] == "0-1", "{status}");
        }
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
