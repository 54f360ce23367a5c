//! `magpie bench`: the command line.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;

use crate::compare::{Gate, compare, parse_percent};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::reference::{self, Names, Published};
use crate::report::{Report, write_atomically};
use crate::shard::Shard;
use crate::suite::{self, Where};
use crate::table::{Style, render};
use crate::{callbacks, counters, html, interrupt, peers, plot, shard, workload};

/// Exit code of a gate that fails, and of a run in which a scheduler or workload failed.
const FAILED: u8 = 1;

/// Measure schedulers against the kernel's own, interleaved, with statistics.
///
/// Each cell of the table reads `0.93 [  7.10]( 2.11)`: normalized to eevdf, improvement in percent,
/// coefficient of variation in percent. `same` means: no real difference.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    magpie bench --sched scx_magpie --workload hackbench\n  \
    magpie bench --machine smt8 --sched 'scx_magpie,scx_magpie --no-steal,scx_cosmos' \\\n      \
    --workload hackbench,pipe,latency --groups 1,4 --rounds 8 --json result.json\n  \
    magpie bench --suite steal,latency,fairness --sched scx_magpie,scx_cosmos --html report.html\n  \
    magpie bench --in vtime --suite push --ablate --shard 1/4 --json part1.json\n  \
    magpie bench peers install scx_cosmos scx_lavd\n  \
    magpie bench compare old.json result.json --fail-over 3%"
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    measure: Box<Measure>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Fail when a result file is worse than an older one: a gate against regressions
    Compare(Compare),
    /// Print the table of a result file again
    Show(Show),
    /// Draw a result file as an SVG picture
    Plot(Plot),
    /// Join the results of all shards of a run
    Merge(Merge),
    /// List the workloads
    Workloads,
    /// List the suites
    Suites,
    /// Show what each operation of schedulers costs per call
    Callbacks(callbacks::Args),
    Peers(peers::Args),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShowCounters {
    /// Of scx_magpie
    Magpie,
    /// Of every scheduler
    All,
    /// None
    None,
}

/// What a measurement is made of.
#[derive(Debug, clap::Args)]
pub(crate) struct Measure {
    /// Where to measure
    #[arg(long = "in", value_enum, default_value = "vm", value_name = "WHERE")]
    pub(crate) place: Where,
    /// Machine of the guest: a preset (`magpie lab machines`) or a TOML file [default: the suite's,
    /// else tiny2, or vt16 in virtual time]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) machine: Option<String>,
    /// Kernel of the guest: a series (`magpie lab kernels`) or a bzImage [default: the newest series]
    #[arg(long, value_name = "SERIES|FILE")]
    pub(crate) kernel: Option<String>,
    /// Configuration of a kernel given as a file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Schedulers with their options, separated by commas; eevdf (none) is always measured too
    #[arg(long, default_value = "scx_magpie", value_name = "LIST")]
    pub(crate) sched: String,
    /// Suites, separated by commas (`magpie bench suites` lists them), or files that end in .toml
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) suite: Vec<String>,
    /// Workloads, separated by commas (`magpie bench workloads` lists them) [default: hackbench, or
    /// what the suites have]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) workload: Vec<String>,
    /// More workloads, in the form of bench/workloads.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) workloads: Option<PathBuf>,
    /// Rounds that count; one more before them warms up and is dropped
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// hackbench groups, a case each: 1,4 [short for --set groups=1,4]
    #[arg(long, value_name = "LIST")]
    pub(crate) groups: Option<String>,
    /// hackbench loops, a case each [short for --set loops=...]
    #[arg(long, value_name = "LIST")]
    pub(crate) loops: Option<String>,
    /// Values of a workload's parameter, a case each: --set threads=2,8
    #[arg(long = "set", value_name = "NAME=LIST")]
    pub(crate) parameters: Vec<String>,
    /// Also measure what each mechanism of scx_magpie gives: all, each left out, each alone, none
    #[arg(long)]
    pub(crate) ablate: bool,
    /// Run part K of N of the cases, for several machines; `magpie bench merge` joins the results
    #[arg(long, value_name = "K/N")]
    pub(crate) shard: Option<Shard>,
    /// Write the result as JSON, `-` for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table as Markdown, `-` for standard output
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write a report with pictures as one HTML file, `-` for standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Put published results beside ours: a table of reference/
    #[arg(long, value_name = "CSV")]
    compare: Option<PathBuf>,
    /// Print what was counted in a run (mean of the rounds)
    #[arg(long, value_enum, default_value = "magpie", num_args = 0..=1, default_missing_value = "all")]
    show_counters: ShowCounters,
}

