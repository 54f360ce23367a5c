//! Published results beside ours: `--compare reference/FILE.csv`.
//!
//! The tables were published in different forms. Each is reduced to improvements in percent over
//! the kernel of its time, because absolute times of another machine say nothing about this one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::relation::relate;
use crate::report::{BASELINE, Report};
use crate::table::{Align, Style, write_lines};

/// One published figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// The name as published; its first word is compared with our workload's name.
    pub workload: String,
    /// The number that tells sizes of a workload apart, such as hackbench's groups.
    pub size: Option<u32>,
    /// The kernel that was compared with the baseline: `new`, `patch`, `push_only`.
    pub variant: String,
    /// Percent by which it was better than the baseline; negative is worse.
    pub improvement: f64,
}

/// Reads one of the files in `reference/`.
///
/// # Errors
/// If the file cannot be read, its columns have none of the known forms, or a field is not a
/// number.
pub fn load(path: &Path) -> Result<Vec<Published>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("{} is not a table of published results", path.display()))
}

/// The tables in `reference/`, by the names of their files.
const BUILT_IN: [(&str, &str); 4] = [
    (
        "steal-hackbench-xeon8380.csv",
        include_str!("../../reference/steal-hackbench-xeon8380.csv"),
    ),
    (
        "wakeup-threadripper3970x.csv",
        include_str!("../../reference/wakeup-threadripper3970x.csv"),
    ),
    (
        "push-epyc-2x64c.csv",
        include_str!("../../reference/push-epyc-2x64c.csv"),
    ),
    (
        "preferred-powervm.csv",
        include_str!("../../reference/preferred-powervm.csv"),
    ),
];

/// Our workloads' names, and their names in a published table where those differ.
pub type Names = BTreeMap<String, String>;

/// The table that a suite names: a file of `reference/`.
pub fn built_in(name: &str) -> Result<Vec<Published>> {
    match BUILT_IN.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => parse(text).with_context(|| format!("the published table {name}")),
        None => bail!("there is no published table {name} in reference/"),
    }
}

/// A table as rows of named values.
struct Table {
    headers: csv::StringRecord,
    rows: Vec<csv::StringRecord>,
}

impl Table {
    fn get<'a>(&self, row: &'a csv::StringRecord, column: &str) -> Result<&'a str> {
        let index = self.headers.iter().position(|header| header == column);
        index
            .and_then(|index| row.get(index))
            .with_context(|| format!("there is no column {column}"))
    }

    fn number(&self, row: &csv::StringRecord, column: &str) -> Result<f64> {
        let text = self.get(row, column)?.trim_end_matches('%');
        let number: Result<f64, _> = text.parse();
        number.with_context(|| format!("{column} is {text:?}, which is not a number"))
    }
}

/// Reads a table. Its columns tell which of the four published forms it has.
fn parse(text: &str) -> Result<Vec<Published>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let table = Table {
        headers: reader.headers()?.clone(),
        rows: reader.records().collect::<Result<_, _>>()?,
    };
    let has = |column: &str| table.headers.iter().any(|header| header == column);
    let read = if has("groups") && has("time_s") {
        read_times
    } else if has("relative") {
        read_relative
    } else if has("improvement_pct") {
        read_improvements
    } else if has("with_series") {
        read_series
    } else {
        bail!("its columns are {:?}", table.headers);
    };
    table
        .rows
        .iter()
        .map(|row| read(&table, row))
        .filter_map(Result::transpose)
        .collect()
}

/// Percent by which a value is better than the baseline, of which it is `normalized` times.
fn improvement(better: &str, normalized: f64) -> Result<f64> {
    Ok(100.0
        * match better {
            "lower" => 1.0 - normalized,
            "higher" => normalized - 1.0,
            _ => bail!("better is {better:?}, neither lower nor higher"),
        })
}

/// The first number in a text: 4 in `4-groups`.
fn size_in(text: &str) -> Option<u32> {
    text.split(|c: char| !c.is_ascii_digit())
        .find(|digits| !digits.is_empty())?
        .parse()
        .ok()
}

