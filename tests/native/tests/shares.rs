//! `shares.h`: what each cgroup gets when its tasks age at the rates that it finds.

use magpie_native::arithmetic::weight_to_rate;
use magpie_native::shares::{
    ACTIVE_ONE, ACTIVITY_ONE, FACTOR_ONE, SHARE_ONE, activity_add, activity_weight, cgroup_factor,
    scale_cgroup_weight, scale_rate, share_of_parent,
};
use proptest::prelude::*;

/// A cgroup full of hogs of nice 0. Not so different that a factor is at its bound.
#[derive(Debug, Clone)]
struct Hogs {
    weight: u32,
    tasks: u64,
}

fn hogs() -> impl Strategy<Value = Hogs> {
    (50..400u32, 1..12u64).prop_map(|(weight, tasks)| Hogs { weight, tasks })
}

/// The CPU time that siblings have in common if each task runs for 1 / rate.
fn shares_of(parent: u64, siblings: &[Hogs]) -> Vec<f64> {
    let sum = siblings
        .iter()
        .map(|hogs| u64::from(scale_cgroup_weight(hogs.weight)))
        .sum();
    let shares: Vec<u64> = siblings
        .iter()
        .map(|hogs| {
            let weight = u64::from(scale_cgroup_weight(hogs.weight));
            share_of_parent(parent, weight, ACTIVITY_ONE, sum)
        })
        .collect();
    let active = |hogs: &Hogs| hogs.tasks * 1024 * ACTIVE_ONE;
    let all_active = siblings.iter().map(active).sum();
    let times: Vec<f64> = siblings
        .iter()
        .zip(&shares)
        .map(|(hogs, share)| {
            let factor = cgroup_factor(active(hogs), *share, all_active, shares.iter().sum());
            hogs.tasks as f64 / scale_rate(weight_to_rate(1024), factor) as f64
        })
        .collect();
    let all: f64 = times.iter().sum();
    times.iter().map(|time| time / all).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Siblings share by weight, however many tasks each has.
    #[test]
    fn siblings_share_by_weight(siblings in prop::collection::vec(hogs(), 1..6), parent in 1000..=SHARE_ONE) {
        let all: u32 = siblings.iter().map(|hogs| hogs.weight).sum();
        for (got, hogs) in shares_of(parent, &siblings).iter().zip(&siblings) {
            let fair = f64::from(hogs.weight) / f64::from(all);
            prop_assert!((got / fair - 1.0).abs() < 0.02 || parent < 100_000, "{got} {fair}");
        }
    }

    /// So a machine whose tasks are all in one cgroup behaves as one without cgroups.
    #[test]
    fn a_cgroup_with_all_tasks_changes_nothing(tasks in 1..10_000u64, share in 1..=SHARE_ONE) {
        let active = tasks * 1024 * ACTIVE_ONE;
        let factor = cgroup_factor(active, share, active, share);
        prop_assert!(factor.abs_diff(FACTOR_ONE) <= 1, "{factor}");
    }

    /// The tasks of the whole machine together weigh what their nice values say.
    #[test]
    fn the_machine_weighs_what_it_did(siblings in prop::collection::vec(hogs(), 1..6)) {
        let sum: u64 = siblings.iter().map(|hogs| u64::from(scale_cgroup_weight(hogs.weight))).sum();
        let active: Vec<u64> = siblings.iter().map(|hogs| hogs.tasks * 1024 * ACTIVE_ONE).collect();
        let shares: Vec<u64> = siblings.iter().map(|hogs| {
            share_of_parent(SHARE_ONE, u64::from(scale_cgroup_weight(hogs.weight)), ACTIVITY_ONE, sum)
        }).collect();
        let (all_active, all_share): (u64, u64) = (active.iter().sum(), shares.iter().sum());
        let weight: f64 = active.iter().zip(&shares).map(|(active, share)| {
            let factor = cgroup_factor(*active, *share, all_active, all_share);
            *active as f64 * FACTOR_ONE as f64 / factor as f64
        }).sum();
        prop_assert!((weight / all_active as f64 - 1.0).abs() < 0.01);
    }

    /// A sibling that is active a tenth of the time leaves the rest to the others, and has its own
    /// share while it is active.
    #[test]
    fn what_is_not_active_takes_nothing(weight in 1..10_000u64, other in 1..10_000u64, activity in 0..=ACTIVITY_ONE) {
        let sum = weight + activity_weight(other, activity);
        let steady = share_of_parent(SHARE_ONE, weight, ACTIVITY_ONE, sum);
        let fair = SHARE_ONE as f64 * weight as f64 / sum as f64;
        prop_assert!((steady as f64 - fair).abs() <= 1.0, "{steady} {fair}");
        let seldom = share_of_parent(SHARE_ONE, other, activity, sum);
        let fair = SHARE_ONE as f64 * other as f64 / (weight + other) as f64;
        prop_assert!((seldom as f64 - fair).abs() <= 1.0 + fair / weight as f64, "{seldom} {fair}");
    }

    /// The sanitizer sees to it that nothing overflows; no rate is zero, which would be for ever.
    #[test]
    fn any_numbers_give_a_rate(active in 0..1u64 << 50, share in 0..=SHARE_ONE, all_active in 0..1u64 << 54, all_share in 0..1u64 << 40, weight in 1..=88_761u32) {
        let factor = cgroup_factor(active, share, all_active, all_share);
        prop_assert!((FACTOR_ONE / 64..=1024 * FACTOR_ONE).contains(&factor), "{factor}");
        let rate = scale_rate(weight_to_rate(weight), factor);
        prop_assert!((1..=1024 << 20).contains(&rate), "{rate}");
    }

    #[test]
    fn activity_stays_in_bounds(looks in prop::collection::vec(any::<bool>(), 1..200)) {
        let mut activity = 0;
        for look in looks {
            activity = activity_add(activity, look);
            prop_assert!(activity <= ACTIVITY_ONE);
        }
    }
}

#[test]
fn the_default_weight_is_that_of_nice_0() {
    assert_eq!(scale_cgroup_weight(100), 1024);
    assert_eq!(scale_cgroup_weight(10_000), 102_400);
    assert!(scale_cgroup_weight(1) > 0);
    assert_eq!(scale_cgroup_weight(0), 1, "never divided by nothing");
}

/// Half a second of idleness, and a cgroup no longer counts.
#[test]
fn activity_ends() {
    let mut activity = ACTIVITY_ONE;
    for _ in 0..60 {
        activity = activity_add(activity, false);
    }
    assert!(activity < 1 << 6, "{activity}");
}
