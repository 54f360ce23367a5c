//! The state of the screen: the last minutes, and what the user chose to see of them.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::moment::Moment;
use crate::sample::Sample;

/// How many moments the sparklines can show.
const MOMENTS: usize = 120;

/// The quantity that the heat map shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heat {
    /// The part of the time that a CPU was busy.
    Busy,
    /// The tasks that waited for a CPU.
    Waiting,
    /// The part of the time that the host took, as the kernel counts it.
    Steal,
    /// The frequency, as a part of the highest one.
    Frequency,
}

impl Heat {
    /// Returns the quantity that is shown after this one.
    fn next(self) -> Heat {
        match self {
            Heat::Busy => Heat::Waiting,
            Heat::Waiting => Heat::Steal,
            Heat::Steal => Heat::Frequency,
            Heat::Frequency => Heat::Busy,
        }
    }
}

/// Everything that the screen depends on.
pub struct App {
    /// The sample that is shown.
    pub sample: Option<Sample>,
    /// The moments up to that sample, the latest last.
    pub moments: VecDeque<Moment>,
    /// The quantity that the heat map shows.
    pub heat: Heat,
    /// Whether colours are used.
    pub has_colours: bool,
    /// Whether the keys are explained.
    pub shows_help: bool,
    /// Whether the screen stands still.
    pub is_paused: bool,
    /// Seconds between two samples of the running scheduler.
    interval: f64,
    /// How many times faster than recorded a recording runs.
    speed: f64,
    recording: Option<Recording>,
    is_over: bool,
}

/// A recorded session.
struct Recording {
    samples: Vec<Sample>,
    /// How many of them were shown.
    shown: usize,
}

impl App {
    /// A screen that shows nothing yet.
    pub fn new(interval: f64, has_colours: bool) -> App {
        App {
            sample: None,
            moments: VecDeque::new(),
            heat: Heat::Busy,
            has_colours,
            shows_help: false,
            is_paused: false,
            interval,
            speed: 1.0,
            recording: None,
            is_over: false,
        }
    }

    /// Shows a recorded session, from its first rates on.
    pub fn load(&mut self, samples: Vec<Sample>) {
        self.recording = Some(Recording { samples, shown: 0 });
        self.seek(1);
    }

    /// Takes a new sample of the running scheduler.
    pub fn push(&mut self, sample: Sample) {
        if !self.is_paused {
            self.take(sample);
        }
    }

    /// Shows the next sample of the recording, if it runs and has one.
    pub fn advance(&mut self) {
        if let Some(recording) = &self.recording
            && !self.is_paused
        {
            self.seek(recording.shown + 1);
        }
    }

    /// Returns whether there are rates to show.
    pub fn has_rates(&self) -> bool {
        !self.moments.is_empty()
    }

    /// Returns whether the user has quit.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the seconds between two samples.
    pub fn interval(&self) -> f64 {
        self.interval
    }

    /// Returns how long the recording shows its sample.
    pub fn pace(&self) -> Duration {
        let recording = self.recording.as_ref();
        let gap = recording.and_then(|recording| {
            let next = recording.samples.get(recording.shown)?;
            Some(next.at - recording.samples.get(recording.shown.checked_sub(1)?)?.at)
        });
        Duration::from_secs_f64((gap.unwrap_or(1.0) / self.speed).clamp(0.02, 60.0))
    }

    /// Says how far the recording is, and how fast; nothing of the running scheduler.
    pub fn position(&self) -> Option<String> {
        let recording = self.recording.as_ref()?;
        let (shown, all) = (recording.shown, recording.samples.len());
        Some(format!("replay {shown}/{all} x{}", self.speed))
    }

