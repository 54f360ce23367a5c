//! `power.h`: rules that hold for every input, and how it follows a load.

use magpie_native::power::{BALANCED, PERFORMANCE, SAVER, State, next};
use proptest::prelude::*;

/// Calls the rule as often with the same load, and returns the number of cores after it.
fn after(state: &mut State, looks: u32, level: u32, busy: u32) -> u32 {
    let cores = (0..looks).map(|_| next(state, level, 8, busy, false));
    cores.last().expect("at least one look")
}

#[test]
fn it_goes_down_slowly_and_up_at_once() {
    let mut state = State::default();
    assert_eq!(after(&mut state, 7, SAVER, 120), 8);
    assert_eq!(after(&mut state, 1, SAVER, 120), 2);
    assert_eq!(after(&mut state, 1, SAVER, 300), 5);
    assert_eq!(after(&mut state, 7, SAVER, 100), 5);
    assert_eq!(after(&mut state, 1, SAVER, 200), 3);
}

#[test]
fn balanced_uses_more_cores_and_performance_all() {
    assert_eq!(after(&mut State::default(), 20, BALANCED, 120), 3);
    let mut state = State::default();
    assert_eq!(after(&mut state, 20, SAVER, 0), 2);
    assert_eq!(after(&mut state, 1, PERFORMANCE, 0), 8);
}

#[test]
fn where_tasks_waited_one_core_more_is_used_and_one_less_is_tried_later() {
    let mut state = State::default();
    assert_eq!(after(&mut state, 8, SAVER, 120), 2);
    assert_eq!(next(&mut state, SAVER, 8, 120, true), 8);
    assert_eq!(after(&mut state, 8, SAVER, 120), 3);
    assert_eq!(after(&mut state, 100, SAVER, 120), 3);
    assert_eq!(after(&mut state, 60, SAVER, 120), 2);
}

proptest! {
    #[test]
    fn there_is_always_a_core_and_never_more_than_all(
        level in PERFORMANCE..=SAVER,
        looks in prop::collection::vec((1..=4096u32, 0..=409_600u32, any::<bool>()), 1..300),
    ) {
        let mut state = State::default();
        for (total, busy, waited) in looks {
            let before = state.cores;
            let cores = next(&mut state, level, total, busy, waited);
            prop_assert!((1..=total).contains(&cores));
            prop_assert_eq!(cores, state.cores);
            if waited && before > 0 && before < total {
                prop_assert_eq!(cores, total);
            }
        }
    }
}
