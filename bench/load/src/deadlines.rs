//! Work that is due again and again at a fixed period, and must be done one period later.
//!
//! ```text
//!   due        due        due        due
//!    |----------|----------|----------|
//!    ==done      ==========|==done        the second is missed; the third begins late, and is met
//! ```

use crate::times::Window;

/// The due times of one task, and how many of them it met.
pub struct Deadlines {
    period: u64,
    window: Window,
    due: u64,
    kept: Kept,
}

/// How many due times of the measured time were met and missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Done before the next due time.
    pub met: u64,
    /// Done later, or not begun because the next due time had passed.
    pub missed: u64,
}

impl Deadlines {
    /// Starts with a due time; all times are in nanoseconds.
    pub fn new(first_due: u64, period: u64, window: Window) -> Self {
        Self {
            period,
            window,
            due: first_due,
            kept: Kept::default(),
        }
    }

    /// When the work is due next; none at the end of the measurement.
    pub fn due(&self) -> Option<u64> {
        (self.due < self.window.until).then_some(self.due)
    }

    /// Counts the work of [`Self::due`] as done at a time, and goes on to the next due time that
    /// can still be met `now`. Due times that cannot be met any more are missed.
    ///
    /// Returns whether the work counts, that is, was due while the caller measured.
    pub fn finish(&mut self, done: u64, now: u64) -> bool {
        let counts = self.count(done < self.due + self.period);
        self.due += self.period;
        while self.due + self.period <= now && self.due < self.window.until {
            self.count(false);
            self.due += self.period;
        }
        counts
    }

    /// Counts the current due time, if it is in the window, and returns whether it is.
    fn count(&mut self, is_met: bool) -> bool {
        let counts = self.due >= self.window.from;
        if counts {
            self.kept.met += u64::from(is_met);
            self.kept.missed += u64::from(!is_met);
        }
        counts
    }

    /// Deadlines that were met, and missed, until now.
    pub fn kept(&self) -> Kept {
        self.kept
    }
}

impl Kept {
    /// Both together.
    pub fn total(self) -> u64 {
        self.met + self.missed
    }

    /// The part that was met, in percent; none if nothing was due.
    pub fn percent(self) -> Option<f64> {
        (self.total() > 0).then(|| 100.0 * self.met as f64 / self.total() as f64)
    }

    /// Adds those of another task.
    pub fn add(&mut self, other: Kept) {
        self.met += other.met;
        self.missed += other.missed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: Window = Window {
        from: 100,
        until: 200,
    };

    #[test]
    fn work_before_the_window_does_not_count() {
        let mut deadlines = Deadlines::new(80, 10, WINDOW);
        assert!(!deadlines.finish(95, 95));
        assert_eq!(deadlines.due(), Some(90));
        assert!(!deadlines.finish(96, 96));
        assert!(deadlines.finish(101, 101));
        assert_eq!(deadlines.kept(), Kept { met: 1, missed: 0 });
    }

    #[test]
    fn late_work_misses_what_passes_meanwhile() {
        let mut deadlines = Deadlines::new(100, 10, WINDOW);
        // Due at 100, done at 125: 110 has passed as well; 120 can still be met until 130.
        assert!(deadlines.finish(125, 125));
        assert_eq!(deadlines.due(), Some(120));
        assert_eq!(deadlines.kept(), Kept { met: 0, missed: 2 });
        deadlines.finish(129, 129);
        assert_eq!(deadlines.kept(), Kept { met: 1, missed: 2 });
        assert_eq!(deadlines.kept().percent(), Some(100.0 / 3.0));
    }

    #[test]
    fn a_deadline_is_missed_in_the_moment_of_the_next_due_time() {
        let mut deadlines = Deadlines::new(100, 10, WINDOW);
        deadlines.finish(110, 110);
        assert_eq!(deadlines.kept(), Kept { met: 0, missed: 1 });
        assert_eq!(Kept::default().percent(), None);
    }

    proptest! {
        #[test]
        fn every_due_time_of_the_window_is_counted_once(
            delays in prop::collection::vec(0_u64..45, 100)
        ) {
            let mut deadlines = Deadlines::new(70, 10, WINDOW);
            let mut now = 70;
            for delay in delays {
                let Some(due) = deadlines.due() else { break };
                now = due.max(now) + delay;
                deadlines.finish(now, now);
            }
            prop_assert_eq!(deadlines.due(), None);
            prop_assert_eq!(deadlines.kept().total(), 10);
        }
    }
}
