//! The metrics that are made of a sample.
//!
//! The scheduler's counters are passed on by their own names, with the scheduler's explanation as
//! the help: `steal_llc` is `magpie_steal_llc_total`, and `steal_ns`, a time, is
//! `magpie_steal_seconds_total`. So a new counter needs no change here. The other answers have
//! labels and units, and are listed.

use std::collections::{BTreeMap, BTreeSet};

use prometheus_client::registry::Unit;

use super::families::{Family, Label, Number};
use crate::kernel::SchedExt;
use crate::sample::Sample;
use crate::scheduler::{Cgroup, Cpu, Preferred};
use crate::topology::{Topology, parse_list};

type Series = Vec<(Vec<Label>, Number)>;

/// Returns all metrics of a sample. `explanations` has the help of the scheduler's counters.
pub fn families(sample: &Sample, explanations: &BTreeMap<String, String>) -> Vec<Family> {
    let up = f64::from(u8::from(sample.status.is_ok()));
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_string())];
    let mut all = vec![
        gauge("up", "1 if scx_magpie runs and answers, else 0", up),
        family(
            "exporter",
            "The exporter itself: its version; always 1",
            vec![(version, Number::Gauge(1.0))],
        ),
    ];
    all.extend(sched_ext(&sample.sched_ext));
    let Ok(status) = &sample.status else {
        return all;
    };
    let counters = status.counters.iter();
    all.extend(counters.map(|(name, count)| counter(name, *count, explanations)));
    all.extend(cpus(&status.cpus, &sample.topology));
    all.push(gauge(
        "preferred_loaded",
        "1 if the scheduler can prefer CPUs, else 0",
        f64::from(u8::from(status.preferred.is_some())),
    ));
    if let Some(preferred) = &status.preferred {
        all.extend(preferred_cpus(preferred, &sample.topology));
        all.extend(steal_time(preferred));
        all.extend(governor(preferred));
    }
    all.extend(cgroups(&status.cgroups));
    all
}

/// A metric; its name gets the prefix of all metrics here.
fn family(name: &str, help: &str, series: Series) -> Family {
    Family {
        name: format!("magpie_{name}"),
        help: help.into(),
        unit: None,
        series,
    }
}

/// A metric in seconds.
fn seconds(name: &str, help: &str, series: Series) -> Family {
    Family {
        unit: Some(Unit::Seconds),
        ..family(name, help, series)
    }
}

/// A metric of one number that goes up and down.
fn gauge(name: &str, help: &str, value: f64) -> Family {
    family(name, help, vec![(vec![], Number::Gauge(value))])
}

/// A metric of one number that only grows.
fn count(name: &str, help: &str, value: u64) -> Family {
    family(name, help, vec![(vec![], Number::Count(value))])
}

/// Returns a metric with a series for each of the words: 1 for the word that holds, 0 for the
/// others.
fn choice(name: &str, help: &str, label: &'static str, words: &[&str], holds: &str) -> Family {
    let series = words.iter().map(|word| {
        let value = f64::from(u8::from(*word == holds));
        (vec![(label, word.to_string())], Number::Gauge(value))
    });
    family(name, help, series.collect())
}

fn to_seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Returns the metric of one of the scheduler's counters.
fn counter(name: &str, value: u64, explanations: &BTreeMap<String, String>) -> Family {
    let explained = explanations.get(name);
    let help = explained.map_or("A counter of the scheduler", String::as_str);
    match name.strip_suffix("_ns") {
        // Seconds are the base unit of time, and the name says so.
        Some(name) => {
            let help = help.strip_suffix(", in nanoseconds").unwrap_or(help);
            let value = Number::Seconds(to_seconds(value));
            seconds(name, help, vec![(vec![], value)])
        }
        None => count(name, help, value),
    }
}

