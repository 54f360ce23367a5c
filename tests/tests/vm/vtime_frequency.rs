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
        taskset -c 4 sh -c 'for i in 1 2 3 4 5 6 7 8 9 10 11; do sleep 0.02; \
        read x < policy4/scaling_cur_freq; echo $x; done'; cat policy*/scaling_cur_freq; cat /proc/uptime";
    let first = run_batch(&machine, job)?;
    let second = run_batch(&machine, job)?;
    println!("{}", first.output);
    let lines = first.output.lines();
    let khz: Vec<f64> = lines.filter_map(|line| line.trim().parse().ok()).collect();
    ensure!(khz.len() == 28, "{}", first.output);
    ensure!(khz[0] > 3_190_000.0, "a hog had {} kHz", khz[0]);
    // The kernel guesses the utilization of a process that begins, so a single look may see more.
    let mut light = khz[1..12].to_vec();
    light.sort_by(f64::total_cmp);
    ensure!(light[5] < 1_000_000.0, "a light load had {light:?} kHz");
    ensure!(first.code == 0, "{}", first.output);
    assert_eq!(first.output, second.output);
    assert_eq!(first.fidelity.vcpus, second.fidelity.vcpus);
    Ok(())
}
