//! The sums of a host's guests, on outputs as guests print them.

use super::*;
use crate::options::tests::measure;
use crate::plan::Plan;
use crate::workload::load;

const FILE: &str = "
physical_cpus = 2
[[guest]]
name = 'left'
machine = 'vt8on2'
background = true
command = 'true'
[[guest]]
name = 'ours'
machine = 'vt8on2'
command = 'true'
";

fn beside(file: &str) -> Result<Beside> {
    Beside::new(toml::from_str(file).unwrap(), 3.0)
}

/// What a guest printed whose runs began and ended at these seconds, and took as long as they say.
fn output(runs: &[(f64, f64)]) -> String {
    let run = |(from, to): &(f64, f64)| {
        format!(
            "Time: {}\n\n{MARK} {} {}\n",
            to - from,
            from * 1e9,
            to * 1e9
        )
    };
    runs.iter().map(run).collect::<String>() + "half of a run"
}

fn outcome(name: &str, runs: &[(f64, f64)], cpu_seconds: f64) -> GuestOutcome {
    GuestOutcome {
        name: name.into(),
        end: End::Exited(0),
        kernel: None,
        output: output(runs),
        had: Some(host::Had {
            begin_seconds: 30.0,
            seconds: 4.0,
            cpu_seconds,
            steal_seconds: 0.0,
            idle_seconds: 0.0,
        }),
        fidelity: None,
    }
}

fn hackbench() -> Vec<Metric> {
    let mut all = load(None).unwrap();
    all.retain(|workload| workload.name == "hackbench");
    all.pop().unwrap().metric
}

#[test]
fn each_guest_has_the_average_of_its_runs_and_its_part_of_the_host() {
    let outcomes = [
        outcome("ours", &[(30.0, 31.0), (31.0, 34.0)], 4.0),
        // The third run ended when the measured guest was gone.
        outcome("left", &[(30.0, 30.5), (30.5, 32.0), (32.0, 34.5)], 2.0),
    ];
    let figures = beside(FILE).unwrap().figures(&hackbench(), &outcomes);
    let figures = figures.unwrap().to_string();
    let metrics = metrics_of(&hackbench(), &["ours", "left"]);
    let found: Vec<(String, f64)> = metrics
        .iter()
        .map(|metric| {
            let value = metric.read(&figures, 0.0).unwrap();
            (metric.name.clone().unwrap(), value)
        })
        .collect();
    let wanted = [
        ("ours", 2.0),
        ("left", 1.0),
        ("ours CPU time per run", 2.0),
        ("left CPU time per run", 0.5),
        ("ours share of the host", 50.0),
        ("left share of the host", 25.0),
    ];
    let wanted = wanted.map(|(name, value)| (name.to_string(), value));
    assert_eq!(found, wanted);
}

#[test]
fn a_guest_that_ended_no_run_says_what_helps() {
    let outcomes = [
        outcome("ours", &[(30.0, 31.0)], 4.0),
        outcome("left", &[(30.0, 31.5)], 2.0),
    ];
    let figures = beside(FILE).unwrap().figures(&hackbench(), &outcomes);
    let error = figures.unwrap_err().to_string();
    assert!(
        error.contains("left ended no run") && error.contains("--repeat"),
        "{error}"
    );
}

#[test]
fn output_between_the_marks_belongs_to_its_run() {
    let runs = Runs::of(
        &format!("a\n{MARK} 1000000000 3000000000\nb\nc\n{MARK} x\n"),
        9.0,
    );
    let run = |from, to, output: &str| Run {
        from,
        to,
        output: output.into(),
    };
    assert_eq!(runs.0, [run(1.0, 3.0, "a\n")]);
    assert_eq!((runs.last_end(), runs.mean_seconds()), (3.0, 2.0));
}

#[test]
fn the_measured_guest_is_the_one_that_is_not_in_the_background() {
    assert_eq!(beside(FILE).unwrap().measured().name, "ours");
    let both = FILE.replace("background = true\n", "");
    let error = beside(&both).err().unwrap().to_string();
    assert!(
        error.contains("2 guests are not in the background"),
        "{error}"
    );
    let (_, alone) = FILE.split_once("true'").unwrap();
    let error = beside(alone).err().unwrap().to_string();
    assert!(error.contains("add a [[guest]]"), "{error}");
}

#[test]
fn rounds_begin_at_different_moments_of_a_second() {
    let mut moments: Vec<u128> = (0..30).map(|round| delay(round).as_millis()).collect();
    moments.sort_unstable();
    assert!(
        moments.windows(2).all(|two| two[1] - two[0] >= 8),
        "{moments:?}"
    );
    assert!(delay(0).is_zero() && moments[29] < 1000);
}

/// The plan of a command line, with EEVDF in all guests: no scheduler needs to be built.
fn plan(line: &str) -> Result<Plan> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("host.toml");
    fs::write(&file, FILE).unwrap();
    Plan::new(&measure(&format!("--host {} {line}", file.display())))
}

#[test]
fn pairs_of_schedulers_are_measured_against_the_first() {
    let plan = plan("--sched again=eevdf --neighbour eevdf --workload hackbench,latency").unwrap();
    let names: Vec<&str> = plan
        .suite
        .candidates
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(names, ["eevdf beside eevdf", "again beside eevdf"]);
    assert_eq!(plan.options["baselines"], json!(["eevdf beside eevdf"]));
    let metrics = plan
        .suite
        .work
        .iter()
        .map(|(workload, _)| workload.metric.len());
    // Each guest has the workload's own, its CPU time and its share of the host.
    let own = load(None).expect("they are valid");
    let own = |name: &str| {
        own.iter()
            .find(|workload| workload.name == name)
            .expect("it is there")
            .metric
            .len()
    };
    let expected = [2 * (own("hackbench") + 2), 2 * (own("latency") + 2)];
    assert_eq!(metrics.collect::<Vec<_>>(), expected);
    let label = plan.suite.work[1].0.metric[1].label(&plan.suite.work[1].1[0]);
    assert!(label.ends_with(": left wakeup p50"), "{label}");
}

#[test]
fn what_guests_of_a_host_do_not_take_is_refused_with_a_remedy() {
    for (line, word) in [
        ("--sched eevdf{base_slice_ns=5}", "PROGRAM@KERNEL"),
        (
            "--sched a=eevdf --neighbour b=eevdf{base_slice_ns=5}",
            "boot:WORD",
        ),
        ("--sched eevdf --workload x265", "choose another"),
        ("--sched eevdf --baseline scx_a", "name it in --sched"),
    ] {
        let error = plan(line).err().map(|error| format!("{error:#}"));
        let error = error.unwrap_or_else(|| panic!("{line} is accepted"));
        assert!(error.contains(word), "{error}");
    }
}
