//! The result file of a run.
//!
//! It has the raw samples and everything that is needed to repeat the run. Tables, verdicts and
//! comparisons are computed from the samples, so that a better statistic can be applied to old
//! files. The verdicts that a file has are for other programs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file;
use crate::provenance::{BASELINES, Origin, UNTIL_SURE, Values};
use crate::stats::{Average, Better, SIGNIFICANCE, Verdict};

/// Version of the result file's format. It is raised when an old reader would misread a new file.
pub const SCHEMA: u32 = 1;

/// The name of the baseline in reports: the kernel without a sched_ext scheduler.
pub const BASELINE: &str = "eevdf";

/// A result file. Readers ignore keys that they do not know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Format version, see [`SCHEMA`].
    pub schema: u32,
    /// Where it ran: "in" is `host` or `vm`, the other keys describe the machine.
    pub machine: Values,
    /// Kernel release that ran the workloads.
    pub kernel: String,
    /// Seconds since the epoch at the start of the run.
    #[serde(default)]
    pub started_unix: u64,
    /// True once every round has run. An interrupted or failed run leaves a valid file without it.
    #[serde(default)]
    pub complete: bool,
    /// The options of the command line, commit and program versions, to run it again.
    #[serde(default)]
    pub options: Values,
    /// One entry per workload case, metric and scheduler.
    pub results: Vec<Row>,
}

/// Percentiles of one run: a percentage of the requests, and the time, in the metric's unit, within
/// which they were done.
pub type Curve = Vec<(f64, f64)>;

/// Points of (seconds since the start, CPUs that were busy since the point before).
pub type Occupancy = Vec<(f64, f64)>;

/// The samples of one metric of one workload case under one scheduler.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// Workload name, for example `hackbench`.
    pub workload: String,
    /// The case's arguments and, where a workload has several metrics, the metric.
    pub case: String,
    /// The scheduler as given to `--sched`, or [`BASELINE`].
    pub scheduler: String,
    /// One value per round, in `unit`, in the order of the rounds. The warm-up run is not in it.
    pub samples: Vec<f64>,
    /// Unit of the samples: `s`, `us`, `requests/s`, ...
    pub unit: String,
    /// Which direction is an improvement.
    #[serde(default)]
    pub better: Better,
    /// All percentiles, one curve for each round, if the metric is a percentile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<Curve>,
    /// Busy CPUs over the time of the warm-up run; only in the row of a case's first metric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub occupancy: Occupancy,
    /// Counters of the kernel and of the scheduler, mean per run.
    #[serde(default)]
    pub counters: BTreeMap<String, f64>,
    /// The verdicts, for other programs: this one computes them anew from the samples. Only in a
    /// file whose run has ended; None for the baseline, and for a row that has no result.
    #[serde(default, skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Judged>,
    /// The reason why this row has fewer samples than asked for; absent if nothing failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// A row's verdicts, as the result file has them. Readers compute them anew from the samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// Of the row's own test.
    pub verdict: Verdict,
    /// Of the row's own test: the probability of a difference at least as clear by chance.
    pub p: f64,
    /// The round that decided; None if the number of rounds was fixed, or was too small to decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_after: Option<usize>,
    /// The smallest false discovery rate at which the row is still called different, corrected for
    /// all rows of the report. None if the row has too few samples to be tested.
    pub p_corrected: Option<f64>,
}

impl Judged {
    /// Does the row differ by its own test, but not if it is seen as one of many?
    pub fn is_weak(self) -> bool {
        self.verdict == Verdict::Different && self.p_corrected.is_none_or(|p| p >= SIGNIFICANCE)
    }

    /// The mark behind the row's figures.
    pub fn mark(self) -> &'static str {
        match self.verdict {
            Verdict::Different if self.is_weak() => " weak",
            Verdict::Different => "",
            Verdict::Same => " same",
            Verdict::TooFew => " few",
            Verdict::Mixed => " mixed",
            Verdict::Undecided => " unsure",
        }
    }
}

impl Row {
    /// Workload and case: rows of the same test differ in the scheduler only.
    pub fn test(&self) -> (&str, &str) {
        (&self.workload, &self.case)
    }

    /// Has it a better average than another row of its test? A row that failed, or has no result, is
    /// never the better one.
    fn is_better_than(&self, other_row: &Row) -> bool {
        let average = |row: &Row| Average::for_unit(&row.unit).of(&row.samples);
        let (this, other) = (average(self), average(other_row));
        match self.better {
            _ if !this.is_finite() || self.failed.is_some() => false,
            _ if !other.is_finite() || other_row.failed.is_some() => true,
            Better::Lower => this < other,
            Better::Higher => this > other,
        }
    }
}

