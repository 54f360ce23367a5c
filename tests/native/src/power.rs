//! How many cores a machine uses that saves power: `power.h`.

/// The memory of the rule; `struct power_state`, zero at the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct State {
    /// Cores in use.
    pub cores: u32,
    /// The most that were wanted since fewer are wanted than in use.
    pub most: u32,
    /// For how many looks fewer are wanted.
    pub looks: u32,
    /// With fewer cores tasks have waited.
    pub least: u32,
    /// Looks until one less is tried.
    pub probe: u32,
}

/// The levels, in the order of `enum power_level`.
pub const PERFORMANCE: u32 = 0;
/// Some power is saved.
pub const BALANCED: u32 = 1;
/// Most power is saved.
pub const SAVER: u32 = 2;

unsafe extern "C" {
    fn magpie_power_next(state: *mut State, level: u32, total: u32, busy: u32, waited: bool)
    -> u32;
}

/// The number of cores to use from now on.
pub fn next(state: &mut State, level: u32, total: u32, busy: u32, waited: bool) -> u32 {
    // SAFETY: a valid reference to a structure of C's layout, kept by nobody after the call.
    unsafe { magpie_power_next(state, level, total, busy, waited) }
}
