//! Runs the suite: every workload under every scheduler, round by round.
//!
//! ```text
//!   round 0 (warm-up, dropped;   A: w1 w2 w3   B: w1 w2 w3   C: ...
//!            busy CPUs watched)
//!   round 1                      B: ...        C: ...        A: ...
//!   round 2                      C: ...        A: ...        B: ...
//! ```
//!
//! Schedulers are interleaved, because a host drifts (other load, temperature, page cache) and all
//! schedulers must see the same drift. The order rotates, so that no scheduler always runs behind
//! the same other one. After each scheduler's turn the report is consistent and is saved.
//!
//! A place that boots anew for each run has no round 0.
//!
//! Candidates on other kernels have guests of their own ([`Place::enter`]); their turns are
//! interleaved like the others.
//!
//! With `--until-sure`, a case runs under a candidate until its rows are decided, and under the
//! baseline until they are decided for all candidates.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::candidate::Candidate;
use crate::counters::{Counters, Reading, mean};
use crate::place::Place;
use crate::provenance::{UNTIL_SURE, Values};
use crate::report::{BASELINE, Curve, Occupancy, Report, Row};
use crate::sequential::{Question, Sequential};
use crate::setting::Boot;
use crate::workload::{Case, Metric, Workload};
use crate::{interrupt, occupancy, shard};

/// Schedulers, workloads and rounds of a measurement.
pub struct Suite {
    /// The baseline first.
    pub candidates: Vec<Candidate>,
    /// The workloads with their cases.
    pub work: Vec<(Workload, Vec<Case>)>,
    /// Rounds that count; one more is run before them and dropped, where a place needs it.
    pub rounds: usize,
    /// Runs a case under a candidate only until this is answered for all its rows, by comparison
    /// with the baseline. `rounds` is then the limit.
    pub until_sure: Option<Question>,
}

/// How far a run is.
pub struct Step<'a> {
    /// 0 is the warm-up.
    pub round: usize,
    /// The scheduler.
    pub scheduler: &'a str,
    /// Workload and arguments.
    pub what: String,
}

/// Shows the progress of a run, and saves its report. A watcher must hear of failures, and may
/// ignore the rest.
pub trait Watcher {
    /// A workload is about to run.
    fn step(&mut self, _: &Step) {}
    /// A workload has run, or was left out because its scheduler or input had failed.
    fn done(&mut self) {}
    /// A scheduler's turn is over, and the report is consistent.
    fn save(&mut self, _: &Report) -> Result<()> {
        Ok(())
    }
    /// Something failed.
    fn warn(&mut self, message: &str);
}

/// A closure is a watcher that hears of failures only.
impl<F: FnMut(&str)> Watcher for F {
    fn warn(&mut self, message: &str) {
        self(message);
    }
}

/// Everything collected about one candidate and case.
#[derive(Default)]
struct Cell {
    /// For each metric, a value per round.
    samples: Vec<Vec<f64>>,
    /// For each metric, a curve per round if it has any.
    curves: Vec<Vec<Curve>>,
    counters: Vec<Counters>,
    occupancy: Occupancy,
    failed: Option<String>,
    /// For each metric, its test round by round; only with [`Suite::until_sure`].
    tests: Vec<Sequential>,
    /// All rows of the cell are decided: it runs no more.
    is_decided: bool,
}

impl Suite {
    /// The numbers of the rounds at a place: 0 is the warm-up.
    fn numbers(&self, place: &dyn Place) -> RangeInclusive<usize> {
        usize::from(!place.needs_warm_up())..=self.rounds
    }

    /// The number of runs of workloads, warm-up included.
    pub fn runs(&self, place: &dyn Place) -> usize {
        self.numbers(place).count()
            * self.candidates.len()
            * self
                .work
                .iter()
                .map(|(_, cases)| cases.len())
                .sum::<usize>()
    }

