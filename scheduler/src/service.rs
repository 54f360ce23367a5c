//! Tells systemd, if it started this program, that the scheduler runs and that it still answers.

use std::time::{Duration, Instant};

use log::warn;
use sd_notify::NotifyState;

/// How often systemd hears that the scheduler answers.
pub struct Watchdog {
    /// None if systemd does not ask for it.
    interval: Option<Duration>,
    due: Instant,
}

impl Watchdog {
    /// Tells that the scheduler runs.
    pub fn ready() -> Self {
        tell(NotifyState::Ready);
        Watchdog {
            // Twice in the time after which systemd ends the service, as it advises.
            interval: sd_notify::watchdog_enabled().map(|limit| limit / 2),
            due: Instant::now(),
        }
    }

    /// Tells that the scheduler answers, if it is time to.
    pub fn feed(&mut self) {
        if let Some(interval) = self.interval.filter(|_| self.due <= Instant::now()) {
            tell(NotifyState::Watchdog);
            self.due = Instant::now() + interval;
        }
    }
}

/// Sends a message to systemd. If the message cannot be sent, the scheduler goes on: systemd ends a
/// service of which it hears nothing.
fn tell(state: NotifyState) {
    if let Err(error) = sd_notify::notify(&[state]) {
        warn!("cannot tell systemd the state of the service: {error}");
    }
}
