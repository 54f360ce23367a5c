//! One turn of a scheduler: what the machine does in it, as figures.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::energy::Packages;
use super::metric::{
    BUSY, ENERGY, Metric, POWER, SWITCHES, THROUGHPUT, WAIT, WAITING, WAKEUP_P50, WAKEUP_P99,
};
use super::probe::{Lateness, Probes};
use crate::counters::Counters;
use crate::place::Place;
use crate::{interrupt, runner};

/// The part of a turn that is dropped, because the tasks have just changed their scheduler.
const DROPPED: f64 = 0.2;

/// Lines of a failed command's output that its error shows.
const LINES_SHOWN: usize = 20;

/// The figures of a turn that this machine has, and the kernel's counters of it.
#[derive(Debug)]
pub struct Turn {
    /// Each figure with its value.
    pub figures: Vec<(Metric, f64)>,
    /// Counters that explain the figures.
    pub counters: Counters,
}

impl Turn {
    /// The value of a figure, if this machine has it.
    pub fn get(&self, metric: &Metric) -> Option<f64> {
        let mut figures = self.figures.iter();
        figures.find_map(|(known, value)| (known == metric).then_some(*value))
    }
}

/// The settings that all turns share.
pub struct Turns {
    length: Duration,
    command: Vec<String>,
    /// A run of the command that takes longer has failed.
    limit: Duration,
    packages: Packages,
}

impl Turns {
    /// Turns of some length, in which `command` runs over and over unless it is empty.
    pub fn new(length: Duration, command: Vec<String>, limit: Duration) -> Self {
        Self {
            length,
            command,
            limit,
            packages: Packages::find(Path::new("/")),
        }
    }

    /// How long a turn will take, if a run of the command takes `run` seconds. The last run that
    /// begins in a turn still belongs to it.
    pub fn expected(&self, run: f64) -> f64 {
        let length = self.length.as_secs_f64();
        match run > 0.0 {
            true => DROPPED * length + ((1.0 - DROPPED) * length / run).ceil() * run,
            false => length,
        }
    }

    /// Measures the machine for a turn.
    ///
    /// # Errors
    /// If the command fails, a program loads another scheduler meanwhile, or on Ctrl-C.
    pub fn measure(&self, place: &mut dyn Place) -> Result<Turn> {
        let loaded = loads(place);
        wait(self.length.mul_f64(DROPPED))?;
        let probes = Probes::start();
        let energy = self.packages.read();
        let (before, begin) = (runner::read_kernel(place), Instant::now());
        let runs = self.work(place, begin + self.length.mul_f64(1.0 - DROPPED))?;
        let seconds = begin.elapsed().as_secs_f64();
        let counters = runner::read_kernel(place).since(&before);
        let joules = energy
            .zip(self.packages.read())
            .map(|(before, after)| self.packages.joules(&before, &after));
        let lateness = probes.end()?;
        ensure!(
            loads(place) == loaded,
            "a sched_ext scheduler was loaded during a turn, by another program or anew by itself \
             (as after CPU hotplug), so that the turn tells nothing: try again while nothing else \
             loads schedulers"
        );
        let figures = figures(&counters, seconds, runs, lateness, joules);
        Ok(Turn { figures, counters })
    }

    /// Runs the command until the time is over, at least once, or waits. Returns the number of
    /// runs.
    fn work(&self, place: &mut dyn Place, until: Instant) -> Result<usize> {
        if self.command.is_empty() {
            wait(until.saturating_duration_since(Instant::now()))?;
            return Ok(0);
        }
        let mut runs = 0;
        while runs == 0 || Instant::now() < until {
            self.run_once(place)?;
            runs += 1;
        }
        Ok(runs)
    }

    /// Runs the command before the first turn, so that its files are in memory. Returns how long a
    /// run takes, in seconds; 0 without a command.
    ///
    /// # Errors
    /// If the command fails.
    pub fn warm_up(&self, place: &mut dyn Place) -> Result<f64> {
        if self.command.is_empty() {
            return Ok(0.0);
        }
        let first = self.run_once(place)?;
        // The first run of a short command mostly loads its files.
        match first < self.length.as_secs_f64() {
            true => self.run_once(place),
            false => Ok(first),
        }
    }

