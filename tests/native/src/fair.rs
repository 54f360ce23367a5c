//! Lag and deadlines: `fair.h`. All times are nanoseconds, real or virtual.

mod ffi {
    unsafe extern "C" {
        pub safe static magpie_largest_lag: i64;
        pub safe static magpie_largest_debt: i64;
        pub safe fn magpie_is_before(time: u64, other: u64) -> bool;
        pub safe fn magpie_later_of(time: u64, other: u64) -> u64;
        pub safe fn magpie_clamp_lag(lag: i64, least: i64, most: i64) -> i64;
        pub safe fn magpie_request_of(slice: u64, burst: u64, rate: u64) -> u64;
        pub safe fn magpie_lag_after_sleep(lag: i64, slice: u64, rate: u64) -> i64;
        pub safe fn magpie_lag_after_move(lag: i64, clock_lead: i64) -> i64;
        pub safe fn magpie_lag_to_catch_up(lag: i64, slice: u64, rate: u64) -> u64;
        pub fn magpie_charge_with_catch_up(used: u64, catch_up: *mut u64) -> u64;
    }
}

/// The largest lag that a migration keeps.
pub fn largest_lag() -> i64 {
    ffi::magpie_largest_lag
}

/// The largest debt that a migration keeps.
pub fn largest_debt() -> i64 {
    ffi::magpie_largest_debt
}

/// Returns whether one virtual time is before another one. Virtual times wrap around.
pub fn is_before(time: u64, other: u64) -> bool {
    ffi::magpie_is_before(time, other)
}

/// Returns the later of two virtual times.
pub fn later_of(time: u64, other: u64) -> u64 {
    ffi::magpie_later_of(time, other)
}

/// Returns a lag within bounds.
pub fn clamp_lag(lag: i64, least: i64, most: i64) -> i64 {
    ffi::magpie_clamp_lag(lag, least, most)
}

/// Returns what a task asks for before others have their turn, as virtual time.
pub fn request_of(slice: u64, burst: u64, rate: u64) -> u64 {
    ffi::magpie_request_of(slice, burst, rate)
}

/// Returns the lag with which a task wakes that fell asleep with `lag`.
pub fn lag_after_sleep(lag: i64, slice: u64, rate: u64) -> i64 {
    ffi::magpie_lag_after_sleep(lag, slice, rate)
}

/// Returns the lag with which a task joins another CPU, whose clock is `clock_lead` ahead.
pub fn lag_after_move(lag: i64, clock_lead: i64) -> i64 {
    ffi::magpie_lag_after_move(lag, clock_lead)
}

/// Returns the part of a lag that a task gets back by and by.
pub fn lag_to_catch_up(lag: i64, slice: u64, rate: u64) -> u64 {
    ffi::magpie_lag_to_catch_up(lag, slice, rate)
}

/// Returns what `used` virtual time adds to vruntime, and takes the rest from `catch_up`.
pub fn charge_with_catch_up(used: u64, catch_up: &mut u64) -> u64 {
    // SAFETY: the pointer is to a live u64 that nothing else uses during the call.
    unsafe { ffi::magpie_charge_with_catch_up(used, catch_up) }
}
