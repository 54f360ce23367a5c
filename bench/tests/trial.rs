//! Are the answers of `magpie try` right? Turns of known truth go through the same code as measured
//! ones: into a report, and from it into the five lines.
//!
//! A/A: the same scheduler twice. At most one trial in twenty may tell any difference, however many
//! figures it has. A/B: one figure differs by 10 %. The answer must tell this
//! difference, and no other.

mod noise;

use std::collections::BTreeMap;

use magpie_bench::report::{BASELINE, Report, Row};
use magpie_bench::trial::answer;
use magpie_bench::trial::metric::ALL;
use noise::{KINDS, Noise, quiet};

/// How the load of a trial changes from turn to turn: a factor for each.
type Drift = fn(usize, &mut fastrand::Rng) -> f64;

const STEADY: Drift = |_, _| 1.0;
/// From turn to turn 2 % more, for both schedulers.
const GROWING: Drift = |turn, _| 1.02_f64.powi(turn as i32);

/// A trial of `pairs` pairs. Half of the noise of a turn is common to its figures, because a busy
/// moment makes all of them worse. The figure `changed` of the other scheduler is larger by a
/// factor.
fn trial(
    noise: Noise,
    drift: Drift,
    pairs: usize,
    changed: (&str, f64),
    random: &mut fastrand::Rng,
) -> Report {
    let mut report = Report::new(BTreeMap::new(), String::new(), BTreeMap::new());
    for scheduler in [BASELINE, "other"] {
        report.results.extend(ALL.map(|metric| Row {
            workload: "try".into(),
            case: metric.name.into(),
            scheduler: scheduler.into(),
            unit: metric.unit.into(),
            better: metric.better,
            ..Row::default()
        }));
    }
    let mut order: Vec<bool> = (0..pairs).map(|pair| pair % 2 == 0).collect();
    random.shuffle(&mut order);
    let turns = order.iter().flat_map(|first| [*first, !first]);
    for (turn, is_baseline) in turns.enumerate() {
        let scheduler = if is_baseline { BASELINE } else { "other" };
        let common = drift(turn, random) * noise(random).sqrt();
        let rows = report.results.iter_mut();
        for row in rows.filter(|row| row.scheduler == scheduler) {
            let is_changed = row.case == changed.0 && !is_baseline;
            let factor = if is_changed { changed.1 } else { 1.0 };
            row.samples.push(factor * common * noise(random).sqrt());
        }
    }
    report
}

/// Does the answer tell of a difference? Only those have a percentage before a word.
fn tells(answer: &str) -> bool {
    ["better", "worse", "less", "more"]
        .iter()
        .any(|word| answer.contains(&format!("% {word} (")))
}

#[test]
fn of_the_same_scheduler_twice_nineteen_of_twenty_trials_tell_no_difference() {
    for (drift_name, drift) in [("steady", STEADY), ("growing", GROWING)] {
        for (name, noise) in KINDS {
            for pairs in [6, 15] {
                let mut random = fastrand::Rng::with_seed(pairs as u64);
                let trials = (0..500).map(|_| trial(noise, drift, pairs, ("", 1.0), &mut random));
                let wrong = trials.filter(|report| tells(&answer(report))).count();
                println!("A/A, {name} noise, {drift_name} load, {pairs} pairs: {wrong} of 500");
                // Three standard deviations of a true 5 % are 3 %.
                assert!(wrong <= 40, "{name}, {drift_name}, {pairs}: {wrong}");
            }
        }
    }
}

#[test]
fn a_changed_figure_is_told_and_no_other() {
    for pairs in [6, 15] {
        let (mut found, mut others) = (0, 0);
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let answer = answer(&trial(
                quiet,
                STEADY,
                pairs,
                ("wakeup p99", 1.1),
                &mut random,
            ));
            let (before, after) = answer.split_once("p99 ").expect("the figure");
            let (own, rest) = after.split_once(')').expect("its values");
            found += usize::from(own.contains("% worse"));
            others += usize::from(tells(before) || tells(rest));
        }
        println!("10 % worse, {pairs} pairs: {found} of 200 found, {others} with another figure");
        assert!(found >= 195 && others <= 20, "{pairs}: {found}, {others}");
    }
}

#[test]
fn the_answer_has_five_lines() {
    let mut random = fastrand::Rng::with_seed(1);
    let text = answer(&trial(quiet, STEADY, 6, ("throughput", 2.0), &mut random));
    let heads: Vec<&str> = text.lines().map(|line| line[..15].trim()).collect();
    assert_eq!(
        heads,
        [
            "throughput",
            "wait time",
            "wakeup latency",
            "CPU and power",
            "cannot tell"
        ]
    );
    assert!(
        text.contains("% better (") && text.contains("no difference ("),
        "{text}"
    );
}
