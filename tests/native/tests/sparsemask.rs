//! `sparsemask.h` against a model: a set of numbers. Every property holds in every layout, with the
//! undefined-behaviour sanitizer on. A layout is a number of bits on each line; a visit goes once
//! around a range of places.

use magpie_native::sparsemask::{Layout, Mask};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;

const MOST_PLACES: u32 = 4096;

#[derive(Debug, Clone)]
enum Operation {
    Set(u32),
    Clear(u32),
    Test(u32),
    Next(u32, u32),
    Visit(u32, u32, u32),
}

/// A number of places, and operations on them. Ranges may be empty, reversed, or begin the visit
/// outside.
fn history() -> impl Strategy<Value = (u32, Vec<Operation>)> {
    let places = prop_oneof![1..=8u32, 1..=130u32, 1..=MOST_PLACES];
    places.prop_flat_map(|places| {
        let place = 0..places;
        let bound = 0..=places;
        let operation = prop_oneof![
            4 => place.clone().prop_map(Operation::Set),
            3 => place.clone().prop_map(Operation::Clear),
            1 => place.prop_map(Operation::Test),
            1 => (bound.clone(), bound.clone()).prop_map(|(a, b)| Operation::Next(a, b)),
            1 => (bound.clone(), bound.clone(), bound).prop_map(|(a, b, s)| Operation::Visit(a, b, s)),
        ];
        (Just(places), prop::collection::vec(operation, 1..200))
    })
}

/// A size of the map in places, and the places that are set in it: a few, or up to all.
fn population() -> impl Strategy<Value = (u32, BTreeSet<u32>)> {
    (1..=MOST_PLACES).prop_flat_map(|places| {
        let few = prop::collection::btree_set(0..places, 0..8);
        let many = (1..=4u32, any::<u64>()).prop_map(move |(one_of, seed)| {
            let mut random = fastrand::Rng::with_seed(seed);
            (0..places).filter(|_| random.u32(0..one_of) == 0).collect()
        });
        (Just(places), prop_oneof![few, many])
    })
}

/// A map in which the model's places are set.
fn filled(layout: Layout, places: u32, model: &BTreeSet<u32>) -> Mask {
    let mask = Mask::new(layout, places);
    for &place in model {
        assert!(mask.set(place));
    }
    mask
}

/// The expected result of a visit: the set places of the range from `start` on, then those before
/// it. A `start` outside of the range means the range's first place.
fn ring(model: &BTreeSet<u32>, range: Range<u32>, start: u32) -> Vec<u32> {
    let start = if range.contains(&start) {
        start
    } else {
        range.start
    };
    let inside = || model.iter().copied().filter(|place| range.contains(place));
    let ahead = inside().filter(|&place| place >= start);
    ahead
        .chain(inside().filter(|&place| place < start))
        .collect()
}

