//! `magpie bench bisect`: finds the first of many steps that is worse, unattended.
//!
//! ```text
//!   --git, --series, --steps
//!            |
//!          steps  <-- mark --  verdict: is the step on the good or on the bad side of the bar?
//!            |                    ^
//!          next                   |  samples of both, interleaved, until it is decided
//!            |                    |
//!          build  ----------->  runner: the good step, and this one
//! ```
//!
//! The known good step is measured again beside every other one, in turns, because a host drifts.
//! First it is compared with the known bad one: without a real difference there is nothing to find.
//! The samples of both also set the bar, unless `--limit` says where: the bad step's samples are
//! beyond the bar as often as the good step's are short of it. So both answers are about equally
//! sure. The middle of two averages would not do: with outliers it may lie beyond both ends. Rounds
//! are run until one answer is certain.
//!
//! All answers are right in at least 19 of 20 bisections: each of n may be wrong with a probability
//! of 1 in 20 n.

mod steps;

use std::collections::BTreeSet;
use std::fmt;
use std::io::IsTerminal as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::kernel::build::{self, Base, Request, patch};
use serde::Serialize;

use self::steps::Steps;
use crate::options::Bisect;
use crate::place::host_cpus;
use crate::plan::Plan;
use crate::progress::{Progress, Spinner};
use crate::relation::relate;
use crate::report::{BASELINE, Report, Row};
use crate::sequential::{Question, decide};
use crate::stats::{Average, Better, SIGNIFICANCE, Verdict, direction, median};
use crate::workload::CANDIDATE;
use crate::{candidate, file, interrupt};

/// Exit code if no single step is found.
const NOT_FOUND: u8 = 1;
/// Exit code after a signal.
const INTERRUPTED: u8 = 130;

/// Stands for the name of a step.
const STEP: &str = "{}";

/// The scheduler of a step whose kernel is built here.
const KERNEL_OF_STEP: &str = "eevdf@bisect-{}";

/// Lines of a build command's output that an error shows.
const LINES_SHOWN: usize = 8;

/// On which side of the bar a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    Good,
    Bad,
    /// It could not be built, failed, or was not decided.
    Unknown,
}

/// A step that was tried.
#[derive(Clone, Debug, Serialize)]
struct Tried {
    step: String,
    side: Side,
    /// By how many percent it is better than the good step; negative is worse.
    improvement: Option<f64>,
    /// Averages of the good step and of this one, from the same rounds.
    good: Option<f64>,
    value: Option<f64>,
    unit: String,
    rounds: usize,
    /// The figures of each round, in its order.
    good_samples: Vec<f64>,
    samples: Vec<f64>,
    /// Why its side is unknown.
    why: Option<String>,
}

/// The whole result, for `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    /// The first bad step, if it is known.
    first_bad: Option<String>,
    /// The same in one line.
    description: Option<String>,
    /// All steps that may be the first bad one.
    left: Vec<String>,
    /// A bad step's figure is beyond this multiple of the good step's.
    bar: Option<f64>,
    tried: Vec<Tried>,
}

/// Runs `magpie bench bisect`.
///
/// # Errors
/// If the options do not fit together, the good or the bad step cannot be measured, or the bad one
/// is not worse.
pub fn run(args: &Bisect) -> Result<u8> {
    let mut bisection = Bisection::new(args)?;
    interrupt::listen()?;
    let searched = bisection.search();
    let is_interrupted = interrupt::is_requested();
    match searched {
        Err(error) if !is_interrupted => return Err(error),
        _ => bisection.print_result()?,
    }
    match bisection.first_bad()? {
        _ if is_interrupted => Ok(INTERRUPTED),
        Some(_) => Ok(0),
        None => Ok(NOT_FOUND),
    }
}

/// A bisection under way.
struct Bisection<'a> {
    args: &'a Bisect,
    steps: Steps,
    /// The scheduler of a step.
    sched: String,
    /// The names of the patches of `--series`.
    patches: Vec<String>,
    /// The probability with which one answer may be wrong.
    significance: f64,
    /// See [`Outcome::bar`]; None until the ends have been compared.
    bar: Option<f64>,
    tried: Vec<Tried>,
}

