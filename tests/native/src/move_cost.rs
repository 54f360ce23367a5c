//! What a move to another LLC costs a task, learned from its bursts: `move_cost.h`.

/// What a task's bursts told so far; `struct move_history`, zero at the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct History {
    /// Average burst in the LLC of the burst before, in nanoseconds; 0: not known.
    pub near: u32,
    /// Average burst after a move to another LLC; 0: not known.
    pub far: u32,
    /// The burst that runs now is one after such a move.
    pub is_far: bool,
    /// So will be the burst that begins when that has ended.
    pub is_next_far: bool,
    /// A part of the burst that runs now ran before a move.
    pub is_mixed: bool,
}

unsafe extern "C" {
    fn magpie_far_move_cost(history: *const History) -> u64;
    fn magpie_note_next_burst(history: *mut History, is_far: bool);
    fn magpie_note_far_move(history: *mut History, ns: u64);
    fn magpie_learn_burst(history: *mut History, ns: u64);
}

impl History {
    /// By how much longer the task runs after a move to another LLC, ns.
    pub fn far_cost(&self) -> u64 {
        // SAFETY: a valid reference to a structure of C's layout, kept by nobody after the call.
        unsafe { magpie_far_move_cost(self) }
    }

    /// A CPU is chosen for the task, whose burst lasted for `ns`; the next burst begins.
    pub fn wake(&mut self, is_far: bool, ns: u64) {
        // SAFETY: as above, and nobody else has the structure.
        unsafe {
            magpie_note_next_burst(self, is_far);
            magpie_learn_burst(self, ns);
        }
    }

    /// The task is taken to another LLC, after `ns` of its burst.
    pub fn take_far(&mut self, ns: u64) {
        // SAFETY: as above.
        unsafe { magpie_note_far_move(self, ns) }
    }

    /// A burst begins, lasts for `ns`, and ends.
    pub fn run(&mut self, is_far: bool, ns: u64) {
        self.is_far = is_far;
        self.wake(false, ns);
    }
}
