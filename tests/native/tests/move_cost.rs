//! `move_cost.h`: a task takes what its bursts say, and tries the other now and then.

use magpie_native::move_cost::{History, Kind};
use proptest::prelude::*;

/// How many of `wakeups` stay, if a burst lasts as long as given for each kind.
fn stays(history: &mut History, wakeups: u32, stayed: u64, moved: u64) -> u32 {
    (0..wakeups)
        .map(|_| {
            let stays = history.stays();
            let (kind, ns) = if stays {
                (Kind::Stayed, stayed)
            } else {
                (Kind::Moved, moved)
            };
            history.run(kind, ns);
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
    assert_eq!(stays(&mut History::default(), 320, 1000, 1500), 300);
    assert_eq!(stays(&mut History::default(), 320, 1500, 1000), 20);
}

#[test]
fn a_tie_is_for_staying() {
    assert_eq!(stays(&mut History::default(), 320, 1000, 1000), 300);
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
    let mut history = History::default();
    history.run(Kind::Far, 9_000_000);
    let bursts = (0..10_000).position(|_| {
        history.run(Kind::Near, 1_000_000);
        history.far_cost() == 0
    });
    assert!(bursts.is_some_and(|bursts| bursts > 1000), "{bursts:?}");
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
            kind: 0,
        };
        let usual = at(1).stays();
        prop_assert_eq!(at(choices).stays(), usual != (choices % 16 == 0));
    }
}
