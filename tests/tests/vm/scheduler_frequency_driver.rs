//! Frequency, by what it is for: on a machine whose kernel sets frequencies, CPUs run as fast as
//! their tasks need, and no faster.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{add_tools, boot_for_magpie, shell, traced, under};

/// Two LLCs of four cores of two threads, in virtual time.
const MACHINE: &str = "vt16freq";

/// A machine whose CPUs 4 to 7 are slow, and their highest frequency in MHz.
const HYBRID: &str = "vt8hybrid";
const MOST_OF_SLOW: u32 = 2000;

/// The lowest and the highest frequency of both, in MHz.
const LEAST: u32 = 800;
const MOST: u32 = 3200;

/// The guest's tick, in seconds, and what its work and the transition take.
const TICK: f64 = 0.004;
const SLACK: f64 = 0.000_6;

/// Prepares the trace: each change of a frequency, and each switch from the idle task.
///
/// The guest's agent, and with it all that it starts, stays on CPU 0; loads name their CPUs.
const PREPARE: &str = "mount -t tracefs none /sys/kernel/tracing 2>/dev/null; \
    cd /sys/kernel/tracing && echo 0 > tracing_on && \
    echo 'prev_pid == 0' > events/sched/sched_switch/filter && \
    echo 1 > events/sched/sched_switch/enable && echo 1 > events/power/cpu_frequency/enable && \
    taskset -pc 0 1";

/// A real-time task naps and runs on CPU 2 for a second.
const AFTER_REAL_TIME: &str = "cyclictest -q -t 1 -a 2 --mainaffinity 0 -p 50 -i 5000 -D 1";

/// Returns for how long a CPU was busy, by its frequency.
fn busy(guest: &Guest, cpu: usize) -> Result<BTreeMap<u32, i64>> {
    let fidelity = guest.fidelity()?.context("a machine in virtual time")?;
    let vcpu = fidelity.vcpus.get(cpu).context("the CPU")?;
    let frequency = vcpu.frequency.as_ref().context("frequencies")?;
    Ok(frequency.busy_ns.clone())
}

/// Returns for how long a CPU was busy in a while, in milliseconds by frequency. What runs meanwhile
/// must not end by itself: the guest's time goes on while the host is busy elsewhere.
fn busy_now(guest: &mut Guest, cpu: usize, seconds: f64) -> Result<BTreeMap<u32, f64>> {
    let before = busy(guest, cpu)?;
    shell(guest, &format!("sleep {seconds}"))?;
    let after = busy(guest, cpu)?;
    let since = |(mhz, ns): (&u32, &i64)| {
        let ms = (ns - before.get(mhz).unwrap_or(&0)) as f64 / 1e6;
        (ms > 0.0).then_some((*mhz, ms))
    };
    Ok(after.iter().filter_map(since).collect())
}

/// Returns how much of the time a CPU was at these frequencies.
fn share(busy: &BTreeMap<u32, f64>, mhz: impl std::ops::RangeBounds<u32>) -> f64 {
    busy.range(mhz).map(|(_, ms)| ms).sum::<f64>() / busy.values().sum::<f64>()
}

/// Starts a load, which ends when it is killed, and returns at which frequencies its CPU ran once it
/// had run for a second and a half.
fn frequencies_of(guest: &mut Guest, load: &str, cpu: usize) -> Result<BTreeMap<u32, f64>> {
    let load = format!("({load} >/dev/null 2>&1 &) ; sleep 1.5");
    shell(guest, &load)?;
    let busy = busy_now(guest, cpu, 0.5)?;
    shell(guest, "killall magpie-load; sleep 1")?;
    Ok(busy)
}

/// A light load on CPU 2: each 10 ms it runs for about 1 ms at the highest frequency.
fn light(guest: &mut Guest, before: &str) -> Result<BTreeMap<u32, f64>> {
    light_on(guest, before, 2)
}

/// The same load on another CPU.
fn light_on(guest: &mut Guest, before: &str, cpu: usize) -> Result<BTreeMap<u32, f64>> {
    let load = "magpie-load audio --period-us 10000 --operations 32000 --seconds 3000";
    frequencies_of(guest, &format!("{before} taskset -c {cpu} {load}"), cpu)
}

/// A CPU hog on CPU 6.
fn hog(guest: &mut Guest, before: &str) -> Result<BTreeMap<u32, f64>> {
    frequencies_of(guest, &format!("{before} taskset -c 6 magpie-load burn"), 6)
}

/// Returns how long after it left idle CPU 6 had asked for the highest frequency, for a hog.
fn seconds_to_the_highest(guest: &mut Guest) -> Result<f64> {
    let trace = shell(
        guest,
        "cd /sys/kernel/tracing; echo > trace; echo 1 > tracing_on; \
         taskset -c 6 timeout 0.3 magpie-load burn >/dev/null 2>&1; echo 0 > tracing_on; \
         grep -v '^#' trace",
    )?;
    let mut busy = None;
    for line in trace.lines() {
        let (at, cpu) = traced(line).with_context(|| format!("read {line:?}"))?;
        if cpu == 6 && line.contains(" sched_switch: ") {
            busy = Some(at);
        }
        if line.contains(&format!("cpu_frequency: state={MOST}000 cpu_id=6")) {
            return Ok(at - busy.context("the CPU never left idle")?);
        }
    }
    anyhow::bail!("a hog never had {MOST} MHz: {trace}")
}

