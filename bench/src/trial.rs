//! `magpie try`: does a scheduler help this machine, under the load that it has?
//!
//! ```text
//!   the command             not measured: page cache, and how long a run takes
//!   pair 1   eevdf | other  the order within a pair is drawn, half of the pairs each way
//!   pair 2   other | eevdf
//!   ...
//!     a turn: load the scheduler, drop the beginning, then measure: the kernel's counters,
//!             probes that wake, energy, and runs of the command (turn, probe, energy)
//!   answer in five lines    verdicts over the turns, corrected for the number of figures
//! ```
//!
//! The load may change while the trial runs. It changes for both schedulers alike: turns are short,
//! and their order is drawn, so that no period of the load keeps step with it. The result is a
//! report as every other of the bench, with a row for each figure and a sample for each turn.

pub mod metric;

mod answer;
mod energy;
mod probe;
mod turn;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::builder::{StringValueParser, TypedValueParser};

use crate::candidate::{Candidate, find_scheduler, parse_list};
use crate::counters::{Counters, mean};
use crate::place::{Host, Place};
use crate::progress::Progress;
use crate::provenance::{self, Values};
use crate::report::{BASELINE, Report, Row};
use crate::runner::{Step, Watcher};
use crate::{file, interrupt, verdicts};

use self::answer::WORKLOAD;
use self::metric::Metric;
use self::turn::{Turn, Turns};

pub use self::answer::answer;

/// Fewer pairs of turns cannot tell one real difference among all figures of a trial.
const LEAST_PAIRS: usize = 6;

/// Exit code of a trial that a signal ended.
const INTERRUPTED: u8 = 130;

/// Try whether scx_magpie helps this machine
///
/// Alternates between the kernel's own scheduler and scx_magpie in short turns, under the load that
/// runs here or a command, and says in five lines what changed and what it could not tell. A
/// difference is told only if it is real among all figures of the trial; everything else is "no
/// difference". At the end, also after Ctrl-C or a failure, the kernel's own scheduler is back.
/// Takes root and a kernel with sched_ext.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The figures of each turn: runs of the command per second; how many tasks wait for a CPU and for how
long (/proc/schedstat); how late two threads wake that sleep a millisecond at a time; how busy the
CPUs are, and how often they switch; power, or energy for a run (/sys/class/powercap).

Examples:
  magpie try                                    under the load that runs now
  magpie try -- make -j8 -B                     a build, over and over
  magpie try --minutes 20 --turn 30 --json result.json
  magpie try --sched 'scx_magpie --no-steal'    with options, or another scheduler
  magpie try --sched eevdf                      the kernel's own against itself: is noise taken for
                                                a difference?

Exit status: 0 after a whole trial, whatever its answer; 1 on any error; 130 after Ctrl-C.")]
pub struct Args {
    /// How long the trial takes, about
    #[arg(long, default_value = "5", value_parser = number_between(0.05, 1440.0), value_name = "MINUTES")]
    minutes: f64,
    /// How long a turn of a scheduler is; its first fifth is dropped
    #[arg(long, default_value = "10", value_parser = number_between(0.5, 120.0), value_name = "SECONDS")]
    turn: f64,
    /// The scheduler to try, with its options; eevdf is the kernel's own
    #[arg(long, default_value = "scx_magpie", value_name = "COMMAND")]
    sched: String,
    /// Write the result as JSON, compressed if FILE ends in .gz, `-` for standard output; `magpie
    /// bench show FILE` prints it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The load: a command that ends by itself, and runs over and over in each turn
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Returns what reads an option's value: a number between `least` and `most`.
fn number_between(least: f64, most: f64) -> impl TypedValueParser<Value = f64> {
    StringValueParser::new().try_map(move |text| match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("give a number between {least} and {most}")),
    })
}

/// Runs `magpie try`, and returns the process's exit code.
///
/// # Errors
/// If the trial is impossible here or fails, with the remedy. The kernel's own scheduler is then
/// in use.
pub fn run(args: Args) -> Result<u8> {
    match hold(&args) {
        Err(error) if interrupt::is_requested() => {
            eprintln!("magpie try: {error:#}; the kernel's own scheduler is back");
            Ok(INTERRUPTED)
        }
        held => held.map(|()| 0),
    }
}

