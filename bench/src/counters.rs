//! Counts of the kernel and of the scheduler during a run.
//!
//! `/proc/stat` and `/proc/schedstat` are read before and after. The differences explain a fast or
//! slow run: how busy the CPUs were, how often they switched, how long tasks waited.

use std::collections::BTreeMap;

use serde_json::Value;

/// Named numbers; what they count is in the name.
pub type Counters = BTreeMap<String, f64>;

/// Totals since boot at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    totals: Counters,
}

/// Fields of a `cpu` line of /proc/schedstat, the same in its versions 15 to 17: index, name, and
/// the factor to the name's unit. The first four stay 0 unless the sysctl kernel.sched_schedstats
/// is on; the bench does not switch it on, because it costs time.
const SCHEDSTAT: [(usize, &str, f64); 7] = [
    (2, "sched_count", 1.0),
    (3, "sched_goidle", 1.0),
    (4, "ttwu_count", 1.0),
    (5, "ttwu_local", 1.0),
    (6, "cpu_s", 1e-9),
    (7, "run_delay_s", 1e-9),
    (8, "timeslices", 1.0),
];

/// CPU time of all CPUs since boot, in the kernel's clock ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTime {
    /// Time in tasks and interrupts.
    pub busy: f64,
    /// Steal time: the host ran something else.
    pub steal: f64,
    /// Busy, steal and idle time.
    pub total: f64,
}

/// Reads the line of /proc/stat that sums up all CPUs; None for every other line.
pub fn cpu_time(line: &str) -> Option<CpuTime> {
    let numbers: Vec<f64> = line
        .strip_prefix("cpu ")?
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    // `user` includes guest time.
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = numbers[..] else {
        return None;
    };
    let busy = user + nice + system + irq + softirq;
    Some(CpuTime {
        busy,
        steal,
        total: busy + steal + idle + iowait,
    })
}

impl Reading {
    /// Reads the texts of the two files. An empty text adds nothing: that file is not there.
    pub fn parse(stat: &str, schedstat: &str) -> Self {
        let mut totals = Counters::new();
        for line in stat.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
            match (name, numbers.as_slice()) {
                ("ctxt", [count, ..]) => drop(totals.insert("context_switches".into(), *count)),
                ("processes", [count, ..]) => drop(totals.insert("forks".into(), *count)),
                _ => {}
            }
        }
        if let Some(time) = stat.lines().find_map(cpu_time) {
            totals.insert("_busy".into(), time.busy);
            totals.insert("_idle".into(), time.total - time.busy - time.steal);
            totals.insert("_steal".into(), time.steal);
        }
        for line in schedstat.lines().filter(|line| line.starts_with("cpu")) {
            let numbers: Vec<f64> = line
                .split_whitespace()
                .skip(1)
                .filter_map(|w| w.parse().ok())
                .collect();
            for (index, name, scale) in SCHEDSTAT {
                *totals.entry(name.into()).or_default() +=
                    numbers.get(index).unwrap_or(&0.0) * scale;
            }
        }
        Self { totals }
    }

    /// Adds the numbers of a scheduler's own JSON object; nested names are joined by dots.
    pub fn add_scheduler(&mut self, json: &Value) {
        flatten("", json, &mut self.totals);
    }

    /// The differences since `before`, and shares of CPU time in percent. Counters without a
    /// difference are left out, because one that is switched off says nothing.
    pub fn since(&self, before: &Self) -> Counters {
        let mut counters: Counters = self
            .totals
            .iter()
            .map(|(name, now)| (name.clone(), now - before.totals.get(name).unwrap_or(&0.0)))
            .collect();
        let mut take = |name: &str| counters.remove(name).unwrap_or(0.0);
        let (busy, idle, steal) = (take("_busy"), take("_idle"), take("_steal"));
        counters.retain(|_, count| *count != 0.0);
        let all = busy + idle + steal;
        if all > 0.0 {
            counters.insert("busy_percent".into(), 100.0 * busy / all);
            counters.insert("steal_percent".into(), 100.0 * steal / all);
        }
        counters
    }
}

/// Adds the numbers of a JSON value, each under the path of its names.
fn flatten(prefix: &str, json: &Value, into: &mut Counters) {
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = if prefix.is_empty() {
                    name.clone()
                } else {
                    format!("{prefix}.{name}")
                };
                flatten(&name, value, into);
            }
        }
        Value::Number(number) => {
            into.insert(prefix.into(), number.as_f64().unwrap_or(0.0));
        }
        _ => {}
    }
}

/// The mean of each counter over runs; a run without the counter adds 0.
pub fn mean(runs: &[Counters]) -> Counters {
    let mut sum = Counters::new();
    for (name, count) in runs.iter().flatten() {
        *sum.entry(name.clone()).or_default() += count / runs.len() as f64;
    }
    sum
}

/// Counters as compact text, `name value`, wrapped into lines that start with `indent`.
pub fn describe(counters: &Counters, indent: &str) -> String {
    const WIDTH: usize = 100;
    let mut lines = vec![indent.to_string()];
    for (name, value) in counters {
        let digits = if value.fract() == 0.0 || value.abs() >= 1000.0 {
            0
        } else {
            2
        };
        let part = format!("{name} {value:.digits$}");
        let last = lines.last().map_or(0, String::len);
        if last > indent.len() && last + part.len() + 2 > WIDTH {
            lines.push(indent.to_string());
        }
        if let Some(line) = lines.last_mut() {
            if line.len() > indent.len() {
                line.push_str(", ");
            }
            line.push_str(&part);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const STAT: &str =
        "cpu  100 0 50 800 10 0 20 20 0 0\ncpu0 1 2 3\nintr 5 6\nctxt 5000\nprocesses 70\n";
    const SCHEDSTAT: &str = "version 17\ntimestamp 4294937360\ncpu0 0 0 10 4 6 2 3000000000 500000000 40\n\
                             domain0 MC 3 1 2 3\ncpu1 0 0 20 5 7 3 1000000000 500000000 60\n";

    #[test]
    fn differences_tell_what_a_run_did() {
        let before = Reading::parse(STAT, SCHEDSTAT);
        let later = STAT
            .replace("cpu  100", "cpu  160")
            .replace("800", "830")
            .replace("20 20", "20 30")
            .replace("5000", "6500");
        let counters = Reading::parse(&later, &SCHEDSTAT.replace(" 60\n", " 65\n")).since(&before);
        assert_eq!(counters["busy_percent"], 60.0);
        assert_eq!(counters["steal_percent"], 10.0);
        assert_eq!(counters["context_switches"], 1500.0);
        assert_eq!(counters["timeslices"], 5.0);
        assert!(
            !counters.contains_key("forks"),
            "unchanged counters are left out"
        );
    }

    #[test]
    fn missing_files_yield_nothing() {
        assert!(Reading::parse("", "").since(&Reading::default()).is_empty());
    }

    #[test]
    fn scheduler_counters_are_flattened_and_subtracted() {
        let (mut before, mut after) = (Reading::default(), Reading::default());
        before.add_scheduler(&json!({"steal_llc": 10, "push": {"pulled": 1}, "name": "x"}));
        after.add_scheduler(&json!({"steal_llc": 15, "push": {"pulled": 4}, "name": "x"}));
        let counters = after.since(&before);
        assert_eq!(
            counters,
            Counters::from([("steal_llc".into(), 5.0), ("push.pulled".into(), 3.0)])
        );
        assert_eq!(mean(&[counters.clone(), Counters::new()])["steal_llc"], 2.5);
        assert_eq!(describe(&counters, "  "), "  push.pulled 3, steal_llc 5\n");
    }
}