impl Report {
    /// The rows that failed and why, the first of each candidate and reason.
    pub fn failures(&self) -> Vec<(&Row, &str)> {
        let mut told: Vec<(&Row, &str)> = Vec::new();
        for row in &self.results {
            let Some(why) = row.failed.as_deref() else {
                continue;
            };
            if !told
                .iter()
                .any(|(other, reason)| other.scheduler == row.scheduler && *reason == why)
            {
                told.push((row, why));
            }
        }
        told
    }

    /// An empty report of this machine, kernel and options.
    pub fn new(machine: Values, kernel: String, options: Values) -> Self {
        Self {
            schema: SCHEMA,
            machine,
            kernel,
            started_unix: now_unix(),
            complete: false,
            options,
            results: Vec::new(),
        }
    }

    /// The row of a test under a scheduler, if it was measured.
    pub fn row(&self, test: (&str, &str), scheduler: &str) -> Option<&Row> {
        self.results
            .iter()
            .find(|r| r.test() == test && r.scheduler == scheduler)
    }

    /// The candidates of which the best is the baseline of each test.
    pub fn baselines(&self) -> Vec<&str> {
        match self.options.get(BASELINES).and_then(Value::as_array) {
            Some(names) => names.iter().filter_map(Value::as_str).collect(),
            None => vec![BASELINE],
        }
    }

    /// The row with which the others of a test are compared: that of the baselines with the best
    /// average.
    pub fn baseline(&self, test: (&str, &str)) -> Option<&Row> {
        let rows = self.baselines().into_iter();
        let rows = rows.filter_map(|name| self.row(test, name));
        rows.reduce(|best, row| match row.is_better_than(best) {
            true => row,
            false => best,
        })
    }

    /// Is this the row with which the others of its test are compared?
    pub fn is_baseline(&self, row: &Row) -> bool {
        let base = self.baseline(row.test());
        base.is_some_and(|base| base.scheduler == row.scheduler)
    }

    /// The candidates that are compared with a baseline in any test.
    pub fn compared(&self) -> Vec<&str> {
        let mut names = self.schedulers();
        if let [only] = self.baselines()[..] {
            names.retain(|name| *name != only);
        }
        names
    }

    /// The baseline's name in a heading.
    pub fn baseline_name(&self) -> &str {
        match self.baselines()[..] {
            [only] => only,
            _ => "baseline",
        }
    }

    /// What the figures are normalized to, in words.
    pub fn normalized_to(&self) -> String {
        match self.baselines()[..] {
            [only] => only.into(),
            ref several => format!("the best of {} in each test", several.join(", ")),
        }
    }

    /// The tests of the report, each once, in the order of their runs.
    pub fn tests(&self) -> Vec<(&str, &str)> {
        distinct(self.results.iter().map(Row::test))
    }

    /// The workloads of the report, each once, in the order of their runs.
    pub fn workloads(&self) -> Vec<&str> {
        distinct(self.results.iter().map(|row| row.workload.as_str()))
    }

    /// The tests of one workload.
    pub fn tests_of(&self, workload: &str) -> Vec<(&str, &str)> {
        let mut tests = self.tests();
        tests.retain(|(name, _)| *name == workload);
        tests
    }

    /// The schedulers of the report: the baseline, then the others in the order of the first round.
    pub fn schedulers(&self) -> Vec<&str> {
        let mut names = distinct(self.results.iter().map(|r| r.scheduler.as_str()));
        names.sort_by_key(|name| *name != BASELINE);
        names
    }

    /// Reads a result file, compressed or not; `-` is standard input.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a result file of this format.
    pub fn load(path: &Path) -> Result<Self> {
        let text = file::read(path)
            .context("no result file to read; `magpie bench --json FILE` writes one")?;
        Self::parse(&text, path)
    }

    /// The report in the text of the file at `path`.
    pub(crate) fn parse(text: &str, path: &Path) -> Result<Self> {
        let report: Self = serde_json::from_str(text).with_context(|| {
            format!(
                "{} is not a result file of `magpie bench --json`",
                path.display()
            )
        })?;
        ensure!(
            report.schema == SCHEMA,
            "{} has result format {}, this program reads format {SCHEMA}: measure again, or use \
             the version that wrote it",
            path.display(),
            report.schema
        );
        Ok(report)
    }