/// Returns the metrics of the kernel's side.
fn sched_ext(state: &SchedExt) -> Vec<Family> {
    let enabled = f64::from(u8::from(state.is_enabled()));
    let scheduler = state.scheduler.clone().unwrap_or_default();
    let events = state.events.iter().map(|(event, count)| {
        let name = event.strip_prefix("SCX_EV_").unwrap_or(event);
        (vec![("event", name.to_lowercase())], Number::Count(*count))
    });
    let mut all = vec![
        family(
            "sched_ext_enabled",
            "1 if the kernel runs a sched_ext scheduler, which is named, else 0",
            vec![(vec![("scheduler", scheduler)], Number::Gauge(enabled))],
        ),
        family(
            "sched_ext_events",
            "What the kernel did instead of the scheduler since its start (SCX_EV_..., lower case)",
            events.collect(),
        ),
    ];
    if state.state.is_some() {
        all.extend([
            count(
                "sched_ext_enables",
                "sched_ext schedulers that were started since boot",
                state.enabled,
            ),
            count(
                "sched_ext_exits",
                "sched_ext schedulers that ended since boot, whatever the reason",
                state.ended(),
            ),
        ]);
    }
    all
}

/// Returns the labels that say where a CPU is.
fn place(number: usize, topology: &Topology) -> Vec<Label> {
    let mut labels = vec![("cpu", number.to_string())];
    if let Some(place) = topology.places.get(&number) {
        labels.extend([
            ("core", place.core.to_string()),
            ("llc", place.llc.to_string()),
            ("node", place.node.to_string()),
        ]);
    }
    labels
}

/// Returns the metrics that the scheduler measures on each CPU.
fn cpus(cpus: &BTreeMap<usize, Cpu>, topology: &Topology) -> Vec<Family> {
    let each = |number: fn(&Cpu) -> Number| {
        let cpus = cpus.iter();
        cpus.map(|(cpu, status)| (place(*cpu, topology), number(status)))
            .collect::<Series>()
    };
    let mut searches = Series::new();
    for (number, cpu) in cpus {
        for (distance, cost) in [
            ("sibling", cpu.search_sibling_ns),
            ("llc", cpu.search_llc_ns),
            ("node", cpu.search_node_ns),
            ("remote", cpu.search_remote_ns),
        ] {
            // Zero says that no search was made.
            if cost > 0 {
                let mut labels = place(*number, topology);
                labels.push(("distance", distance.into()));
                searches.push((labels, Number::Gauge(to_seconds(cost))));
            }
        }
    }
    vec![
        seconds(
            "cpu_avg_idle",
            "Average idle period of the CPU, capped as the gate of stealing needs it",
            each(|cpu| Number::Gauge(to_seconds(cpu.avg_idle_ns))),
        ),
        seconds(
            "cpu_search",
            "Average cost of the CPU's searches for work, by distance",
            searches,
        ),
        family(
            "cpu_turns",
            "Scans of the other LLCs that the CPU made on behalf of its own LLC",
            each(|cpu| Number::Count(cpu.turns)),
        ),
        family(
            "cpu_utilisation_ratio",
            "Utilisation of the CPU, of the capacity of the fastest CPU",
            each(|cpu| Number::Gauge(of_capacity(cpu.utilisation))),
        ),
        family(
            "cpu_perf_target_ratio",
            "Performance that the CPU asks for, of the capacity of the fastest CPU",
            each(|cpu| Number::Gauge(of_capacity(cpu.perf_target))),
        ),
        family(
            "cpu_perf_targets",
            "Performance targets that the CPU has set",
            each(|cpu| Number::Count(cpu.targets_set)),
        ),
    ]
}

/// Returns a performance, of 1024, as a part of 1.
fn of_capacity(performance: u64) -> f64 {
    performance as f64 / 1024.0
}

/// Returns which CPUs are preferred, and how many of the machine and of each LLC.
fn preferred_cpus(status: &Preferred, topology: &Topology) -> Vec<Family> {
    let (preferred, online) = (parse_list(&status.preferred), parse_list(&status.online));
    let is_preferred = |cpu: &usize| f64::from(u8::from(preferred.contains(cpu)));
    let each = online.iter();
    let each = each.map(|cpu| (place(*cpu, topology), Number::Gauge(is_preferred(cpu))));
    let (mut sizes, mut parts) = (Series::new(), Series::new());
    for (llc, (node, cpus)) in topology.llcs() {
        let cpus: BTreeSet<usize> = cpus.into_iter().collect();
        let labels = vec![("llc", llc.to_string()), ("node", node.to_string())];
        let part = cpus.intersection(&preferred).count();
        sizes.push((labels.clone(), Number::Gauge(cpus.len() as f64)));
        parts.push((labels, Number::Gauge(part as f64)));
    }
    vec![
        gauge("online_cpus", "Online CPUs", online.len() as f64),
        gauge("preferred_cpus", "Preferred CPUs", preferred.len() as f64),
        family(
            "cpu_preferred",
            "1 if the CPU is preferred, 0 if it is withheld",
            each.collect(),
        ),
        family("llc_cpus", "Online CPUs of the LLC", sizes),
        family("llc_preferred_cpus", "Preferred CPUs of the LLC", parts),
    ]
}

