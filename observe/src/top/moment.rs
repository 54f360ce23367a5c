//! Rates between two samples.

use std::collections::BTreeMap;

use crate::latency::Latency;
use crate::sample::Sample;
use crate::scheduler::Cgroup;

/// The events between two samples, as rates and as parts of the time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// The scheduler's counters, per second.
    rates: BTreeMap<String, f64>,
    /// The part of its time that each CPU was busy, from 0 to 1, by its number.
    pub busy: BTreeMap<usize, f64>,
    /// The part of its time that the host took from each CPU, as the kernel counts it.
    pub steal: BTreeMap<usize, f64>,
    /// How many tasks waited for each CPU, on average over the time: the time that those waited that
    /// ran on it, over the time that passed.
    pub waiting: BTreeMap<usize, f64>,
    /// The frequency of each CPU at the end, as a part of its highest one.
    pub frequency: BTreeMap<usize, f64>,
    /// How long the tasks that ran had been ready.
    pub latency: Latency,
    /// How often each cgroup was throttled, per second, and for which part of the time.
    pub throttled: BTreeMap<String, (f64, f64)>,
}

impl Moment {
    /// Turns the counters of two samples, which only add up, into rates and parts of the time between.
    /// Rates of the scheduler stay empty if it did not answer in either.
    pub fn between(earlier: &Sample, later: &Sample) -> Moment {
        let seconds = (later.at - earlier.at).max(1e-3);
        let mut moment = Moment::default();
        for (number, time) in &later.cpu_times.cpus {
            let Some(before) = earlier.cpu_times.cpus.get(number) else {
                continue;
            };
            // The kernel's time of an idle CPU may go back a little; that is no new beginning.
            let passed = |before: u64, now: u64| now.saturating_sub(before) as f64;
            let busy = passed(before.busy, time.busy);
            let steal = passed(before.steal, time.steal);
            let all = busy + steal + passed(before.idle, time.idle);
            // The kernel's time of an idle CPU can stand still for a while.
            let part = |time: f64| if all > 0.0 { time / all } else { 0.0 };
            moment.busy.insert(*number, part(busy));
            moment.steal.insert(*number, part(steal));
            let waited = grown(before.waited_ns, time.waited_ns);
            moment.waiting.insert(*number, waited / 1e9 / seconds);
            if let Some(frequency) = time.frequency {
                moment.frequency.insert(*number, frequency);
            }
        }
        if let (Ok(before), Ok(now)) = (&earlier.latency, &later.latency) {
            moment.latency = Latency {
                woken: now.woken.since(&before.woken),
                requeued: now.requeued.since(&before.requeued),
            };
        }
        let (Ok(before), Ok(now)) = (&earlier.status, &later.status) else {
            return moment;
        };
        for (name, count) in &now.counters {
            let before = before.counters.get(name).copied().unwrap_or(0);
            moment
                .rates
                .insert(name.clone(), grown(before, *count) / seconds);
        }
        let new = Cgroup::default();
        for (path, cgroup) in &now.cgroups {
            let before = before.cgroups.get(path).unwrap_or(&new);
            let times = grown(before.throttled, cgroup.throttled) / seconds;
            let part = grown(before.throttled_ns, cgroup.throttled_ns) / 1e9 / seconds;
            moment
                .throttled
                .insert(path.clone(), (times, part.min(1.0)));
        }
        moment
    }

    /// Returns how often these events happened together, per second. An event that the scheduler
    /// does not count did not happen.
    pub fn rate(&self, events: &[&str]) -> f64 {
        let known = events.iter().filter_map(|event| self.rates.get(*event));
        // The sum of no numbers is a negative zero.
        known.fold(0.0, |sum, rate| sum + rate)
    }

    /// Returns the part of their time that all CPUs together were busy.
    pub fn average_busy(&self) -> f64 {
        self.busy.values().sum::<f64>() / self.busy.len().max(1) as f64
    }
}