    /// Obeys a key.
    pub fn press(&mut self, key: KeyEvent) {
        let shown = self
            .recording
            .as_ref()
            .map_or(0, |recording| recording.shown);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.is_over = true;
            }
            // A key that explains the keys also puts the explanation away.
            _ if self.shows_help => self.shows_help = false,
            KeyCode::Char('q') | KeyCode::Esc => self.is_over = true,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('m') => self.heat = self.heat.next(),
            KeyCode::Char('+') => self.hurry(2.0),
            KeyCode::Char('-') => self.hurry(0.5),
            KeyCode::Left => self.step_to(shown.saturating_sub(1)),
            KeyCode::Right => self.step_to(shown + 1),
            KeyCode::Home => self.step_to(0),
            KeyCode::End => self.step_to(usize::MAX),
            _ => {}
        }
    }

    /// Shows samples this many times as often: a recording runs faster, the running scheduler is
    /// asked more often.
    fn hurry(&mut self, times: f64) {
        match self.recording {
            Some(_) => self.speed = (self.speed * times).clamp(0.25, 64.0),
            None => self.interval = (self.interval / times).clamp(0.5, 60.0),
        }
    }

    /// Shows another sample of the recording, and stands still there.
    fn step_to(&mut self, shown: usize) {
        if self.recording.is_some() {
            self.is_paused = true;
            self.seek(shown);
        }
    }

    /// Shows the recording up to its sample of this number, the second at least, because rates are
    /// between two.
    fn seek(&mut self, shown: usize) {
        let Some(recording) = self.recording.take() else {
            return;
        };
        let count = recording.samples.len();
        let shown = shown.clamp(2.min(count), count);
        let first = match recording.shown {
            before if before <= shown => before,
            _ => {
                self.sample = None;
                self.moments.clear();
                shown.saturating_sub(MOMENTS + 1)
            }
        };
        for sample in &recording.samples[first..shown] {
            self.take(sample.clone());
        }
        self.recording = Some(Recording { shown, ..recording });
    }

    /// Shows a sample, and keeps what happened since the one before.
    fn take(&mut self, sample: Sample) {
        if let Some(earlier) = &self.sample {
            self.moments.push_back(Moment::between(earlier, &sample));
            if self.moments.len() > MOMENTS {
                self.moments.pop_front();
            }
        }
        self.sample = Some(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::moment::tests::busy_sample;

    fn press(app: &mut App, code: KeyCode) {
        app.press(KeyEvent::new(code, KeyModifiers::NONE));
    }

    fn at(app: &App) -> f64 {
        app.sample.as_ref().unwrap().at
    }

    #[test]
    fn a_recording_runs_stands_still_and_goes_back() {
        let mut app = App::new(1.0, false);
        app.load(
            (0..9)
                .map(|second| busy_sample(f64::from(second)))
                .collect(),
        );
        assert_eq!((at(&app), app.moments.len()), (1.0, 1));
        assert_eq!(app.pace(), Duration::from_secs(1));
        app.advance();
        assert_eq!(at(&app), 2.0);
        press(&mut app, KeyCode::Char(' '));
        app.advance();
        assert_eq!(at(&app), 2.0);
        press(&mut app, KeyCode::End);
        assert_eq!((at(&app), app.moments.len()), (8.0, 8));
        press(&mut app, KeyCode::Left);
        assert_eq!((at(&app), app.moments.len()), (7.0, 7));
        press(&mut app, KeyCode::Home);
        assert_eq!(at(&app), 1.0);
        press(&mut app, KeyCode::Char('+'));
        assert_eq!(app.pace(), Duration::from_millis(500));
        assert_eq!(app.position().as_deref(), Some("replay 2/9 x2"));
    }

    #[test]
    fn keys_of_the_running_scheduler() {
        let mut app = App::new(1.0, false);
        app.push(busy_sample(1.0));
        assert!(!app.has_rates());
        app.push(busy_sample(2.0));
        assert!(app.has_rates() && app.position().is_none());
        press(&mut app, KeyCode::Char(' '));
        app.push(busy_sample(3.0));
        assert_eq!(at(&app), 2.0);
        press(&mut app, KeyCode::Char('-'));
        assert_eq!(app.interval(), 2.0);
        for heat in [Heat::Waiting, Heat::Steal, Heat::Frequency, Heat::Busy] {
            press(&mut app, KeyCode::Char('m'));
            assert_eq!(app.heat, heat);
        }
        press(&mut app, KeyCode::Char('?'));
        assert!(app.shows_help);
        press(&mut app, KeyCode::Char('q'));
        assert!(!app.shows_help && !app.is_over());
        press(&mut app, KeyCode::Char('q'));
        assert!(app.is_over());
    }
}