/// Returns how much steal time there is, where it is known, and how it is known.
fn steal_time(status: &Preferred) -> Vec<Family> {
    let mut all = vec![
        choice(
            "steal_time_source",
            "How steal time is known: the source that holds is 1",
            "source",
            &["kernel", "estimate", "none"],
            &status.source,
        ),
        gauge(
            "steal_time_kernel_counts",
            "1 if the kernel has ever counted steal time, else 0",
            status.kernel_counts as f64,
        ),
    ];
    // Before the first period, and from a counter that never counted, there is no number.
    let is_known = match status.source.as_str() {
        "kernel" => status.kernel_counts != 0,
        source => source == "estimate",
    };
    if is_known {
        all.push(gauge(
            "steal_time_ratio",
            "Share of the preferred CPUs' time that the host took, in the last period",
            status.steal_percent / 100.0,
        ));
    }
    all
}

/// Returns the settings and the decisions of the governor.
fn governor(status: &Preferred) -> Vec<Family> {
    vec![
        choice(
            "preferred_mode",
            "Who decides which CPUs are preferred: the mode that holds is 1",
            "mode",
            &["auto", "kernel", "set", "off"],
            &status.mode,
        ),
        choice(
            "governor",
            "How the number of preferred cores follows steal time: the governor in use is 1",
            "governor",
            &["step", "direct"],
            &status.governor,
        ),
        gauge(
            "wanted_cores",
            "Cores that were busy, as the guest sees it",
            status.wanted_cores,
        ),
        gauge(
            "given_cores",
            "Cores that the host gave",
            status.given_cores,
        ),
        gauge(
            "cores_direction",
            "Direction of the number of preferred cores in the last period",
            status.direction as f64,
        ),
        count(
            "preferred_changes",
            "Changes of the number of preferred cores",
            status.changes,
        ),
        seconds(
            "governor_period",
            "Time between two decisions on the number of cores",
            vec![(vec![], Number::Gauge(status.period as f64 / 1e3))],
        ),
        gauge(
            "governor_high_ratio",
            "Steal time above which fewer cores are used",
            status.high as f64 / 1e4,
        ),
        gauge(
            "governor_low_ratio",
            "Steal time below which more cores are used",
            status.low as f64 / 1e4,
        ),
    ]
}

/// Returns the metrics of the cgroups that are active or limited. A machine may have thousands of
/// others.
fn cgroups(cgroups: &BTreeMap<String, Cgroup>) -> Vec<Family> {
    let cgroups = cgroups.iter();
    let shown: Vec<_> = cgroups
        .filter(|(_, one)| one.share_percent > 0.0 || one.limit_percent > 0.0 || one.throttled > 0)
        .collect();
    let each = |number: fn(&Cgroup) -> Option<Number>| {
        let shown = shown.iter();
        let series = shown.filter_map(|(path, status)| {
            Some((vec![("cgroup", path.to_string())], number(status)?))
        });
        series.collect::<Series>()
    };
    vec![
        family(
            "cgroup_share_ratio",
            "Share of the cgroup's own tasks in the CPU time in use",
            each(|one| Some(Number::Gauge(one.share_percent / 100.0))),
        ),
        family(
            "cgroup_limit_cpus",
            "Limit of the cgroup (cpu.max), in CPUs",
            each(|one| {
                (one.limit_percent > 0.0).then_some(Number::Gauge(one.limit_percent / 100.0))
            }),
        ),
        family(
            "cgroup_throttled",
            "How often the cgroup was throttled",
            each(|one| Some(Number::Count(one.throttled))),
        ),
        seconds(
            "cgroup_throttled",
            "For how long the cgroup was throttled",
            each(|one| Some(Number::Seconds(to_seconds(one.throttled_ns)))),
        ),
    ]
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
