//! The table of docs/mechanisms/power.md: frames of several clients on 16 CPUs whose kernel sets their
//! frequencies, under each scheduler in turn, in one guest.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use magpie_lab::{Guest, files};
use magpie_tests::scheduler::{boot_for_magpie, json, number, shell, words};

use super::power::{FRAMES_OF_16, PREPARE, SECONDS, cores_in_seconds, read_trace};

/// Two LLCs of four cores of two threads, 800 to 3200 MHz.
const MACHINE: &str = "vt16freq";
const CPUS: f64 = 16.0;
const THREADS: u32 = 2;

/// Voltages of a processor at parts of its highest frequency: 600 to 1600 MHz of "Enhanced Intel
/// SpeedStep Technology for the Intel Pentium M Processor", Intel 2004, table 2.
const VOLTS: [(f64, f64); 6] = [
    (600.0 / 1600.0, 0.956),
    (800.0 / 1600.0, 1.036),
    (1000.0 / 1600.0, 1.164),
    (1200.0 / 1600.0, 1.276),
    (1400.0 / 1600.0, 1.420),
    (1.0, 1.484),
];

/// Returns the voltage at a part of the highest frequency. Below the table it is the least one.
fn volts(part: f64) -> f64 {
    for pair in VOLTS.windows(2) {
        let [(from, low), (to, high)] = [pair[0], pair[1]];
        if part <= to {
            let way = ((part - from) / (to - from)).max(0.0);
            return low + way * (high - low);
        }
    }
    VOLTS[VOLTS.len() - 1].1
}

/// Returns for how many nanoseconds all CPUs were not halted so far, by their frequency in MHz.
fn busy(guest: &Guest) -> Result<BTreeMap<u32, i64>> {
    let fidelity = guest.fidelity()?.context("a machine in virtual time")?;
    Ok(fidelity.busy_ns())
}

/// Runs the load and prints the scheduler's line of the table.
fn measure(guest: &mut Guest, name: &str) -> Result<()> {
    let script = format!(
        "cd /sys/kernel/tracing; (sleep 3; echo > trace; echo 1 > tracing_on; \
         cat /proc/uptime > /tmp/from; sleep {SECONDS}; cat /proc/uptime > /tmp/to; \
         echo 0 > tracing_on) & {FRAMES_OF_16} --seconds {} --json; code=$?; wait; \
         [ $code = 0 -o $code = 2 ]",
        SECONDS + 4
    );
    let before = busy(guest)?;
    let told = json(guest, &script)?;
    let after = busy(guest)?;
    let times = shell(guest, "cat /tmp/from /tmp/to")?;
    let times: Vec<f64> = times
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    ensure!(times.len() == 4, "{times:?}");
    let idle = (times[3] - times[1]) / ((times[2] - times[0]) * CPUS);
    let (cores, _) = cores_in_seconds(&read_trace(guest)?, THREADS)?;
    let most = f64::from(*after.keys().last().context("a frequency")?);
    let [mut seconds, mut cycles, mut energy] = [0.0; 3];
    for (mhz, total) in &after {
        let spent = (total - before.get(mhz).unwrap_or(&0)) as f64 / 1e9;
        let part = f64::from(*mhz) / most;
        seconds += spent;
        cycles += spent * f64::from(*mhz);
        energy += spent * part * (volts(part) / volts(1.0)).powi(2);
    }
    println!(
        "| {name} | {:.1} % | {} | {:.0} MHz | {energy:.2} | {} | {:.1} ms | {:.1} ms |",
        idle * 100.0,
        cores,
        cycles / seconds,
        number(&told, "/missed")?,
        number(&told, "/latency_us/p50")? / 1e3,
        number(&told, "/latency_us/max")? / 1e3,
    );
    Ok(())
}

/// Needs `magpie bench peers install scx_cosmos scx_lavd`.
#[test]
#[ignore = "needs schedulers of others, and minutes: makes a table of docs/mechanisms/power.md"]
fn power_table_with_peers() -> Result<()> {
    let tree = files::source_tree().context("the source tree")?;
    let peers = ["scx_cosmos", "scx_lavd"].map(|peer| tree.join("target/peers/bin").join(peer));
    let mut guest = boot_for_magpie(MACHINE, |options| options.files.extend(peers))?;
    shell(&mut guest, PREPARE)?;
    println!("| scheduler | idle | cores | frequency | energy | missed | median | latest |");
    measure(&mut guest, "EEVDF")?;
    for command in [
        "scx_magpie --power performance",
        "scx_magpie --power balanced",
        "scx_magpie --power saver",
        "scx_magpie --power performance --no-frequency",
        "scx_cosmos",
        "scx_lavd",
    ] {
        guest.start_scheduler(&words(command))?;
        measure(&mut guest, command)?;
        guest.stop_scheduler()?;
    }
    guest.into_guest().shutdown()
}
