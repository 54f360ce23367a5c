//! Turns a report into tables in the format of the kernel's scheduler list, as text and as
//! Markdown.
//!
//! A cell reads `0.93 [  7.10]( 2.11)`: the average normalized to the baseline, the improvement in
//! percent (positive is better, for times as for rates), and the coefficient of variation in
//! percent. Behind it stands a mark of the verdict, see [`Judged::mark`].

use std::fmt::Write as _;

use serde_json::Value;

use crate::provenance::HOST;
use crate::relation::Relation;
use crate::report::{Judged, Report, Row};
use crate::stats::{Average, variation_percent};
use crate::verdicts::Verdicts;

/// How the table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Aligned columns for a terminal or a plain-text mail.
    Text,
    /// A Markdown table.
    Markdown,
}

impl Style {
    /// The style that an option `--markdown` selects.
    pub fn of(markdown: bool) -> Style {
        match markdown {
            true => Style::Markdown,
            false => Style::Text,
        }
    }
}

/// The tables, one per workload, and a legend. Empty for a report without results.
pub fn render(report: &Report, style: Style) -> String {
    let mut text = render_tables(report, style);
    if !text.is_empty() {
        text.push_str(&match report.until_sure() {
            Some(margin) => describe_until_sure(report, margin),
            None => format!("{}{FIXED}{MIXED}", describe_figures(report)),
        });
        let kernels = report.origin().kernels();
        if kernels != report.kernel {
            let _ = writeln!(text, "kernels: {kernels}.");
        }
        text.push_str(&describe_correction(&Verdicts::of(report)));
        text.push_str(&describe_failures(report));
    }
    text
}

/// The legend of a run whose rounds depended on the samples, and how many rounds it took.
fn describe_until_sure(report: &Report, margin: f64) -> String {
    let lengths = report.results.iter().map(|row| row.samples.len());
    let measured: usize = lengths.clone().sum();
    let limit = report.options.get("rounds").and_then(Value::as_u64);
    let limit = limit.map_or_else(|| lengths.clone().max().unwrap_or(0), |n| n as usize);
    let fixed = (report.results.len() * limit).max(1);
    format!(
        "{}\
         Each row ran until it was decided (always-valid rank test, p < 0.05), for {} to {} of at \
         most {limit} rounds.\n\
         same: known to be smaller than {:.1} %; unsure: not decided within the rounds. Together \
         {:.0} % of the runs that {limit} rounds of each take.\n{MIXED}",
        describe_figures(report),
        lengths.clone().min().unwrap_or(0),
        lengths.max().unwrap_or(0),
        100.0 * margin,
        100.0 * measured as f64 / fixed as f64,
    )
}

/// How many rows differ on their own, and how many still do as rows of one report.
fn describe_correction(verdicts: &Verdicts) -> String {
    let (tested, different, corrected) = verdicts.count();
    if tested < 2 {
        return String::new();
    }
    format!(
        "weak: different by its own test, but not as one of {tested} rows (Benjamini-Hochberg, \
         false discovery rate 0.05).\n\
         {different} of {tested} rows differ by their own tests, {corrected} after the correction \
         for their number.\n"
    )
}

/// Why rows have no figures, once for each candidate and reason.
fn describe_failures(report: &Report) -> String {
    let mut text = String::new();
    for (row, why) in report.failures() {
        let _ = writeln!(text, "FAILED: {} under {}:", row.workload, row.scheduler);
        for line in why.lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

/// The tables alone, an empty line behind each: one per workload, with a line for each test. Of a
/// host with several guests they are one per case, with a line for each pair of schedulers, because
/// the pairs are many and have long names.
pub fn render_tables(report: &Report, style: Style) -> String {
    let schedulers = report.schedulers();
    let verdicts = Verdicts::of(report);
    let mut text = String::new();
    let mut write = |name: &str, tests: &[Test], turned: bool| {
        let mut lines = vec![header(report, name, &schedulers)];
        lines.extend(
            tests
                .iter()
                .map(|(test, name)| line(report, &verdicts, *test, name, &schedulers)),
        );
        if turned {
            lines = turn(&lines);
        }
        write_lines(&mut text, &lines, style, Align::Left);
        text.push('\n');
    };
    for workload in report.workloads() {
        let tests = report.tests_of(workload);
        if report.machine.contains_key(HOST) {
            for (case, tests) in by_case(&tests) {
                write(format!("{workload} {case}").trim_end(), &tests, true);
            }
        } else {
            let tests: Vec<Test> = tests.into_iter().map(|test| (test, test.1)).collect();
            write(workload, &tests, false);
        }
    }
    text
}

/// A test, and its name in a table.
type Test<'a> = ((&'a str, &'a str), &'a str);

/// The tests of each case, which stands in front of a test's metric: `-g 1: measured`.
fn by_case<'a>(tests: &[(&'a str, &'a str)]) -> Vec<(&'a str, Vec<Test<'a>>)> {
    let mut cases: Vec<(&str, Vec<Test>)> = Vec::new();
    for test in tests {
        let (case, metric) = test.1.rsplit_once(": ").unwrap_or(("", test.1));
        match cases.iter_mut().find(|(name, _)| *name == case) {
            Some((_, tests)) => tests.push((*test, metric)),
            None => cases.push((case, vec![(*test, metric)])),
        }
    }
    cases
}

