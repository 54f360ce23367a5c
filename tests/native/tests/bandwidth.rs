//! `bandwidth.h`: usage over time is the limit, whatever the overrun.

use magpie_native::bandwidth::{budget_to_add, periods_over};
use proptest::prelude::*;

/// The kernel's largest: a second and its largest runtime.
const LONGEST_PERIOD: u64 = 1_000_000_000;
const LARGEST_QUOTA: u64 = 1 << 44;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// The end of the period moves past now by whole periods, however late the call is.
    #[test]
    fn the_period_that_now_is_in_ends_later(now in 0..1u64 << 62, late in 0..1u64 << 40, period in 1_000_000..=LONGEST_PERIOD) {
        let end = now.saturating_sub(late);
        let next = end + periods_over(now, end, period) * period;
        prop_assert!(next > now && next - now <= period);
        prop_assert_eq!(periods_over(end - end.min(1), end, period), u64::from(end == 0));
    }

    /// A cgroup that always wants more gets its quota for each period, although it is stopped late.
    #[test]
    fn debts_are_paid(quota in 1_000_000..1u64 << 32, overruns in prop::collection::vec(0..100_000_000u64, 50..200)) {
        let (mut budget, mut used) = (quota as i64, 0u64);
        for overrun in &overruns {
            if budget > 0 {
                used += budget as u64 + overrun;
                budget = -(*overrun as i64);
            }
            budget += budget_to_add(budget, 1, quota, 0);
        }
        // The difference is at most the last overrun.
        let limit = overruns.len() as u64 * quota;
        prop_assert_eq!(used as i64 + budget, (limit + quota) as i64);
        prop_assert!(used <= limit + 100_000_000);
    }

    /// Unused time is kept, up to the burst.
    #[test]
    fn a_burst_is_saved_up(quota in 1..LARGEST_QUOTA, burst in 0..LARGEST_QUOTA, budget in -(1i64 << 44)..1 << 44, periods in 1..1u64 << 50) {
        let added = budget_to_add(budget, periods, quota, burst);
        prop_assert!(added >= 0);
        let most = (quota + burst) as i64;
        prop_assert!(budget + added <= most.max(budget));
        prop_assert!(budget + added == most.max(budget) || added as u64 == periods.min(10_000) * quota);
    }
}

#[test]
fn nothing_is_over_before_its_end() {
    assert_eq!(periods_over(99, 100, 100), 0);
    assert_eq!(periods_over(100, 100, 100), 1);
    assert_eq!(periods_over(350, 100, 100), 3);
    assert_eq!(periods_over(350, 100, 0), 0, "no limit was ever set");
}
