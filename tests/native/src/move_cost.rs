//! What a move costs a task, learned from its bursts: `move_cost.h`.

/// What a task's bursts told so far; `struct move_history`, zero at the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct History {
    /// Average length of each kind of burst in nanoseconds, in the order of [`Kind`]; 0: not known.
    pub burst: [u64; 4],
    /// How many bursts began after a choice.
    pub choices: u32,
    /// Kind of the burst that runs now.
    pub kind: u32,
    /// Kind of the burst that will begin when that has ended.
    pub next: u32,
}

/// How a burst began, in the order of `enum burst_kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// In the LLC of the burst before, without a choice.
    Near,
    /// The task stayed on its previous CPU, whose core was shared.
    Stayed,
    /// The task moved to an idle core of its LLC.
    Moved,
    /// The task moved to another LLC.
    Far,
}

unsafe extern "C" {
    fn magpie_does_better_at_home(history: *const History) -> bool;
    fn magpie_far_move_cost(history: *const History) -> u64;
    fn magpie_note_far_move(history: *mut History, ns: u64);
    fn magpie_note_next_burst(history: *mut History, kind: u32);
    fn magpie_learn_burst(history: *mut History, ns: u64);
}

impl History {
    /// Whether the task is to stay.
    pub fn stays(&self) -> bool {
        // SAFETY: a valid reference to a structure of C's layout, kept by nobody after the call.
        unsafe { magpie_does_better_at_home(self) }
    }

    /// By how much longer the task runs after a move to another LLC, ns.
    pub fn far_cost(&self) -> u64 {
        // SAFETY: as above.
        unsafe { magpie_far_move_cost(self) }
    }

    /// A CPU is chosen for the task, whose burst lasted for `ns`; the next one begins like `kind`.
    pub fn wake(&mut self, kind: Kind, ns: u64) {
        // SAFETY: as above, and nobody else has the structure.
        unsafe {
            magpie_note_next_burst(self, kind as u32);
            magpie_learn_burst(self, ns);
        }
    }

    /// The task is taken to another LLC, after `ns` of its burst.
    pub fn take_far(&mut self, ns: u64) {
        // SAFETY: as above.
        unsafe { magpie_note_far_move(self, ns) }
    }

    /// A burst of a kind begins, lasts for `ns`, and ends.
    pub fn run(&mut self, kind: Kind, ns: u64) {
        self.kind = kind as u32;
        self.wake(Kind::Near, ns);
    }
}
