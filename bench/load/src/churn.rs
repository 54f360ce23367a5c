//! `churn`: everything that a scheduler must survive, at random, for a bounded time.
//!
//! Tasks burn and sleep while this changes their affinity (which forces migrations), nice value and
//! policy at random, and forks storms of short tasks. The sequence of changes follows from a seed,
//! so that a failure can be tried again; the timing of the tasks does not.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::Finding;
use crate::cpus::CpuSet;
use crate::sys::{self, Child, Policy};

/// Change affinity, nice and policy of tasks at random, and fork storms of short ones.
#[derive(clap::Args)]
pub struct Args {
    /// How long to make changes
    #[arg(long, default_value = "10", value_parser = sys::parse_seconds)]
    seconds: Duration,
    /// How many tasks are changed
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    tasks: u32,
    /// Kinds of change
    #[arg(
        long = "with",
        value_delimiter = ',',
        default_value = "affinity,nice,policy,forks"
    )]
    kinds: Vec<Kind>,
    /// Pause between two changes, in microseconds
    #[arg(long, default_value_t = 500)]
    pause_us: u64,
    /// Seed of the sequence [default: random, printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Restrict a task to a random set of CPUs
    Affinity,
    /// Give a task a random nice value
    Nice,
    /// Switch a task between SCHED_OTHER, SCHED_BATCH and SCHED_IDLE
    Policy,
    /// Fork a burst of tasks that end at once
    Forks,
    /// Stop and continue a task
    Stop,
}

/// How often each kind happened.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Counts {
    affinity: u64,
    nice: u64,
    policy: u64,
    forks: u64,
    stops: u64,
}

/// Is called before (`done` false) and after (`done` true) each affinity change.
pub type AffinityObserver<'a> = &'a mut dyn FnMut(i32, &CpuSet, bool);

/// Runs the churn for its time.
pub fn run(args: &Args) -> Result<Finding> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let pause = Duration::from_micros(args.pause_us);
    let until = Instant::now() + args.seconds;
    let counts = churn(
        args.tasks,
        &args.kinds,
        seed,
        pause,
        until,
        &mut |_, _, _| {},
    )?;
    Ok(Finding {
        text: format!(
            "{} affinity, {} nice, {} policy changes, {} forks, {} stops (seed {seed})",
            counts.affinity, counts.nice, counts.policy, counts.forks, counts.stops
        ),
        json: json!({ "seed": seed, "counts": counts }),
        holds: true,
    })
}

/// Makes random changes to `tasks` tasks until the given time.
///
/// # Errors
/// If the kernel refuses a change. Refused affinity changes are an error only if all were refused:
/// while another load takes CPUs offline, a set may have no online CPU.
pub fn churn(
    tasks: u32,
    kinds: &[Kind],
    seed: u64,
    pause: Duration,
    until: Instant,
    on_affinity: AffinityObserver,
) -> Result<Counts> {
    let mut random = fastrand::Rng::with_seed(seed);
    let cpus: Vec<usize> = sys::affinity(0)?.and(&CpuSet::online()?).iter().collect();
    if cpus.is_empty() || kinds.is_empty() {
        bail!("churn needs at least one CPU and one kind of change");
    }
    let children: Vec<Child> = (0..tasks)
        .map(|i| Child::fork(move || burn_and_sleep(seed ^ u64::from(i) << 32)))
        .collect::<Result<_>>()?;
    let mut counts = Counts::default();
    let mut refused = None;
    while Instant::now() < until {
        let child = &children[random.usize(..children.len())];
        match kinds[random.usize(..kinds.len())] {
            Kind::Affinity => {
                let set = random_set(&mut random, &cpus);
                on_affinity(child.pid(), &set, false);
                // While another load takes CPUs offline, the set may have no online CPU. The kernel
                // then changes nothing.
                match sys::set_affinity(child.pid(), &set) {
                    Ok(()) => {
                        on_affinity(child.pid(), &set, true);
                        counts.affinity += 1;
                    }
                    Err(error) => {
                        let now = sys::affinity(child.pid())?;
                        on_affinity(child.pid(), &now, true);
                        refused = Some(error);
                    }
                }
            }
            Kind::Nice => {
                sys::set_nice(child.pid(), random.i32(0..20))?;
                counts.nice += 1;
            }
            Kind::Policy => {
                let policies = [Policy::Other, Policy::Batch, Policy::Idle];
                sys::set_policy(child.pid(), policies[random.usize(..policies.len())])?;
                counts.policy += 1;
            }
            Kind::Forks => counts.forks += fork_storm(20)?,
            Kind::Stop => {
                child.signal(Signal::SIGSTOP)?;
                std::thread::sleep(pause);
                child.signal(Signal::SIGCONT)?;
                counts.stops += 1;
            }
        }
        std::thread::sleep(pause);
    }
    match refused {
        Some(error) if counts.affinity == 0 => Err(error),
        _ => Ok(counts),
    }
}

/// Forks `count` tasks that end at once, and waits for them.
fn fork_storm(count: u64) -> Result<u64> {
    let storm: Vec<Child> = (0..count)
        .map(|_| Child::fork(|| Ok(())))
        .collect::<Result<_>>()?;
    storm.into_iter().try_for_each(Child::wait)?;
    Ok(count)
}

/// Returns one CPU, a few, or all, because pinned tasks and free ones take different paths.
fn random_set(random: &mut fastrand::Rng, cpus: &[usize]) -> CpuSet {
    match random.u32(..4) {
        0 => CpuSet::of(cpus.iter().copied()),
        1 | 2 => CpuSet::of([cpus[random.usize(..cpus.len())]]),
        _ => CpuSet::of((0..1 + cpus.len() / 2).map(|_| cpus[random.usize(..cpus.len())])),
    }
}

/// Bursts of work between short sleeps, for ever; every fourth task never sleeps.
fn burn_and_sleep(seed: u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let sleeps = random.u32(..4) != 0;
    loop {
        let until = Instant::now() + Duration::from_micros(random.u64(50..5_000));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        if sleeps {
            std::thread::sleep(Duration::from_micros(random.u64(50..3_000)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_sets_are_never_empty_and_never_foreign() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..1000 {
            let set = random_set(&mut random, &[1, 5, 9]);
            assert!(!set.is_empty());
            assert_eq!(set.and(&CpuSet::of([1, 5, 9])), set);
        }
    }
}
