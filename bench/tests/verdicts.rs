//! Are the verdicts right? Samples of known truth go through the same code as measured ones: into a
//! report, and from it into the table's relations.
//!
//! A/A: the same scheduler twice, under the kinds of noise that benchmarks have. At most one row in
//! twenty may be called different. A/B: one scheduler is 5 % slower. The
//! verdicts must say so.

mod noise;

use std::collections::BTreeMap;

use magpie_bench::relation::{Relation, relate};
use magpie_bench::report::{BASELINE, Report, Row};
use magpie_bench::stats::Verdict;
use noise::{KINDS, Noise, coarse, disturbed, quiet};

/// Judges `rows` tests of `rounds` rounds each, in which the second scheduler is slower by a
/// factor.
fn relations(noise: Noise, slower: f64, rounds: usize, rows: usize, seed: u64) -> Vec<Relation> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut report = Report::new(BTreeMap::new(), String::new(), BTreeMap::new());
    for index in 0..rows {
        for (scheduler, factor) in [(BASELINE, 1.0), ("other", slower)] {
            report.results.push(Row {
                workload: "simulated".into(),
                case: index.to_string(),
                scheduler: scheduler.into(),
                samples: (0..rounds).map(|_| noise(&mut random) * factor).collect(),
                unit: "s".into(),
                ..Row::default()
            });
        }
    }
    let tests = report.tests();
    let relation = |test: &(&str, &str)| {
        let (base, other) = (report.row(*test, BASELINE), report.row(*test, "other"));
        relate(base?, other?)
    };
    tests.iter().filter_map(relation).collect()
}

fn called_different(relations: &[Relation]) -> f64 {
    let different = relations.iter().filter(|r| r.verdict == Verdict::Different);
    different.count() as f64 / relations.len() as f64
}

#[test]
fn the_same_against_itself_is_called_different_at_most_once_in_twenty() {
    // 2000 rows: three standard deviations of a true 5 % are 1.5 %.
    for (name, noise) in KINDS {
        for rounds in [4, 5, 8, 20] {
            let relations = relations(noise, 1.0, rounds, 2000, rounds as u64);
            assert_eq!(relations.len(), 2000);
            let share = called_different(&relations);
            println!(
                "A/A, {name} noise, {rounds} rounds: {:.1} % called different",
                100.0 * share
            );
            assert!(share <= 0.065, "{name}, {rounds} rounds: {share}");
        }
    }
    // The test is no blind one: where samples are not tied it errs as often as it may.
    let share = called_different(&relations(quiet, 1.0, 20, 2000, 1));
    assert!(share >= 0.03, "{share}");
}

#[test]
fn twenty_suites_of_the_same_stay_within_their_error() {
    for suite in 0..20 {
        let share = called_different(&relations(disturbed, 1.0, 8, 200, 1000 + suite));
        assert!(share <= 0.10, "suite {suite}: {share}");
    }
}

#[test]
fn five_percent_slower_is_found() {
    for (name, noise, rounds, least) in [
        ("quiet", quiet as Noise, 8, 0.98),
        ("coarse", coarse, 8, 0.95),
        // One run in five lost to the host: more rounds are needed.
        ("disturbed", disturbed, 30, 0.90),
    ] {
        let relations = relations(noise, 1.05, rounds, 300, 3);
        let share = called_different(&relations);
        println!(
            "A/B 5 %, {name} noise, {rounds} rounds: {:.1} % found",
            100.0 * share
        );
        assert!(share >= least, "{name}, {rounds} rounds: {share}");
        let wrong = relations
            .iter()
            .filter(|r| r.verdict == Verdict::Different && r.improvement > 0.0);
        assert_eq!(wrong.count(), 0, "slower was called faster");
    }
}
