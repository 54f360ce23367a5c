//! `magpie bench`: runs what the command line asks for.

use std::path::PathBuf;

use anyhow::Result;

pub use crate::options::Args;

use crate::compare::{Gate, compare, keep};
use crate::options::{Command, Compare, Measure, Merge};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::reference::{self, Names, Published};
use crate::report::Report;
use crate::table::{Style, render};
use crate::{
    bisect, callbacks, file, html, interrupt, peers, plot, shard, show, suite, verdicts, workload,
};

/// Exit code of a gate that fails, and of a run in which a scheduler or workload failed.
const FAILED: u8 = 1;
/// Exit code of a run that a signal ended.
const INTERRUPTED: u8 = 130;

/// Runs `magpie bench` and returns the process's exit code: 1 if something that was measured
/// failed, or the gate of `compare` did.
///
/// # Errors
/// If the command line asks for what cannot be done, or the machine fails; with the remedy.
pub fn run(args: Args) -> Result<u8> {
    match args.command {
        Some(Command::Compare(args)) => return run_compare(&args),
        Some(Command::Show(args)) => show::run(&args)?,
        Some(Command::Plot(args)) => plot::write(&Report::load(&args.file)?, &args.svg)?,
        Some(Command::Merge(args)) => run_merge(&args)?,
        Some(Command::Workloads) => list_workloads()?,
        Some(Command::Suites) => list_suites()?,
        Some(Command::Bisect(args)) => return bisect::run(&args),
        Some(Command::Callbacks(args)) => callbacks::run(&args)?,
        Some(Command::Peers(args)) => peers::run(&args)?,
        None => return run_measure(&args.measure),
    }
    Ok(0)
}

fn list_workloads() -> Result<()> {
    for workload in workload::load(None)? {
        let (name, about) = (&workload.name, &workload.about);
        println!("{name:<18} {about}\n{:<18} $ {}", "", workload.command);
    }
    Ok(())
}

fn list_suites() -> Result<()> {
    for suite in suite::built_in()? {
        let workloads: Vec<&str> = suite.run.iter().map(|run| run.workload.as_str()).collect();
        let (name, about) = (&suite.name, &suite.about);
        println!("{name:<18} {about}\n{:<18} {}", "", workloads.join(", "));
    }
    Ok(())
}

/// Prints the comparison of two result files, and returns the exit code of the gate.
fn run_compare(args: &Compare) -> Result<u8> {
    let gate = Gate {
        fail_over: args.fail_over,
        normalized: args.normalized,
    };
    let mut old = Report::load(&args.old)?;
    if !args.sched.is_empty() {
        keep(&mut old, &args.sched)?;
    }
    let outcome = compare(&old, &Report::load(&args.new)?, gate)?;
    print!("{}", outcome.text);
    Ok(if outcome.failures == 0 { 0 } else { FAILED })
}

/// Joins the results of shards, judges their rows together, and writes the whole.
fn run_merge(args: &Merge) -> Result<()> {
    let reports: Vec<(String, Report)> = args
        .files
        .iter()
        .map(|file| Ok((file.display().to_string(), Report::load(file)?)))
        .collect::<Result<_>>()?;
    let mut whole = shard::merge(&reports)?;
    verdicts::judge(&mut whole);
    whole.save(&args.json)?;
    if !file::is_standard_stream(&args.json) {
        print!("{}", render(&whole, Style::Text));
    }
    Ok(())
}

/// Measures, writes and prints the results, and returns the exit code.
fn run_measure(args: &Measure) -> Result<u8> {
    // Everything that can be known to fail fails before a guest is booted or a file is written.
    let mut plan = Plan::new(args)?;
    let published = published(args, &plan)?;
    interrupt::listen()?;
    let mut place = plan.open_place(&args.setup)?;
    let suite = &plan.suite;
    let mut progress = Progress::new(
        suite.runs(place.as_ref()),
        suite.rounds,
        args.json.as_deref(),
    );
    let mut report = Report::new(place.machine(), place.kernel(), plan.options.clone());

    let ran = suite.run(place.as_mut(), &mut report, &mut progress);
    progress.finish();
    verdicts::judge(&mut report);
    print_results(args, &report)?;
    for (rows, names) in published.iter().filter(|_| ran.is_ok()) {
        println!(
            "\n{}",
            reference::render(&report, rows, names, Style::Text)?
        );
    }
    match ran {
        Err(_) if interrupt::is_requested() => {
            eprintln!("magpie bench: interrupted; what was measured until then is kept");
            Ok(INTERRUPTED)
        }
        Err(error) => {
            Err(error.context("the measurement ended early; what was measured until then is kept"))
        }
        Ok(()) if report.results.iter().any(|row| row.failed.is_some()) => Ok(FAILED),
        Ok(()) => Ok(0),
    }
}

/// The published results of `--compare` and of the suites, each with its names for our workloads.
fn published(args: &Measure, plan: &Plan) -> Result<Vec<(Vec<Published>, Names)>> {
    let mut tables = Vec::new();
    if let Some(path) = &args.display.compare {
        tables.push((reference::load(path)?, Names::new()));
    }
    for suite in &plan.suites {
        if let Some(name) = &suite.reference {
            tables.push((reference::built_in(name)?, suite.published.clone()));
        }
    }
    Ok(tables)
}

/// Writes the files, and the table to standard output unless a file goes there.
fn print_results(args: &Measure, report: &Report) -> Result<()> {
    let is_stdout = |path: &Option<PathBuf>| path.as_deref().is_some_and(file::is_standard_stream);
    if let Some(path) = &args.json {
        report.save(path)?;
    }
    if let Some(path) = &args.markdown {
        file::write(path, &render(report, Style::Markdown))?;
    }
    if let Some(path) = &args.display.html {
        html::write(report, path)?;
    }
    if ![&args.json, &args.markdown, &args.display.html]
        .map(is_stdout)
        .contains(&true)
    {
        print!(
            "{}{}",
            render(report, Style::Text),
            show::describe_counters(report, args.display.show_counters)
        );
    }
    Ok(())
}