    /// Runs everything into `report`. If a scheduler or workload fails, its rows are marked, and it
    /// is left out from then on.
    ///
    /// # Errors
    /// If the place itself fails (the guest hangs), on Ctrl-C, or if the report cannot be saved.
    /// The samples until then are in `report`.
    pub fn run(
        &self,
        place: &mut dyn Place,
        report: &mut Report,
        watcher: &mut dyn Watcher,
    ) -> Result<()> {
        let cases: usize = self.work.iter().map(|(_, cases)| cases.len()).sum();
        let mut cells: Vec<Vec<Cell>> = self
            .candidates
            .iter()
            .map(|_| (0..cases).map(|_| Cell::default()).collect())
            .collect();
        for boot in self.boots() {
            place.enter(&Candidate {
                boot: boot.clone(),
                ..Candidate::default()
            })?;
            self.prepare(boot, place, &mut cells, watcher)?;
            place.leave()?;
        }
        for round in self.numbers(place) {
            for turn in 0..self.candidates.len() {
                let index = (turn + round) % self.candidates.len();
                let turn = self.turn(
                    round,
                    &self.candidates[index],
                    &mut cells[index],
                    place,
                    watcher,
                );
                self.fill(report, &cells);
                let is_last = index == self.last_index(round);
                if is_last && let Some(question) = self.until_sure {
                    decide(&mut cells, question);
                }
                let is_decided = cells.iter().flatten().all(|cell| cell.is_decided);
                report.complete = turn.is_ok() && is_last && (round == self.rounds || is_decided);
                watcher.save(report)?;
                turn?;
                if report.complete {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The kernels of the candidates, each once.
    fn boots(&self) -> Vec<&Boot> {
        let mut boots: Vec<&Boot> = Vec::new();
        for candidate in &self.candidates {
            if !boots.contains(&&candidate.boot) {
                boots.push(&candidate.boot);
            }
        }
        boots
    }

    /// Makes the inputs of the cases on a kernel, under its own scheduler. A case whose input
    /// cannot be made fails under all schedulers of this kernel alike.
    fn prepare(
        &self,
        boot: &Boot,
        place: &mut dyn Place,
        cells: &mut [Vec<Cell>],
        watcher: &mut dyn Watcher,
    ) -> Result<()> {
        let mut made: BTreeMap<&[String], Option<String>> = BTreeMap::new();
        let cases = self
            .work
            .iter()
            .flat_map(|(workload, cases)| cases.iter().map(move |case| (workload, case)));
        for (column, (workload, case)) in cases.enumerate() {
            if case.prepare.is_empty() {
                continue;
            }
            interrupt::stop_if_requested()?;
            let failed = made.entry(&case.prepare).or_insert_with(|| {
                watcher.step(&Step {
                    round: 0,
                    scheduler: BASELINE,
                    what: format!("input of {} {}", workload.name, case.label),
                });
                let limit = Duration::from_secs(workload.timeout_s);
                match place.run(&case.prepare, limit) {
                    Ok(ran) if ran.code == 0 => None,
                    Ok(ran) => Some(format!(
                        "its input could not be made: {} ended with code {}:\n{}",
                        case.prepare.join(" "),
                        ran.code,
                        ran.output.trim_end()
                    )),
                    Err(error) => Some(format!("its input could not be made: {error:#}")),
                }
            });
            interrupt::stop_if_requested()?;
            if let Some(why) = failed {
                watcher.warn(&format!("{}: {why}", workload.name));
                for (candidate, row) in self.candidates.iter().zip(cells.iter_mut()) {
                    if candidate.boot == *boot {
                        row[column].failed = Some(why.clone());
                    }
                }
            }
        }
        Ok(())
    }

    /// The candidate whose turn ends a round.
    fn last_index(&self, round: usize) -> usize {
        (self.candidates.len() - 1 + round) % self.candidates.len()
    }

    /// One scheduler's turn in a round: start, all workloads, stop.
    fn turn(
        &self,
        round: usize,
        candidate: &Candidate,
        cells: &mut [Cell],
        place: &mut dyn Place,
        watcher: &mut dyn Watcher,
    ) -> Result<()> {
        let nothing_to_run = !cells.iter().any(Cell::runs);
        let mut dead = None;
        if !nothing_to_run {
            let entered = place.enter(candidate);
            let start = |()| match candidate.is_baseline() {
                true => Ok(()),
                false => place.start_scheduler(&candidate.argv),
            };
            if let Err(error) = entered.and_then(start) {
                interrupt::stop_if_requested()?;
                dead = Some(format!("{error:#}"));
            }
        }
        let started = !nothing_to_run && dead.is_none() && !candidate.is_baseline();
        let mut next = cells.iter_mut();
        for (workload, cases) in &self.work {
            for (case, cell) in cases.iter().zip(&mut next) {
                interrupt::stop_if_requested()?;
                if dead.is_none() && cell.runs() {
                    watcher.step(&Step {
                        round,
                        scheduler: &candidate.name,
                        what: format!("{} {}", workload.name, case.label),
                    });
                    match measure(place, workload, case, candidate, round == 0) {
                        Ok(measured) if round > 0 => cell.add(measured),
                        Ok(measured) => cell.occupancy = measured.occupancy,
                        Err(error) => {
                            interrupt::stop_if_requested()?;
                            cell.failed = Some(format!("{error:#}"));
                            watcher.warn(&format!(
                                "{} under {}: {error:#}",
                                workload.name, candidate.name
                            ));
                        }
                    }
                    // Also after a run that went well: under a dead scheduler it measured EEVDF.
                    if started && let Some(why) = place.scheduler_died()? {
                        dead = Some(format!(
                            "the scheduler ended by itself while {} ran: {why}",
                            workload.name
                        ));
                    }
                }
                watcher.done();
            }
        }
        if let Some(why) = dead {
            watcher.warn(&format!("{}: {why}", candidate.name));
            for cell in cells.iter_mut() {
                cell.failed.get_or_insert_with(|| why.clone());
            }
            // Reaps the process. Its error is ignored, because the scheduler is known to be dead.
            let _ = place.stop_scheduler();
        } else if started && let Err(error) = place.stop_scheduler() {
            interrupt::stop_if_requested()?;
            watcher.warn(&format!("{}: {error:#}", candidate.name));
            cells
                .iter_mut()
                .for_each(|cell| cell.failed = Some(format!("{error:#}")));
        }
        // With another candidate's settings the rest would be measured wrongly.
        place.leave()
    }

    /// Makes the report's rows anew from the cells.
    fn fill(&self, report: &mut Report, cells: &[Vec<Cell>]) {
        report.results.clear();
        let mut column = 0;
        for (workload, cases) in &self.work {
            for case in cases {
                for (m, metric) in workload.metric.iter().enumerate() {
                    for (candidate, cells) in self.candidates.iter().zip(cells) {
                        let cell = &cells[column];
                        report.results.push(Row {
                            workload: workload.name.clone(),
                            case: metric.label(case),
                            scheduler: candidate.name.clone(),
                            samples: cell.samples.get(m).cloned().unwrap_or_default(),
                            unit: metric.unit.clone(),
                            better: metric.better,
                            curves: cell.curves.get(m).cloned().unwrap_or_default(),
                            occupancy: match m {
                                0 => cell.occupancy.clone(),
                                _ => Occupancy::new(),
                            },
                            counters: mean(&cell.counters),
                            verdict: None,
                            failed: cell.failed.clone(),
                        });
                    }
                }
                column += 1;
            }
        }
    }
}

/// Decides which cells run no more, after a round. The baseline's cells are the first; they run as
/// long as another candidate needs them.
fn decide(cells: &mut [Vec<Cell>], question: Question) {
    let [baseline, others @ ..] = cells else {
        return;
    };
    for (column, base) in baseline.iter_mut().enumerate() {
        for candidate in others.iter_mut() {
            candidate[column].decide(base, question);
        }
        base.is_decided = others.iter().all(|candidate| candidate[column].is_decided);
    }
}

impl Cell {
    /// Is the cell to be run in this round?
    fn runs(&self) -> bool {
        self.failed.is_none() && !self.is_decided
    }

    /// Looks at the samples of all metrics. Where a side failed, there is nothing to decide.
    fn decide(&mut self, base: &Cell, question: Question) {
        if self.failed.is_some() || base.failed.is_some() {
            self.is_decided = true;
            return;
        }
        self.tests
            .resize_with(self.samples.len(), || Sequential::new(question));
        let samples = base.samples.iter().zip(&self.samples);
        for (test, (base, own)) in self.tests.iter_mut().zip(samples) {
            test.look(base, own);
        }
        let mut decisions = self.tests.iter().map(Sequential::decision);
        self.is_decided = !self.tests.is_empty() && decisions.all(|d| d.round.is_some());
    }

    /// Adds the results of one round.
    fn add(&mut self, run: Measured) {
        self.samples.resize(run.metrics.len(), Vec::new());
        self.curves.resize(run.metrics.len(), Vec::new());
        for (metric, (sample, curve)) in run.metrics.into_iter().enumerate() {
            self.samples[metric].push(sample);
            self.curves[metric].extend(curve);
        }
        self.counters.push(run.counters);
    }
}

/// The result of one run.
struct Measured {
    metrics: Vec<(f64, Option<Curve>)>,
    counters: Counters,
    /// Empty unless the run was watched.
    occupancy: Occupancy,
}

/// Runs a case once, and reads its metrics and the counters of that time.
fn measure(
    place: &mut dyn Place,
    workload: &Workload,
    case: &Case,
    candidate: &Candidate,
    is_watched: bool,
) -> Result<Measured> {
    // Outside the reads of the kernel's counters, because asking the scheduler takes CPU time on
    // one CPU, during which a machine of many CPUs idles.
    let own = read_own(place, candidate);
    let mut before = read_kernel(place);
    before.add_scheduler(&own);
    let limit = Duration::from_secs(workload.timeout_s);
    let argv = case.argv_of(&candidate.name);
    let mut ran = match is_watched {
        true => place.run(&occupancy::watched(&argv), limit)?,
        false => place.run(&argv, limit)?,
    };
    let occupancy = occupancy::take(&mut ran.output);
    let mut after = read_kernel(place);
    after.add_scheduler(&read_own(place, candidate));
    if ran.code != 0 {
        return Err(anyhow!(
            "{} ended with code {}:\n{}",
            argv.join(" "),
            ran.code,
            ran.output.trim_end()
        ));
    }
    let read = |metric: &Metric| {
        let number = metric.read(&ran.output, ran.seconds)?;
        Ok((number, metric.read_curve(&ran.output)?))
    };
    Ok(Measured {
        metrics: workload.metric.iter().map(read).collect::<Result<_>>()?,
        counters: after.since(&before),
        occupancy,
    })
}

/// The kernel's counters. A file that cannot be read is left out, because counters only explain a
/// result.
pub fn read_kernel(place: &mut dyn Place) -> Reading {
    let stat = place.read("/proc/stat").unwrap_or_default();
    let schedstat = place.read("/proc/schedstat").unwrap_or_default();
    Reading::parse(&stat, &schedstat)
}

/// The counters that scx_magpie prints; null for another scheduler.
fn read_own(place: &mut dyn Place, candidate: &Candidate) -> serde_json::Value {
    let Some(program) = candidate.argv.first().filter(|_| candidate.is_magpie()) else {
        return serde_json::Value::Null;
    };
    let argv = [program.clone(), "--stats-json".into()];
    match place.run(&argv, Duration::from_secs(20)) {
        Ok(ran) if ran.code == 0 => serde_json::from_str(ran.output.trim()).unwrap_or_default(),
        _ => serde_json::Value::Null,
    }
}

/// The options of a suite that its result file keeps.
pub fn options(suite: &Suite) -> Values {
    let schedulers: Vec<&str> = suite.candidates.iter().map(|c| c.name.as_str()).collect();
    let commands: Vec<String> = suite
        .work
        .iter()
        .flat_map(|(_, cases)| cases)
        .map(|case| case.argv.join(" "))
        .collect();
    let cases: Vec<[&str; 2]> = suite
        .work
        .iter()
        .flat_map(|(workload, cases)| cases.iter().map(move |case| (workload, case)))
        .map(|(workload, case)| [workload.name.as_str(), case.label.as_str()])
        .collect();
    let mut options = BTreeMap::from([
        ("rounds".into(), suite.rounds.into()),
        ("schedulers".into(), schedulers.into()),
        (shard::CASES.into(), serde_json::json!(cases)),
        ("commands".into(), commands.into()),
        ("magpie".into(), env!("CARGO_PKG_VERSION").into()),
    ]);
    if let Some(margin) = suite.until_sure.and_then(|question| question.margin) {
        options.insert(UNTIL_SURE.into(), margin.into());
    }
    options
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
