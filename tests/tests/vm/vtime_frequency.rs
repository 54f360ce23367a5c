//! A machine in virtual time whose kernel sets the frequencies of its CPUs: they run at the speed
//! that the kernel's driver asks for, and count cycles as it expects.

use anyhow::{Context, Result, ensure};
use magpie_lab::{Guest, Machine, selfcheck};
use magpie_tests::scheduler::{PATIENCE, shell};
use magpie_tests::{boot, run_batch};

/// Two LLCs of four cores of two threads, 800 to 3200 MHz.
const MACHINE: &str = "vt16freq";

/// Where the kernel has the CPUs' frequencies.
const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";

/// The same without SMT, and the cores of the second LLC are slow: 800 to 2000 MHz.
const HYBRID: &str = "vt8hybrid";

/// Sets the frequency of all CPUs.
fn set(guest: &mut Guest, mhz: u32) -> Result<()> {
    let script = format!(
        "for policy in {POLICIES}/policy*; do echo performance > $policy/scaling_governor; \
         echo {mhz}000 > $policy/scaling_max_freq; done"
    );
    shell(guest, &script).map(|_| ())
}

/// Returns for how long all CPUs were busy at a frequency.
fn busy_ns(guest: &Guest, mhz: u32) -> Result<i64> {
    let fidelity = guest.fidelity()?.context("a machine in virtual time")?;
    Ok(fidelity.busy_ns().get(&mhz).copied().unwrap_or(0))
}

#[test]
fn a_cpu_has_the_speed_of_its_frequency() -> Result<()> {
    let mut guest = boot(MACHINE, |_| {})?;
    let machine = Machine::find(MACHINE)?;
    let check = selfcheck::run(&mut guest, &machine, PATIENCE)?;
    ensure!(check.holds, "{check:?}");

    let time = machine.virtual_time.as_ref().context("virtual time")?;
    let most = time.frequency.context("frequencies")?.max_mhz;
    for mhz in [800, 1600] {
        set(&mut guest, mhz)?;
        let before = busy_ns(&guest, mhz)?;
        let mips = time.mips * f64::from(mhz) / f64::from(most);
        // Exits with 1 unless loops take the predicted time within 1 %. The window bounds how long the
        // kernel takes to answer an interrupt, too.
        let window = time.window_ns * u64::from(most / mhz);
        let check = shell(
            &mut guest,
            &format!("vtime-check {mips} {window} {}", time.smt_factor),
        )?;
        println!("{mhz} MHz: {check}");
        let counted = shell(
            &mut guest,
            &format!(
                "taskset -c 6 sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; \
             cat {POLICIES}/policy6/scaling_cur_freq'"
            ),
        )?;
        let counted: f64 = counted.trim().parse()?;
        ensure!(
            (counted / 1e3 - f64::from(mhz)).abs() < 1.0,
            "by its cycles CPU 6 runs at {counted} kHz, not at {mhz} MHz"
        );
        let busy = busy_ns(&guest, mhz)? - before;
        ensure!(busy > 1_000_000_000, "CPUs had {mhz} MHz for {busy} ns");
    }
    guest.into_guest().shutdown()
}

/// A CPU that is busy for a part of the time gets a low frequency of the kernel's own scheduler, and a
/// hog the highest. That needs the counters of cycles: without them schedutil raises a frequency by
/// a quarter at a time.
#[test]
fn schedutil_follows_the_load_and_a_deterministic_machine_repeats_it() -> Result<()> {
    let mut machine = Machine::find(MACHINE)?;
    let time = machine.virtual_time.as_mut().context("virtual time")?;
    time.deterministic = true;
    let job = "cd /sys/devices/system/cpu/cpufreq; sleep 0.2; \
        taskset -c 2 sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; \
        cat policy2/scaling_cur_freq'; \
        mkfifo /tmp/never; \
        taskset -c 4 sh -c 'exec 3<>/tmp/never; \
        for i in 1 2 3 4 5 6 7 8 9 10 11; do \
        read -t 0.05 x <&3; read x < policy4/scaling_cur_freq; echo $x; done'; \
        cat policy*/scaling_cur_freq; cat /proc/uptime";
    let first = run_batch(&machine, job)?;
    let second = run_batch(&machine, job)?;
    println!("{}", first.output);
    let lines = first.output.lines();
    let khz: Vec<f64> = lines.filter_map(|line| line.trim().parse().ok()).collect();
    ensure!(khz.len() == 28, "{}", first.output);
    ensure!(khz[0] > 3_190_000.0, "a hog had {} kHz", khz[0]);
    // The kernel guesses the utilization of a process that begins, so the first looks may see more. The
    // shell waits by itself, because each `sleep` would be such a process.
    let mut light = khz[1..12].to_vec();
    light.sort_by(f64::total_cmp);
    ensure!(light[5] < 1_000_000.0, "a light load had {light:?} kHz");
    ensure!(first.code == 0, "{}", first.output);
    assert_eq!(first.output, second.output);
    assert_eq!(first.fidelity.vcpus, second.fidelity.vcpus);
    Ok(())
}

/// Runs a loop of the shell on a CPU, and returns the seconds that it took and the MHz that the CPU
/// had at its end, by its cycles.
fn loop_on(guest: &mut Guest, cpu: u32) -> Result<(f64, f64)> {
    let script = format!(
        "taskset -c {cpu} sh -c 'run() {{ i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; }}; run; \
         read from rest < /proc/uptime; run; read to rest < /proc/uptime; \
         echo $from $to $(cat {POLICIES}/policy{cpu}/scaling_cur_freq)'"
    );
    let told = shell(guest, &script)?;
    let told: Vec<f64> = told
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    ensure!(told.len() == 3, "{told:?}");
    Ok((told[1] - told[0], told[2] / 1e3))
}

/// The kernel learns from the machine which of its CPUs are slow, and by how much, as from a hybrid
/// processor. The self-check takes the kernel's word for it.
#[test]
fn slow_cpus_are_slower_by_what_the_kernel_says() -> Result<()> {
    let mut guest = boot(HYBRID, |_| {})?;
    let check = selfcheck::run(&mut guest, &Machine::find(HYBRID)?, PATIENCE)?;
    ensure!(check.holds, "{check:?}");

    let told = shell(
        &mut guest,
        &format!(
            "cat /sys/devices/system/cpu/cpu[0-7]/cpu_capacity {POLICIES}/policy?/cpuinfo_max_freq"
        ),
    )?;
    let told: Vec<u32> = told
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [fast, slow] = [(1024, 3_200_000), (499, 2_000_000)].map(|kind| [kind; 4]);
    let kinds = [fast, slow].concat();
    let (capacities, khz): (Vec<u32>, Vec<u32>) = kinds.into_iter().unzip();
    assert_eq!(told, [capacities, khz].concat());

    let (fast, at_fast) = loop_on(&mut guest, 2)?;
    let (slow, at_slow) = loop_on(&mut guest, 6)?;
    println!("CPU 2: {fast} s at {at_fast} MHz, CPU 6: {slow} s at {at_slow} MHz");
    ensure!(
        (at_fast - 3200.0).abs() < 10.0 && (at_slow - 2000.0).abs() < 10.0,
        "by their cycles the CPUs run at {at_fast} and {at_slow} MHz"
    );
    let ratio = slow / fast;
    ensure!(
        (ratio / (1024.0 / 499.0) - 1.0).abs() < 0.03,
        "the slow CPU took {ratio} times as long"
    );
    ensure!(
        busy_ns(&guest, 2000)? > 500_000_000,
        "{:?}",
        guest.fidelity()?
    );
    guest.into_guest().shutdown()
}