impl<'a> Bisection<'a> {
    fn new(args: &'a Bisect) -> Result<Self> {
        let (good, bad) = (args.good.as_deref(), args.bad.as_deref());
        let mut patches = Vec::new();
        let steps = match (&args.git, &args.series) {
            (Some(tree), _) => {
                let (good, bad) = good.zip(bad).context("--git needs --good and --bad")?;
                Steps::commits(tree.clone(), good, bad)?
            }
            (None, Some(file)) => {
                patches.extend(patch::read(file)?.into_iter().map(|patch| patch.name));
                let numbers = 0..=patches.len();
                Steps::list(
                    numbers.map(|number| number.to_string()).collect(),
                    good,
                    bad,
                )?
            }
            (None, None) => Steps::list(args.steps.clone(), good, bad)?,
        };
        let sched = match &args.sched {
            Some(sched) => sched.clone(),
            None if args.build.is_some() || !args.steps.is_empty() => BASELINE.into(),
            None => KERNEL_OF_STEP.into(),
        };
        // The first comparison, and one per halving.
        let answers = 1.0 + (steps.left()?.len() as f64).log2().ceil();
        Ok(Self {
            args,
            steps,
            sched,
            patches,
            significance: SIGNIFICANCE / answers,
            bar: None,
            tried: Vec::new(),
        })
    }

    /// Compares the two ends, then one step after the other with the good end, until no step is
    /// left that says more.
    fn search(&mut self) -> Result<()> {
        let (good, bad) = (self.steps.good(), self.steps.bad());
        let count = self.steps.left()?.len();
        eprintln!("{count} steps, from {good} (good) to {bad} (bad)");
        for (end, what) in [(&good, "good"), (&bad, "bad")] {
            self.build(end)
                .with_context(|| format!("cannot build the {what} step {end}"))?;
        }
        let tried = self.compare(&good, &bad)?;
        let why = tried.why.clone();
        ensure!(
            self.remember(tried) == Side::Bad,
            "the step {bad} is not worse than {good}: {}. Try another workload, other parameters \
             or more --rounds",
            why.as_deref().unwrap_or("its figure is on the good side")
        );
        let mut skipped = BTreeSet::new();
        while let Some(step) = self.steps.next(&skipped)? {
            let tried = self
                .build(&step)
                .and_then(|()| self.compare(&good, &step))
                .or_else(|error| match interrupt::is_requested() {
                    true => Err(error),
                    false => Ok(Tried::unknown(&step, format!("{error:#}"))),
                })?;
            match self.remember(tried) {
                Side::Unknown => {
                    skipped.insert(step);
                }
                side => self.steps.mark(&step, side == Side::Bad)?,
            }
        }
        Ok(())
    }

    /// Builds a step.
    fn build(&self, step: &str) -> Result<()> {
        if let Some(command) = &self.args.build {
            return run_build(&command.replace(STEP, step));
        }
        let source = match (&self.args.git, &self.args.source) {
            (Some(tree), _) => format!("{}@{step}", tree.display()),
            (None, Some(source)) => source.clone(),
            (None, None) => return Ok(()),
        };
        let first = match &self.args.series {
            Some(_) => Some(step.parse().context("a step of --series is a number")?),
            None => None,
        };
        let spinner = Spinner::new();
        let built = build::build(&Request {
            source,
            patches: self.args.series.iter().cloned().collect(),
            first,
            config: None,
            base: Base::Tiny,
            name: Some(format!("bisect-{step}")),
            jobs: host_cpus(),
            progress: spinner.of_lab(),
        })?;
        drop(spinner);
        eprintln!("built {} in {:.0} s", built.release, built.seconds);
        Ok(())
    }

    /// Measures a step beside the good one until it is decided on which side of the bar it is. The
    /// first comparison also sets the bar.
    fn compare(&mut self, good: &str, step: &str) -> Result<Tried> {
        let mut plan = self.plan(good, step)?;
        let better = plan.suite.work[0].0.metric[0].better;
        let bar = self
            .bar
            .unwrap_or_else(|| first_bar(self.args.limit, better));
        let question = Question::side_of(bar, self.significance);
        plan.suite.until_sure = Some(question);
        let mut place = plan.open_place(&self.args.setup)?;
        let mut report = Report::new(place.machine(), place.kernel(), plan.options.clone());
        if std::io::stderr().is_terminal() {
            let mut progress =
                Progress::new(plan.suite.runs(place.as_ref()), plan.suite.rounds, None);
            let ran = plan.suite.run(place.as_mut(), &mut report, &mut progress);
            progress.finish();
            ran?;
        } else {
            let mut warn = |message: &str| eprintln!("magpie bench: {message}");
            plan.suite.run(place.as_mut(), &mut report, &mut warn)?;
        }
        let [base, row] = report.results.as_slice() else {
            bail!("a comparison has two rows");
        };
        let tried = judge(base, row, bar, question);
        if self.bar.is_none() {
            self.bar = match self.args.limit {
                Some(_) => Some(bar),
                None => bar_between(&base.samples, &row.samples),
            };
        }
        Ok(tried)
    }