/// The expected result of a search: the first set place of the range, or the range's end.
fn first_of(model: &BTreeSet<u32>, range: Range<u32>) -> u32 {
    let end = range.end;
    model
        .iter()
        .copied()
        .find(|place| range.contains(place))
        .unwrap_or(end)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_history_is_that_of_a_set((places, operations) in history()) {
        for layout in Layout::checked() {
            let mask = Mask::new(layout, places);
            let mut model = BTreeSet::new();
            for operation in &operations {
                match *operation {
                    Operation::Set(place) => prop_assert_eq!(mask.set(place), model.insert(place)),
                    Operation::Clear(place) => prop_assert_eq!(mask.clear(place), model.remove(&place)),
                    Operation::Test(place) => prop_assert_eq!(mask.test(place), model.contains(&place)),
                    Operation::Next(from, end) => {
                        prop_assert_eq!(mask.next(from..end), first_of(&model, from..end));
                    }
                    Operation::Visit(first, end, start) => {
                        let found: Vec<u32> = mask.visit(first..end, start).collect();
                        prop_assert_eq!(found, ring(&model, first..end, start), "{:?} {:?}", layout, operation);
                    }
                }
            }
            let all: Vec<u32> = mask.visit(0..places, 0).collect();
            prop_assert_eq!(all, Vec::from_iter(model));
        }
    }

    /// A visit returns each set place of the range exactly once, in order from the start; also from
    /// a start outside of the range.
    #[test]
    fn a_visit_goes_once_around(
        (places, model) in population(),
        bounds in any::<(prop::sample::Index, prop::sample::Index)>(),
        start in 0..2 * MOST_PLACES,
    ) {
        let (a, b) = (bounds.0.index(places as usize + 1) as u32, bounds.1.index(places as usize + 1) as u32);
        let range = a.min(b)..a.max(b);
        for layout in Layout::checked() {
            let mask = filled(layout, places, &model);
            let found: Vec<u32> = mask.visit(range.clone(), start).collect();
            prop_assert_eq!(found, ring(&model, range.clone(), start), "{:?}", layout);
        }
    }

    /// A visit loads each line of its range once, and once more for each place that it stops at.
    /// One load more is allowed where the ring is cut: the line of the start belongs to both
    /// halves, as may each end of a half.
    #[test]
    fn a_visit_is_linear_in_lines_and_set_places((places, model) in population(), start in 0..MOST_PLACES) {
        for layout in Layout::checked() {
            let mask = filled(layout, places, &model);
            let before = layout.loads();
            let found = mask.visit(0..places, start).count() as u64;
            let loads = layout.loads() - before;
            let lines = u64::from(places.div_ceil(layout.bits()));
            prop_assert_eq!(found, model.len() as u64);
            prop_assert!(loads >= lines, "{:?}: {} loads of {} lines", layout, loads, lines);
            prop_assert!(loads <= lines + found + 2, "{:?}: {} loads, {} lines, {} set", layout, loads, lines, found);
        }
    }

    #[test]
    fn a_range_beyond_the_mask_ends_with_it((places, model) in population(), beyond in 1..10_000u32) {
        for layout in Layout::checked() {
            let mask = filled(layout, places, &model);
            let before = layout.loads();
            let end = places + beyond;
            prop_assert_eq!(mask.next(0..end), model.first().copied().unwrap_or(end));
            let found: Vec<u32> = mask.visit(0..end, places / 2).collect();
            prop_assert_eq!(found, ring(&model, 0..end, places / 2));
            let lines = u64::from(places.div_ceil(layout.bits()));
            prop_assert!(layout.loads() - before <= 2 * lines + model.len() as u64 + 2);
        }
    }

    #[test]
    fn the_lowest_bit_of_any_word(word in 1..=u64::MAX) {
        for layout in Layout::checked() {
            prop_assert_eq!(layout.lowest(word), word.trailing_zeros());
        }
    }
}

#[test]
fn the_lowest_bit_at_every_position() {
    for layout in Layout::checked() {
        for position in 0..64 {
            assert_eq!(layout.lowest(1 << position), position);
            assert_eq!(layout.lowest(!0 << position), position);
        }
    }
}

/// Small enough to try all: every map of 10 places, from every start, over every range.
#[test]
fn every_visit_of_every_small_map() {
    const PLACES: u32 = 10;
    for layout in Layout::checked() {
        for bits in 0..1u32 << PLACES {
            let model: BTreeSet<u32> = (0..PLACES).filter(|place| bits >> place & 1 == 1).collect();
            let mask = filled(layout, PLACES, &model);
            for first in 0..=PLACES {
                for end in first..=PLACES {
                    for start in 0..=PLACES {
                        assert!(
                            mask.visit(first..end, start)
                                .eq(ring(&model, first..end, start)),
                            "{layout:?}: {model:?}, {first}..{end} from {start}"
                        );
                    }
                }
            }
        }
    }
}

/// The scheduler uses a visit in this way: the map changes while it goes on.
#[test]
fn a_visit_sees_changes_ahead_of_it() {
    for layout in Layout::checked() {
        let mask = filled(layout, 64, &BTreeSet::from([3, 20, 40]));
        let mut visit = mask.visit(0..64, 10);
        assert_eq!(visit.next(), Some(20));
        mask.clear(40);
        mask.set(30);
        mask.set(12); // behind: not seen any more
        assert_eq!(visit.next(), Some(30));
        assert_eq!(visit.next(), Some(3));
        mask.set(9); // the last place of the ring
        assert_eq!(visit.next(), Some(9));
        assert_eq!(visit.next(), None);
        assert_eq!(visit.next(), None, "a visit that is over stays over");
    }
}

/// Both kinds of layouts have the same six, with as many bits on a cache line as `build.rs`
/// defines; the plain bitmap has 512.
#[test]
fn layouts_are_what_their_names_say() {
    let spread: Vec<u32> = Layout::plain()
        .iter()
        .map(|layout| layout.bits_a_cache_line())
        .collect();
    assert_eq!(spread, [2, 4, 8, 16, 64, 512]);
    let checked: Vec<u32> = Layout::checked()
        .iter()
        .map(|layout| layout.bits_a_cache_line())
        .collect();
    assert_eq!(spread, checked);
}
