//! `magpie lab fuzz`: searches the schedules of a machine for one that breaks a scheduler.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::terminal::{Spinner, write_json};
use super::vm::{Vm, scheduler_of};
use crate::files::find_program;
use crate::fuzz::{Fuzzer, Scenario, Trial, Verdict};
use crate::options::GuestOptions;

/// Exit code if a seed breaks the scheduler. An error of the lab itself has another.
const FOUND: u8 = 2;

/// The seeds of a run without `--seeds` and `--seed`.
const SEEDS: Seeds = Seeds { from: 1, to: 20 };

/// Searches the schedules of a deterministic machine for one that breaks a scheduler.
///
/// A machine in virtual time gives its vCPUs turns of a few microseconds. A seed changes how long
/// turns are, whose turn it is, when interrupts and timers arrive, and stops single vCPUs for a
/// while, as a host would. So each seed is another order of events, and the same seed is always the
/// same one: a race that it shows can be shown again.
///
/// Each scenario boots once, with the scheduler. Each seed then runs from that state, in a copy of
/// the machine, and has a verdict: a task that waited beside an idle CPU for longer than a tick, a
/// warning of the kernel, a scheduler that did not stay loaded, or a run that did not end. The
/// search stops at the first one, and prints the command that repeats it. The exit code is 2 then.
///
/// docs/fuzz.md explains what a search finds, and how to write a scenario.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub struct Args {
    /// Scenarios: names of the list below, or paths of scripts [default: all of the list].
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Seeds to try for each scenario, both ends included [default: 1-20].
    #[arg(long, value_name = "FROM-TO", conflicts_with = "seed")]
    seeds: Option<Seeds>,
    /// Try one seed, and print what its run printed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Scheduler with its options, as one word; `eevdf` is the kernel's own.
    #[arg(long, value_name = "COMMAND", default_value = "scx_magpie")]
    sched: String,
    /// Try all seeds, and list all that break the scheduler.
    #[arg(long)]
    keep_going: bool,
    /// Seconds of real time that a seed may take; one that takes longer counts as a hang.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    limit: u64,
    /// Write all verdicts, with the turns of each seed, as JSON to a file, `-` for standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    vm: FuzzVm,
}

/// The machine. Its default differs from that of the other commands.
#[derive(Debug, clap::Args)]
struct FuzzVm {
    /// Preset in virtual time (see `magpie lab machines`) or path of a machine's TOML file. The
    /// fewer CPUs, the more seeds a minute.
    #[arg(long, value_name = "NAME|FILE", default_value = "vt4")]
    machine: String,
    /// Series of a stock kernel or name of a built one (see `magpie lab kernels`), or path of a
    /// bzImage [default: the newest series].
    #[arg(long, value_name = "SERIES|NAME|FILE")]
    kernel: Option<String>,
    /// Configuration of a kernel that is given as a file. libbpf needs it to load schedulers.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seconds of real time that boot and start of the scheduler may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    boot_timeout: u64,
}

/// A range of seeds, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seeds {
    from: u64,
    to: u64,
}

impl std::str::FromStr for Seeds {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Seeds> {
        let (from, to) = text
            .split_once('-')
            .context("a range of seeds has the form FROM-TO, such as 1-100")?;
        let number = |text: &str| {
            text.trim()
                .parse::<u64>()
                .with_context(|| format!("\"{text}\" is no seed: a seed is a number from 0 on"))
        };
        let seeds = Seeds {
            from: number(from)?,
            to: number(to)?,
        };
        ensure!(
            seeds.from <= seeds.to,
            "{text} is empty: {to} is less than {from}"
        );
        Ok(seeds)
    }
}

/// The list of scenarios and examples.
fn after_help() -> String {
    let mut text = String::from("Scenarios:\n");
    for scenario in Scenario::presets() {
        text += &format!("  {:<10} {}\n", scenario.name(), scenario.about());
    }
    text + "\nExamples:\n  \
        magpie lab fuzz --seeds 1-200\n  \
        magpie lab fuzz hotplug --seed 17\n  \
        magpie lab fuzz wakeups --sched 'scx_magpie --no-steal' --seeds 1-50 --keep-going\n  \
        magpie lab fuzz ./mine.sh --machine vt8 --seeds 1-1000 --json found.json"
}

