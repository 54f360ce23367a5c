//! `hogs`: is CPU time shared fairly?
//!
//! Starts CPU hogs together, stops them together and compares each hog's CPU time with its weighted
//! fair share, where no hog can use more than one CPU. SIGSTOP stops them, so that CPU times stand
//! still while they are read. Shares are of the time that *all* hogs got, so that a host that runs
//! the machine slowly does not look like an unfair scheduler.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, bail};
use nix::sys::signal::Signal;
use serde::Serialize;
use serde_json::json;

use crate::Finding;
use crate::cpus::CpuSet;
use crate::sys::{self, Child, Policy, StartGate};

/// Measure how evenly CPU hogs share the CPUs.
///
/// Prints each hog's CPU time and fair share, the spread (max - min) / mean, and the largest
/// deviation from the fair share.
#[derive(clap::Args)]
pub struct Args {
    /// How many hogs
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    count: u32,
    /// Nice values, dealt to the hogs in turn
    #[arg(long, value_delimiter = ',', default_value = "0", allow_hyphen_values = true,
          value_parser = clap::value_parser!(i32).range(-20..=19))]
    nice: Vec<i32>,
    /// Policies, dealt to the hogs in turn
    #[arg(long, value_delimiter = ',', default_value = "other")]
    policy: Vec<Policy>,
    /// How long they run
    #[arg(long, default_value = "10", value_parser = sys::parse_seconds)]
    seconds: Duration,
    /// Restrict all hogs to these CPUs, like 0-3,8
    #[arg(long)]
    cpus: Option<CpuSet>,
    /// How many of the hogs call sched_yield all the time
    #[arg(long, default_value_t = 0)]
    yielding: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// One hog's result.
#[derive(Serialize)]
struct Hog {
    nice: i32,
    policy: Policy,
    cpu_s: f64,
    waited_s: f64,
    /// Of the CPU time of all hogs.
    share: f64,
    fair_share: f64,
}

/// Runs the hogs and judges their shares.
pub fn run(args: &Args) -> Result<Finding> {
    if args.policy.contains(&Policy::Fifo) {
        bail!(
            "real-time hogs would starve everything else, this program included; use other, batch \
             or idle"
        );
    }
    let hogs: Vec<(i32, Policy)> = (0..args.count as usize)
        .map(|i| {
            (
                args.nice[i % args.nice.len()],
                args.policy[i % args.policy.len()],
            )
        })
        .collect();
    let (elapsed, times) = measure(&hogs, args)?;

    let total: f64 = times.iter().map(|(ran, _)| ran).sum();
    let weights: Vec<f64> = hogs
        .iter()
        .map(|(nice, policy)| f64::from(sys::weight(*nice, *policy)))
        .collect();
    let fair = fair_times(&weights, total, elapsed);
    let results: Vec<Hog> = hogs
        .iter()
        .zip(&times)
        .zip(&fair)
        .map(|(((nice, policy), (ran, waited)), fair)| Hog {
            nice: *nice,
            policy: *policy,
            cpu_s: *ran,
            waited_s: *waited,
            share: ran / total,
            fair_share: fair / total,
        })
        .collect();
    Ok(describe(&results, elapsed, total))
}

/// Makes the text and the JSON of a result, with the spread and the worst deviation.
fn describe(hogs: &[Hog], elapsed: f64, total: f64) -> Finding {
    let times = || hogs.iter().map(|hog| hog.cpu_s);
    let (min, max) = (
        times().fold(f64::MAX, f64::min),
        times().fold(0.0, f64::max),
    );
    let mean = total / hogs.len() as f64;
    let spread = (max - min) / mean;
    let deviation = hogs
        .iter()
        .map(|hog| (hog.share / hog.fair_share - 1.0).abs())
        .fold(0.0, f64::max);
    let mut text = String::from("  nice  policy   CPU s     share      fair\n");
    for hog in hogs {
        let policy = format!("{:?}", hog.policy).to_lowercase();
        let _ = writeln!(
            text,
            "{:>6}  {policy:<6} {:>7.3}  {:>7.3}%  {:>7.3}%",
            hog.nice,
            hog.cpu_s,
            100.0 * hog.share,
            100.0 * hog.fair_share
        );
    }
    let _ = write!(
        text,
        "{} hogs, {elapsed:.3} s: CPU time {min:.3} to {max:.3} s, spread {:.3}%, worst deviation \
         from fair {:.3}%",
        hogs.len(),
        100.0 * spread,
        100.0 * deviation
    );
    let json = json!({
        "elapsed_s": elapsed, "cpu_s": total, "min_s": min, "max_s": max, "mean_s": mean,
        "spread_percent": 100.0 * spread, "deviation_percent": 100.0 * deviation, "hogs": hogs,
    });
    Finding {
        text,
        json,
        holds: true,
    }
}

