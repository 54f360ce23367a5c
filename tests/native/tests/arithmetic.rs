//! `average.h`, `steal.h` and `weight.h` against exact arithmetic.

use magpie_native::arithmetic::{
    average_add, idle_policy_weight, is_repeated, late_after, late_sum, late_time, punctual_after,
    virtual_time, weight_of_nice, weight_to_rate,
};
use proptest::prelude::*;

/// The longest span that a task is charged with at once: far beyond any tick, for hosts that stall.
const LONGEST_SPAN_NS: u64 = 1_000_000_000_000;

fn weights() -> impl Strategy<Value = u32> {
    let nice = (-20..=19).prop_map(weight_of_nice);
    prop_oneof![nice, Just(idle_policy_weight()), 1..=100_000u32]
}

fn spans() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..=10_000_000u64,
        0..=LONGEST_SPAN_NS,
        Just(LONGEST_SPAN_NS)
    ]
}

/// Small numbers, all numbers, and those at the ends.
fn any_u64() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..1000u64,
        any::<u64>(),
        u64::MAX - 10..=u64::MAX,
        i64::MAX as u64 - 10..i64::MAX as u64 + 10
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_sample_weighs_an_eighth(average in any_u64(), sample in any_u64()) {
        let exact = i128::from(average) + (i128::from(sample) - i128::from(average)) / 8;
        prop_assert_eq!(i128::from(average_add(average, sample)), exact);
    }

    #[test]
    fn an_average_never_passes_its_sample(average in any_u64(), sample in any_u64()) {
        let next = average_add(average, sample);
        prop_assert!((average.min(sample)..=average.max(sample)).contains(&next));
    }

    /// 7/8 of the distance are left each time: 400 samples bring any distance below 8.
    #[test]
    fn an_average_converges(mut average in any_u64(), sample in any_u64()) {
        for _ in 0..400 {
            average = average_add(average, sample);
        }
        prop_assert!(average.abs_diff(sample) < 8, "{average} {sample}");
        prop_assert_eq!(average_add(average, sample), average, "and stays");
    }

    #[test]
    fn what_comes_three_times_is_repeated_and_one_among_short_ones_is_not(
        long in 1000..1_000_000u64, times in 1..10u64, short in 0..10u64
    ) {
        prop_assert_eq!(is_repeated(times * long + short * (long / 100), long), times >= 3);
        prop_assert!(is_repeated(0, 0));
    }

    /// A host withholds a vCPU for the same time again and again, at times that have nothing to do
    /// with the ticks, whose timer is itself a little late. The late ticks together stand for that
    /// time, within an eighth; if the host withholds nothing, none is late.
    #[test]
    fn late_ticks_stand_for_the_time_withheld(
        withheld in prop::option::of(400_000..20_000_000u64), jitter in 1_000..30_000u64
    ) {
        const INTERVAL: u64 = 4_000_000;
        const PHASES: u64 = 400_000;
        let (mut punctual, mut excess, mut sum) = (0, 0, 0);
        for tick in 0..PHASES {
            // A stride that visits all phases, so that all delays come mixed. The host withholds the
            // vCPU once in 32 ms, so that a tick comes in time now and then.
            let due = tick * 163_841 % PHASES * (8 * INTERVAL / PHASES);
            let timer = jitter + tick * 7919 % jitter;
            let delay = timer + withheld.unwrap_or(0).saturating_sub(due);
            punctual = punctual_after(punctual, delay, INTERVAL);
            let after = late_after(punctual);
            if delay < after {
                continue;
            }
            if delay < INTERVAL {
                let sample = delay - after;
                excess = average_add(if excess == 0 { sample } else { excess }, sample);
            }
            // Of the ticks that come meanwhile, the kernel handles only the first.
            sum += late_time(delay, excess, after, INTERVAL) / (delay / INTERVAL + 1);
        }
        let estimated = sum as f64 / PHASES as f64 * 8.0;
        let withheld = withheld.unwrap_or(0) as f64;
        prop_assert!((estimated - withheld).abs() <= withheld / 8.0, "{} of {}", estimated, withheld);
    }

    /// An emulator's timer, none of whose ticks comes at once: none counts as late, from the first on.
    #[test]
    fn a_timer_that_is_always_late_withholds_nothing(
        jitter in prop::collection::vec(130_000..600_000u64, 1..200),
    ) {
        let mut punctual = 0;
        for delay in jitter {
            punctual = punctual_after(punctual, delay, 4_000_000);
            prop_assert!(delay < late_after(punctual), "{} is late after {}", delay, punctual);
        }
    }

    #[test]
    fn few_ticks_say_nothing(late in 0..1_000_000_000u64, ticks in 0..100u64) {
        let told = late_sum(late, ticks * 4_000_000, 4_000_000);
        prop_assert_eq!(told, if ticks < 16 { 0 } else { late });
    }

    #[test]
    fn an_average_stays_among_its_samples(samples in prop::collection::vec(0..1_000_000u64, 1..100)) {
        let mut average = samples[0];
        for &sample in &samples {
            average = average_add(average, sample);
        }
        let (least, most) = (samples.iter().min().unwrap(), samples.iter().max().unwrap());
        prop_assert!((least..=most).contains(&&average));
    }

    #[test]
    fn virtual_time_is_exact(ns in spans(), weight in weights()) {
        let rate = weight_to_rate(weight);
        let exact = (u128::from(ns) * u128::from(rate)) >> 20;
        prop_assert_eq!(u128::from(virtual_time(ns, rate)), exact);
    }

    /// The rate is rounded down to 2^-20, which is what the whole may be off by.
    #[test]
    fn virtual_time_is_time_over_weight(ns in spans(), weight in weights()) {
        let exact = u128::from(ns) * 1024 / u128::from(weight);
        let got = u128::from(virtual_time(ns, weight_to_rate(weight)));
        prop_assert!(got <= exact);
        prop_assert!(exact - got <= (u128::from(ns) >> 20) + 1, "{exact} {got}");
    }

    #[test]
    fn more_time_is_more_virtual_time(a in spans(), b in spans(), weight in weights()) {
        let rate = weight_to_rate(weight);
        prop_assert_eq!(a <= b || virtual_time(a, rate) >= virtual_time(b, rate), true);
        prop_assert_eq!(a >= b || virtual_time(a, rate) <= virtual_time(b, rate), true);
    }

    /// Charged at every tick or once: the same, but for less than a nanosecond a charge.
    #[test]
    fn charging_in_pieces_loses_nothing(pieces in prop::collection::vec(0..4_000_000u64, 1..50), weight in weights()) {
        let rate = weight_to_rate(weight);
        let whole = virtual_time(pieces.iter().sum(), rate);
        let parts: u64 = pieces.iter().map(|&ns| virtual_time(ns, rate)).sum();
        prop_assert!(parts <= whole && whole - parts < pieces.len() as u64);
    }

    #[test]
    fn a_heavier_task_ages_more_slowly(ns in spans(), a in weights(), b in weights()) {
        let (light, heavy) = (a.min(b), a.max(b));
        prop_assert!(virtual_time(ns, weight_to_rate(light)) >= virtual_time(ns, weight_to_rate(heavy)));
    }
}

