//! `move_cost.h`: a task learns what moves cost it, forgets it, and learns it again.

use magpie_native::move_cost::History;
use proptest::prelude::*;

const NEAR: bool = false;
const FAR: bool = true;

#[test]
fn a_far_move_costs_what_bursts_last_longer_after_it() {
    let mut history = History::default();
    history.run(NEAR, 1000);
    assert_eq!(history.far_cost(), 0);
    history.run(FAR, 9000);
    assert_eq!(history.far_cost(), 8000);
    history.run(NEAR, 10_000_000);
    assert_eq!(history.far_cost(), 0);
    history.run(FAR, 10_000_000_000);
    assert_eq!(history.far_cost(), 1_000_000);
}

#[test]
fn a_far_move_is_tried_again_after_some_thousand_bursts() {
    for far in [1_250_000, 9_000_000] {
        let mut history = History::default();
        history.run(NEAR, 1_000_000);
        history.run(FAR, far);
        let bursts = (0..20_000).position(|_| {
            history.run(NEAR, 1_000_000);
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
    history.run(NEAR, 100_000);
    history.run(FAR, 130_000);
    for _ in 0..100_000 {
        history.run(NEAR, 100_000);
    }
    assert_eq!(history.far_cost(), 0);
    history.run(FAR, 130_000);
    assert_eq!(history.far_cost(), 30_000);
}

#[test]
fn a_burst_counts_by_how_it_began_itself() {
    let mut history = History::default();
    history.run(NEAR, 1000);
    history.wake(FAR, 1000);
    assert_eq!(history.far_cost(), 0);
    history.wake(NEAR, 9000);
    assert_eq!(history.far_cost(), 8000);
}

#[test]
fn a_task_that_is_taken_learns_from_whole_bursts_only() {
    let mut history = History::default();
    history.run(NEAR, 1000);
    history.take_far(0);
    history.wake(NEAR, 3000);
    assert_eq!(history.far_cost(), 2000);
    let before = history;
    history.take_far(500);
    history.wake(NEAR, 1_000_000);
    assert_eq!(history, before);
}

proptest! {
    #[test]
    fn a_cost_is_within_its_bounds(
        bursts in prop::collection::vec((any::<bool>(), 0..u64::MAX / 2), 1..200),
    ) {
        let mut history = History::default();
        for (is_far, ns) in bursts {
            history.run(is_far, ns);
            prop_assert!(history.far_cost() <= 1_000_000);
        }
    }
}
