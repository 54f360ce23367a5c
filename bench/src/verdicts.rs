//! The verdicts of a whole report: each row's own, and corrected for the number of rows.
//!
//! A test at 0.05 calls one of twenty rows different by chance, and a table has many rows. The
//! procedure of Benjamini and Hochberg bounds the *false discovery rate*: of the rows that it calls
//! different, one in twenty at most is so by chance, on average. Y. Benjamini, Y. Hochberg:
//! Controlling the false discovery rate: a practical and powerful approach to multiple testing.
//! Journal of the Royal Statistical Society B 57 (1995), 289-300.
//!
//! The bound was proved for independent rows. Rows of one run are not independent: two percentiles
//! of the same latencies are high together. For such positive dependence the bound holds, too.
//! Y. Benjamini, D. Yekutieli: The control of the false discovery rate in multiple testing under
//! dependency. Annals of Statistics 29 (2001), 1165-1188.
//!
//! The p values of `--until-sure` hold whatever made the rounds end, so they are corrected alike.
//!
//! The verdict of a row stays as it is: a reader who asks about this row only needs no correction.

use crate::relation::{Relation, relate};
use crate::report::{Judged, Report, Row};
use crate::sequential::decide;
use crate::stats::Verdict;

/// How many tests of a candidate ended with which verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The candidate is better by the row's own test.
    pub better: usize,
    /// It is worse.
    pub worse: usize,
    /// There is no real difference, or it could not be told.
    pub undecided: usize,
    /// The candidate failed, or has no samples.
    pub missing: usize,
}

/// The verdicts of all rows of a report.
pub struct Verdicts {
    /// For each row of the report, in its order.
    rows: Vec<Option<(Relation, Judged)>>,
}

impl Verdicts {
    /// Judges each row against the baseline's of its test.
    pub fn of(report: &Report) -> Self {
        let relation = |row: &Row| {
            let base = report.baseline(row.test())?;
            if base.scheduler == row.scheduler || row.failed.is_some() {
                return None;
            }
            let relation = relate(base, row)?;
            Some(match report.until_sure() {
                Some(margin) => decided(base, row, relation, margin),
                None => (relation, None),
            })
        };
        let relations: Vec<Option<(Relation, Option<usize>)>> =
            report.results.iter().map(relation).collect();
        // Whether a row can be tested depends on the number of its samples, not on their values, so
        // that leaving out the others does not favour any result.
        let is_tested = |relation: &Relation| relation.verdict != Verdict::TooFew;
        let tested = relations.iter().flatten().map(|(relation, _)| relation);
        let tested: Vec<f64> = tested.filter(|r| is_tested(r)).map(|r| r.p).collect();
        let mut corrected = correct(&tested).into_iter();
        let rows = relations.into_iter().map(|relation| {
            let (relation, decided_after) = relation?;
            let judged = Judged {
                verdict: relation.verdict,
                p: relation.p,
                decided_after,
                p_corrected: match is_tested(&relation) {
                    true => corrected.next(),
                    false => None,
                },
            };
            Some((relation, judged))
        });
        Self {
            rows: rows.collect(),
        }
    }

    /// The verdict of a row; None for the baseline, a row that failed, and one without samples.
    pub fn get(&self, report: &Report, row: &Row) -> Option<(Relation, Judged)> {
        let is_row = |other: &Row| other.test() == row.test() && other.scheduler == row.scheduler;
        let index = report.results.iter().position(is_row)?;
        self.rows.get(index).copied().flatten()
    }

    /// The verdict of each row, in the order of the report.
    pub fn judged(&self) -> impl Iterator<Item = Option<Judged>> {
        self.rows.iter().map(|row| row.map(|(_, judged)| judged))
    }

    /// Counts the verdicts of a candidate.
    pub fn tally(&self, report: &Report, scheduler: &str) -> Tally {
        let mut tally = Tally::default();
        for test in report.tests() {
            let row = report.row(test, scheduler);
            if row.is_some_and(|row| report.is_baseline(row)) {
                continue;
            }
            *match row.and_then(|row| self.get(report, row)) {
                None => &mut tally.missing,
                Some((r, _)) if r.verdict != Verdict::Different => &mut tally.undecided,
                Some((r, _)) if r.improvement >= 0.0 => &mut tally.better,
                Some(_) => &mut tally.worse,
            } += 1;
        }
        tally
    }

    /// How many rows were tested, differ by their own tests, and differ after the correction.
    pub fn count(&self) -> (usize, usize, usize) {
        let count = |is_counted: fn(&Judged) -> bool| {
            let judged = self.judged().flatten();
            judged.filter(is_counted).count()
        };
        (
            count(|judged| judged.p_corrected.is_some()),
            count(|judged| judged.verdict == Verdict::Different),
            count(|judged| judged.verdict == Verdict::Different && !judged.is_weak()),
        )
    }
}

/// Puts the verdicts into the rows of a report whose run has ended, for other programs.
pub fn judge(report: &mut Report) {
    let verdicts: Vec<Option<Judged>> = Verdicts::of(report).judged().collect();
    for (row, verdict) in report.results.iter_mut().zip(verdicts) {
        row.verdict = verdict;
    }
}

/// The relation as the sequential test judges it, because the U test keeps its error rate only if
/// the number of rounds did not depend on the samples.
fn decided(base: &Row, row: &Row, fixed: Relation, margin: f64) -> (Relation, Option<usize>) {
    let decision = decide(&base.samples, &row.samples, margin);
    let verdict = match decision.verdict {
        Verdict::Different if fixed.contradicts(base, row) => Verdict::Mixed,
        verdict => verdict,
    };
    let relation = Relation {
        verdict,
        p: decision.p,
        ..fixed
    };
    (relation, decision.round)
}