#[test]
fn each_nice_level_is_a_quarter() {
    for nice in -20..19 {
        let ratio = f64::from(weight_of_nice(nice)) / f64::from(weight_of_nice(nice + 1));
        // The kernel's own table is no closer; small integers cannot be.
        let tolerance = if nice < 10 { 0.03 } else { 0.05 };
        assert!(
            (ratio / 1.25 - 1.0).abs() < tolerance,
            "nice {nice} to {}: {ratio}",
            nice + 1
        );
    }
}

/// The errors of the levels do not add up.
#[test]
fn the_table_follows_the_power_law_throughout() {
    for nice in -20..=19 {
        let law = 1024.0 * 1.25f64.powi(-nice);
        let off = f64::from(weight_of_nice(nice)) / law - 1.0;
        assert!(
            off.abs() < 0.03,
            "nice {nice}: {}, {law}",
            weight_of_nice(nice)
        );
    }
}

/// The kernel has each weight a second time: sched_prio_to_wmult[] in kernel/sched/core.c holds
/// 2^32 / weight. Both tables agree in every entry only if neither has a wrong digit.
#[test]
fn the_table_is_the_kernels() {
    const INVERSE: [u32; 40] = [
        48388, 59856, 76040, 92818, 118348, 147320, 184698, 229616, 287308, 360437, 449829, 563644,
        704093, 875809, 1099582, 1376151, 1717300, 2157191, 2708050, 3363326, 4194304, 5237765,
        6557202, 8165337, 10153587, 12820798, 15790321, 19976592, 24970740, 31350126, 39045157,
        49367440, 61356676, 76695844, 95443717, 119304647, 148102320, 186737708, 238609294,
        286331153,
    ];
    for (nice, inverse) in (-20..).zip(INVERSE) {
        let weight = (2f64.powi(32) / f64::from(inverse)).round();
        assert_eq!(f64::from(weight_of_nice(nice)), weight, "nice {nice}");
    }
    assert_eq!(idle_policy_weight(), 3, "WEIGHT_IDLEPRIO");
}

#[test]
fn nice_0_ages_in_real_time() {
    assert_eq!(weight_to_rate(1024), 1 << 20);
    for ns in [0, 1, 999, LONGEST_SPAN_NS, u64::MAX >> 20] {
        assert_eq!(virtual_time(ns, weight_to_rate(1024)), ns);
    }
}

/// A weight of zero must not divide by zero: it is taken for the least.
#[test]
fn weight_zero_is_the_least() {
    assert_eq!(weight_to_rate(0), weight_to_rate(1));
}

/// These overflowed when the product was one multiplication.
#[test]
fn a_long_run_of_the_lightest_task_is_charged() {
    let charged = virtual_time(LONGEST_SPAN_NS, weight_to_rate(idle_policy_weight()));
    let exact = LONGEST_SPAN_NS as f64 * 1024.0 / 3.0;
    assert!((charged as f64 / exact - 1.0).abs() < 1e-6, "{charged}");
}