    /// The measurement of a step beside the good one: one figure of one case.
    fn plan(&self, good: &str, step: &str) -> Result<Plan> {
        let candidate = |step: &str| {
            candidate::parse(step, &self.sched.replace(STEP, step))
                .with_context(|| format!("the scheduler of the step {step}"))
        };
        let candidates = vec![candidate(good)?, candidate(step)?];
        let rounds = usize::from(self.args.rounds);
        let mut plan = Plan::of(&self.args.setup, Vec::new(), candidates, rounds, None, None)?;
        let [(workload, cases)] = plan.suite.work.as_mut_slice() else {
            bail!("a bisection follows one figure: name one workload");
        };
        let [case] = cases.as_slice() else {
            let labels: Vec<&str> = cases.iter().map(|case| case.label.as_str()).collect();
            bail!(
                "a bisection follows one figure, and there are several cases: {}; choose one with \
                 --set",
                labels.join("; ")
            );
        };
        ensure!(
            self.sched.contains(STEP) || case.argv.iter().any(|word| word.contains(CANDIDATE)),
            "every step would run the same: put {STEP} into --sched, or {CANDIDATE} into the \
             workload's command"
        );
        let names: Vec<&str> = workload
            .metric
            .iter()
            .filter_map(|metric| metric.name.as_deref())
            .collect();
        match &self.args.metric {
            Some(name) => ensure!(
                names.contains(&name.as_str()),
                "the workload {} has no metric `{name}`; it has {}",
                workload.name,
                names.join(", ")
            ),
            None => ensure!(
                workload.metric.len() == 1,
                "the workload {} has several metrics: choose one with --metric: {}",
                workload.name,
                names.join(", ")
            ),
        }
        if let Some(name) = &self.args.metric {
            workload
                .metric
                .retain(|metric| metric.name.as_ref() == Some(name));
        }
        Ok(plan)
    }

    /// Prints a step that was tried, and keeps it.
    fn remember(&mut self, tried: Tried) -> Side {
        if !self.is_json_printed() {
            println!("{tried}");
        }
        let side = tried.side;
        self.tried.push(tried);
        side
    }

    fn is_json_printed(&self) -> bool {
        let json = self.args.json.as_deref();
        json.is_some_and(file::is_standard_stream)
    }

    /// The first bad step, if no other may be it.
    fn first_bad(&self) -> Result<Option<String>> {
        let left = self.steps.left()?;
        Ok(left.into_iter().next().filter(|_| self.is_certain()))
    }

    fn is_certain(&self) -> bool {
        let is_bad_known = self.tried.first().is_some_and(|end| end.side == Side::Bad);
        is_bad_known && self.steps.left().is_ok_and(|left| left.len() == 1)
    }

    /// Describes a step in one line.
    fn describe(&self, step: &str) -> String {
        let patch = step.parse::<usize>().ok().and_then(|number| {
            let index = number.checked_sub(1)?;
            self.patches.get(index)
        });
        match patch {
            Some(patch) => format!("patch {step}, {patch}"),
            None => self.steps.describe(step),
        }
    }

    /// Prints the first bad step, or the steps of which one is the first bad one, and writes the
    /// result file that `--json` names.
    fn print_result(&self) -> Result<()> {
        let left = self.steps.left()?;
        let first_bad = self.first_bad()?;
        let outcome = Outcome {
            description: first_bad.as_deref().map(|step| self.describe(step)),
            first_bad,
            left,
            bar: self.bar,
            tried: self.tried.clone(),
        };
        if !self.is_json_printed() {
            match &outcome.description {
                Some(line) => println!("first bad step: {line}"),
                None => {
                    println!("the first bad step is one of {}:", outcome.left.len());
                    for step in &outcome.left {
                        println!("  {}", self.describe(step));
                    }
                }
            }
        }
        match &self.args.json {
            Some(path) => {
                let text = serde_json::to_string_pretty(&outcome).context("encode the result")?;
                file::write(path, &format!("{text}\n"))
            }
            None => Ok(()),
        }
    }
}

/// The bar of the first comparison: at the limit, or at the good step's own figure.
fn first_bar(limit: Option<f64>, better: Better) -> f64 {
    let factor = 1.0 + limit.unwrap_or(0.0) / 100.0;
    match better {
        Better::Lower => factor,
        Better::Higher => 1.0 / factor,
    }
}

/// The ratio to the good step that best tells the two ends apart: the median of all ratios of
/// either end's samples to the good one's. None if there are no samples, or a good one is 0.
fn bar_between(good: &[f64], bad: &[f64]) -> Option<f64> {
    let samples = good.iter().chain(bad);
    let ratios: Vec<f64> = samples
        .flat_map(|sample| good.iter().map(move |good| sample / good))
        .collect();
    let is_known = !ratios.is_empty() && ratios.iter().all(|ratio| ratio.is_finite());
    is_known.then(|| median(&ratios))
}

