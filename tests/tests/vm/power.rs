//! Power: with little load, work stays on few cores, and all CPUs are used as soon as tasks wait.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    VT8_NODES, boot_for_magpie, counters, grown, json, number, shell, traced, under,
};
use serde_json::Value;

/// Two LLCs of four cores of two threads, in virtual time.
const VT16: &str = "vt16";

/// Records where threads of loads begin to run.
pub const PREPARE: &str = "mount -t tracefs none /sys/kernel/tracing 2>/dev/null; \
    cd /sys/kernel/tracing && echo 0 > tracing_on && \
    echo 'next_comm == \"magpie-load\"' > events/sched/sched_switch/filter && \
    echo 1 > events/sched/sched_switch/enable";

/// A machine, and a load of frames that keeps about 15 % of it busy.
struct Machine {
    name: &'static str,
    /// How many CPUs a core has; their numbers are neighbours.
    threads: u32,
    cores: usize,
    frames: &'static str,
}

/// Frames that keep about 15 % of 16 CPUs busy.
pub const FRAMES_OF_16: &str =
    "magpie-load frames --clients 16 --draw-operations 190000 --compose-operations 2000";

const MACHINES: [Machine; 2] = [
    Machine {
        name: VT16,
        threads: 2,
        cores: 8,
        frames: FRAMES_OF_16,
    },
    Machine {
        name: VT8_NODES,
        threads: 1,
        cores: 8,
        frames: "magpie-load frames --clients 8 --draw-operations 75000 --compose-operations 1000",
    },
];

/// Reads the trace: when a thread began to run, and on which CPU.
pub fn read_trace(guest: &mut Guest) -> Result<Vec<(f64, u32)>> {
    let text = shell(guest, "grep -v '^#' /sys/kernel/tracing/trace")?;
    let begins = text
        .lines()
        .map(|line| traced(line).with_context(|| format!("read {line:?}")));
    begins.collect()
}

/// For how long cores are counted.
pub const SECONDS: u64 = 5;

/// Returns on how many cores the load ran in the median second, and in each.
pub fn cores_in_seconds(begins: &[(f64, u32)], threads: u32) -> Result<(usize, Vec<usize>)> {
    let mut seconds: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    let (first, _) = begins.first().context("the load never ran")?;
    for (at, cpu) in begins {
        let second = (at - first) as u64;
        seconds.entry(second).or_default().insert(cpu / threads);
    }
    let whole = seconds.range(..SECONDS).map(|(_, cores)| cores.len());
    let whole: Vec<_> = whole.collect();
    let mut sorted = whole.clone();
    sorted.sort();
    let median = *sorted.get(sorted.len() / 2).context("the load never ran")?;
    Ok((median, whole))
}

/// Returns on how many cores the load ran in the median second, and how many frames were missed.
/// Prints both. The median, because the mechanism may use all cores for a second now and then: that
/// is how it learns how many are too few.
fn cores_touched(guest: &mut Guest, machine: &Machine, name: &str) -> Result<(usize, f64)> {
    let script = format!(
        "cd /sys/kernel/tracing; (sleep 3; echo > trace; echo 1 > tracing_on; sleep {SECONDS}; \
         echo 0 > tracing_on) & {} --seconds {} --json; code=$?; wait; [ $code = 0 -o $code = 2 ]",
        machine.frames,
        SECONDS + 4
    );
    let told = json(guest, &script)?;
    let (touched, whole) = cores_in_seconds(&read_trace(guest)?, machine.threads)?;
    println!("{}, {name}: {whole:?} cores; {told}", machine.name);
    Ok((touched, number(&told, "/missed")?))
}

/// Starts hogs while the machine uses few cores. Fails unless all CPUs run some soon after them.
fn a_burst_opens_all(guest: &mut Guest, machine: &Machine, within: f64) -> Result<()> {
    let hogs = 2 * machine.cores * machine.threads as usize;
    // All wake at the same moment, because starting so many takes longer than what is measured. Each
    // must have its name before: the trace knows a hog by it, when the CPU switches to the hog.
    let script = format!(
        "cd /sys/kernel/tracing; pids=; for i in $(seq {hogs}); do \
         magpie-load burn >/dev/null 2>&1 & pids=\"$pids $!\"; done; for pid in $pids; do \
         until read name < /proc/$pid/comm && [ $name = magpie-load ]; do sleep 0.01; done; done; \
         kill -STOP $pids; sleep 4; \
         echo > trace; echo 1 > tracing_on; kill -CONT $pids; sleep 0.2; echo 0 > tracing_on; \
         kill $pids; wait"
    );
    shell(guest, &script)?;
    let mut first: BTreeMap<u32, f64> = BTreeMap::new();
    for (at, cpu) in read_trace(guest)? {
        first.entry(cpu).or_insert(at);
    }
    let mut times: Vec<_> = first.values().copied().collect();
    times.sort_by(f64::total_cmp);
    let begin = times.first().context("no hog ran")?;
    let all = times.last().context("no hog ran")? - begin;
    println!(
        "{}: a burst used {} CPUs within {:.1} ms",
        machine.name,
        first.len(),
        all * 1e3
    );
    ensure!(
        first.len() == machine.cores * machine.threads as usize,
        "{first:?}"
    );
    ensure!(all <= within, "{first:?}");
    Ok(())
}

/// How often the number of cores may change in nine seconds of such a load. Each number that is too
/// low causes two changes: all cores, and after a second one core more. 3 were seen.
const CHANGES: u64 = 8;

