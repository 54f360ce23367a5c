//! The performance that a CPU should have: `perf.h`.

unsafe extern "C" {
    safe static magpie_perf_one: u32;
    safe static magpie_perf_step: u32;
    safe static magpie_utilisation_shift: u32;
    safe fn magpie_decay_after(ns: u64) -> u64;
    safe fn magpie_level_of(busy: u64, span: u64, capacity: u32, frequency: u32) -> u32;
    safe fn magpie_utilisation_after(utilisation: u32, level: u32, span: u64) -> u32;
    safe fn magpie_clamp_perf(perf: u32, least: u32, most: u32) -> u32;
    safe fn magpie_ramp_perf(used: u32, beyond: u64, capacity: u32) -> u32;
    safe fn magpie_is_perf_step(target: u32, wanted: u32, capacity: u32) -> bool;
    fn magpie_may_set_target(due: *mut u64, now: u64, is_raised: bool) -> bool;
}

/// The performance of the fastest CPU at its highest frequency.
pub fn one() -> u32 {
    magpie_perf_one
}

/// The least difference for which a target changes.
pub fn step() -> u32 {
    magpie_perf_step
}

/// By how many bits utilisation is finer than performance.
pub fn utilisation_shift() -> u32 {
    magpie_utilisation_shift
}

/// The part of a utilisation that is left after this time, of 2^16.
pub fn decay_after(ns: u64) -> u64 {
    magpie_decay_after(ns)
}

/// How busy a CPU was in a span, as utilisation.
pub fn level_of(busy: u64, span: u64, capacity: u32, frequency: u32) -> u32 {
    magpie_level_of(busy, span, capacity, frequency)
}

/// The utilisation after a span at a level.
pub fn utilisation_after(utilisation: u32, level: u32, span: u64) -> u32 {
    magpie_utilisation_after(utilisation, level, span)
}

/// The performance within a task's clamps.
pub fn clamp_perf(perf: u32, least: u32, most: u32) -> u32 {
    magpie_clamp_perf(perf, least, most)
}

/// The performance that a CPU wants whose task has had no idle time for this long beyond saturation.
pub fn ramp_perf(used: u32, beyond: u64, capacity: u32) -> u32 {
    magpie_ramp_perf(used, beyond, capacity)
}

/// Whether the performance that is wanted is a step away from the target.
pub fn is_perf_step(target: u32, wanted: u32, capacity: u32) -> bool {
    magpie_is_perf_step(target, wanted, capacity)
}

/// The rate limit of one CPU.
#[derive(Debug, Default)]
pub struct Limit {
    due: u64,
}

impl Limit {
    /// Whether the target may change now; if so, it is taken to change.
    pub fn may_set(&mut self, now: u64, is_raised: bool) -> bool {
        // SAFETY: a valid reference to a number, kept by nobody after the call.
        unsafe { magpie_may_set_target(&mut self.due, now, is_raised) }
    }
}
