//! A suite on several machines: `--shard K/N` runs a part of its cases, `magpie bench merge` joins
//! the results.
//!
//! Shard K gets each Nth case, so that cheap and expensive sizes of a workload spread over the
//! shards. All schedulers of a case run on the same machine, because they are compared with each
//! other. Each shard's file lists the cases of the whole suite, so that `merge` can refuse files of
//! different runs and restore the order.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::report::{Report, Row};
use crate::workload::{Case, Workload};

/// Part `number` of `of` of a suite, counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: usize,
    of: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once('/')
            .and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match parsed {
            Some((number, of)) if (1..=of).contains(&number) && of <= 10_000 => {
                Ok(Self { number, of })
            }
            _ => Err(format!(
                "`{text}` is not a part of a whole, such as 1/4 (the first) to 4/4 (the last)"
            )),
        }
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl Shard {
    /// Does the case at this index of the whole suite belong to this shard?
    fn has(self, index: usize) -> bool {
        index % self.of == self.number - 1
    }

    /// Removes all cases from `work` but those of this shard.
    pub fn choose(self, work: &mut Vec<(Workload, Vec<Case>)>) {
        let mut index = 0;
        for (_, cases) in work.iter_mut() {
            cases.retain(|_| {
                index += 1;
                self.has(index - 1)
            });
        }
        work.retain(|(_, cases)| !cases.is_empty());
    }
}

/// The option under which a report keeps its shard.
pub const OPTION: &str = "shard";
/// The option under which a report keeps the cases of the whole suite: `[workload, case]` in order.
pub const CASES: &str = "cases";

/// Joins the shards of one run.
///
/// # Errors
/// If they are not all shards of one run: they differ in machine, kernel, version or options; a
/// shard is there twice, is missing, or did not run to its end.
pub fn merge(reports: &[(String, Report)]) -> Result<Report> {
    let [(first_name, first), others @ ..] = reports else {
        bail!("there is nothing to merge: name the result files of all shards")
    };
    let mut by_number: BTreeMap<usize, (&str, &Report)> = BTreeMap::new();
    let whole = shard_of(first_name, first)?.of;
    for (name, report) in reports {
        let shard = shard_of(name, report)?;
        ensure!(
            shard.of == whole,
            "{name} is a part of {}, {first_name} of {whole}: these are parts of different runs",
            shard.of
        );
        if let Some((other, _)) = by_number.insert(shard.number, (name, report)) {
            bail!("{name} and {other} are both shard {shard}: merge each part once");
        }
        ensure!(
            report.complete,
            "{name} did not run to its end: run `--shard {shard}` again"
        );
    }
    let missing: Vec<String> = (1..=whole)
        .filter(|number| !by_number.contains_key(number))
        .map(|number| format!("{number}/{whole}"))
        .collect();
    ensure!(
        missing.is_empty(),
        "the shards {} are missing: run them too, or name their files",
        missing.join(", ")
    );
    for (name, report) in others {
        check_comparable(first_name, first, name, report)?;
    }

    let cases = cases_of(first_name, first)?;
    let mut results: Vec<(usize, Row)> = Vec::new();
    for (number, (name, report)) in by_number {
        let shard = Shard { number, of: whole };
        for row in &report.results {
            let index = cases
                .iter()
                .position(|case| is_of(row, case))
                .with_context(|| {
                    format!(
                        "{name} has {} {}, which the suite has not",
                        row.workload, row.case
                    )
                })?;
            ensure!(
                shard.has(index),
                "{name} has {} {}, which another shard is to run",
                row.workload,
                row.case
            );
            results.push((index, row.clone()));
        }
    }
    // This sort is stable, so that metrics and schedulers of a case stay in order.
    results.sort_by_key(|(index, _)| *index);
    let mut merged = first.clone();
    merged.options.remove(OPTION);
    merged.options.insert("merged_from".into(), whole.into());
    merged.started_unix = reports
        .iter()
        .map(|(_, r)| r.started_unix)
        .min()
        .unwrap_or(0);
    merged.results = results.into_iter().map(|(_, row)| row).collect();
    Ok(merged)
}

/// The shard that a report is.
fn shard_of(name: &str, report: &Report) -> Result<Shard> {
    let text = report.options.get(OPTION).and_then(Value::as_str);
    let text = text.with_context(|| {
        format!("{name} is no part of a run: only results of `magpie bench --shard K/N` are merged")
    })?;
    text.parse()
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("{name} names a wrong shard"))
}

/// The cases of the whole suite, of which a report is a shard.
fn cases_of(name: &str, report: &Report) -> Result<Vec<(String, String)>> {
    let cases = report.options.get(CASES).cloned().unwrap_or_default();
    serde_json::from_value(cases)
        .with_context(|| format!("{name} does not list the cases of the whole run"))
}

/// Is the row a metric of this case?
fn is_of(row: &Row, (workload, case): &(String, String)) -> bool {
    row.workload == *workload
        && row
            .case
            .strip_prefix(case.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
}

/// Refuses two reports that differ in machine, kernel or options.
fn check_comparable(name: &str, report: &Report, other_name: &str, other: &Report) -> Result<()> {
    let differs = |what: &str, one: &Value, two: &Value| {
        format!(
            "{name} and {other_name} may not be mixed: their {what} differs, {one} and {two}; \
             measure both under the same circumstances"
        )
    };
    let (machine, other_machine) = (&report.machine, &other.machine);
    ensure!(
        machine == other_machine,
        differs(
            "machine",
            &serde_json::to_value(machine)?,
            &serde_json::to_value(other_machine)?
        )
    );
    ensure!(
        report.kernel == other.kernel,
        differs(
            "kernel",
            &report.kernel.clone().into(),
            &other.kernel.clone().into()
        )
    );
    let names = report.options.keys().chain(other.options.keys());
    for option in names.filter(|option| *option != OPTION) {
        let value = |report: &Report| report.options.get(option).cloned().unwrap_or_default();
        ensure!(
            value(report) == value(other),
            differs(option, &value(report), &value(other))
        );
    }
    Ok(())
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
