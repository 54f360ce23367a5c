//! Output that all commands share: JSON for machines, and a spinner for people.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::files;
use crate::progress::Progress;

/// Writes JSON to where the user wants it.
pub fn write_json(path: &Path, value: &serde_json::Value) -> Result<()> {
    files::write_output(path, format!("{value:#}\n").as_bytes())
}

/// Shows on standard error which step is under way, if that is a terminal.
pub struct Spinner(ProgressBar);

impl Spinner {
    /// Starts to turn.
    pub fn new() -> Spinner {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Spinner(bar)
    }

    /// Shows the steps of the lab.
    pub fn progress(&self) -> Progress {
        let bar = self.0.clone();
        Progress::new(move |what| bar.set_message(what.to_string()))
    }

    /// Leaves the screen.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.clear();
    }
}
