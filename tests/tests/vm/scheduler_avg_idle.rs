//! Stealing: a CPU's average idle time (avg_idle) is within 10 % of the truth, however its idle
//! periods end.
//!
//! The case `exec` is a fork and an exec, as when a shell starts a program: the fork ends the idle
//! period, because the kernel moves no sched_ext task at an exec. A push is not tested by itself,
//! because it ends an idle period as a steal does: the idle CPU is kicked and steals.

use anyhow::{Context, Result, ensure};
use magpie_tests::scheduler::{boot_for_magpie, json, number, under};
use serde_json::Value;

/// The scheduler's own threads stay on CPU 0: on CPU 3 each of their wakeups would end an idle
/// period.
const SCHEDULER: &str = "taskset -c 0 scx_magpie --preferred off";

/// Reads the average often, because each idle period moves it by an eighth. The test averages what
/// was read.
const READ: &str = "for i in $(seq 15); do scx_magpie cpus --json; sleep 0.01; done";

#[test]
fn the_average_is_true_however_work_arrives() -> Result<()> {
    let mut guest = boot_for_magpie("vt4", |_| {})?;
    under(&mut guest, SCHEDULER, |guest| {
        for (arrival, idle, count) in [
            ("wakeup", 0.0004, 100),
            ("wakeup", 0.0008, 100),
            ("fork", 0.0003, 200),
            ("exec", 0.0003, 2000),
            ("steal", 0.0004, 100),
            ("steal", 0.0007, 100),
        ] {
            let load = format!(
                "taskset -c 0 magpie-load idle-periods --json --arrival {arrival} --idle {idle} \
                 --count {count} --cpu 3 --from 1 --meanwhile '{READ}'"
            );
            let found = json(guest, &load)?;
            let periods = found["periods_us"].as_array().context("idle periods")?;
            let periods: Vec<f64> = periods.iter().filter_map(Value::as_f64).collect();
            let truth = periods.iter().sum::<f64>() / periods.len() as f64;
            let observed = found["observed"]
                .as_array()
                .context("the readings of the average")?;
            let mut sum = 0.0;
            for status in observed {
                sum += number(status, "/cpus/3/avg_idle_ns")? / 1e3;
            }
            let learned = sum / observed.len() as f64;
            println!("{arrival}: idle for {truth:.1} us on average, learned {learned:.1} us");
            ensure!(
                (learned / truth - 1.0).abs() <= 0.1,
                "{arrival}: idle for {truth} us on average, learned {learned} us"
            );
        }
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