/// Reads a row of hackbench times under a new kernel; None for a row of the baseline.
fn read_times(table: &Table, row: &csv::StringRecord) -> Result<Option<Published>> {
    let variant = table.get(row, "kernel")?;
    if variant == "baseline" {
        return Ok(None);
    }
    let groups = table.get(row, "groups")?;
    let base = table
        .rows
        .iter()
        .find(|base| {
            table.get(base, "kernel").ok() == Some("baseline")
                && table.get(base, "groups").ok() == Some(groups)
        })
        .with_context(|| format!("no baseline for {groups} groups"))?;
    let normalized = table.number(row, "time_s")? / table.number(base, "time_s")?;
    Ok(Some(Published {
        workload: "hackbench".into(),
        size: size_in(groups),
        variant: variant.into(),
        improvement: improvement("lower", normalized)?,
    }))
}

/// Reads a row in percent of the baseline; None for a row of the baseline.
fn read_relative(table: &Table, row: &csv::StringRecord) -> Result<Option<Published>> {
    let variant = table.get(row, "variant")?;
    if variant == BASELINE {
        return Ok(None);
    }
    let normalized = table.number(row, "relative")? / 100.0;
    Ok(Some(Published {
        workload: table.get(row, "workload")?.into(),
        size: None,
        variant: variant.into(),
        improvement: improvement(table.get(row, "better")?, normalized)?,
    }))
}

/// Reads a row in the form of the kernel list, normalized to `tip`; None for a row of `tip`.
fn read_improvements(table: &Table, row: &csv::StringRecord) -> Result<Option<Published>> {
    let variant = table.get(row, "variant")?;
    if variant == "tip" {
        return Ok(None);
    }
    Ok(Some(Published {
        workload: table.get(row, "test")?.into(),
        size: size_in(table.get(row, "case")?),
        variant: variant.into(),
        improvement: table.number(row, "improvement_pct")?,
    }))
}

/// Reads a row of a virtual machine's throughput with and without the patches.
fn read_series(table: &Table, row: &csv::StringRecord) -> Result<Option<Published>> {
    let normalized = table.number(row, "with_series")? / table.number(row, "baseline")?;
    Ok(Some(Published {
        workload: table.get(row, "workload")?.into(),
        size: size_in(table.get(row, "case")?),
        variant: format!("{} {}", table.get(row, "vm")?, table.get(row, "setting")?),
        improvement: improvement(table.get(row, "better")?, normalized)?,
    }))
}

/// A table of our improvements over EEVDF beside the published ones, for all tests that both have.
///
/// # Errors
/// If they have no test in common.
pub fn render(
    report: &Report,
    published: &[Published],
    names: &Names,
    style: Style,
) -> Result<String> {
    let matching = |(workload, case): (&str, &str)| -> Vec<&Published> {
        let called = names.get(workload).map_or(workload, String::as_str);
        published
            .iter()
            .filter(|row| row.workload.split(' ').next() == Some(called))
            .filter(|row| row.size.is_none() || row.size == size_in(case))
            .collect()
    };
    let tests: Vec<_> = report
        .tests()
        .into_iter()
        .filter(|test| !matching(*test).is_empty())
        .collect();
    ensure!(
        !tests.is_empty(),
        "the published table has none of the tests that were measured; it has {}",
        workloads_of(published)
    );
    let mut variants: Vec<&str> = Vec::new();
    for row in tests.iter().flat_map(|test| matching(*test)) {
        if !variants.contains(&row.variant.as_str()) {
            variants.push(&row.variant);
        }
    }
    let schedulers = report.compared();

    let mut header = vec!["improvement".to_string()];
    header.extend(
        variants
            .iter()
            .map(|variant| format!("published: {variant}")),
    );
    header.extend(
        schedulers
            .iter()
            .map(|scheduler| format!("here: {scheduler}")),
    );
    let mut lines = vec![header];
    for test in tests {
        let rows = matching(test);
        let mut line = vec![format!("{} {}", test.0, test.1)];
        line.extend(variants.iter().map(|variant| {
            let row = rows.iter().find(|row| row.variant == *variant);
            row.map_or("-".into(), |row| format!("{:+.1} %", row.improvement))
        }));
        line.extend(schedulers.iter().map(|scheduler| {
            let relation = report
                .baseline(test)
                .zip(report.row(test, scheduler))
                .and_then(|(base, row)| relate(base, row));
            relation.map_or("-".into(), |relation| {
                format!("{:+.1} %", relation.improvement)
            })
        }));
        lines.push(line);
    }
    let mut text = String::new();
    write_lines(&mut text, &lines, style, Align::Left);
    let _ = writeln!(
        text,
        "percent better than the kernel's own scheduler, published against the kernel of its time"
    );
    Ok(text)
}

