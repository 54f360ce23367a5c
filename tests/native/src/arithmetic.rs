//! Averages, late ticks, weights and virtual time: `average.h`, `steal.h` and `weight.h`.

mod ffi {
    unsafe extern "C" {
        pub safe fn magpie_average_add(average: u64, sample: u64) -> u64;
        pub safe fn magpie_is_repeated(sum: u64, longest: u64) -> bool;
        pub safe fn magpie_punctual_after(punctual: u64, delay: u64, interval: u64) -> u64;
        pub safe fn magpie_late_after(punctual: u64) -> u64;
        pub safe fn magpie_late_time(delay: u64, excess: u64, after: u64, interval: u64) -> u64;
        pub safe fn magpie_late_sum(late: u64, busy: u64, interval: u64) -> u64;
        pub fn magpie_weight_of_nice(nice: i32) -> u32;
        pub safe fn magpie_weight_to_rate(weight: u32) -> u64;
        pub safe fn magpie_virtual_time(ns: u64, rate: u64) -> u64;
        pub safe static magpie_idle_policy_weight: u32;
    }
}

/// The average after one more sample, in the unit of both.
pub fn average_add(average: u64, sample: u64) -> u64 {
    ffi::magpie_average_add(average, sample)
}

/// Returns whether a sum has several parts as long as the longest, rather than one or two.
pub fn is_repeated(sum: u64, longest: u64) -> bool {
    ffi::magpie_is_repeated(sum, longest)
}

/// Returns the delay of a punctual tick after one more tick's, ns, if one is due each
/// `interval`.
pub fn punctual_after(punctual: u64, delay: u64, interval: u64) -> u64 {
    ffi::magpie_punctual_after(punctual, delay, interval)
}

/// Returns from which delay on a tick is late, ns.
pub fn late_after(punctual: u64) -> u64 {
    ffi::magpie_late_after(punctual)
}

/// Returns the time, ns, for which a tick stands that is `delay` late. `excess` is by how much more
/// than `after`, [`late_after`], such delays are on average, of those shorter than the `interval`.
pub fn late_time(delay: u64, excess: u64, after: u64, interval: u64) -> u64 {
    ffi::magpie_late_time(delay, excess, after, interval)
}

/// Returns the time withheld in a period, ns: the sum of its late ticks, or 0 if the CPUs were busy for
/// so short a time, in sum, that few ticks were due.
pub fn late_sum(late: u64, busy: u64, interval: u64) -> u64 {
    ffi::magpie_late_sum(late, busy, interval)
}

/// The weight of a nice value. Panics outside of -20..=19.
pub fn weight_of_nice(nice: i32) -> u32 {
    assert!((-20..=19).contains(&nice), "{nice} is no nice value");
    // SAFETY: the table has an entry for each value in the range that was just checked.
    unsafe { ffi::magpie_weight_of_nice(nice) }
}

/// The weight of SCHED_IDLE tasks.
pub fn idle_policy_weight() -> u32 {
    ffi::magpie_idle_policy_weight
}

/// Virtual nanoseconds per nanosecond, times 2^20.
pub fn weight_to_rate(weight: u32) -> u64 {
    ffi::magpie_weight_to_rate(weight)
}

/// Virtual nanoseconds for nanoseconds of CPU time at a rate.
pub fn virtual_time(ns: u64, rate: u64) -> u64 {
    ffi::magpie_virtual_time(ns, rate)
}