/// The verdicts on the seeds of one scenario.
struct Search {
    scenario: Scenario,
    boot_seconds: f64,
    seconds: f64,
    trials: Vec<Trial>,
}

impl Search {
    fn found(&self) -> impl Iterator<Item = &Trial> {
        let trials = self.trials.iter();
        trials.filter(|trial| trial.verdict != Verdict::Holds)
    }

    fn seeds_per_minute(&self) -> f64 {
        self.trials.len() as f64 * 60.0 / self.seconds.max(1e-9)
    }
}

/// Searches one scenario after the other. Returns 2 if a seed breaks the scheduler.
pub fn run(args: &Args) -> Result<u8> {
    let scenarios = if args.scenarios.is_empty() {
        Scenario::presets()
    } else {
        let names = args.scenarios.iter();
        names
            .map(|name| Scenario::find(name))
            .collect::<Result<_>>()?
    };
    let spinner = Spinner::new();
    let mut options = args.vm.as_vm().options(&spinner)?;
    ensure!(
        options.machine.virtual_time.is_some(),
        "fuzz needs a machine in virtual time, such as vt4; {} is not one",
        options.machine.name
    );
    let scheduler = match args.sched.as_str() {
        "eevdf" => None,
        line => Some(scheduler_of(line, &mut options)?),
    };
    let load = find_program("magpie-load")
        .context("there is no magpie-load: build it (`cargo build --release -p magpie-load`)")?;
    options.files.push(load);
    for tool in ["chrt", "taskset"] {
        // busybox may have them; those of the host are complete.
        options.files.extend(find_program(tool));
    }

    // Each boot has a spinner of its own.
    spinner.clear();
    let mut searches = Vec::new();
    for scenario in scenarios {
        let search = search(args, &options, scheduler.as_deref(), scenario)?;
        let is_found = search.found().next().is_some();
        describe(args, &search);
        searches.push(search);
        if is_found && !args.keep_going {
            break;
        }
    }
    if let Some(path) = &args.json {
        write_json(path, &record(args, &options, &searches))?;
    }
    let found = searches
        .iter()
        .any(|search| search.found().next().is_some());
    Ok(if found { FOUND } else { 0 })
}