/// The workloads that a table has, for a message.
fn workloads_of(published: &[Published]) -> String {
    let mut names: Vec<&str> = published.iter().map(|row| row.workload.as_str()).collect();
    names.dedup();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;

    fn reference(name: &str) -> Vec<Published> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../reference");
        load(&Path::new(folder).join(name)).unwrap()
    }

    fn find<'a>(rows: &'a [Published], workload: &str, variant: &str) -> &'a Published {
        rows.iter()
            .find(|row| row.workload == workload && row.variant == variant)
            .unwrap()
    }

    #[test]
    fn every_shape_of_published_table_is_read() {
        let steal = reference("steal-hackbench-xeon8380.csv");
        let first = &steal[0];
        assert_eq!((first.size, first.variant.as_str()), (Some(1), "new"));
        // 2.182 s became 2.229 s.
        assert!((first.improvement + 2.15).abs() < 0.01, "{first:?}");

        let wakeup = reference("wakeup-threadripper3970x.csv");
        let row = find(&wakeup, "pogocache million ops/sec", "patch");
        assert!((row.improvement - 8.0).abs() < 0.01, "{row:?}");

        let push = reference("push-epyc-2x64c.csv");
        let row = find(&push, "hackbench", "push_only");
        assert_eq!((row.size, row.improvement), (Some(1), -1.10));

        let preferred = reference("preferred-powervm.csv");
        let row = find(&preferred, "daytrader", "VM1 default knobs");
        assert!((row.improvement - 30.0).abs() < 0.01, "{row:?}");
    }

    #[test]
    fn ours_stand_beside_the_published_ones() {
        let report = report_of(&[("eevdf", &[1.0; 4]), ("scx_magpie", &[0.9; 4])]);
        let rows = reference("steal-hackbench-xeon8380.csv");
        let text = render(&report, &rows, &Names::new(), Style::Text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[0].contains("published: new  here: scx_magpie"),
            "{text}"
        );
        assert!(
            lines[1].contains("-2.2 %") && lines[1].ends_with("+10.0 %"),
            "{text}"
        );

        let wakeup = reference("wakeup-threadripper3970x.csv");
        let error = render(&report, &wakeup, &Names::new(), Style::Text).unwrap_err();
        assert!(error.to_string().contains("pogocache"), "{error}");
        // As a suite says: hackbench here, x265 there.
        let names = Names::from([("hackbench".into(), "x265".into())]);
        let text = render(&report, &wakeup, &names, Style::Text).unwrap();
        assert!(
            text.contains("+8.0 %") && text.contains("+10.0 %"),
            "{text}"
        );
    }

    #[test]
    fn what_is_no_table_of_results_is_refused() {
        assert!(parse("a,b\n1,2\n").is_err());
        let error = parse("kernel,groups,time_s\nbaseline,1,2\nnew,1,fast\n").unwrap_err();
        assert!(format!("{error:#}").contains("time_s"), "{error:#}");
        assert!(parse("kernel,groups,time_s\nnew,1,2\n").is_err());
    }

    #[test]
    fn better_is_named() {
        assert!(improvement("faster", 1.0).is_err());
        assert_eq!(improvement("lower", 0.5).unwrap(), 50.0);
    }
}
