//! `magpie bench show`: what result files say, as tables, as a mail, as a page or as a picture.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::callbacks::{self, Costs};
use crate::options::{Show, ShowCounters};
use crate::provenance::Origin;
use crate::reference::{self, Names};
use crate::report::Report;
use crate::table::{self, Style};
use crate::{counters, file, html, mail, page, plot};

/// The content of a result file.
enum Results {
    /// Of `magpie bench --json`.
    Report(Report),
    /// Of `magpie bench callbacks --json`.
    Costs(Costs),
}

impl Results {
    /// Reads a result file of either kind.
    fn load(path: &Path) -> Result<Self> {
        let text = file::read(path)
            .context("no result file to read; `magpie bench --json FILE` writes one")?;
        let is_foreign = || {
            format!(
                "{} is not a result file of `magpie bench --json` or `magpie bench callbacks \
                 --json`",
                path.display()
            )
        };
        let json: Value = serde_json::from_str(&text).with_context(is_foreign)?;
        if json.get("results").is_some() {
            return Report::parse(&text, path).map(Self::Report);
        }
        ensure!(json.get("schedulers").is_some(), is_foreign());
        let costs: Costs = serde_json::from_value(json).with_context(is_foreign)?;
        Ok(Self::Costs(costs))
    }

    fn origin(&self) -> Origin<'_> {
        match self {
            Self::Report(report) => report.origin(),
            Self::Costs(costs) => costs.origin(),
        }
    }

    /// The report, for what is made of samples only.
    fn report(&self, option: &str) -> Result<&Report> {
        match self {
            Self::Report(report) => Ok(report),
            Self::Costs(_) => bail!(
                "{option} needs samples; a file of `magpie bench callbacks` has none, only a table"
            ),
        }
    }

    /// The tables alone.
    fn tables(&self, style: Style) -> String {
        match self {
            Self::Report(report) => table::render_tables(report, style),
            Self::Costs(costs) => callbacks::render_table(costs, style),
        }
    }

    /// Command, tables and provenance as `docs/results.md` has them. The tables are text, because
    /// Markdown would take `[ 7.10]( 2.11)` for a link.
    fn for_docs(&self) -> String {
        let origin = self.origin();
        format!(
            "{}\n```\n{}\n```\n\n{}",
            origin.command_block(),
            self.tables(Style::Text).trim_end(),
            origin.paragraph()
        )
    }

    /// Provenance, tables, legend, counters and published results, for a terminal.
    fn for_terminal(&self, args: &Show) -> Result<String> {
        let style = Style::of(args.markdown);
        let origin = self.origin().describe();
        let mut text = match style {
            Style::Text => origin + "\n",
            Style::Markdown => format!("```\n{origin}```\n\n"),
        };
        let Self::Report(report) = self else {
            return Ok(text + &self.tables(style));
        };
        if !report.complete {
            text += "This run did not end, or the file does not say that it did: samples may be \
                     missing.\n\n";
        }
        text += &table::render(report, style);
        text += &describe_counters(report, args.display.show_counters);
        if let Some(path) = &args.display.compare {
            let published = reference::load(path)?;
            text += "\n";
            text += &reference::render(report, &published, &Names::new(), style)?;
        }
        Ok(text)
    }
}

/// Runs `magpie bench show`.
///
/// # Errors
/// If a file is no result file, has nothing of what is asked for, or a file cannot be written.
pub fn run(args: &Show) -> Result<()> {
    let all: Vec<Results> = args
        .files
        .iter()
        .map(|file| Results::load(file))
        .collect::<Result<_>>()?;
    for (option, output) in [("--html", &args.display.html), ("--svg", &args.svg)] {
        let Some(output) = output else { continue };
        let [results] = all.as_slice() else {
            bail!(
                "{option} is made of one result file, and {} were given",
                all.len()
            );
        };
        let report = results.report(option)?;
        return match option {
            "--html" => html::write(report, output),
            _ => plot::write(report, output),
        };
    }
    if let Some(page) = &args.into {
        return write_into(page, &args.files, &all);
    }
    for (option, is_given) in [
        ("--compare", args.display.compare.is_some()),
        ("--mail", args.mail),
    ] {
        if is_given {
            all.iter()
                .try_for_each(|results| results.report(option).map(drop))?;
        }
    }
    for (index, (file, results)) in args.files.iter().zip(&all).enumerate() {
        if index > 0 {
            println!();
        }
        if args.mail {
            print!("{}", mail::render(results.report("--mail")?));
            continue;
        }
        if args.files.len() > 1 && !args.docs {
            println!("{}:", file.display());
        }
        match args.docs {
            true => print!("{}", results.for_docs()),
            false => print!("{}", results.for_terminal(args)?),
        }
    }
    Ok(())
}

/// Replaces the tables of a page.
fn write_into(page: &Path, files: &[PathBuf], all: &[Results]) -> Result<()> {
    let mut text = file::read(page)?;
    for (file, results) in files.iter().zip(all) {
        let name = page::table_name(file)?;
        text = page::replace_table(&text, &name, &results.for_docs()).with_context(|| {
            format!(
                "put the table of {} into {}",
                file.display(),
                page.display()
            )
        })?;
    }
    file::write(page, &text)
}

/// The counters of these schedulers' runs, one block for each case and scheduler.
pub fn describe_counters(report: &Report, which: ShowCounters) -> String {
    let mut text = String::new();
    let mut described = BTreeSet::new();
    for row in &report.results {
        // Behind the program may stand a kernel and settings.
        let command = row.scheduler.split(['@', '{']).next().unwrap_or_default();
        let argv = shell_words::split(command).unwrap_or_default();
        let program = argv
            .first()
            .and_then(|program| Path::new(program).file_name());
        let is_magpie = program.is_some_and(|name| name == "scx_magpie");
        let wanted = match which {
            ShowCounters::All => true,
            ShowCounters::Magpie => is_magpie,
            ShowCounters::None => false,
        };
        // All metrics of a run have the same counters, which are printed once.
        let case = row.case.split(": ").next().unwrap_or_default();
        let run = (&row.workload, case, &row.scheduler);
        if !wanted || row.counters.is_empty() || !described.insert(run) {
            continue;
        }
        text.push_str(&format!(
            "\n{}, {} {case}, per run:\n",
            row.scheduler, row.workload
        ));
        text.push_str(&counters::describe(&row.counters, "  "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;

    #[test]
    fn counters_of_a_run_with_several_metrics_are_shown_once() {
        let mut report = report_of(&[("eevdf", &[1.0]), ("scx_magpie", &[1.0])]);
        for row in &mut report.results {
            row.counters.insert("context_switches".into(), 5.0);
        }
        let mut other_metric = report.results.clone();
        for row in &mut other_metric {
            row.case.push_str(": wakeup p99");
        }
        report.results.extend(other_metric);
        let text = describe_counters(&report, ShowCounters::All);
        assert_eq!(text.matches("per run").count(), 2, "{text}");
    }

    #[test]
    fn counters_are_shown_for_whom_they_are_asked() {
        let mut report = report_of(&[("eevdf", &[1.0]), ("scx_magpie --no-steal", &[1.0])]);
        for row in &mut report.results {
            row.counters.insert("context_switches".into(), 5.0);
        }
        let text = describe_counters(&report, ShowCounters::Magpie);
        assert!(
            text.contains("scx_magpie --no-steal") && !text.contains("eevdf"),
            "{text}"
        );
        assert_eq!(
            describe_counters(&report, ShowCounters::All)
                .matches("context_switches 5")
                .count(),
            2
        );
        assert_eq!(describe_counters(&report, ShowCounters::None), "");
    }
}