/// Runs the hogs; returns the elapsed seconds, and the seconds that each hog ran and waited. A gate
/// starts all of them at once, so that none runs alone at first.
fn measure(hogs: &[(i32, Policy)], args: &Args) -> Result<(f64, Vec<(f64, f64)>)> {
    let gate = StartGate::new()?;
    // Each child consumes its own copy of the gate, because a fork duplicates the descriptors.
    let mut gate = Some(gate);
    let mut children = Vec::new();
    for (index, (nice, policy)) in hogs.iter().enumerate() {
        children.push(Child::fork(|| {
            if let Some(cpus) = &args.cpus {
                sys::set_affinity(0, cpus)?;
            }
            sys::set_policy(0, *policy)?;
            sys::set_nice(0, *nice)?;
            if let Some(gate) = gate.take() {
                gate.wait()?;
            }
            if index < args.yielding {
                sys::yield_forever()
            }
            sys::burn_forever()
        })?);
    }
    let Some(gate) = gate else {
        bail!("the gate was consumed in the parent")
    };
    let gate = gate.wait_ready(hogs.len())?;

    let before: Vec<(u64, u64)> = children
        .iter()
        .map(Child::schedstat)
        .collect::<Result<_>>()?;
    let start = sys::now_ns();
    gate.open();
    std::thread::sleep(args.seconds);
    for child in &children {
        child.signal(Signal::SIGSTOP)?;
    }
    let elapsed = (sys::now_ns() - start) as f64 / 1e9;
    let mut times = Vec::new();
    for (child, (ran, waited)) in children.iter().zip(before) {
        child.wait_stopped()?;
        let now = child.schedstat()?;
        times.push(((now.0 - ran) as f64 / 1e9, (now.1 - waited) as f64 / 1e9));
    }
    if times.iter().all(|(ran, _)| *ran == 0.0) {
        bail!("no hog got any CPU time in {elapsed:.3} s");
    }
    Ok((elapsed, times))
}

/// Divides `total` among hogs by weight. No hog gets more than `cap`; the rest of a capped hog's
/// share is divided among the others.
fn fair_times(weights: &[f64], total: f64, cap: f64) -> Vec<f64> {
    let mut fair = vec![0.0; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).collect();
    let mut left = total;
    loop {
        let sum: f64 = open.iter().map(|i| weights[*i]).sum();
        let (capped, rest): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|i| left * weights[**i] / sum > cap);
        if capped.is_empty() {
            for i in rest {
                fair[i] = left * weights[i] / sum;
            }
            return fair;
        }
        for i in capped {
            fair[i] = cap;
            left -= cap;
        }
        open = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_weights_get_equal_times() {
        assert_eq!(fair_times(&[1024.0; 4], 8.0, 10.0), [2.0; 4]);
    }

    #[test]
    fn a_heavy_hog_is_capped_at_one_cpu() {
        // Two CPUs for 10 s: the heavy hog would deserve 18 s but can use 10; the others share 10.
        let fair = fair_times(&[9000.0, 500.0, 500.0], 20.0, 10.0);
        assert_eq!(fair, [10.0, 5.0, 5.0]);
    }

    #[test]
    fn shares_are_measured_against_fair_ones() {
        let hog = |cpu_s: f64, fair: f64| Hog {
            nice: 0,
            policy: Policy::Other,
            cpu_s,
            waited_s: 0.0,
            share: cpu_s / 4.0,
            fair_share: fair,
        };
        let finding = describe(&[hog(1.0, 0.5), hog(3.0, 0.5)], 4.0, 4.0);
        assert_eq!(finding.json["spread_percent"], 100.0);
        assert_eq!(finding.json["deviation_percent"], 50.0);
    }

    proptest! {
        #[test]
        fn everything_is_divided_and_nobody_exceeds_the_cap(
            nice in prop::collection::vec(-20_i32..20, 1..40),
            used in 0.05_f64..1.0,
        ) {
            let weights: Vec<f64> = nice.iter().map(|n| f64::from(sys::weight(*n, Policy::Other))).collect();
            let cap = 10.0;
            let total = used * cap * weights.len() as f64;
            let fair = fair_times(&weights, total, cap);
            prop_assert!((fair.iter().sum::<f64>() - total).abs() < 1e-6);
            prop_assert!(fair.iter().all(|f| *f > 0.0 && *f <= cap + 1e-9));
        }
    }
}
