//! `magpie bench compare OLD NEW`: a gate against performance regressions.
//!
//! A row fails if the new average is worse by more than the limit **and** the difference is real.
//! With too few samples for the test it fails too, because fewer samples must not open the gate. A
//! row that failed in the new run or is missing there fails, because a scheduler that crashes must
//! not pass.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use crate::relation::relate;
use crate::report::{BASELINE, Report, Row};
use crate::stats::{Average, Verdict, variation_percent};

/// How strict the gate is.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Largest loss in percent that passes.
    pub fail_over: f64,
    /// Compare values relative to each file's own EEVDF, for files from hosts of different speed.
    /// The baseline itself is then not judged.
    pub normalized: bool,
}

/// The outcome of a comparison.
#[derive(Debug)]
pub struct Outcome {
    /// A line per row, then how many rows fail.
    pub text: String,
    /// How many rows fail the gate.
    pub failures: usize,
}

/// Compares two reports.
///
/// # Errors
/// If the machines differ, because absolute values would then say nothing, or if the old file has
/// no samples.
pub fn compare(old: &Report, new: &Report, gate: Gate) -> Result<Outcome> {
    if !gate.normalized && old.machine != new.machine {
        bail!(
            "the files come from different machines ({} and {}): measure both on one, or compare \
             with --normalized",
            describe(old),
            describe(new)
        );
    }
    let mut outcome = Outcome {
        text: String::new(),
        failures: 0,
    };
    if old.kernel != new.kernel {
        let _ = writeln!(
            outcome.text,
            "note: kernels differ, {} and {}",
            old.kernel, new.kernel
        );
    }
    let mut rows = 0;
    for before in &old.results {
        if before.samples.is_empty() || (gate.normalized && before.scheduler == BASELINE) {
            continue;
        }
        rows += 1;
        let verdict = judge_row(old, new, before, gate);
        let _ = writeln!(
            outcome.text,
            "{:<8} {} {} under {}: {}",
            if verdict.is_ok() { "ok" } else { "WORSE" },
            before.workload,
            before.case,
            before.scheduler,
            verdict.as_ref().unwrap_or_else(|why| why)
        );
        outcome.failures += usize::from(verdict.is_err());
    }
    if rows == 0 {
        bail!(
            "the old file has no samples to compare with: measure it again with `magpie bench \
             --json FILE`"
        );
    }
    let _ = writeln!(
        outcome.text,
        "{} of {rows} rows worse by more than {}%",
        outcome.failures, gate.fail_over
    );
    Ok(outcome)
}

/// Takes the rows of other candidates out of a report. The baseline stays, to normalize by.
///
/// # Errors
/// If the report has no row of one of the names, because nothing of it would be judged.
pub fn keep(report: &mut Report, names: &[String]) -> Result<()> {
    for name in names {
        if !report.results.iter().any(|row| row.scheduler == *name) {
            bail!(
                "the old file has no rows of {name}: give names as `magpie bench show` prints them"
            );
        }
    }
    let is_kept = |row: &Row| row.scheduler == BASELINE || names.contains(&row.scheduler);
    report.results.retain(is_kept);
    Ok(())
}

/// Judges one row: Ok if it passes, Err if it fails, both with the text to print.
fn judge_row(old: &Report, new: &Report, before: &Row, gate: Gate) -> Result<String, String> {
    let Some(after) = new.row(before.test(), &before.scheduler) else {
        return Err("not measured in the new file".into());
    };
    if let Some(why) = &after.failed {
        return Err(format!("failed in the new run: {why}"));
    }
    let (before, after) = if gate.normalized {
        (normalize(old, before)?, normalize(new, after)?)
    } else {
        (before.clone(), after.clone())
    };
    let Some(relation) = relate(&before, &after) else {
        return Err("no usable samples in the new file".into());
    };
    let words = format!(
        "{:+.2}% (variation {:.2}% and {:.2}%){}",
        relation.improvement,
        variation_percent(&before.samples),
        variation_percent(&after.samples),
        match relation.verdict {
            Verdict::Different => "",
            Verdict::Same => ", not a real difference",
            Verdict::TooFew => ", too few rounds to test",
            Verdict::Mixed => ", because of outliers: most samples are better",
            Verdict::Undecided => ", not decided when the rounds ended",
        }
    );
    let is_worse = relation.improvement < -gate.fail_over
        && !matches!(relation.verdict, Verdict::Same | Verdict::Mixed);
    if is_worse { Err(words) } else { Ok(words) }
}

/// The row's samples as multiples of the average of the same test's baseline.
fn normalize(report: &Report, row: &Row) -> Result<Row, String> {
    let base = report
        .row(row.test(), BASELINE)
        .map(|b| Average::for_unit(&b.unit).of(&b.samples));
    match base {
        Some(base) if base.is_finite() && base > 0.0 => Ok(Row {
            samples: row.samples.iter().map(|s| s / base).collect(),
            ..row.clone()
        }),
        _ => Err(format!("no {BASELINE} row to normalize by")),
    }
}