fn saves_on(machine: &Machine) -> Result<()> {
    let mut guest = boot_for_magpie(machine.name, |_| {})?;
    shell(&mut guest, PREPARE)?;
    let (eevdf, missed) = cores_touched(&mut guest, machine, "eevdf")?;
    for (option, share, within) in [
        ("--power saver", 0.7, 0.030),
        ("--power balanced", 1.0, 0.020),
        ("--power performance", 2.0, 0.020),
    ] {
        under(&mut guest, &format!("scx_magpie {option}"), |guest| {
            let before = counters(guest)?;
            let (touched, also_missed) = cores_touched(guest, machine, option)?;
            let status = json(guest, "scx_magpie preferred --json")?;
            ensure!(
                touched as f64 <= share * eevdf as f64,
                "{option} touched {touched}: {status}"
            );
            let after = counters(guest)?;
            let changes = grown(&before, &after, "power_change")?;
            println!(
                "{}, {option}: {changes} changes, {} openings",
                machine.name,
                grown(&before, &after, "power_open")?
            );
            ensure!(changes <= CHANGES, "{option}: {changes} changes");
            ensure!(
                also_missed <= missed,
                "{option} missed {also_missed} frames"
            );
            let saves = status["power_rules"] == 1;
            ensure!(saves || option != "--power saver", "{status}");
            ensure!(!saves || option != "--power performance", "{status}");
            a_burst_opens_all(guest, machine, within)
        })?;
    }
    guest.into_guest().shutdown()
}

#[test]
fn little_load_stays_on_few_cores_of_two_llcs() -> Result<()> {
    saves_on(&MACHINES[0])
}

#[test]
fn little_load_stays_on_few_cores_of_two_nodes() -> Result<()> {
    saves_on(&MACHINES[1])
}

/// The host gives all CPUs. While trace events are switched, CPUs run with interrupts off, and some ticks
/// come late: of two CPUs that were used, one was withheld for that, and nothing opened the others.
#[test]
fn late_ticks_on_few_cores_do_not_look_like_a_host_that_gives_less() -> Result<()> {
    let events = [
        "sched/sched_switch",
        "sched/sched_wakeup",
        "power/cpu_idle",
        "ipi/ipi_send_cpu",
        "irq_vectors/reschedule_entry",
    ]
    .map(|event| format!("echo 1 > events/{event}/enable;"));
    let round = format!(
        "cd /sys/kernel/tracing; sleep 2; {} pids=; for i in $(seq 16); do \
         magpie-load burn >/dev/null 2>&1 & pids=\"$pids $!\"; done; kill -STOP $pids; sleep 0.2; \
         kill -9 $pids; wait; echo 0 > events/enable; scx_magpie preferred --json",
        events.concat()
    );
    let mut guest = boot_for_magpie(VT8_NODES, |_| {})?;
    shell(
        &mut guest,
        "mount -t tracefs none /sys/kernel/tracing; \
         echo 20000 > /sys/kernel/tracing/buffer_size_kb",
    )?;
    under(&mut guest, "scx_magpie --power saver", |guest| {
        for _ in 0..4 {
            let status = json(guest, &round)?;
            ensure!(status["changes"] == 0, "{status}");
        }
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// Sets the energy-performance preference, in a file that stands in for the driver's: the guest has
/// no driver for frequencies, and waits.
fn prefer_within(guest: &mut Guest, preference: &str, seconds: u32) -> Result<()> {
    let file = format!("{POLICIES}/policy0/energy_performance_preference");
    shell(
        guest,
        &format!("echo {preference} > {file}; sleep {seconds}"),
    )
    .map(|_| ())
}

/// Sets the preference, and returns the status after `--power auto` has read it.
fn prefer(guest: &mut Guest, preference: &str) -> Result<Value> {
    prefer_within(guest, preference, 15)?;
    json(guest, "scx_magpie preferred --json")
}

/// Where the kernel has the CPUs' frequencies.
const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";

#[test]
fn auto_follows_the_preference_while_it_runs() -> Result<()> {
    let mut guest = boot_for_magpie(VT8_NODES, |_| {})?;
    shell(
        &mut guest,
        &format!(
            "mount -t tmpfs none {POLICIES} && mkdir {POLICIES}/policy0 && \
             echo balance_power > {POLICIES}/policy0/energy_performance_preference"
        ),
    )?;
    // What saves power is loaded: the level changes, and nothing starts anew.
    under(&mut guest, "scx_magpie", |guest| {
        for (preference, level, cpus) in [
            ("power", "saver", "0-1"),
            ("performance", "performance", "0-7"),
            ("balance_power", "balanced", "0-1"),
        ] {
            let status = prefer(guest, preference)?;
            ensure!(
                status["power"] == level && status["preferred"] == cpus,
                "{preference}: {status}"
            );
        }
        prefer(guest, "performance").map(|_| ())
    })?;
    // Nothing is: it starts anew, once. The verifier takes long in virtual time.
    let count = "cat /sys/kernel/sched_ext/enable_seq";
    guest.start_scheduler(&["scx_magpie".into()])?;
    let before: u64 = shell(&mut guest, count)?.trim().parse()?;
    let status = prefer(&mut guest, "performance")?;
    ensure!(status["power_rules"] == 0, "{status}");
    prefer_within(&mut guest, "power", 60)?;
    let status = json(&mut guest, "scx_magpie preferred --json")?;
    let after: u64 = shell(&mut guest, count)?.trim().parse()?;
    ensure!(
        status["power"] == "saver" && status["preferred"] == "0-1" && after == before + 1,
        "enabled {before} times, then {after}: {status}"
    );
    let exit = guest.stop_scheduler()?;
    ensure!(exit.code == 0, "{exit:?}");
    guest.into_guest().shutdown()
}
