//! The metrics of samples made by hand. The scheduler's crate tests those of its own answers.

use super::*;
use crate::cpu_times::CpuTimes;
use crate::export::families::{Format, encode};
use crate::latency::Latency;
use crate::scheduler::Status;
use crate::topology::Place;

fn topology() -> Topology {
    let place = |cpu: usize| Place {
        core: cpu / 2,
        llc: cpu / 2,
        node: 0,
    };
    Topology {
        online: "0-3".into(),
        places: (0..4).map(|cpu| (cpu, place(cpu))).collect(),
    }
}

fn text(status: Result<Status, String>) -> String {
    let sample = Sample {
        at: 0.0,
        cpu_times: CpuTimes::default(),
        status,
        sched_ext: SchedExt {
            state: Some("enabled".into()),
            scheduler: Some("magpie".into()),
            enabled: 3,
            events: [("SCX_EV_BYPASS_ACTIVATE".to_string(), 2)].into(),
        },
        topology: topology(),
        latency: Ok(Latency::default()),
    };
    let explanations = [(
        "steal_ns".to_string(),
        "Time spent, in nanoseconds".to_string(),
    )];
    let text = encode(families(&sample, &explanations.into()), Format::OpenMetrics);
    openmetrics_parser::openmetrics::parse_openmetrics(&text).expect("OpenMetrics");
    text
}

fn expect(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|one| one == *line), "no {line} in\n{text}");
    }
}

#[test]
fn without_a_scheduler_the_kernels_side_is_left() {
    let text = text(Err("scx_magpie is not running".into()));
    expect(
        &text,
        &[
            "magpie_up 0",
            "magpie_sched_ext_enabled{scheduler=\"magpie\"} 1",
            "magpie_sched_ext_enables_total 3",
            "magpie_sched_ext_exits_total 2",
            "magpie_sched_ext_events_total{event=\"bypass_activate\"} 2",
        ],
    );
    assert!(!text.contains("cpu"), "{text}");
}

#[test]
fn each_answer_has_its_metrics() {
    let preferred = Preferred {
        preferred: "0-2".into(),
        online: "0-3".into(),
        mode: "kernel".into(),
        source: "estimate".into(),
        steal_percent: 12.5,
        high: 200,
        ..Preferred::default()
    };
    let cgroups = [
        ("/idle", Cgroup::default()),
        (
            "/limited",
            Cgroup {
                limit_percent: 50.0,
                throttled: 7,
                throttled_ns: 1_500_000_000,
                ..Cgroup::default()
            },
        ),
    ];
    let cpu = Cpu {
        avg_idle_ns: 700_000,
        search_llc_ns: 500,
        ..Cpu::default()
    };
    let text = text(Ok(Status {
        counters: [
            ("push".to_string(), 5),
            ("steal_ns".to_string(), 2_500_000_000),
        ]
        .into(),
        preferred: Some(preferred),
        cpus: [(2, cpu)].into(),
        cgroups: cgroups.map(|(path, one)| (path.to_string(), one)).into(),
    }));
    expect(
        &text,
        &[
            "magpie_up 1",
            "magpie_push_total 5",
            "# HELP magpie_steal_seconds Time spent",
            "magpie_steal_seconds_total 2.5",
            "magpie_cpu_avg_idle_seconds{cpu=\"2\",core=\"1\",llc=\"1\",node=\"0\"} 0.0007",
            "magpie_cpu_preferred{cpu=\"3\",core=\"1\",llc=\"1\",node=\"0\"} 0",
            "magpie_llc_preferred_cpus{llc=\"1\",node=\"0\"} 1",
            "magpie_steal_time_source{source=\"estimate\"} 1",
            "magpie_steal_time_source{source=\"kernel\"} 0",
            "magpie_steal_time_ratio 0.125",
            "magpie_preferred_mode{mode=\"kernel\"} 1",
            "magpie_preferred_mode{mode=\"auto\"} 0",
            "magpie_governor_high_ratio 0.02",
            "magpie_cgroup_limit_cpus{cgroup=\"/limited\"} 0.5",
            "magpie_cgroup_throttled_total{cgroup=\"/limited\"} 7",
            "magpie_cgroup_throttled_seconds_total{cgroup=\"/limited\"} 1.5",
        ],
    );
    assert!(
        !text.contains("/idle") && !text.contains("sibling"),
        "{text}"
    );
}

#[test]
fn steal_time_that_is_not_known_has_no_number() {
    let with = |source: &str, kernel_counts| {
        text(Ok(Status {
            preferred: Some(Preferred {
                source: source.into(),
                kernel_counts,
                ..Preferred::default()
            }),
            ..Status::default()
        }))
    };
    assert!(with("kernel", 1).contains("magpie_steal_time_ratio 0"));
    for text in [with("kernel", 0), with("none", 0)] {
        assert!(!text.contains("magpie_steal_time_ratio"), "{text}");
    }
}

#[test]
fn a_scheduler_without_preferred_cpus_says_so() {
    let text = text(Ok(Status::default()));
    expect(&text, &["magpie_preferred_loaded 0"]);
    assert!(!text.contains("steal_time"), "{text}");
}
