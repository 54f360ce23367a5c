//! `magpie bench`: the command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use magpie_lab::{GuestOptions, KernelChoice, Machine, Progress as LabProgress};

use crate::callbacks;
use crate::candidate::{self, Candidate};
use crate::compare::{Gate, compare, parse_percent};
use crate::peers;
use crate::place::{Host, Place, Vm};
use crate::plot;
use crate::progress::Progress;
use crate::reference;
use crate::report::{Report, write_atomically};
use crate::runner::{self, Suite};
use crate::table::{Style, render};
use crate::workload::{self, Case, Workload};
use crate::{counters, interrupt};

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
    magpie bench compare old.json result.json --fail-over 3%"
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    measure: Measure,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Fail when a result file is worse than an older one: a gate against regressions
    Compare(Compare),
    /// Print the table of a result file again
    Show(Show),
    /// Draw a result file as an SVG picture
    Plot(Plot),
    /// List the workloads
    Workloads,
    /// Show what each operation of schedulers costs per call
    Callbacks(callbacks::Args),
    Peers(peers::Args),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// A guest of the lab: any host, nothing of it is changed
    Vm,
    /// This host: needs root, and a kernel with sched_ext
    Host,
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

#[derive(Debug, clap::Args)]
struct Measure {
    /// Where to measure
    #[arg(long = "in", value_enum, default_value = "vm", value_name = "WHERE")]
    place: Where,
    /// Machine of the guest: a preset (`magpie lab machines`) or a TOML file
    #[arg(long, default_value = "tiny2", value_name = "NAME|FILE")]
    machine: String,
    /// Kernel of the guest: a series (`magpie lab kernels`) or a bzImage [default: the newest series]
    #[arg(long, value_name = "SERIES|FILE")]
    kernel: Option<String>,
    /// Configuration of a kernel given as a file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Schedulers with their options, separated by commas; eevdf (none) is always measured too
    #[arg(long, default_value = "scx_magpie", value_name = "LIST")]
    sched: String,
    /// Workloads, separated by commas (`magpie bench workloads` lists them)
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "hackbench",
        value_name = "LIST"
    )]
    workload: Vec<String>,
    /// More workloads, in the form of bench/workloads.toml
    #[arg(long, value_name = "FILE")]
    workloads: Option<PathBuf>,
    /// Rounds that count; one more before them warms up and is dropped
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// hackbench groups, a case each: 1,4 [short for --set groups=1,4]
    #[arg(long, value_name = "LIST")]
    groups: Option<String>,
    /// hackbench loops, a case each [short for --set loops=...]
    #[arg(long, value_name = "LIST")]
    loops: Option<String>,
    /// Values of a workload's parameter, a case each: --set threads=2,8
    #[arg(long = "set", value_name = "NAME=LIST")]
    parameters: Vec<String>,
    /// Write the result as JSON, `-` for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table as Markdown, `-` for standard output
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
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
    /// Put published results beside ours: a table of reference/
    #[arg(long, value_name = "CSV")]
    compare: Option<PathBuf>,
    /// Print what was counted in a run (mean of the rounds)
    #[arg(long, value_enum, default_value = "magpie", num_args = 0..=1, default_missing_value = "all")]
    show_counters: ShowCounters,
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
        Some(Command::Workloads) => {
            for workload in workload::load(None)? {
                println!(
                    "{:<18} {}\n{:<18} $ {}",
                    workload.name, workload.about, "", workload.command
                );
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
    let style = Style::of(args.markdown);
    print!(
        "{}{}",
        render(&report, style),
        describe_counters(&report, args.show_counters)
    );
    if let Some(path) = &args.compare {
        let published = reference::load(path)?;
        print!("\n{}", reference::render(&report, &published, style)?);
    }
    Ok(0)
}

fn run_measure(args: &Measure) -> Result<u8> {
    let mut suite = Suite {
        candidates: candidate::parse_list(&args.sched)?,
        work: choose_work(args)?,
        rounds: args.rounds.into(),
    };
    // Everything that can be known to fail fails before a guest is booted or a file is written.
    let programs = find_programs(args, &mut suite)?;
    let published = args.compare.as_deref().map(reference::load).transpose()?;
    interrupt::listen()?;
    let progress = Progress::new(suite.runs(), suite.rounds, args.json.as_deref());
    let mut place = open_place(args, &suite, programs)?;
    let mut report = Report::new(place.machine(), place.kernel(), runner::options(&suite));

    let mut watcher = progress;
    let ran = suite.run(place.as_mut(), &mut report, &mut watcher);
    watcher.finish();
    print_results(args, &report)?;
    if let Some(published) = published.filter(|_| ran.is_ok()) {
        println!("{}", reference::render(&report, &published, Style::Text)?);
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

/// The workloads and cases that were asked for.
fn choose_work(args: &Measure) -> Result<Vec<(Workload, Vec<Case>)>> {
    let extra = match &args.workloads {
        Some(path) => Some(
            std::fs::read_to_string(path)
                .with_context(|| format!("read the workloads of {}", path.display()))?,
        ),
        None => None,
    };
    let known = workload::load(extra.as_deref())?;
    let parameters = parse_parameters(args)?;
    let mut work = Vec::new();
    for name in &args.workload {
        let Some(workload) = known.iter().find(|workload| workload.name == *name) else {
            let names: Vec<&str> = known
                .iter()
                .map(|workload| workload.name.as_str())
                .collect();
            bail!(
                "there is no workload `{name}`; there are {}",
                names.join(", ")
            );
        };
        if work
            .iter()
            .any(|(chosen, _): &(Workload, _)| chosen.name == *name)
        {
            bail!("the workload `{name}` is named twice");
        }
        work.push((workload.clone(), workload.cases(&parameters)?));
    }
    for name in parameters.keys() {
        if !work
            .iter()
            .any(|(workload, _)| workload.parameters.contains_key(name))
        {
            bail!(
                "none of the chosen workloads has a parameter `{name}`; `magpie bench workloads` shows them"
            );
        }
    }
    Ok(work)
}

fn parse_parameters(args: &Measure) -> Result<BTreeMap<String, Vec<String>>> {
    let mut parameters = BTreeMap::new();
    let short = [("groups", &args.groups), ("loops", &args.loops)];
    let short = short
        .into_iter()
        .filter_map(|(name, list)| Some((name.to_string(), list.clone()?)));
    let long: Vec<(String, String)> = args
        .parameters
        .iter()
        .map(|text| {
            let (name, list) = text
                .split_once('=')
                .with_context(|| format!("`--set {text}`: write it like threads=2,8"))?;
            Ok((name.trim().to_string(), list.to_string()))
        })
        .collect::<Result<_>>()?;
    for (name, list) in short.chain(long) {
        let values: Vec<String> = list
            .split(',')
            .map(|value| value.trim().to_string())
            .collect();
        if values.iter().any(String::is_empty) {
            bail!("the parameter `{name}` has an empty value in `{list}`");
        }
        parameters.insert(name, values);
    }
    Ok(parameters)
}

/// Programs to copy into a guest; in the suite, each command's first word becomes what is run there.
fn find_programs(args: &Measure, suite: &mut Suite) -> Result<Vec<PathBuf>> {
    let mut programs: Vec<PathBuf> = Vec::new();
    let mut place = |program: PathBuf| -> Result<String> {
        let name = program
            .file_name()
            .context("a program has a file name")?
            .to_string_lossy()
            .into_owned();
        if args.place == Where::Host {
            return Ok(program.to_string_lossy().into_owned());
        }
        if programs
            .iter()
            .any(|known| known.file_name() == program.file_name() && *known != program)
        {
            bail!("two programs are named {name}: a guest has room for one, rename the other");
        }
        if !programs.contains(&program) {
            programs.push(program);
        }
        Ok(format!("/bin/{name}"))
    };
    for Candidate { argv, .. } in &mut suite.candidates {
        if let Some(program) = argv.first_mut() {
            *program = place(candidate::find_scheduler(program)?)?;
        }
    }
    for (workload, cases) in &mut suite.work {
        // In a guest, a program of a Debian package comes with the package.
        if workload.package.is_some() && args.place == Where::Vm {
            continue;
        }
        let program =
            candidate::find_program(workload.program()).with_context(|| {
                match &workload.package {
                    Some(package) => format!(
                        "{} is not installed: apt-get install {package}",
                        workload.program()
                    ),
                    None => format!("{} is not built: cargo build --release", workload.program()),
                }
            })?;
        let program = place(program)?;
        cases
            .iter_mut()
            .for_each(|case| case.argv[0].clone_from(&program));
    }
    Ok(programs)
}

fn open_place(args: &Measure, suite: &Suite, programs: Vec<PathBuf>) -> Result<Box<dyn Place>> {
    if args.place == Where::Host {
        if suite.candidates.len() > 1 {
            Host::check_schedulers_possible()?;
        }
        return Ok(Box::new(Host::new()?));
    }
    let spinner = indicatif::ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(100));
    let messages = spinner.clone();
    let mut packages: Vec<String> = suite
        .work
        .iter()
        .filter_map(|(workload, _)| workload.package.clone())
        .collect();
    packages.sort();
    packages.dedup();
    let options = GuestOptions {
        machine: Machine::find(&args.machine)?,
        kernel: KernelChoice::parse(args.kernel.as_deref(), args.config.as_deref())?,
        packages,
        files: programs,
        progress: LabProgress::new(move |what| messages.set_message(what.to_string())),
        ..GuestOptions::default()
    };
    let vm = Vm::boot(&options);
    spinner.finish_and_clear();
    Ok(Box::new(vm?))
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
    if !is_stdout(&args.json) && !is_stdout(&args.markdown) {
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
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn measure(line: &str) -> Measure {
        let words = shell_words::split(&format!("bench {line}")).unwrap();
        Program::try_parse_from(words)
            .unwrap_or_else(|e| panic!("{e}"))
            .args
            .measure
    }

    #[test]
    fn the_command_line_is_consistent() {
        Program::command().debug_assert();
    }

    #[test]
    fn cases_come_from_the_options() {
        let work = choose_work(&measure(
            "--workload hackbench,pipe --groups 1,4 --set round_trips=5",
        ))
        .unwrap();
        let labels: Vec<&str> = work
            .iter()
            .flat_map(|(_, cases)| cases)
            .map(|c| c.label.as_str())
            .collect();
        assert_eq!(labels, ["-g 1 -l 100", "-g 4 -l 100", "pipe --loops 5"]);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |line: &str| format!("{:#}", choose_work(&measure(line)).unwrap_err());
        assert!(error("--workload hackbnch").contains("there are hackbench"));
        assert!(error("--workload pipe --groups 4").contains("`groups`"));
        assert!(error("--set groups").contains("write it like"));
        assert!(error("--groups 1,,2").contains("empty value"));
        assert!(error("--workload pipe,pipe").contains("twice"));
    }

    #[test]
    fn an_absent_scheduler_is_found_out_before_anything_runs() {
        let args = measure("--sched scx_no_such_thing --workload fairness");
        let mut suite = Suite {
            candidates: candidate::parse_list(&args.sched).unwrap(),
            work: Vec::new(),
            rounds: 1,
        };
        let error = find_programs(&args, &mut suite).unwrap_err().to_string();
        assert!(
            error.contains("magpie bench peers install scx_no_such_thing"),
            "{error}"
        );
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
