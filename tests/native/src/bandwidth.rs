//! Budgets of cgroups with a limit: `bandwidth.h`.

mod ffi {
    unsafe extern "C" {
        pub safe fn magpie_periods_over(now: u64, end: u64, period: u64) -> u64;
        pub safe fn magpie_budget_to_add(budget: i64, periods: u64, quota: u64, burst: u64) -> i64;
    }
}

/// Periods that are over at `now`, if the current one ends at `end`.
pub fn periods_over(now: u64, end: u64, period: u64) -> u64 {
    ffi::magpie_periods_over(now, end, period)
}

/// The CPU time that a number of periods adds to a budget.
pub fn budget_to_add(budget: i64, periods: u64, quota: u64, burst: u64) -> i64 {
    ffi::magpie_budget_to_add(budget, periods, quota, burst)
}
