//! A result file as one HTML page that needs no network, no script and no other file.
//!
//! maud writes the markup, because it escapes all text: names and messages of schedulers come from
//! other programs.

use std::path::Path;

use anyhow::{Context, Result};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::provenance::Values;
use crate::relation::Relation;
use crate::report::Report;
use crate::stats::{Average, Better, Verdict, variation_percent};
use crate::table::significant;
use crate::verdicts::Verdicts;
use crate::{curve, file, occupancy, strip};

const STYLE: &str = "
body { font: 15px/1.45 system-ui, sans-serif; color: #1b1f24; background: #fff; max-width: 62rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem;
     border-bottom: 1px solid #d5dae0; }
h3 { font-size: .95rem; margin: 1.4rem 0 .2rem; font-weight: 600; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; display: block;
        overflow-x: auto; }
th, td { padding: .25rem .7rem; text-align: left; border-bottom: 1px solid #e6e9ed; white-space: nowrap; }
td:first-child { white-space: normal; min-width: 8rem; } td.number { text-align: right; }
.better { color: #0b6b2f; font-weight: 600; } .worse { color: #a3191f; font-weight: 600; }
.unsure { color: #6a737d; } .failed { color: #fff; background: #a3191f; padding: 0 .4rem; }
.note { color: #57606a; font-size: .9rem; } svg { max-width: 100%; height: auto; display: block; }
pre { background: #f5f7f9; padding: .7rem; overflow-x: auto; font-size: .85rem; white-space: pre-wrap; }
.warning { background: #fff4d6; border-left: 4px solid #d9a400; padding: .5rem .8rem; }
";

/// Writes the page; `-` is standard output.
pub fn write(report: &Report, path: &Path) -> Result<()> {
    let page = render(report)?;
    file::write(path, &page).context("write the HTML report")
}

/// Makes the page: a summary, how to read it, a section per workload, failures, and circumstances.
fn render(report: &Report) -> Result<String> {
    let verdicts = Verdicts::of(report);
    let workloads = report.workloads().into_iter();
    let sections: Vec<Markup> = workloads
        .map(|workload| section(report, &verdicts, workload))
        .collect::<Result<_>>()?;
    let origin = report.origin();
    let title = format!("Schedulers on {}", origin.machine_name());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                // An empty icon, because browsers fetch one from the network otherwise.
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                p.note { "Linux " (report.kernel) ", " (origin.date()) ", " (origin.rounds()) }
                @if !report.complete {
                    p.warning { "This run was interrupted or failed: samples are missing." }
                }
                (summary(report, &verdicts))
                (how_to_read(report))
                @for section in &sections { (section) }
                (failures(report))
                (circumstances(report))
            }
        }
    };
    Ok(page.into_string())
}

/// Counts for each scheduler the tests in which it is better, worse, not different, and without a
/// result.
fn summary(report: &Report, verdicts: &Verdicts) -> Markup {
    let tests = report.tests();
    let line = |scheduler: &str| {
        let tally = verdicts.tally(report, scheduler);
        [tally.better, tally.worse, tally.undecided, tally.missing]
    };
    html! {
        table {
            tr {
                th { "against " (report.baseline_name()) ", of " (tests.len()) " tests" }
                th { "better" } th { "worse" } th { "no real difference" } th { "failed or missing" }
            }
            @for scheduler in report.compared() {
                tr {
                    td { (scheduler) }
                    @for number in line(scheduler) { td.number { (number) } }
                }
            }
        }
    }
}

/// The legend of bars, dots, colours and marks.
fn how_to_read(report: &Report) -> Markup {
    html! {
        p.note {
            "Everything is relative to the baseline, " (report.normalized_to()) ". eevdf is the \
             kernel without a sched_ext scheduler. Bar: the average (harmonic for rates). Dots: the samples, one per round. Black line: 95 % \
             bootstrap interval of the average. In the tables: normalized average, improvement in \
             percent (positive is better, whichever direction that is), coefficient of variation \
             in percent. "
            b.better { "Green" } " and " b.worse { "red" } " are real differences (two-sided \
             Mann-Whitney U test, p < 0.05). Grey is no real difference (same), too few rounds to test (few), or \
             an average that outliers put on the other side (mixed). A difference is weak if it \
             is real by its own test, but may be chance as one of so many rows \
             (Benjamini-Hochberg, false discovery rate 0.05)."
        }
    }
}

/// The table of a workload, and the pictures of each of its tests.
fn section(report: &Report, verdicts: &Verdicts, workload: &str) -> Result<Markup> {
    let tests = report.tests_of(workload);
    let schedulers = report.compared();
    let pictures: Vec<_> = tests
        .iter()
        .map(|test| {
            Ok((
                strip::render(report, *test)?,
                occupancy::render(report, *test)?,
                curve::render(report, *test)?,
            ))
        })
        .collect::<Result<_>>()?;
    Ok(html! {
        h2 { (workload) }
        table {
            tr {
                th { "case" } th { (report.baseline_name()) }
                @for scheduler in &schedulers { th { (scheduler) } }
            }
            @for test in &tests {
                tr {
                    td { (test.1) }
                    td { (baseline(report, *test)) }
                    @for scheduler in &schedulers {
                        td { (cell(report, verdicts, *test, scheduler)) }
                    }
                }
            }
        }
        @for (test, (strip, occupancy, curve)) in tests.iter().zip(&pictures) {
            @if let Some(svg) = strip {
                h3 { (test.1) span.note { " " (direction(report, *test)) } }
                (PreEscaped(svg))
            }
            @if let Some(svg) = occupancy {
                p.note { "Busy CPUs over the time of the warm-up run:" }
                (PreEscaped(svg))
            }
            @if let Some(svg) = curve {
                p.note { "All percentiles: thin for each run, thick for the median of the runs." }
                (PreEscaped(svg))
            }
        }
    })
}

/// The baseline's average and its coefficient of variation.
fn baseline(report: &Report, test: (&str, &str)) -> String {
    match report.baseline(test) {
        Some(row) if !row.samples.is_empty() => format!(
            "{} {} ({:.2})",
            significant(Average::for_unit(&row.unit).of(&row.samples)),
            row.unit,
            variation_percent(&row.samples)
        ),
        _ => "-".into(),
    }
}

/// Which bars of a test are better.
fn direction(report: &Report, test: (&str, &str)) -> String {
    let base = report.baseline_name();
    match report.baseline(test).map(|row| row.better) {
        Some(Better::Lower) => format!("{base} = 1, shorter is better"),
        Some(Better::Higher) => format!("{base} = 1, longer is better"),
        None => String::new(),
    }
}

/// A candidate's figures in the table, coloured if the difference is real.
fn cell(report: &Report, verdicts: &Verdicts, test: (&str, &str), scheduler: &str) -> Markup {
    let Some(row) = report.row(test, scheduler) else {
        return html! { "-" };
    };
    if row.failed.is_some() {
        return html! { span.failed { "FAILED" } };
    }
    let Some((relation, judged)) = verdicts.get(report, row) else {
        return match report.is_baseline(row) {
            true => html! { "baseline" },
            false => html! { "-" },
        };
    };
    html! {
        span class=(class(&relation)) {
            (format!("{:.2} [{:+.2}]({:.2})", relation.normalized, relation.improvement,
                     variation_percent(&row.samples)))
            (judged.mark())
        }
    }
}

/// The style of a cell.
fn class(relation: &Relation) -> &'static str {
    match relation.verdict {
        Verdict::Different if relation.improvement >= 0.0 => "better",
        Verdict::Different => "worse",
        Verdict::Same | Verdict::TooFew | Verdict::Mixed | Verdict::Undecided => "unsure",
    }
}

/// Why rows failed, once for each candidate and reason.
fn failures(report: &Report) -> Markup {
    let failed = report.failures();
    html! {
        @if !failed.is_empty() {
            h2 { "Failures" }
            @for (row, why) in failed {
                h3 { (row.scheduler) ", " (row.workload) " " (row.case) }
                pre { (why) }
            }
        }
    }
}

/// The command, machine, options and versions: what is needed to run it again.
fn circumstances(report: &Report) -> Markup {
    let pretty = |values: &Values| {
        serde_json::to_string_pretty(values).unwrap_or_else(|error| error.to_string())
    };
    let command = report.origin().command();
    html! {
        h2 { "To run it again" }
        @if let Some(command) = command { pre { (command) } }
        p.note { "The machine:" }
        pre { (pretty(&report.machine)) }
        p.note { "Options, versions and the commands of the workloads:" }
        pre { (pretty(&report.options)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;

    const BASE: &[f64] = &[1.0, 1.01, 0.99, 1.02, 0.98];

    fn page(report: &Report) -> String {
        render(report).unwrap()
    }

    #[test]
    fn the_page_needs_nothing_but_itself() {
        let page = page(&report_of(&[("eevdf", BASE), ("scx_a", BASE)]));
        for outside in ["src=", "http-equiv", "@import", "url(", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        // The namespace of SVG is a name, not an address that is fetched.
        let addresses = page.matches("http").count();
        assert_eq!(
            addresses,
            page.matches("http://www.w3.org/2000/svg").count()
        );
    }

    #[test]
    fn real_differences_are_coloured_and_the_others_are_not() {
        let page = page(&report_of(&[
            ("eevdf", BASE),
            ("scx_fast", &[0.5, 0.51, 0.49, 0.52, 0.48]),
            ("scx_slow", &[2.0, 2.01, 1.99, 2.02, 1.98]),
            ("scx_same", BASE),
            ("scx_few", &[0.5]),
        ]));
        assert!(
            page.contains(r#"<span class="better">0.50 [+50.00](3.16)</span>"#),
            "{page}"
        );
        assert!(page.contains(r#"<span class="worse">2.00 [-100.00]"#));
        assert!(page.contains(" same</span>") && page.contains(" few</span>"));
    }

    #[test]
    fn what_other_programs_say_is_text_and_no_markup() {
        let mut report = report_of(&[("eevdf", BASE), ("scx_<b>", &[])]);
        report.results[1].failed = Some("<script>alert(1)</script>".into());
        let page = page(&report);
        assert!(!page.contains("<script>") && !page.contains("scx_<b>"));
        assert!(page.contains("&lt;script&gt;") && page.contains("FAILED"));
    }

    #[test]
    fn the_page_says_how_to_run_it_again_and_whether_it_is_whole() {
        let mut report = report_of(&[("eevdf", BASE)]);
        report.started_unix = 1_700_000_000;
        report
            .options
            .insert("command_line".into(), "magpie bench --rounds 5".into());
        report.machine.insert("model".into(), "A CPU".into());
        let whole = page(&report);
        assert!(whole.contains("magpie bench --rounds 5"));
        assert!(whole.contains("2023-11-14 22:13 UTC") && whole.contains("A CPU"));
        assert!(!whole.contains("interrupted"));
        report.complete = false;
        assert!(page(&report).contains("interrupted"));
    }
}