/// The machine as text, for a message.
fn describe(report: &Report) -> String {
    serde_json::to_string(&report.machine).unwrap_or_else(|_| "unreadable".into())
}

/// Parses `3%` or `3` as a limit in percent.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim();
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(format!("`{text}` is not a percentage such as 3% or 0.5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;

    const GATE: Gate = Gate {
        fail_over: 3.0,
        normalized: false,
    };
    const OLD: &[f64] = &[1.00, 1.01, 0.99, 1.02, 0.98];

    fn failures(old: &Report, new: &Report) -> usize {
        compare(old, new, GATE).unwrap().failures
    }

    #[test]
    fn a_real_loss_over_the_limit_fails() {
        let old = report_of(&[("scx_magpie", OLD)]);
        assert_eq!(
            failures(
                &old,
                &report_of(&[("scx_magpie", &[1.10, 1.11, 1.12, 1.09, 1.08])])
            ),
            1
        );
        // A gain, a loss within the limit, and noise pass.
        assert_eq!(
            failures(
                &old,
                &report_of(&[("scx_magpie", &[0.90, 0.91, 0.92, 0.89, 0.88])])
            ),
            0
        );
        assert_eq!(
            failures(
                &old,
                &report_of(&[("scx_magpie", &[1.021, 1.022, 1.023, 1.024, 1.025])])
            ),
            0
        );
        assert_eq!(
            failures(
                &old,
                &report_of(&[("scx_magpie", &[0.9, 1.6, 0.95, 0.97, 1.0])])
            ),
            0
        );
    }

    #[test]
    fn a_rate_fails_when_it_falls() {
        let rate = |samples: &[f64]| {
            let mut report = report_of(&[("scx_magpie", samples)]);
            report.results[0].unit = "requests/s".into();
            report.results[0].better = crate::stats::Better::Higher;
            report
        };
        assert_eq!(
            failures(
                &rate(&[100.0, 101.0, 102.0, 99.0]),
                &rate(&[90.0, 91.0, 92.0, 89.0])
            ),
            1
        );
        assert_eq!(
            failures(
                &rate(&[90.0, 91.0, 92.0, 89.0]),
                &rate(&[100.0, 101.0, 102.0, 99.0])
            ),
            0
        );
    }

    #[test]
    fn a_row_that_vanished_or_failed_does_not_pass() {
        let old = report_of(&[("eevdf", OLD), ("scx_magpie", OLD)]);
        assert_eq!(failures(&old, &report_of(&[("eevdf", OLD)])), 1);
        let mut broken = report_of(&[("eevdf", OLD), ("scx_magpie", OLD)]);
        broken.results[1].failed = Some("runnable task stall".into());
        let outcome = compare(&old, &broken, GATE).unwrap();
        assert_eq!(outcome.failures, 1);
        assert!(outcome.text.contains("runnable task stall"));
    }

    #[test]
    fn other_candidates_are_not_judged() {
        let mut old = report_of(&[("eevdf", OLD), ("scx_magpie", OLD), ("scx_lavd", OLD)]);
        let new = report_of(&[("eevdf", OLD), ("scx_magpie", OLD)]);
        assert_eq!(failures(&old, &new), 1);
        let error = keep(&mut old, &["scx_magpy".into()]).unwrap_err();
        assert!(error.to_string().contains("scx_magpy"));
        keep(&mut old, &["scx_magpie".into()]).unwrap();
        assert_eq!(failures(&old, &new), 0);
        assert_eq!(failures(&old, &report_of(&[("eevdf", OLD)])), 1);
    }

    #[test]
    fn too_few_rounds_do_not_open_the_gate() {
        let old = report_of(&[("scx_magpie", OLD)]);
        assert_eq!(failures(&old, &report_of(&[("scx_magpie", &[1.2])])), 1);
        assert_eq!(failures(&old, &report_of(&[("scx_magpie", &[1.01])])), 0);
    }

    #[test]
    fn machines_may_differ_only_when_normalized() {
        let old = report_of(&[("eevdf", OLD), ("scx_magpie", OLD)]);
        let slow: Vec<f64> = OLD.iter().map(|s| s * 5.0).collect();
        let mut new = report_of(&[("eevdf", &slow), ("scx_magpie", &slow)]);
        new.machine.insert("cpus".into(), 8.into());
        assert!(compare(&old, &new, GATE).is_err());
        let gate = Gate {
            normalized: true,
            ..GATE
        };
        assert_eq!(compare(&old, &new, gate).unwrap().failures, 0);
        new.results[1].samples.iter_mut().for_each(|s| *s *= 1.2);
        assert_eq!(compare(&old, &new, gate).unwrap().failures, 1);
    }

    #[test]
    fn nothing_to_compare_is_an_error() {
        assert!(compare(&report_of(&[]), &report_of(&[("eevdf", OLD)]), GATE).is_err());
    }

    #[test]
    fn percentages_are_read_with_and_without_sign() {
        assert_eq!(parse_percent("3%"), Ok(3.0));
        assert_eq!(parse_percent("0.5"), Ok(0.5));
        assert!(parse_percent("-1%").is_err() && parse_percent("much").is_err());
    }
}