/// Two hogs end at once, so the timer of one CPU lowers the target of the other, whose kernel does
/// not know that. What wakes there later, twice a second, must not run at the frequency of the hog.
fn a_target_that_another_cpu_set_becomes_a_frequency(guest: &mut Guest) -> Result<()> {
    let napping = "for cpu in 4 6 8; do (cyclictest -q -t 1 -a $cpu --mainaffinity 0 --policy=other \
         -i 500000 -D 3000 >/dev/null &) ; done; sleep 0.2; \
         for cpu in 4 6 8; do (taskset -c $cpu timeout 0.2 magpie-load burn >/dev/null 2>&1 &) ; done; \
         sleep 1.4";
    shell(guest, napping)?;
    for cpu in [4, 6, 8] {
        // The first wakeup may still find it, and tells the governor.
        let busy = busy_now(guest, cpu, 1.0)?;
        println!("CPU {cpu}, which naps: {busy:?}");
        ensure!(share(&busy, ..MOST / 2) > 0.9, "CPU {cpu}: {busy:?}");
    }
    shell(guest, "killall cyclictest; sleep 1").map(|_| ())
}

#[test]
fn cpus_run_as_fast_as_their_tasks_need() -> Result<()> {
    let mut guest = boot_for_magpie(MACHINE, add_tools)?;
    shell(&mut guest, PREPARE)?;
    // Loaded by itself, because the machine has schedutil.
    under(&mut guest, "scx_magpie", |guest| {
        let took = seconds_to_the_highest(guest)?;
        println!("a hog had the highest frequency after {:.2} ms", took * 1e3);
        ensure!(took <= 2.0 * TICK + SLACK, "a hog took {took} s");

        let busy = hog(guest, "")?;
        println!("a hog: {busy:?}");
        ensure!(share(&busy, MOST..) > 0.99, "a hog: {busy:?}");
        let busy = light(guest, "")?;
        println!("a light load: {busy:?}");
        ensure!(share(&busy, ..=1000) > 0.9, "a light load: {busy:?}");

        let busy = hog(guest, "uclampset -M 256")?;
        println!("a hog with a maximum of 256: {busy:?}");
        // A quarter, and the quarter that the governor adds to a target.
        ensure!(
            share(&busy, ..=1000) > 0.98,
            "a hog of at most 256: {busy:?}"
        );
        let busy = light(guest, "uclampset -m 512")?;
        println!("a light load with a minimum of 512: {busy:?}");
        ensure!(share(&busy, MOST / 2..) > 0.98, "at least 512: {busy:?}");

        a_target_that_another_cpu_set_becomes_a_frequency(guest)?;

        shell(guest, AFTER_REAL_TIME)?;
        let busy = light(guest, "")?;
        println!("after a real-time task, a light load: {busy:?}");
        ensure!(share(&busy, ..=1000) > 0.9, "after real time: {busy:?}");
        Ok(())
    })?;
    under(&mut guest, "scx_magpie --no-frequency", |guest| {
        // The governor is called for real-time tasks only: a CPU keeps whatever frequency it has.
        let (hog, light) = (self::hog(guest, "")?, self::light(guest, "")?);
        println!("without the mechanism a hog: {hog:?}, a light load: {light:?}");
        // As a real-time task leaves it, however little there is to do.
        shell(guest, AFTER_REAL_TIME)?;
        let light = self::light(guest, "")?;
        println!("after a real-time task, a light load: {light:?}");
        ensure!(share(&light, MOST..) > 0.9, "without: {light:?}");
        Ok(())
    })?;
    // The kernel's own scheduler, for comparison.
    let busy = light(&mut guest, "")?;
    println!("a light load under EEVDF: {busy:?}");
    ensure!(share(&busy, ..=LEAST + 400) > 0.9, "under EEVDF: {busy:?}");
    guest.into_guest().shutdown()
}

/// What a slow CPU is asked for counts by the capacity of the fast ones: all that it has is 499 of 1024.
#[test]
fn slow_cpus_run_as_fast_as_their_tasks_need() -> Result<()> {
    let mut guest = boot_for_magpie(HYBRID, add_tools)?;
    shell(&mut guest, PREPARE)?;
    under(&mut guest, "scx_magpie", |guest| {
        let busy = hog(guest, "")?;
        println!("a hog on a slow CPU: {busy:?}");
        ensure!(share(&busy, MOST_OF_SLOW..) > 0.99, "a hog: {busy:?}");
        // It needs a fifth of the slow CPU at its highest frequency.
        let busy = light_on(guest, "", 6)?;
        println!("a light load on a slow CPU: {busy:?}");
        ensure!(share(&busy, ..=1000) > 0.9, "a light load: {busy:?}");
        // A quarter of the slow CPU, and the quarter that the governor adds.
        let busy = hog(guest, "uclampset -M 125")?;
        println!("a hog with a maximum of 125: {busy:?}");
        ensure!(share(&busy, ..=LEAST) > 0.98, "at most 125: {busy:?}");
        let busy = light_on(guest, "uclampset -m 400", 6)?;
        println!("a light load with a minimum of 400: {busy:?}");
        ensure!(share(&busy, 1600..) > 0.98, "at least 400: {busy:?}");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
