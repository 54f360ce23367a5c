//! How many cores a guest should use: `governor.h`.

/// Which rule; the order of `enum governor_kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// One core less above the upper threshold, one more below the lower.
    Step,
    /// At once down to what the host gives, and up in growing steps.
    Direct,
}

/// Rule and thresholds; `struct governor_config`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Config {
    /// The rule.
    pub kind: Kind,
    /// Steal time above this is too much, in 1/100 of a percent.
    pub high: u32,
    /// Steal time below this is none, in 1/100 of a percent.
    pub low: u32,
}

/// The memory of a governor; `struct governor_state`, zero except for the cores at the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct State {
    /// Cores in use.
    pub cores: u32,
    /// Periods until the next probe.
    pub wait: u32,
    /// The wait after the next failed probe, in periods.
    pub backoff: u32,
    /// Cores that the next probe adds.
    pub growth: u32,
    /// Cores in use when a probe last failed, 0 before.
    pub failed: u32,
    /// Cores in use before it went down, until the host has answered; else 0.
    pub more: u32,
    /// What the host gave to these, in 1/100 of a core.
    pub more_given: u32,
    /// Periods until it may go down again.
    pub stay: u32,
    /// The wait after the next time that fewer cores get too little, in periods.
    pub patience: u32,
    /// The last change was a probe, not yet answered.
    pub probing: bool,
}

/// The observations of one period; `struct governor_input`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Input {
    /// Online cores, at least 1.
    pub total: u32,
    /// Time that the host took, in 1/100 of a percent of the counted time.
    pub steal: u32,
    /// Average of cores busy while there was work, steal time included, in 1/100 of a core; 0 if the
    /// work was too short to tell.
    pub busy: u32,
    /// Cores that the host gave while there was work, in 1/100 of a core.
    pub given: u32,
    /// By how much that may be too low, in 1/100 of a core.
    pub doubt: u32,
}

unsafe extern "C" {
    fn magpie_governor_next(config: *const Config, state: *mut State, input: *const Input) -> u32;
    fn magpie_governor_doubt(input: *const Input) -> u32;
    safe static magpie_governor_longest_wait: u32;
}

/// By how much too low what was given may be at an alarm, in 1/100 of a core.
pub fn doubt(input: &Input) -> u32 {
    // SAFETY: a valid reference to a structure of C's layout, kept by nobody after the call.
    unsafe { magpie_governor_doubt(input) }
}

/// The number of cores to use from now on.
pub fn next(config: &Config, state: &mut State, input: &Input) -> u32 {
    // SAFETY: three valid references to structures of C's layout, kept by nobody after the call.
    unsafe { magpie_governor_next(config, state, input) }
}

/// The longest wait between probes, in periods.
pub fn longest_wait() -> u32 {
    magpie_governor_longest_wait
}
