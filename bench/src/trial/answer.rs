//! The answer of a trial in five lines: what changed, and what the trial could not tell.
//!
//! A difference is told if it is real as one of all figures of the trial, by the report's verdicts.
//! Everything else is "no difference", and the last line says how much the turns vary by
//! themselves.

use super::metric::{
    BUSY, ENERGY, Metric, POWER, SWITCHES, THROUGHPUT, WAIT, WAITING, WAKEUP_P50, WAKEUP_P99,
};
use crate::report::{BASELINE, Report, Row};
use crate::stats::{Average, Verdict, variation_percent};
use crate::table::significant;
use crate::verdicts::Verdicts;

/// The workload of a trial's rows.
pub const WORKLOAD: &str = "try";

/// Busier machines are under load; on others tasks hardly ever wait, whatever the scheduler does.
const HARDLY_BUSY: f64 = 10.0;

/// A host that takes more than this percentage of the CPU time is worth a remark.
const MUCH_STEAL: f64 = 1.0;

/// The five lines.
pub fn answer(report: &Report) -> String {
    let answer = Answer {
        report,
        verdicts: Verdicts::of(report),
    };
    let lines = [
        ("throughput", answer.throughput()),
        ("wait time", answer.wait_time()),
        ("wakeup latency", answer.wakeup_latency()),
        ("CPU and power", answer.cost()),
        ("cannot tell", answer.not_told()),
    ];
    let lines = lines.map(|(name, text)| format!("{name:<15} {text}\n"));
    lines.concat()
}

/// The names of the improvement and of its opposite.
type Words = [&'static str; 2];

const JUDGED: Words = ["better", "worse"];
/// Of figures that are neither good nor bad by themselves.
const COUNTED: Words = ["less", "more"];

struct Answer<'a> {
    report: &'a Report,
    verdicts: Verdicts,
}

impl Answer<'_> {
    fn throughput(&self) -> String {
        self.phrase(THROUGHPUT, JUDGED)
            .unwrap_or_else(|| "not measured, because no command was given behind `--`".into())
    }

    fn wait_time(&self) -> String {
        joined([
            self.named("waiting tasks", WAITING, JUDGED),
            self.named("each wait", WAIT, JUDGED),
        ])
        .unwrap_or_else(|| "not known: no task waited, or no /proc/schedstat".into())
    }

    fn wakeup_latency(&self) -> String {
        joined([
            self.named("p50", WAKEUP_P50, JUDGED),
            self.named("p99", WAKEUP_P99, JUDGED),
        ])
        .unwrap_or_else(|| "not known: the turns are too short".into())
    }

    /// Returns the line of what the scheduler costs: busy CPUs, context switches, power.
    fn cost(&self) -> String {
        let power = self.named("power", POWER, JUDGED);
        let power = power.or_else(|| self.named("energy", ENERGY, JUDGED));
        joined([
            self.named("busy", BUSY, COUNTED),
            self.named("context switches", SWITCHES, COUNTED),
            power.or_else(|| Some("power not known: no counters".into())),
        ])
        .unwrap_or_default()
    }

    /// Returns the reasons why the trial could not tell more.
    fn not_told(&self) -> String {
        let mut limits = Vec::new();
        let turns = self.report.results.iter().map(|row| row.samples.len());
        if self
            .verdicts
            .judged()
            .flatten()
            .any(|j| j.verdict == Verdict::TooFew)
        {
            limits.push(format!("anything from {} turns", turns.max().unwrap_or(0)));
        }
        let unseen: Vec<String> = self.unseen().collect();
        if !unseen.is_empty() {
            limits.push(format!(
                "small differences, as turns vary: {}",
                unseen.join(", ")
            ));
        }
        if let Some(busy) = self.mean("busy_percent").filter(|busy| *busy < HARDLY_BUSY) {
            limits.push(format!(
                "what happens under load, as CPUs were {busy:.1} % busy"
            ));
        }
        if let Some(steal) = self
            .mean("steal_percent")
            .filter(|steal| *steal > MUCH_STEAL)
        {
            limits.push(format!(
                "much of a host that took {steal:.0} % of the CPU time"
            ));
        }
        limits.push("what builds up over more than a turn".into());
        limits.join("; ")
    }

    /// The figures without a difference, each with the variation of its turns.
    fn unseen(&self) -> impl Iterator<Item = String> {
        let rows = self.report.results.iter().zip(self.verdicts.judged());
        rows.filter_map(|(row, judged)| {
            let judged = judged?;
            let is_seen = judged.verdict == Verdict::Different && !judged.is_weak();
            let base = self.report.row(row.test(), BASELINE)?;
            let variation = variation_percent(&base.samples);
            (!is_seen).then(|| format!("{} {variation:.0} %", row.case))
        })
    }

    /// The mean of a counter over both schedulers, if it was counted.
    fn mean(&self, counter: &str) -> Option<f64> {
        let rows = self.report.results.iter();
        let counts = rows.filter_map(|row| row.counters.get(counter).copied());
        let counts: Vec<f64> = counts.collect();
        (!counts.is_empty()).then(|| Average::Arithmetic.of(&counts))
    }

    /// Returns how a figure changed, behind its name.
    fn named(&self, name: &str, metric: Metric, words: Words) -> Option<String> {
        Some(format!("{name} {}", self.phrase(metric, words)?))
    }

    /// Returns how a figure changed: `4.7 % better (2.38 runs/s, eevdf 2.27)`. None if it is
    /// missing.
    fn phrase(&self, metric: Metric, words: Words) -> Option<String> {
        let is_other = |row: &&Row| row.case == metric.name && row.scheduler != BASELINE;
        let row = self.report.results.iter().find(is_other)?;
        let base = self.report.row(row.test(), BASELINE)?;
        let (relation, judged) = self.verdicts.get(self.report, row)?;
        let verdict = match judged.verdict {
            Verdict::Different if !judged.is_weak() => {
                let word = words[usize::from(relation.improvement < 0.0)];
                format!("{:.1} % {word}", relation.improvement.abs())
            }
            Verdict::Mixed => "unclear, as outliers decide".into(),
            Verdict::TooFew => "not known from so few turns".into(),
            _ => "no difference".into(),
        };
        let average = |row: &Row| significant(Average::for_unit(&row.unit).of(&row.samples));
        let (value, reference) = (average(row), average(base));
        Some(format!(
            "{verdict} ({value} {}, {BASELINE} {reference})",
            row.unit
        ))
    }
}

/// The phrases that there are; None if there is none.
fn joined(phrases: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let phrases: Vec<String> = phrases.into_iter().flatten().collect();
    (!phrases.is_empty()).then(|| phrases.join("; "))
}