    /// Writes the report as JSON, compressed if the name ends in `.gz`; `-` is standard output. A
    /// reader sees the old file or the whole new one, even if this program is killed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("encode the report")?;
        file::write(path, &(text + "\n"))
    }

    /// The margin of `--until-sure`, as a share; None if the number of rounds was fixed.
    pub fn until_sure(&self) -> Option<f64> {
        self.options.get(UNTIL_SURE)?.as_f64()
    }

    /// Where the results come from.
    pub fn origin(&self) -> Origin<'_> {
        Origin {
            machine: &self.machine,
            kernel: &self.kernel,
            started_unix: self.started_unix,
            options: &self.options,
        }
    }
}

/// Seconds since the epoch.
pub(crate) fn now_unix() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

/// The items without repetitions, in their order.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report of one lower-is-better case `-g 1` of hackbench, from scheduler names and samples.
    pub(crate) fn report_of(rows: &[(&str, &[f64])]) -> Report {
        let mut report = Report::new(BTreeMap::new(), "7.2.12-test".into(), BTreeMap::new());
        report.complete = true;
        report.results = rows
            .iter()
            .map(|(scheduler, samples)| Row {
                workload: "hackbench".into(),
                case: "-g 1".into(),
                scheduler: (*scheduler).into(),
                samples: samples.to_vec(),
                unit: "s".into(),
                ..Row::default()
            })
            .collect();
        report
    }

    #[test]
    fn the_best_of_several_baselines_is_compared_with() {
        let rows: [(&str, &[f64]); 3] =
            [("eevdf", &[2.0]), ("scx_a", &[0.5]), ("eevdf{x=0}", &[1.0])];
        let mut report = report_of(&rows);
        let test = ("hackbench", "-g 1");
        assert_eq!(report.baseline(test).unwrap().scheduler, "eevdf");
        assert_eq!(report.compared(), ["scx_a", "eevdf{x=0}"]);

        report
            .options
            .insert(BASELINES.into(), serde_json::json!(["eevdf", "eevdf{x=0}"]));
        let best = |report: &Report| report.baseline(test).unwrap().scheduler.clone();
        assert_eq!(best(&report), "eevdf{x=0}");
        assert_eq!(report.compared().len(), 3);
        report
            .results
            .iter_mut()
            .for_each(|row| row.better = Better::Higher);
        assert_eq!(best(&report), "eevdf");
        report.results[0].samples.clear();
        assert_eq!(
            best(&report),
            "eevdf{x=0}",
            "what has no result is not the best"
        );
        report.results[0].samples.push(9.0);
        report.results[0].failed = Some("killed".into());
        assert_eq!(best(&report), "eevdf{x=0}", "nor is what failed");
    }

    #[test]
    fn the_file_has_the_promised_keys() {
        let json = serde_json::to_value(report_of(&[("eevdf", &[0.5, 0.75])])).unwrap();
        assert_eq!(json["schema"], 1);
        assert!(json["machine"].is_object() && json["kernel"].is_string());
        let row = &json["results"][0];
        assert_eq!(row["workload"], "hackbench");
        assert_eq!(row["case"], "-g 1");
        assert_eq!(row["scheduler"], "eevdf");
        assert_eq!(row["samples"], serde_json::json!([0.5, 0.75]));
        assert_eq!(row["unit"], "s");
        assert_eq!(row["better"], "lower");
        assert!(row["counters"].is_object());
    }

    #[test]
    fn the_minimal_file_of_the_format_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.json");
        std::fs::write(
            &path,
            r#"{"schema":1,"machine":{},"kernel":"7.2","results":[{"workload":"hackbench","case":"-g 1 -l 100",
               "scheduler":"eevdf","samples":[1.0],"unit":"s","better":"lower","counters":{}}],"more":true}"#,
        )
        .unwrap();
        assert_eq!(Report::load(&path).unwrap().results[0].samples, [1.0]);
    }

    #[test]
    fn saving_replaces_the_file_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.json");
        std::fs::write(&path, "old").unwrap();
        report_of(&[("eevdf", &[1.0])]).save(&path).unwrap();
        assert_eq!(Report::load(&path).unwrap().results.len(), 1);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn bad_files_are_refused_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.json");
        let missing = format!("{:#}", Report::load(&path).unwrap_err());
        assert!(missing.contains("magpie bench --json"), "{missing}");
        std::fs::write(
            &path,
            r#"{"schema":9,"machine":{},"kernel":"","results":[]}"#,
        )
        .unwrap();
        let future = format!("{:#}", Report::load(&path).unwrap_err());
        assert!(future.contains("format 9"), "{future}");
        let nowhere = report_of(&[])
            .save(&folder.path().join("no/such/file"))
            .unwrap_err();
        assert!(format!("{nowhere:#}").contains("folder"));
    }
}