#[derive(Debug, clap::Args)]
struct Compare {
    /// The older result file
    old: PathBuf,
    /// The newer result file
    new: PathBuf,
    /// Largest loss that passes
    #[arg(long, default_value = "3%", value_parser = parse_percent, value_name = "PERCENT")]
    fail_over: f64,
    /// Compare values relative to each file's eevdf: for files from hosts of different speed
    #[arg(long)]
    normalized: bool,
}

#[derive(Debug, clap::Args)]
struct Show {
    /// The result file
    file: PathBuf,
    /// As Markdown
    #[arg(long)]
    markdown: bool,
    /// Write a report with pictures as one HTML file, `-` for standard output, instead
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Put published results beside ours: a table of reference/
    #[arg(long, value_name = "CSV")]
    compare: Option<PathBuf>,
    /// Print what was counted in a run (mean of the rounds)
    #[arg(long, value_enum, default_value = "magpie", num_args = 0..=1, default_missing_value = "all")]
    show_counters: ShowCounters,
}

#[derive(Debug, clap::Args)]
struct Merge {
    /// The result files of all shards
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Where the whole result goes, `-` for standard output
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Plot {
    /// The result file
    file: PathBuf,
    /// Where the picture goes
    #[arg(long, value_name = "FILE")]
    svg: PathBuf,
}

/// Runs `magpie bench`; the process's exit code: 1 when something measured failed or the gate did.
pub fn run(args: Args) -> Result<u8> {
    match args.command {
        Some(Command::Compare(compare)) => run_compare(&compare),
        Some(Command::Show(show)) => run_show(&show),
        Some(Command::Plot(args)) => {
            plot::draw(&Report::load(&args.file)?, &args.svg)?;
            Ok(0)
        }
        Some(Command::Merge(merge)) => run_merge(&merge),
        Some(Command::Workloads) => {
            for workload in workload::load(None)? {
                println!(
                    "{:<18} {}\n{:<18} $ {}",
                    workload.name, workload.about, "", workload.command
                );
            }
            Ok(0)
        }
        Some(Command::Suites) => {
            for suite in suite::built_in()? {
                let workloads: Vec<&str> =
                    suite.run.iter().map(|run| run.workload.as_str()).collect();
                let (name, about) = (&suite.name, &suite.about);
                println!("{name:<18} {about}\n{:<18} {}", "", workloads.join(", "));
            }
            Ok(0)
        }
        Some(Command::Callbacks(args)) => callbacks::run(&args),
        Some(Command::Peers(args)) => peers::run(&args),
        None => run_measure(&args.measure),
    }
}

fn run_compare(args: &Compare) -> Result<u8> {
    let gate = Gate {
        fail_over: args.fail_over,
        normalized: args.normalized,
    };
    let outcome = compare(&Report::load(&args.old)?, &Report::load(&args.new)?, gate)?;
    print!("{}", outcome.text);
    Ok(if outcome.failures == 0 { 0 } else { FAILED })
}

fn run_show(args: &Show) -> Result<u8> {
    let report = Report::load(&args.file)?;
    if let Some(path) = &args.html {
        html::write(&report, path)?;
        return Ok(0);
    }
    let style = Style::of(args.markdown);
    print!(
        "{}{}",
        render(&report, style),
        describe_counters(&report, args.show_counters)
    );
    if let Some(path) = &args.compare {
        let published = reference::load(path)?;
        print!(
            "\n{}",
            reference::render(&report, &published, &Names::new(), style)?
        );
    }
    Ok(0)
}

fn run_merge(args: &Merge) -> Result<u8> {
    let reports: Vec<(String, Report)> = args
        .files
        .iter()
        .map(|file| Ok((file.display().to_string(), Report::load(file)?)))
        .collect::<Result<_>>()?;
    let whole = shard::merge(&reports)?;
    whole.save(&args.json)?;
    if args.json != Path::new("-") {
        print!("{}", render(&whole, Style::Text));
    }
    Ok(0)
}

fn run_measure(args: &Measure) -> Result<u8> {
    // Everything that can be known to fail fails before a guest is booted or a file is written.
    let plan = Plan::new(args)?;
    let published = published(args, &plan)?;
    interrupt::listen()?;
    let suite = &plan.suite;
    let progress = Progress::new(suite.runs(), suite.rounds, args.json.as_deref());
    let mut place = plan.open_place(args)?;
    let mut report = Report::new(place.machine(), place.kernel(), plan.options.clone());

    let mut watcher = progress;
    let ran = suite.run(place.as_mut(), &mut report, &mut watcher);
    watcher.finish();
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
            Ok(130)
        }
        Err(error) => {
            Err(error.context("the measurement ended early; what was measured until then is kept"))
        }
        Ok(()) if report.results.iter().any(|row| row.failed.is_some()) => Ok(FAILED),
        Ok(()) => Ok(0),
    }
}

