//! Shows how far a run is: a bar with the time left on a terminal, a line per round elsewhere.
//! Also saves the report after each scheduler's turn, so that an interruption loses little.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use magpie_lab::Progress as LabProgress;

use crate::file;
use crate::report::Report;
use crate::runner::{Step, Watcher};

/// Says on a terminal what is done now, while nobody knows for how long. Leaves the screen when it
/// is dropped.
pub struct Spinner(ProgressBar);

impl Spinner {
    /// Starts to turn.
    pub fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Shows what is done now.
    pub fn show(&self, what: &str) {
        self.0.set_message(what.to_string());
    }

    /// Shows the steps of the lab.
    pub fn of_lab(&self) -> LabProgress {
        let bar = self.0.clone();
        LabProgress::new(move |what| bar.set_message(what.to_string()))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The watcher of a run on the command line.
pub struct Progress {
    bar: ProgressBar,
    /// Standard error is no terminal: print a line per round instead of a bar.
    plain: bool,
    rounds: usize,
    round: Option<usize>,
    started: Instant,
    file: Option<PathBuf>,
}

impl Progress {
    /// For `runs` runs in `rounds` rounds, in addition to the warm-up; saves the report to `file`.
    pub fn new(runs: usize, rounds: usize, file: Option<&Path>) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let bar = if plain {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(runs as u64)
        };
        if let Ok(style) =
            ProgressStyle::with_template("{bar:24} {pos}/{len}, {eta} left  {wide_msg}")
        {
            bar.set_style(style);
        }
        bar.set_length(runs as u64);
        // Standard output can be written only once: at the end.
        let file = file
            .filter(|path| !file::is_standard_stream(path))
            .map(Path::to_path_buf);
        Self {
            bar,
            plain,
            rounds,
            round: None,
            started: Instant::now(),
            file,
        }
    }

    /// Removes the bar from the screen.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Returns the real time that is left, estimated from the steps that are done.
    fn time_left(&self) -> String {
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
        if done == 0 {
            return "time left unknown".into();
        }
        let left =
            self.started.elapsed().as_secs_f64() / done as f64 * (all - done.min(all)) as f64;
        format!("about {left:.0} s left")
    }
}

impl Watcher for Progress {
    fn step(&mut self, step: &Step) {
        self.bar
            .set_message(format!("{}: {}", step.scheduler, step.what));
        if self.round != Some(step.round) {
            self.round = Some(step.round);
            if self.plain {
                let name = if step.round == 0 {
                    "warm-up".into()
                } else {
                    format!("round {} of {}", step.round, self.rounds)
                };
                eprintln!("{name}, {}", self.time_left());
            }
        }
    }

    fn done(&mut self) {
        self.bar.inc(1);
    }

    fn save(&mut self, report: &Report) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| report.save(file))
    }

    fn warn(&mut self, message: &str) {
        self.bar.suspend(|| eprintln!("magpie bench: {message}"));
    }
}