/// Makes each column a line.
fn turn(lines: &[Vec<String>]) -> Vec<Vec<String>> {
    let columns = lines.first().map_or(0, Vec::len);
    let column = |index: usize| lines.iter().map(|line| line[index].clone()).collect();
    (0..columns).map(column).collect()
}

/// The legend of the figures in a cell.
fn describe_figures(report: &Report) -> String {
    format!(
        "normalized to {} [improvement %](coefficient of variation %); averages are arithmetic, \
         harmonic for rates.\n",
        report.normalized_to()
    )
}

const FIXED: &str = "\
same: no real difference (Mann-Whitney U, p >= 0.05); few: too few rounds to tell \
(at least 4 are needed).
";
const MIXED: &str = "\
mixed: most samples differ one way, the average the other, because of outliers.
";

/// The header of a workload's table: a column for the baseline's average and for each scheduler.
fn header(report: &Report, workload: &str, schedulers: &[&str]) -> Vec<String> {
    let base = report.baseline_name();
    let mut cells = vec![workload.to_string(), format!("{base} average")];
    cells.extend(schedulers.iter().map(|s| (*s).to_string()));
    cells
}

/// The line of a test, which begins with its name in the table, with the cells of all schedulers.
fn line(
    report: &Report,
    verdicts: &Verdicts,
    test: (&str, &str),
    name: &str,
    schedulers: &[&str],
) -> Vec<String> {
    let base = report.baseline(test);
    let average = match base {
        Some(row) if !row.samples.is_empty() => {
            format!(
                "{} {}",
                significant(Average::for_unit(&row.unit).of(&row.samples)),
                row.unit
            )
        }
        _ => "-".into(),
    };
    let mut cells = vec![name.to_string(), average];
    cells.extend(schedulers.iter().map(|scheduler| {
        let row = report.row(test, scheduler);
        cell(report, row, row.and_then(|row| verdicts.get(report, row)))
    }));
    cells
}

/// The cell of a row: `-` without samples, `FAILED` if the scheduler or workload failed.
fn cell(report: &Report, row: Option<&Row>, judged: Option<(Relation, Judged)>) -> String {
    let Some(row) = row else { return "-".into() };
    if row.failed.is_some() {
        return "FAILED".into();
    }
    let (normalized, improvement, mark) = match judged {
        Some((relation, judged)) => (relation.normalized, relation.improvement, judged.mark()),
        // The kernel list prints the baseline's own improvement as -0.00.
        None if report.is_baseline(row) && !row.samples.is_empty() => (1.0, -0.0, ""),
        None => return "-".into(),
    };
    let variation = variation_percent(&row.samples);
    format!("{normalized:.2} [{improvement:>6.2}]({variation:>5.2}){mark}")
}

/// Four significant digits: enough to see a per-mille, few enough to read.
pub fn significant(value: f64) -> String {
    let magnitude = if value == 0.0 {
        0
    } else {
        value.abs().log10().floor() as i32
    };
    let decimals = (3 - magnitude).clamp(0, 9) as usize;
    format!("{value:.decimals$}")
}

/// The alignment of all columns but the first, which has names and is always aligned left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Writes lines of cells, the first of them a header.
pub fn write_lines(text: &mut String, lines: &[Vec<String>], style: Style, align: Align) {
    match style {
        Style::Text => write_text(text, lines, align),
        Style::Markdown => write_markdown(text, lines, align),
    }
}