/// Holds the trial, and prints and writes the result of all turns until its end.
fn hold(args: &Args) -> Result<()> {
    let candidate = candidate(&args.sched)?;
    if !candidate.is_baseline() {
        Host::check_schedulers_possible()?;
    }
    let mut host = Host::new()?;
    interrupt::listen()?;
    let limit = Duration::from_secs_f64(60.0 * args.minutes);
    let turns = Turns::new(
        Duration::from_secs_f64(args.turn),
        args.command.clone(),
        limit,
    );
    let trial = Trial {
        pairs: pairs(args, &turns, turns.warm_up(&mut host)?)?,
        candidate,
        turns,
    };
    let order = trial.order();
    let mut report = Report::new(host.machine(), host.kernel(), trial.options(args, &order));
    let mut progress = Progress::new(2 * order.len(), order.len(), args.json.as_deref());
    let ran = trial.run(&order, &mut host, &mut report, &mut progress);
    progress.finish();
    verdicts::judge(&mut report);
    if let Some(path) = &args.json {
        report.save(path)?;
    }
    let has_stdout = args.json.as_deref().is_some_and(file::is_standard_stream);
    if !report.results.is_empty() && !has_stdout {
        println!("{}", trial.title(args, &report));
        print!("{}", answer(&report));
    }
    ran
}

/// Returns the scheduler to try, with its program found. `parse_list()` always begins with the
/// baseline, so one scheduler makes two candidates, and `eevdf` alone makes one, which gets another
/// name: its rows stand beside the baseline's. Refuses several schedulers, and one that needs a
/// guest.
fn candidate(sched: &str) -> Result<Candidate> {
    let mut candidates = parse_list(sched)?;
    let mut candidate = match (candidates.pop(), candidates.len()) {
        (Some(candidate), 1) => candidate,
        (Some(baseline), 0) => Candidate {
            name: format!("{BASELINE} again"),
            ..baseline
        },
        _ => {
            bail!("--sched {sched} names several schedulers: a trial compares one with {BASELINE}")
        }
    };
    ensure!(
        !candidate.needs_guest(),
        "{} asks for a kernel or settings of its own, which a trial of this machine has not: \
         `magpie bench` measures them in guests",
        candidate.name
    );
    if let Some(program) = candidate.argv.first_mut() {
        *program = find_scheduler(program)?.to_string_lossy().into_owned();
    }
    Ok(candidate)
}

/// How many pairs of turns fit into the trial, if a run of the command takes so many seconds.
fn pairs(args: &Args, turns: &Turns, run: f64) -> Result<usize> {
    let pair = 2.0 * turns.expected(run);
    let pairs = (60.0 * args.minutes / pair).round() as usize;
    ensure!(
        pairs >= LEAST_PAIRS,
        "only {pairs} turns of each scheduler fit into {} min, and fewer than {LEAST_PAIRS} tell \
         nothing: give --minutes {:.1} or more, or a shorter --turn or command",
        args.minutes,
        // Rounded up to tenths.
        (LEAST_PAIRS as f64 * pair / 6.0).ceil() / 10.0
    );
    Ok(pairs)
}

/// A trial of one scheduler.
struct Trial {
    candidate: Candidate,
    turns: Turns,
    pairs: usize,
}

impl Trial {
    /// For each pair, whether the kernel's own scheduler is the first: for half of the pairs,
    /// drawn.
    fn order(&self) -> Vec<bool> {
        let mut order: Vec<bool> = (0..self.pairs).map(|pair| pair % 2 == 0).collect();
        fastrand::shuffle(&mut order);
        order
    }

    /// Returns what the result file keeps of the trial: pairs, length and order of the turns, and the
    /// command line and versions of `provenance::record()`.
    fn options(&self, args: &Args, order: &[bool]) -> Values {
        let mut options = Values::from([
            ("rounds".into(), self.pairs.into()),
            ("turn_seconds".into(), args.turn.into()),
            ("baseline_first".into(), order.into()),
            ("magpie".into(), env!("CARGO_PKG_VERSION").into()),
        ]);
        let program = self.candidate.argv.first().map(Path::new);
        provenance::record(&mut options, program.into_iter());
        options
    }

    /// Returns the line above the answer. It counts the samples of the figure that has most, because a
    /// turn may lack one.
    fn title(&self, args: &Args, report: &Report) -> String {
        let turns = report.results.iter().map(|row| row.samples.len()).max();
        format!(
            "{} beside {BASELINE}, the kernel's own scheduler: {} turns each, of {} s",
            self.candidate.name,
            turns.unwrap_or(0),
            args.turn
        )
    }

    /// Runs the turns into `report`.
    ///
    /// # Errors
    /// If the scheduler ends by itself, the command fails, or on Ctrl-C. The turns until then are
    /// in the report.
    fn run(
        &self,
        order: &[bool],
        host: &mut Host,
        report: &mut Report,
        progress: &mut Progress,
    ) -> Result<()> {
        let baseline = Candidate {
            name: BASELINE.into(),
            ..Candidate::default()
        };
        let mut sides = [(&baseline, Vec::new()), (&self.candidate, Vec::new())];
        for (pair, is_baseline_first) in order.iter().enumerate() {
            for turn in 0..sides.len() {
                let (scheduler, turns) = &mut sides[usize::from(*is_baseline_first) ^ turn ^ 1];
                progress.step(&Step {
                    round: pair + 1,
                    scheduler: &scheduler.name,
                    what: "a turn".into(),
                });
                turns.push(self.turn(scheduler, host)?);
                progress.done();
                let rows = sides
                    .iter()
                    .flat_map(|(side, turns)| rows(&side.name, turns));
                report.results = rows.collect();
            }
            report.complete = pair + 1 == order.len();
            progress.save(report)?;
        }
        Ok(())
    }