/// Returns by how much a counter grew. One that is smaller than before began anew, with a scheduler
/// that was started again or a cgroup that was made again, so all of it is new.
fn grown(before: u64, now: u64) -> f64 {
    now.checked_sub(before).unwrap_or(now) as f64
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;
    use crate::cpu_times::{CpuTime, CpuTimes};
    use crate::kernel::SchedExt;
    use crate::scheduler::{Preferred, Status};
    use crate::topology::{Place, Topology};

    /// A machine of two LLCs of two cores of two threads, which has done nothing.
    pub fn sample(at: f64) -> Sample {
        let place = |cpu: usize| Place {
            core: cpu / 2,
            llc: cpu / 4,
            node: cpu / 4,
        };
        Sample {
            at,
            status: Ok(Status::default()),
            sched_ext: SchedExt::default(),
            topology: Topology {
                online: "0-7".into(),
                places: (0..8).map(|cpu| (cpu, place(cpu))).collect(),
            },
            cpu_times: CpuTimes {
                cpus: (0..8).map(|cpu| (cpu, CpuTime::default())).collect(),
                runnable: 1,
            },
            latency: Err("not here".into()),
        }
    }

    /// The same, with CPU n busy for n tenths of the time since second 0, and 100 of each event in
    /// each second.
    pub fn busy_sample(at: f64) -> Sample {
        let ticks = (100.0 * at) as u64;
        let events = 100 * at as u64;
        let cpu_times = (0..8).map(|cpu| {
            let busy = ticks * cpu as u64 / 10;
            let time = CpuTime {
                busy,
                idle: ticks - busy,
                steal: 0,
                waited_ns: (5e8 * at) as u64 * cpu as u64,
                frequency: Some(0.5),
            };
            (cpu, time)
        });
        let counters = ["wake_idle", "wake_previous", "steal_llc", "push", "preempt"];
        let limited = Cgroup {
            share_percent: 25.0,
            limit_percent: 50.0,
            throttled: 5 * at as u64,
            throttled_ns: (4e8 * at) as u64,
        };
        Sample {
            status: Ok(Status {
                counters: counters.map(|name| (name.to_string(), events)).into(),
                preferred: Some(Preferred {
                    preferred: "0-5".into(),
                    online: "0-7".into(),
                    mode: "auto".into(),
                    governor: "direct".into(),
                    source: "estimate".into(),
                    steal_percent: 12.5,
                    wanted_cores: 3.25,
                    given_cores: 2.75,
                    ..Preferred::default()
                }),
                cgroups: [("/limited".to_string(), limited)].into(),
                ..Status::default()
            }),
            cpu_times: CpuTimes {
                cpus: cpu_times.collect(),
                runnable: 12,
            },
            latency: Ok(waits(at as u64)),
            ..sample(at)
        }
    }

    /// Each second 99 woken tasks were ready for less than 4.7 us, and one for less than 148 us.
    fn waits(seconds: u64) -> Latency {
        let counts = json!({"woken": {"80": 99 * seconds, "120": seconds}, "requeued": {}});
        serde_json::from_value(counts).unwrap()
    }

    #[test]
    fn rates_are_per_second_and_parts_of_the_time() {
        let moment = Moment::between(&busy_sample(10.0), &busy_sample(12.0));
        assert_eq!(moment.rate(&["push"]), 100.0);
        assert_eq!(moment.rate(&["push", "preempt", "unknown"]), 200.0);
        assert_eq!(moment.busy[&3], 0.3);
        assert_eq!((moment.waiting[&3], moment.frequency[&3]), (1.5, 0.5));
        assert_eq!(moment.throttled["/limited"], (5.0, 0.4));
        assert_eq!(moment.latency.woken.percentile(0.5), Some(4_608.0));
        assert!((moment.average_busy() - 0.35).abs() < 1e-9);
    }

    #[test]
    fn a_scheduler_that_started_again_counts_from_zero() {
        let moment = Moment::between(&busy_sample(10.0), &busy_sample(4.0));
        assert!(moment.rate(&["push"]) > 0.0);
        let mut gone = busy_sample(11.0);
        gone.status = Err("not running".into());
        let moment = Moment::between(&busy_sample(10.0), &gone);
        assert_eq!(moment.rate(&["push"]), 0.0);
        assert_eq!(moment.busy[&5], 0.5);
    }
}