fn write_text(text: &mut String, lines: &[Vec<String>], align: Align) {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        lines
            .iter()
            .filter_map(|l| l.get(c))
            .map(|s| s.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        let mut row = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = match (column, align) {
                (1.., Align::Right) => write!(row, "{cell:>width$}  "),
                _ => write!(row, "{cell:<width$}  "),
            };
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
}

fn write_markdown(text: &mut String, lines: &[Vec<String>], align: Align) {
    let rule = match align {
        Align::Left => "---|",
        Align::Right => "---:|",
    };
    for (i, line) in lines.iter().enumerate() {
        let escaped: Vec<String> = line.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", escaped.join(" | "));
        if i == 0 {
            let _ = writeln!(text, "|---|{}", rule.repeat(line.len() - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;
    use crate::stats::Better;

    const BASE: &[f64] = &[1.00, 1.02, 0.98, 1.01, 0.99];

    #[test]
    fn cells_have_the_format_of_the_kernel_list() {
        let report = report_of(&[
            ("eevdf", BASE),
            ("scx_magpie", &[0.90, 0.91, 0.89, 0.90, 0.90]),
        ]);
        let text = render(&report, Style::Text);
        assert!(text.contains("1.00 [ -0.00]( 1.58)"), "{text}");
        assert!(text.contains("0.90 [ 10.00]( 0.79)\n"), "{text}");
        assert!(text.contains("1.000 s"), "{text}");
    }

    #[test]
    fn differences_that_are_not_real_are_marked() {
        let report = report_of(&[
            ("eevdf", BASE),
            ("scx_a", &[1.0, 1.01, 0.99, 1.03, 0.97]),
            ("scx_b", &[0.5, 0.5]),
        ]);
        let text = render(&report, Style::Text);
        assert!(text.contains("( 2.24) same"), "{text}");
        // Two runs can never be told from five.
        assert!(text.contains("0.50 [ 50.00]( 0.00) few"), "{text}");
    }

    #[test]
    fn a_percentage_that_contradicts_the_test_is_marked() {
        // Every sample but one is slower; the baseline's one outlier makes its average slower
        // still.
        let report = report_of(&[
            ("eevdf", &[1.0, 1.01, 1.02, 1.0, 1.01, 1.02, 1.0, 3.0]),
            ("scx_a", &[1.1, 1.11, 1.12, 1.1, 1.11, 1.12, 1.1, 1.1]),
        ]);
        let text = render(&report, Style::Text);
        assert!(text.contains("[ 11.93]( 0.80) mixed"), "{text}");
    }

    #[test]
    fn higher_is_better_for_rates() {
        let mut report = report_of(&[("eevdf", &[100.0; 5]), ("scx_a", &[110.0; 5])]);
        for row in &mut report.results {
            row.unit = "requests/s".into();
            row.better = Better::Higher;
        }
        assert!(render(&report, Style::Text).contains("1.10 [ 10.00]( 0.00)\n"));
    }

    #[test]
    fn failed_and_missing_rows_are_shown_as_such() {
        let mut report = report_of(&[("eevdf", BASE), ("scx_a", &[])]);
        report.results[1].failed = Some("runnable task stall".into());
        let text = render(&report, Style::Text);
        assert!(text.contains("FAILED"), "{text}");
        let reason = "FAILED: hackbench under scx_a:\n  runnable task stall\n";
        assert!(text.ends_with(reason), "{text}");
        assert_eq!(render(&report_of(&[]), Style::Text), "");
    }

    #[test]
    fn markdown_is_a_table() {
        let text = render(
            &report_of(&[("scx_a", BASE), ("eevdf", BASE)]),
            Style::Markdown,
        );
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| hackbench | eevdf average | eevdf | scx_a |");
        assert_eq!(lines[1], "|---|---|---|---|");
        assert!(lines[2].starts_with("| -g 1 | 1.000 s | 1.00 [ -0.00]( 1.58) | 1.00 ["));
    }

    #[test]
    fn a_host_with_several_guests_has_a_line_for_each_pair() {
        let mut report = report_of(&[("eevdf", BASE), ("scx_a beside eevdf", BASE)]);
        let mut more = report.results.clone();
        for row in &mut report.results {
            row.case = "-g 1: measured".into();
        }
        for row in &mut more {
            row.case = "-g 1: neighbour".into();
        }
        report.results.append(&mut more);
        report.machine.insert(HOST.into(), serde_json::json!({}));
        let text = render_tables(&report, Style::Markdown);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| hackbench -g 1 | measured | neighbour |");
        assert_eq!(lines[2], "| eevdf average | 1.000 s | 1.000 s |");
        assert!(
            lines[4].starts_with("| scx_a beside eevdf | 1.00 ["),
            "{text}"
        );
        assert_eq!(lines.len(), 6, "{text}");
    }

    #[test]
    fn averages_keep_four_digits() {
        assert_eq!(significant(0.003_741_9), "0.003742");
        assert_eq!(significant(12_345.6), "12346");
        assert_eq!(significant(0.0), "0.000");
    }
}