    /// Runs the command, and returns how long it took, in seconds.
    ///
    /// # Errors
    /// If the command fails, because the time of a failure says nothing.
    fn run_once(&self, place: &mut dyn Place) -> Result<f64> {
        let ran = place.run(&self.command, self.limit)?;
        let lines: Vec<&str> = ran.output.lines().collect();
        ensure!(
            ran.code == 0,
            "`{}` ended with code {}; the end of its output:\n{}",
            shell_words::join(&self.command),
            ran.code,
            lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
        );
        Ok(ran.seconds)
    }
}

/// How many schedulers the kernel has loaded since boot, as it says so.
fn loads(place: &mut dyn Place) -> Option<String> {
    place.read("/sys/kernel/sched_ext/enable_seq").ok()
}

/// Waits, and looks for Ctrl-C meanwhile.
fn wait(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        interrupt::stop_if_requested()?;
        thread::sleep(left.min(Duration::from_millis(100)));
    }
    interrupt::stop_if_requested()
}

/// The figures of a turn of so many seconds.
fn figures(
    counters: &Counters,
    seconds: f64,
    runs: usize,
    lateness: Option<Lateness>,
    joules: Option<f64>,
) -> Vec<(Metric, f64)> {
    let counter = |name: &str| counters.get(name).copied();
    let has_command = runs > 0;
    let mut figures = Vec::new();
    let mut add = |metric: Metric, value: Option<f64>| {
        figures.extend(value.map(|value| (metric, value)));
    };
    add(THROUGHPUT, has_command.then(|| runs as f64 / seconds));
    let waited = counter("run_delay_s");
    add(WAITING, waited.map(|waited| waited / seconds));
    let per_run = waited.zip(counter("timeslices"));
    add(WAIT, per_run.map(|(waited, runs)| 1e6 * waited / runs));
    add(WAKEUP_P50, lateness.map(|late| late.p50));
    add(WAKEUP_P99, lateness.map(|late| late.p99));
    let switches = counter("context_switches");
    add(SWITCHES, switches.map(|switches| switches / seconds));
    add(BUSY, counter("busy_percent"));
    match has_command {
        true => add(ENERGY, joules.map(|joules| joules / runs as f64)),
        false => add(POWER, joules.map(|joules| joules / seconds)),
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_computed_from_counters_and_time() {
        let counters = Counters::from([
            ("run_delay_s".into(), 6.0),
            ("timeslices".into(), 3000.0),
            ("context_switches".into(), 8000.0),
            ("busy_percent".into(), 75.0),
        ]);
        let late = Some(Lateness {
            p50: 50.0,
            p99: 900.0,
        });
        let found = figures(&counters, 4.0, 8, late, Some(120.0));
        let wanted = [
            (THROUGHPUT, 2.0),
            (WAITING, 1.5),
            (WAIT, 2000.0),
            (WAKEUP_P50, 50.0),
            (WAKEUP_P99, 900.0),
            (SWITCHES, 2000.0),
            (BUSY, 75.0),
            (ENERGY, 15.0),
        ];
        assert_eq!(found, wanted);
        // Without a command, energy is power.
        assert_eq!(
            figures(&Counters::new(), 4.0, 0, None, Some(120.0)),
            [(POWER, 30.0)]
        );
    }

    #[test]
    fn a_turn_ends_with_the_run_that_began_in_it() {
        let turns = Turns::new(Duration::from_secs(10), Vec::new(), Duration::from_secs(60));
        assert_eq!(turns.expected(0.0), 10.0);
        assert_eq!(turns.expected(2.0), 10.0);
        assert_eq!(turns.expected(3.0), 11.0);
        assert_eq!(turns.expected(40.0), 42.0);
    }
}
