//! `move_cost.h`: a task takes what its bursts say, and tries the other now and then.

use magpie_native::move_cost::{History, Kind};
use proptest::prelude::*;

/// How many of `wakeups` stay, if a burst lasts as long as given for each kind.
fn stays(history: &mut History, wakeups: u32, stayed: u64, moved: u64) -> u32 {
    (0..wakeups)
        .map(|_| {
            let stays = history.stays();
            // The burst that ends now began with the last choice.
            let ns = if history.kind == Kind::Stayed as u32 {
                stayed
            } else {
                moved
            };
            history.wake(if stays { Kind::Stayed } else { Kind::Moved }, ns);
            u32::from(stays)
        })
        .sum()
}

#[test]
fn a_new_task_tries_an_idle_core_first_and_then_its_previous_cpu() {
    let mut history = History::default();
    assert!(!history.stays());
    history.run(Kind::Moved, 1000);
    assert!(history.stays());
}

#[test]
fn a_task_whose_caches_matter_stays_and_one_that_is_slowed_moves() {
    assert_eq!(stays(&mut History::default(), 320, 1000, 1500), 299);
    assert_eq!(stays(&mut History::default(), 320, 1500, 1000), 20);
}

#[test]
fn a_tie_is_for_staying() {
    assert_eq!(stays(&mut History::default(), 320, 1000, 1000), 299);
}

#[test]
fn a_task_that_changes_is_noticed() {
    let mut history = History::default();
    stays(&mut history, 320, 1000, 1500);
    stays(&mut history, 320, 1500, 1000);
    assert_eq!(stays(&mut history, 320, 1500, 1000), 20);
}

#[test]
fn a_far_move_costs_what_bursts_last_longer_after_it() {
    let mut history = History::default();
    history.run(Kind::Near, 1000);
    assert_eq!(history.far_cost(), 0);
    history.run(Kind::Far, 9000);
    assert_eq!(history.far_cost(), 8000);
    history.run(Kind::Near, 10_000_000);
    assert_eq!(history.far_cost(), 0);
    history.run(Kind::Far, 10_000_000_000);
    assert_eq!(history.far_cost(), 1_000_000);
}

#[test]
fn a_far_move_is_tried_again_after_some_thousand_bursts() {
    for far in [1_250_000, 9_000_000] {
        let mut history = History::default();
        history.run(Kind::Near, 1_000_000);
        history.run(Kind::Far, far);
        let bursts = (0..20_000).position(|_| {
            history.run(Kind::Near, 1_000_000);
            history.far_cost() < 1000
        });
        assert!(
            bursts.is_some_and(|bursts| bursts > 1000),
            "{far}: {bursts:?}"
        );
    }
}

#[test]
fn what_was_forgotten_is_known_again_after_one_move() {
    let mut history = History::default();
    history.run(Kind::Near, 100_000);
    history.run(Kind::Far, 130_000);
    for _ in 0..100_000 {
        history.run(Kind::Near, 100_000);
    }
    assert_eq!(history.far_cost(), 0);
    history.run(Kind::Far, 130_000);
    assert_eq!(history.far_cost(), 30_000);
}

#[test]
fn a_burst_counts_by_how_it_began_itself() {
    let mut history = History::default();
    history.run(Kind::Near, 1000);
    history.wake(Kind::Far, 1000);
    assert_eq!(history.far_cost(), 0);
    history.wake(Kind::Near, 9000);
    assert_eq!(history.far_cost(), 8000);
}

#[test]
fn a_task_that_is_taken_learns_from_whole_bursts_only() {
    let mut history = History::default();
    history.run(Kind::Near, 1000);
    history.take_far(0);
    history.wake(Kind::Near, 3000);
    assert_eq!(history.far_cost(), 2000);
    let before = history;
    history.take_far(500);
    history.wake(Kind::Near, 1_000_000);
    assert_eq!(history, before);
}

proptest! {
    #[test]
    fn each_sixteenth_choice_is_the_other_one(
        stayed in 1..u64::MAX / 2,
        moved in 1..u64::MAX / 2,
        choices in 0..1_000_000_u32,
    ) {
        let at = |choices| History {
            burst: [0, stayed, moved, 0],
            choices,
            ..History::default()
        };
        let usual = at(1).stays();
        prop_assert_eq!(at(choices).stays(), usual != (choices % 16 == 0));
    }
}