    /// Holds one turn: loads the scheduler, measures, and puts the kernel's own back.
    fn turn(&self, scheduler: &Candidate, host: &mut Host) -> Result<Turn> {
        if scheduler.is_baseline() {
            Host::check_none_loaded()?;
            return self.turns.measure(host);
        }
        host.start_scheduler(&scheduler.argv)?;
        let turn = self.turns.measure(host);
        // Before any error of the measurement: the kernel's own scheduler ran from then on.
        if let Some(why) = host.scheduler_died()? {
            if scheduler.is_magpie() {
                // Puts back what a scx_magpie that was killed could not: interrupts, workqueues.
                let restore = [scheduler.argv[0].clone(), "restore".into()];
                let _ = host.run(&restore, Duration::from_secs(20));
            }
            bail!(
                "{} ended by itself during a turn, and the kernel's own scheduler is back: {why}",
                scheduler.name
            );
        }
        host.stop_scheduler().context("end a turn")?;
        turn
    }
}

/// Returns a row for each figure that the turns of a scheduler have. The first row also has the mean
/// of their counters, which belong to the turns and to no figure.
fn rows(scheduler: &str, turns: &[Turn]) -> Vec<Row> {
    let row = |metric: &Metric| Row {
        workload: WORKLOAD.into(),
        case: metric.name.into(),
        scheduler: scheduler.into(),
        samples: turns.iter().filter_map(|turn| turn.get(metric)).collect(),
        unit: metric.unit.into(),
        better: metric.better,
        ..Row::default()
    };
    let mut rows: Vec<Row> = metric::ALL.iter().map(row).collect();
    rows.retain(|row| !row.samples.is_empty());
    if let Some(first) = rows.first_mut() {
        let counters: Vec<Counters> = turns.iter().map(|turn| turn.counters.clone()).collect();
        first.counters = mean(&counters);
    }
    rows
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        let words = shell_words::split(&format!("try {line}")).unwrap();
        Program::try_parse_from(words).unwrap().args
    }

    fn pairs_of(line: &str, run: f64) -> Result<usize> {
        let args = args(line);
        let length = Duration::from_secs_f64(args.turn);
        let turns = Turns::new(length, args.command.clone(), length);
        pairs(&args, &turns, run)
    }

    #[test]
    fn the_pairs_fill_the_minutes() {
        assert_eq!(pairs_of("", 0.0).unwrap(), 15);
        assert_eq!(pairs_of("-- true", 1.0).unwrap(), 15);
        // A turn of 2 s dropped and a whole run of 9 s, although that is longer than a turn.
        assert_eq!(pairs_of("-- make", 9.0).unwrap(), 14);
    }

    #[test]
    fn a_trial_that_is_too_short_says_how_long_it_must_be() {
        let error = pairs_of("-- make", 58.0).unwrap_err().to_string();
        assert!(error.contains("--minutes 12.0 or more"), "{error}");
        assert_eq!(pairs_of("--minutes 12 -- make", 58.0).unwrap(), 6);
    }

    #[test]
    fn half_of_the_pairs_begin_with_the_kernels_own() {
        let args = args("--sched eevdf");
        let trial = Trial {
            candidate: candidate(&args.sched).unwrap(),
            turns: Turns::new(Duration::from_secs(1), Vec::new(), Duration::from_secs(1)),
            pairs: 40,
        };
        let order = trial.order();
        assert_eq!(order.iter().filter(|first| **first).count(), 20);
        // Two draws are equal with a probability of 1e-11.
        assert_ne!(order, trial.order());
    }

    #[test]
    fn rows_have_a_sample_for_each_turn_that_has_the_figure() {
        let turn = |figures: &[(Metric, f64)]| Turn {
            figures: figures.to_vec(),
            counters: Counters::from([("busy_percent".into(), 50.0)]),
        };
        let turns = [
            turn(&[(metric::BUSY, 40.0), (metric::WAIT, 7.0)]),
            turn(&[(metric::BUSY, 60.0)]),
        ];
        let rows = rows("scx_a", &turns);
        let found: Vec<(&str, &[f64])> = rows
            .iter()
            .map(|row| (row.case.as_str(), row.samples.as_slice()))
            .collect();
        assert_eq!(found, [("each wait", &[7.0][..]), ("busy", &[40.0, 60.0])]);
        assert_eq!(rows[0].counters["busy_percent"], 50.0);
    }
}