/// The published results to put beside ours: of the option and of the suites, each with what it calls
/// our workloads.
fn published(args: &Measure, plan: &Plan) -> Result<Vec<(Vec<Published>, Names)>> {
    let mut tables = Vec::new();
    if let Some(path) = &args.compare {
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
    let is_stdout = |file: &Option<PathBuf>| file.as_deref() == Some(Path::new("-"));
    if let Some(path) = &args.json {
        report.save(path)?;
    }
    if let Some(path) = &args.markdown {
        write_atomically(path, &render(report, Style::Markdown))?;
    }
    if let Some(path) = &args.html {
        html::write(report, path)?;
    }
    if ![&args.json, &args.markdown, &args.html]
        .map(is_stdout)
        .contains(&true)
    {
        print!(
            "{}{}",
            render(report, Style::Text),
            describe_counters(report, args.show_counters)
        );
    }
    Ok(())
}

fn describe_counters(report: &Report, which: ShowCounters) -> String {
    let mut text = String::new();
    let mut last = None;
    for row in &report.results {
        let is_magpie = shell_words::split(&row.scheduler)
            .ok()
            .and_then(|argv| Some(Path::new(argv.first()?).file_name()? == "scx_magpie"))
            .unwrap_or(false);
        let wanted = match which {
            ShowCounters::All => true,
            ShowCounters::Magpie => is_magpie,
            ShowCounters::None => false,
        };
        // A run's metrics share its counters.
        let case = row.case.split(": ").next().unwrap_or_default();
        let run = (&row.workload, case, &row.scheduler);
        if !wanted || row.counters.is_empty() || last == Some(run) {
            continue;
        }
        last = Some(run);
        text.push_str(&format!(
            "\n{}, {} {case}, per run:\n",
            row.scheduler, row.workload
        ));
        text.push_str(&counters::describe(&row.counters, "  "));
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    pub(crate) fn measure(line: &str) -> Measure {
        let words = shell_words::split(&format!("bench {line}")).unwrap();
        *Program::try_parse_from(words)
            .unwrap_or_else(|e| panic!("{e}"))
            .args
            .measure
    }

    #[test]
    fn the_command_line_is_consistent() {
        Program::command().debug_assert();
    }

    /// Documentation that lacks what the program has is found out here.
    #[test]
    fn the_documentation_names_every_option_and_command() {
        let documentation = include_str!("../../docs/bench.md");
        let command = Program::command();
        let options = command.get_arguments().filter_map(|a| a.get_long());
        for option in options.filter(|option| *option != "help") {
            let option = format!("--{option}");
            assert!(
                documentation.contains(&option),
                "docs/bench.md lacks {option}"
            );
        }
        for command in command.get_subcommands().map(clap::Command::get_name) {
            let command = format!("magpie bench {command}");
            assert!(
                documentation.contains(&command),
                "docs/bench.md lacks {command}"
            );
        }
    }

    #[test]
    fn counters_are_shown_for_whom_they_are_asked() {
        let mut report = crate::report::tests::report_of(&[
            ("eevdf", &[1.0]),
            ("scx_magpie --no-steal", &[1.0]),
        ]);
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
