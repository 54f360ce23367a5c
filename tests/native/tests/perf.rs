//! `perf.h` against exact arithmetic, and against loads of which it is known what they use.

use magpie_native::perf::{
    Limit, clamp_perf, decay_after, is_perf_step, level_of, one, ramp_perf, step,
    utilisation_after, utilisation_shift,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// As PELT: half of a contribution is left after 32 periods of 2^20 ns.
const HALF_LIFE_NS: f64 = (32u64 << 20) as f64;

fn full() -> u32 {
    one() << utilisation_shift()
}

fn perf() -> impl Strategy<Value = u32> {
    0..=one()
}

fn utilisations() -> impl Strategy<Value = u32> {
    0..=full()
}

fn spans() -> impl Strategy<Value = u64> {
    prop_oneof![0..100 * MS, 0..10 * S, any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn decay_halves_as_pelt_does(ns in spans()) {
        let exact = 65536.0 * (-(ns as f64) / HALF_LIFE_NS).exp2();
        prop_assert!((decay_after(ns) as f64 - exact).abs() <= 5.0, "{} {exact}", decay_after(ns));
    }

    #[test]
    fn a_level_is_busy_time_by_capacity_and_frequency(
        busy in spans(), span in spans(), capacity in perf(), frequency in perf()
    ) {
        let level = level_of(busy, span, capacity, frequency);
        prop_assert!(level <= full());
        let exact = if span == 0 {
            0.0
        } else {
            (busy.min(span) as f64 / span as f64) * f64::from(capacity) * f64::from(frequency)
        };
        // One part in 1024 of the quotient is cut off, or a little more with shifted spans.
        prop_assert!((f64::from(level) - exact).abs() <= 1100.0, "{level} {exact}");
    }

    /// Half the frequency and all of the time is as much as all of both and half the time.
    #[test]
    fn utilisation_is_scale_invariant(span in 1000..S, share in 1..=1024u64) {
        let busy = span * share / 1024;
        let fast = level_of(busy / 2, span, one(), one());
        let slow = level_of(busy, span, one(), one() / 2);
        prop_assert!(fast.abs_diff(slow) <= 2048, "{fast} {slow}");
    }

    #[test]
    fn utilisation_moves_towards_the_level_and_never_past(
        before in utilisations(), level in utilisations(), span in spans()
    ) {
        let after = utilisation_after(before, level, span);
        prop_assert!((before.min(level)..=before.max(level)).contains(&after));
    }

    /// The longer at a level, the nearer to it.
    #[test]
    fn utilisation_is_monotone_in_time(
        before in utilisations(), level in utilisations(), span in 0..S, more in 0..S
    ) {
        let (short, long) =
            (utilisation_after(before, level, span), utilisation_after(before, level, span + more));
        prop_assert!(long.abs_diff(level) <= short.abs_diff(level));
    }

    /// How often it is looked at does not matter.
    #[test]
    fn two_looks_are_as_good_as_one(
        before in utilisations(), level in utilisations(), first in 0..100 * MS, second in 0..100 * MS
    ) {
        let twice = utilisation_after(utilisation_after(before, level, first), level, second);
        let once = utilisation_after(before, level, first + second);
        prop_assert!(twice.abs_diff(once) <= full() / 2000, "{twice} {once}");
    }

    #[test]
    fn a_clamped_performance_is_within_the_clamps(perf in perf(), least in perf(), most in perf()) {
        let clamped = clamp_perf(perf, least, most);
        prop_assert!(clamped <= most);
        prop_assert!(clamped >= least.min(most));
        if (least..=most).contains(&perf) {
            prop_assert_eq!(clamped, perf);
        }
    }

    /// A target that is kept is at most an eighth or a step off.
    #[test]
    fn a_target_that_is_kept_is_near(target in perf(), wanted in perf()) {
        if !is_perf_step(target, wanted, one()) {
            let far = step().max(target.min(wanted) / 8);
            prop_assert!(target.abs_diff(wanted) < far, "{target} {wanted}");
        }
        prop_assert!(!is_perf_step(target, target, one()));
    }

    #[test]
    fn all_and_nothing_are_always_a_step(target in 1..1024u32) {
        prop_assert!(is_perf_step(target, one(), one()));
        prop_assert!(is_perf_step(target, 0, one()));
    }

    /// However often a CPU asks, and for whatever.
    #[test]
    fn no_second_has_more_than_100_targets(
        wishes in prop::collection::vec((0..5 * MS, any::<bool>()), 1..2000)
    ) {
        let mut limit = Limit::default();
        let mut now = 1000 * S;
        let mut set = Vec::new();
        for (later, is_raised) in wishes {
            now += later;
            if limit.may_set(now, is_raised) {
                set.push(now);
            }
        }
        for (at, first) in set.iter().enumerate() {
            let within = set[at..].iter().take_while(|time| **time <= first + S).count();
            prop_assert!(within <= 100, "{within}");
        }
    }
}

/// The performance that a load wants after a second, at the end and at the beginning of its busy
/// time.
fn wants(busy: u64, period: u64) -> (u32, u32) {
    let mut utilisation = 0;
    let mut ends = (0, 0);
    for _ in 0..S / period {
        utilisation = utilisation_after(utilisation, level_of(busy, busy, one(), one()), busy);
        ends.0 = utilisation >> utilisation_shift();
        utilisation = utilisation_after(utilisation, 0, period - busy);
        ends.1 = utilisation >> utilisation_shift();
    }
    ends
}

/// Whatever a CPU used, a task that sleeps has twice that at the first tick without idle time, and
/// all two ticks later.
#[test]
fn a_ramp_ends_at_the_top_in_three_ticks() {
    const TICK: u64 = 1 << 22;
    for used in 0..=one() {
        let ramp = [0, TICK, 2 * TICK, 100 * S].map(|beyond| ramp_perf(used, beyond, one()));
        assert!(
            ramp[0] >= (2 * used).clamp(one() / 4, one()),
            "{used}: {ramp:?}"
        );
        assert!(
            ramp[0] == one() || ramp[0] == 2 * used.max(one() / 8),
            "{used}: {ramp:?}"
        );
        assert!(ramp[1] >= ramp[0] && ramp[1] <= one(), "{used}: {ramp:?}");
        assert_eq!(ramp[2..], [one(); 2], "{used}");
    }
}

#[test]
fn a_light_load_wants_what_it_uses_and_at_most_a_quarter_more() {
    for period in [2 * MS, 5 * MS, 10 * MS, 20 * MS] {
        for percent in [5, 10, 15, 25, 50] {
            let (most, least) = wants(period * percent / 100, period);
            let uses = (one() * percent as u32) / 100;
            assert!(most <= uses * 5 / 4, "{percent} % of {period} ns: {most}");
            assert!(least >= uses * 3 / 4, "{percent} % of {period} ns: {least}");
        }
    }
}

#[test]
fn a_rise_comes_at_once_where_a_lower_target_waits() {
    let mut limit = Limit::default();
    let now = 10 * S;
    assert!(limit.may_set(now, false));
    assert!(!limit.may_set(now + MS, false));
    for rise in 0..4 {
        assert!(limit.may_set(now + MS, true), "rise {rise}");
    }
    assert!(!limit.may_set(now + MS, true));
    assert!(limit.may_set(now + 63 * MS, false));
}