/// Are a step's figures mostly above this multiple of the good step's?
fn is_above_bar(good: &[f64], step: &[f64], bar: f64) -> bool {
    let at_bar: Vec<f64> = good.iter().map(|sample| sample * bar).collect();
    direction(&at_bar, step) > 0.0
}

/// Judges a step by its row and that of the good step.
fn judge(base: &Row, row: &Row, bar: f64, question: Question) -> Tried {
    let step = &row.scheduler;
    if let Some(why) = base.failed.as_ref().or(row.failed.as_ref()) {
        return Tried::unknown(step, why.clone());
    }
    let decision = decide(&base.samples, &row.samples, question);
    let is_above = is_above_bar(&base.samples, &row.samples, bar);
    let (side, why) = match decision.verdict {
        Verdict::Different if is_above == (row.better == Better::Lower) => (Side::Bad, None),
        Verdict::Different => (Side::Good, None),
        _ => {
            let why = format!("not decided within the rounds, p = {:.3}", decision.p);
            (Side::Unknown, Some(why))
        }
    };
    let average = Average::for_unit(&row.unit);
    Tried {
        step: step.clone(),
        side,
        improvement: relate(base, row).map(|relation| relation.improvement),
        good: Some(average.of(&base.samples)),
        value: Some(average.of(&row.samples)),
        unit: row.unit.clone(),
        rounds: row.samples.len(),
        good_samples: base.samples.clone(),
        samples: row.samples.clone(),
        why,
    }
}

impl Tried {
    /// A step that could not be judged.
    fn unknown(step: &str, why: String) -> Self {
        Self {
            step: step.into(),
            side: Side::Unknown,
            improvement: None,
            good: None,
            value: None,
            unit: String::new(),
            rounds: 0,
            good_samples: Vec::new(),
            samples: Vec::new(),
            why: Some(why),
        }
    }
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Good => "good",
            Side::Bad => "bad",
            Side::Unknown => "unknown",
        };
        write!(f, "{:<14} {side:<8}", self.step)?;
        if let (Some(value), Some(good), Some(change)) = (self.value, self.good, self.improvement) {
            let (unit, rounds) = (&self.unit, self.rounds);
            write!(
                f,
                " {change:+7.2} %  {value:.4} {unit}, good {good:.4}, {rounds} rounds"
            )?;
        }
        self.why
            .as_ref()
            .map_or(Ok(()), |why| write!(f, " ({why})"))
    }
}

/// Runs a build command. Its output is shown if it fails.
fn run_build(command: &str) -> Result<()> {
    let output = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .output()
        .context("cannot run sh")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().collect();
    ensure!(
        output.status.success(),
        "`{command}` failed ({}):\n{}",
        output.status,
        lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of so many rounds around `usual`, and around `rare` in some of them.
    fn samples(rng: &mut fastrand::Rng, usual: f64, rare: f64, share: f64) -> Vec<f64> {
        let mut sample = || {
            let mode = if rng.f64() < share { rare } else { usual };
            mode * (0.95 + 0.1 * rng.f64())
        };
        (0..40).map(|_| sample()).collect()
    }

    /// The bar comes from one comparison, and each answer from another one. With these outliers, a
    /// bar in the middle of two averages gave a wrong answer in one of five.
    #[test]
    fn both_ends_are_told_apart_although_each_has_outliers_or_two_modes() {
        for (rare, share) in [(30.0, 0.1), (2.0, 0.3)] {
            for seed in 0..100 {
                let rng = &mut fastrand::Rng::with_seed(seed);
                let good = samples(rng, 1.0, rare, share);
                let bad = samples(rng, 1.3, 1.3 * rare, share);
                let bar = bar_between(&good, &bad).expect("samples");
                let question = Question::side_of(bar, 0.01);
                for (times, is_bad) in [(1.0, false), (1.3, true)] {
                    let base = samples(rng, 1.0, rare, share);
                    let step = samples(rng, times, times * rare, share);
                    let verdict = decide(&base, &step, question).verdict;
                    let is_above = is_above_bar(&base, &step, bar);
                    let is_wrong = verdict == Verdict::Different && is_above != is_bad;
                    assert!(!is_wrong, "seed {seed}, rare {rare}, bar {bar}");
                }
            }
        }
    }

    #[test]
    fn the_bar_of_two_clear_ends_is_between_them() {
        assert_eq!(bar_between(&[1.0, 1.0], &[3.0, 3.0]), Some(2.0));
        assert_eq!(bar_between(&[0.0], &[3.0]), None);
        assert_eq!(bar_between(&[], &[]), None);
    }
}
