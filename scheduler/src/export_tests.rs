//! `magpie export` against this scheduler's own answers: a statistics server without a kernel
//! behind it serves them, and the exporter asks it as it asks a running scheduler.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use magpie_observe::export::{Exporter, Format};
use magpie_observe::{Cgroup, Cpu, Preferred, Source};
use scx_stats::prelude::*;
use serde::Serialize;

use crate::cgroups::{CgroupStatus, CgroupsStatus};
use crate::counters::{Metrics, NR_EVENTS};
use crate::cpus::{CpuStatus, CpusStatus, Performance};
use crate::preferred::PreferredStatus;
use crate::stats::{Answer, Request, server_data};

/// Stands in for the scheduler: answers requests with made-up figures until the server is dropped.
fn answer(server: &StatsServer<Request, Answer>, has_preferred: bool) -> JoinHandle<()> {
    let (answer, request) = server.channels();
    std::thread::spawn(move || {
        while let Ok(asked) = request.recv() {
            let said = match asked {
                Request::Totals => {
                    Answer::Totals(Metrics::from_events(&std::array::from_fn(|event| {
                        1_000 + event as u64
                    })))
                }
                Request::Preferred(_) if !has_preferred => {
                    Answer::Preferred(Err("preferred CPUs are not in use".into()))
                }
                Request::Preferred(_) => Answer::Preferred(Ok(PreferredStatus {
                    preferred: "0".into(),
                    online: "0-1".into(),
                    source: "estimate".into(),
                    ..PreferredStatus::default()
                })),
                Request::Cpus => Answer::Cpus(CpusStatus {
                    cpus: [(
                        1,
                        CpuStatus::new(
                            700_000,
                            [1, 22, 333, 4_444],
                            5,
                            Performance {
                                utilisation: 102,
                                target: 115,
                                targets_set: 7,
                            },
                        ),
                    )]
                    .into(),
                }),
                Request::Cgroups => Answer::Cgroups(CgroupsStatus {
                    cgroups: [("/a".to_string(), limited())].into(),
                }),
            };
            if answer.send(said).is_err() {
                break;
            }
        }
    })
}

/// A cgroup that is active, limited and was throttled.
fn limited() -> CgroupStatus {
    CgroupStatus {
        share_percent: 50.0,
        limit_percent: 20.0,
        throttled: 3,
        throttled_ns: 4_000_000_000,
    }
}

/// Makes the kernel's files of a machine that runs the scheduler.
fn make_kernel_files(root: &Path) {
    for (file, text) in [
        ("sys/kernel/sched_ext/state", "enabled\n"),
        ("sys/kernel/sched_ext/enable_seq", "1\n"),
        ("sys/kernel/sched_ext/root/ops", "magpie_0.1.0\n"),
        (
            "sys/kernel/sched_ext/root/events",
            "SCX_EV_BYPASS_ACTIVATE 1\n",
        ),
        ("sys/devices/system/cpu/online", "0-1\n"),
    ] {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// Returns what the exporter makes of this scheduler's answers.
fn exported(has_preferred: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    make_kernel_files(folder.path());
    let socket = folder.path().join("stats");
    let server = StatsServer::new(server_data())
        .set_path(&socket)
        .launch()
        .unwrap();
    let answering = answer(&server, has_preferred);
    let text = Exporter::new(Source::new(&socket, Duration::from_secs(30), folder.path()))
        .scrape(Format::OpenMetrics);
    drop(server);
    // The server's own thread lives until the process ends, and holds the channel.
    drop(answering);
    text
}

/// The names of all samples in an exposition.
fn names(text: &str) -> BTreeSet<&str> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect()
}

#[test]
fn each_counter_is_a_metric_with_its_explanation() {
    let text = exported(true);
    let names = names(&text);
    let counters = serde_json::to_value(Metrics::default()).unwrap();
    let counters = counters.as_object().unwrap();
    assert_eq!(counters.len(), NR_EVENTS);
    for counter in counters.keys() {
        let metric = match counter.strip_suffix("_ns") {
            Some(time) => format!("magpie_{time}_seconds"),
            None => format!("magpie_{counter}"),
        };
        assert!(
            names.contains(&*format!("{metric}_total")),
            "{metric} in\n{text}"
        );
        assert!(
            text.contains(&format!("# HELP {metric} ")),
            "{metric} in\n{text}"
        );
    }
    assert!(!text.contains("A counter of the scheduler"), "{text}");
    for line in [
        "magpie_up 1",
        "magpie_sched_ext_enabled{scheduler=\"magpie_0.1.0\"} 1",
        "magpie_cpu_preferred{cpu=\"1\",core=\"1\",llc=\"0\",node=\"0\"} 0",
        "magpie_cgroup_throttled_seconds_total{cgroup=\"/a\"} 4.0",
    ] {
        assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
    }
}

#[test]
fn a_scheduler_without_preferred_cpus_is_up() {
    let text = exported(false);
    assert!(text.contains("magpie_up 1\n"), "{text}");
    assert!(text.contains("magpie_preferred_loaded 0\n"), "{text}");
}

/// The names of the fields of a status.
fn fields(status: impl Serialize) -> BTreeSet<String> {
    let value = serde_json::to_value(status).unwrap();
    value.as_object().unwrap().keys().cloned().collect()
}

/// The scheduler is a program and no library, so the observer has its own copies of these structs.
#[test]
fn both_sides_name_the_same_fields() {
    assert_eq!(
        fields(PreferredStatus::default()),
        fields(Preferred::default())
    );
    assert_eq!(fields(CpuStatus::default()), fields(Cpu::default()));
    assert_eq!(fields(CgroupStatus::default()), fields(Cgroup::default()));
}

/// The metrics that a PromQL expression names.
fn metrics_in(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("magpie_"))
}

/// All values of these keys, at any depth.
fn values_of<'a>(value: &'a serde_json::Value, keys: &[&str], found: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, inner) in map {
                if let (true, Some(text)) = (keys.contains(&key.as_str()), inner.as_str()) {
                    found.push(text);
                }
                values_of(inner, keys, found);
            }
        }
        serde_json::Value::Array(list) => list.iter().for_each(|one| values_of(one, keys, found)),
        _ => {}
    }
}

#[test]
fn dashboard_and_alerts_name_metrics_that_exist() {
    let text = exported(true);
    let names = names(&text);

    let dashboard = include_str!("../../packaging/prometheus/dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let mut queries = Vec::new();
    values_of(&dashboard, &["expr", "query"], &mut queries);
    queries.retain(|query| *query != "prometheus");
    assert!(queries.len() > 30, "{queries:?}");

    let alerts = include_str!("../../packaging/prometheus/alerts.yml");
    let expressions = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let expressions: Vec<_> = expressions.collect();
    assert_eq!(expressions.len(), alerts.matches("- alert: ").count());

    for query in queries.into_iter().chain(expressions) {
        assert!(metrics_in(query).next().is_some(), "no metric in {query}");
        for metric in metrics_in(query) {
            assert!(
                names.contains(metric),
                "{metric} of {query} is not in\n{text}"
            );
        }
    }
}
