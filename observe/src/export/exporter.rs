//! From a sample to the text of its metrics.

use super::families::{self, Format};
use super::metrics;
use crate::sample::Source;

/// Makes metrics of samples, and tells on standard error when the scheduler comes or goes.
pub struct Exporter {
    source: Source,
    /// The last message: why there is no answer, or that there is one.
    told: Option<Result<(), String>>,
}

impl Exporter {
    /// An exporter of this source's samples.
    pub fn new(source: Source) -> Exporter {
        Exporter { source, told: None }
    }

    /// Asks the scheduler, and returns the metrics as text.
    pub fn scrape(&mut self, format: Format) -> String {
        let (sample, explanations) = self.source.take_explained();
        self.tell(sample.status.as_ref().map(|_| ()).map_err(String::clone));
        families::encode(metrics::families(&sample, &explanations), format)
    }

    /// Prints a line if the state is another one than before.
    fn tell(&mut self, state: Result<(), String>) {
        if self.told.as_ref() == Some(&state) {
            return;
        }
        match &state {
            Ok(()) => eprintln!("magpie export: scx_magpie answers: magpie_up 1"),
            Err(reason) => eprintln!("magpie export: magpie_up 0: {reason}"),
        }
        self.told = Some(state);
    }
}