/// Corrects p values for their number, by Benjamini and Hochberg: the least of `p * number / rank`
/// over this and all greater p values.
fn correct(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
    let mut corrected = vec![1.0; p.len()];
    let mut least = 1.0_f64;
    for (above, index) in order.into_iter().enumerate() {
        let rank = p.len() - above;
        // Rounding must not make a corrected p smaller than its own.
        least = least.min((p[index] * p.len() as f64 / rank as f64).max(p[index]));
        corrected[index] = least;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::tests::report_of;
    use crate::stats::SIGNIFICANCE;

    #[test]
    fn the_example_of_the_paper_comes_out_as_published() {
        // Section 3.2 of the paper: of 15 p values, the four smallest are rejected at 0.05.
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0000,
        ];
        let rejected = correct(&p).iter().filter(|p| **p < 0.05).count();
        assert_eq!(rejected, 4);
    }

    #[test]
    fn the_correction_matches_r() {
        // p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "BH") and with a tie and another order.
        let close = |found: Vec<f64>, wanted: &[f64]| {
            let pairs = found.iter().zip(wanted);
            assert!(
                pairs.clone().all(|(a, b)| (a - b).abs() < 1e-12),
                "{found:?}"
            );
        };
        close(correct(&[0.01, 0.02, 0.03, 0.04, 0.05]), &[0.05; 5]);
        close(correct(&[0.9, 0.01, 0.01]), &[0.9, 0.015, 0.015]);
        assert!(correct(&[]).is_empty());
    }

    #[test]
    fn a_single_difference_among_many_rows_is_weak() {
        // Complete separation of four and four: p = 2/70.
        let (base, other) = ([1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3]);
        let alike = [1.0, 1.1, 1.2, 1.3];
        let mut rows: Vec<(&str, &[f64])> = vec![("eevdf", &base), ("scx_a", &other)];
        let judge = |rows: &[(&str, &[f64])]| {
            let report = report_of(rows);
            let verdicts = Verdicts::of(&report);
            let (_, judged) = verdicts.get(&report, &report.results[1]).unwrap();
            (judged, verdicts.count())
        };
        let (judged, count) = judge(&rows);
        assert_eq!((judged.mark(), count), ("", (1, 1, 1)));
        rows.extend([("b", alike.as_slice()), ("c", &alike)]);
        rows.push(("d", &alike[..2]));
        let (judged, count) = judge(&rows);
        // Two samples cannot be tested, and do not count.
        assert_eq!((judged.mark(), count), (" weak", (3, 1, 0)));
        assert_eq!(judged.verdict, Verdict::Different);
        assert!((judged.p_corrected.unwrap() - 6.0 / 70.0).abs() < 1e-12);
    }

    #[test]
    fn rows_without_a_result_have_no_verdict() {
        let mut report = report_of(&[("eevdf", &[1.0; 4]), ("a", &[1.0; 4]), ("b", &[])]);
        report.results[1].failed = Some("stall".into());
        let judged: Vec<_> = Verdicts::of(&report).judged().collect();
        assert_eq!(judged, [None; 3]);
    }

    #[test]
    fn of_the_differences_called_real_one_in_twenty_is_chance() {
        // 40 rows, of which 10 differ by three standard deviations; uniform p values for the
        // others.
        let mut random = fastrand::Rng::with_seed(1995);
        let (mut share, mut found) = (0.0, 0);
        const TRIALS: usize = 2000;
        for _ in 0..TRIALS {
            let p: Vec<f64> = (0..40)
                .map(|row| match row < 10 {
                    true => random.f64().powi(6),
                    false => random.f64(),
                })
                .collect();
            let corrected = correct(&p);
            let called: Vec<usize> = (0..40)
                .filter(|row| corrected[*row] < SIGNIFICANCE)
                .collect();
            let wrong = called.iter().filter(|row| **row >= 10).count();
            share += wrong as f64 / called.len().max(1) as f64 / TRIALS as f64;
            found += called.len() - wrong;
        }
        println!(
            "false discoveries {share:.4}, {found} of {} found",
            10 * TRIALS
        );
        // The bound is 0.05 times the share of rows without a difference, 0.0375.
        assert!((0.030..0.045).contains(&share), "{share}");
    }

    proptest! {
        #[test]
        fn a_corrected_p_is_at_least_its_own_and_keeps_the_order(
            p in prop::collection::vec(0.0_f64..=1.0, 1..60),
        ) {
            let corrected = correct(&p);
            for (index, (own, with_all)) in p.iter().zip(&corrected).enumerate() {
                prop_assert!(with_all >= own && *with_all <= 1.0);
                prop_assert!(*with_all <= own * p.len() as f64 + 1e-12, "milder than Bonferroni");
                for (other, its) in p.iter().zip(&corrected) {
                    prop_assert!(own > other || with_all <= its, "row {}", index);
                }
            }
        }

        #[test]
        fn the_rows_called_different_are_those_of_the_step_up_rule(
            p in prop::collection::vec(0.0_f64..0.2, 1..40),
        ) {
            // As the paper has it: the largest k with p(k) <= k/m * q, and all rows up to it.
            let mut sorted = p.clone();
            sorted.sort_by(f64::total_cmp);
            let m = p.len() as f64;
            let rule = |k: &usize| sorted[*k - 1] * m / *k as f64 <= 0.05;
            let k = (1..=p.len()).rev().find(rule).unwrap_or(0);
            let called = correct(&p).iter().filter(|p| **p <= 0.05).count();
            prop_assert_eq!(called, k);
        }
    }
}