/// Boots one guest for the scenario and runs each seed of the command line from that state. Stops at
/// the first seed that breaks the scheduler, unless `--keep-going`.
fn search(
    args: &Args,
    options: &GuestOptions,
    scheduler: Option<&[String]>,
    scenario: Scenario,
) -> Result<Search> {
    let spinner = Spinner::new();
    let options = &GuestOptions {
        progress: spinner.progress(),
        ..options.clone()
    };
    let seeds = match args.seed {
        Some(seed) => Seeds {
            from: seed,
            to: seed,
        },
        None => args.seeds.unwrap_or(SEEDS),
    };
    let began = Instant::now();
    let timeout = Duration::from_secs(args.vm.boot_timeout);
    let mut fuzzer = Fuzzer::boot(options, scheduler, &scenario, timeout)?;
    let boot_seconds = began.elapsed().as_secs_f64();
    spinner.clear();
    let began = Instant::now();
    let bar = bar(&scenario, seeds);
    let mut trials = Vec::new();
    for seed in seeds.from..=seeds.to {
        let trial = fuzzer.run(seed, Duration::from_secs(args.limit))?;
        bar.inc(1);
        let is_found = trial.verdict != Verdict::Holds;
        if is_found {
            bar.println(format!(
                "{} seed {seed}: {}",
                scenario.name(),
                trial.verdict.words()
            ));
        }
        trials.push(trial);
        if is_found && !args.keep_going {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(Search {
        scenario,
        boot_seconds,
        seconds: began.elapsed().as_secs_f64(),
        trials,
    })
}

/// Returns a bar that shows the seed and the time left; a hidden one if standard error is no
/// terminal.
fn bar(scenario: &Scenario, seeds: Seeds) -> ProgressBar {
    let count = (seeds.to - seeds.from).saturating_add(1);
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(count);
    let template = "{msg} {wide_bar} seed {pos} of {len}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(scenario.name().to_string());
    bar
}

/// Returns the command that runs this seed again, with each option that can change its verdict.
fn replay(args: &Args, scenario: &Scenario, seed: u64) -> String {
    let mut words = ["magpie", "lab", "fuzz", scenario.name()]
        .map(String::from)
        .to_vec();
    words.extend(["--seed".into(), seed.to_string()]);
    words.extend(["--machine".into(), args.vm.machine.clone()]);
    words.extend(["--sched".into(), args.sched.clone()]);
    words.extend(["--limit".into(), args.limit.to_string()]);
    let kernel = args.vm.kernel.iter();
    words.extend(kernel.flat_map(|kernel| ["--kernel".into(), kernel.clone()]));
    if let Some(config) = &args.vm.config {
        words.extend(["--config".into(), config.display().to_string()]);
    }
    shell_words::join(words)
}

/// Prints how many seeds of a scenario broke the scheduler, and each of them with its turns and
/// stops; with `--seed`, that seed in any case. Prints nothing if the JSON goes to standard output,
/// because a program reads that.
fn describe(args: &Args, search: &Search) {
    let found: Vec<&Trial> = search.found().collect();
    if args
        .json
        .as_deref()
        .is_some_and(|path| path.as_os_str() == "-")
    {
        return;
    }
    println!(
        "{}: {} of {} seeds broke {}; boot {:.1} s, {:.0} seeds a minute",
        search.scenario.name(),
        found.len(),
        search.trials.len(),
        args.sched,
        search.boot_seconds,
        search.seeds_per_minute()
    );
    let shown = if args.seed.is_some() {
        search.trials.iter().collect()
    } else {
        found
    };
    for trial in shown {
        println!("  seed {}: {}", trial.seed, trial.verdict.words());
        if let Some(p) = &trial.perturbation {
            println!(
                "    {} turns, schedule {}, {} stops of {:.3} ms in all",
                p.turns,
                p.schedule,
                p.stops,
                p.stopped_ns as f64 / 1e6
            );
        }
        for line in trial.report.lines() {
            println!("    {line}");
        }
        if args.seed.is_none() {
            println!("    again: {}", replay(args, &search.scenario, trial.seed));
        }
    }
}

/// Returns what `--json` writes: machine, scheduler, and of each scenario all trials and the command
/// that repeats each breaking seed.
fn record(args: &Args, options: &GuestOptions, searches: &[Search]) -> Value {
    let scenarios: Vec<Value> = searches
        .iter()
        .map(|search| {
            let found: Vec<Value> = search
                .found()
                .map(|trial| {
                    let again = replay(args, &search.scenario, trial.seed);
                    json!({ "seed": trial.seed, "verdict": trial.verdict, "again": again })
                })
                .collect();
            json!({
                "scenario": search.scenario.name(),
                "boot_seconds": search.boot_seconds,
                "seconds": search.seconds,
                "seeds_per_minute": search.seeds_per_minute(),
                "found": found,
                "trials": search.trials,
            })
        })
        .collect();
    json!({
        "machine": options.machine,
        "scheduler": args.sched,
        "scenarios": scenarios,
    })
}

impl FuzzVm {
    /// Returns these options as those of the other commands, from which only a default differs.
    fn as_vm(&self) -> Vm {
        Vm {
            machine: self.machine.clone(),
            kernel: self.kernel.clone(),
            config: self.config.clone(),
            boot_timeout: self.boot_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Seeds;

    #[test]
    fn ranges_of_seeds() {
        let parse = |text: &str| text.parse::<Seeds>();
        assert_eq!(parse("3-7").expect("a range"), Seeds { from: 3, to: 7 });
        for wrong in ["7-3", "x-3", "5", "-5"] {
            parse(wrong).expect_err(wrong);
        }
    }
}
