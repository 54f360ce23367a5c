//! `governor.h`: rules that hold for every input, and guests on modelled hosts.
//!
//! The model: the host runs at most a given number of the guest's cores at the same time. The guest
//! keeps as many cores busy as it wants, but only preferred ones. A busy core that the host does
//! not run has steal time.

use magpie_native::governor::{Config, Input, Kind, State, doubt, longest_wait, next};
use proptest::prelude::*;

const MOST_CORES: u32 = 4096;

/// The scheduler's thresholds: 2 % and 1 %.
fn config(kind: Kind) -> Config {
    Config {
        kind,
        high: 200,
        low: 100,
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Step), Just(Kind::Direct)]
}

fn inputs() -> impl Strategy<Value = Input> {
    let steal = prop_oneof![0..=400u32, 0..=10_000u32, any::<u32>()];
    let cores = || prop_oneof![0..=1000u32, 0..=MOST_CORES * 100, any::<u32>()];
    let total = prop_oneof![1..=4u32, 1..=MOST_CORES];
    let observed = (total, steal, cores(), cores(), 0..=100u32);
    observed.prop_map(|(total, steal, busy, given, doubt)| Input {
        total,
        steal,
        busy,
        given,
        doubt,
    })
}

fn state_with(cores: u32) -> State {
    State {
        cores,
        ..State::default()
    }
}

/// A period of a guest that wants `wants` cores on a host that gives it `gives`.
fn period(total: u32, wants: u32, gives: u32, cores: u32) -> Input {
    let busy = wants.min(cores);
    let given = busy.min(gives);
    Input {
        total,
        steal: (busy - given) * 10_000 / cores,
        busy: busy * 100,
        given: given * 100,
        doubt: 0,
    }
}

/// The numbers of cores in use, one for each period.
fn run(
    kind: Kind,
    state: &mut State,
    periods: u32,
    total: u32,
    wants: u32,
    gives: u32,
) -> Vec<u32> {
    let step = |_| {
        let input = period(total, wants, gives, state.cores);
        next(&config(kind), state, &input)
    };
    (0..periods).map(step).collect()
}

/// Of what is given, the cores worth using.
fn whole(given: u32) -> u32 {
    let part = given % 100;
    given / 100 + u32::from(part >= 75 || part > given / 4)
}

fn changes(cores: &[u32]) -> usize {
    cores.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// At least one core and never more than there are, for any input, also while cores come and
    /// go.
    #[test]
    fn there_is_always_a_core(
        kind in kinds(),
        cores in 0..=MOST_CORES,
        inputs in prop::collection::vec(inputs(), 1..100),
    ) {
        let mut state = state_with(cores);
        for input in &inputs {
            let cores = next(&config(kind), &mut state, input);
            prop_assert!((1..=input.total).contains(&cores), "{cores} of {input:?}");
            prop_assert_eq!(state.cores, cores);
            prop_assert!((1..=longest_wait()).contains(&state.backoff));
            prop_assert!(state.wait <= longest_wait());
        }
    }

    /// Above the upper threshold fewer (but directly only if less than three quarters of the last
    /// core is given, and no more than a quarter of all), between the thresholds the same, below the
    /// lower not fewer.
    #[test]
    fn the_thresholds_decide(
        kind in kinds(),
        total in 1..=MOST_CORES,
        inputs in prop::collection::vec(inputs(), 1..100),
    ) {
        let mut state = state_with(total);
        for input in inputs {
            let input = Input { total, ..input };
            let State { cores: before, more, stay, .. } = state;
            let cores = next(&config(kind), &mut state, &input);
            match input.steal {
                // Back to as many as before it went down, or not below 45 % of what these got.
                201.. if kind == Kind::Direct && (more > 0 || stay > 0) => {
                    prop_assert!(cores <= before || cores == more.min(total));
                }
                201.. if kind == Kind::Direct
                    && whole(input.given + input.doubt) >= before =>
                {
                    prop_assert_eq!(cores, before);
                }
                201.. => prop_assert!(cores < before || before == 1),
                100..=200 => prop_assert_eq!(cores, before),
                _ => prop_assert!(cores >= before),
            }
            if kind == Kind::Step {
                prop_assert!(cores.abs_diff(before) <= 1, "{before} to {cores}");
            } else if cores < before && more == 0 {
                prop_assert!(cores >= (input.given / 100).clamp(1, before - 1));
            }
        }
    }

    /// Bare metal, and a guest alone: without steal time nothing ever happens.
    #[test]
    fn without_steal_nothing_changes(kind in kinds(), total in 1..=MOST_CORES, wants in 0..=MOST_CORES) {
        let mut state = state_with(total);
        let cores = run(kind, &mut state, 200, total, wants, total);
        prop_assert!(cores.iter().all(|&cores| cores == total));
    }

    /// A steady host: after a while the guest uses what it is given and, but for probes, no more.
    #[test]
    fn a_steady_host_is_found(kind in kinds(), total in 2..=128u32, share in 1..=100u32) {
        let gives = (total * share).div_ceil(100);
        let mut state = state_with(total);
        run(kind, &mut state, 2 * total + 20, total, total, gives);
        let cores = run(kind, &mut state, 1000, total, total, gives);

        // Steal below the upper threshold is accepted: up to 2 % more cores than are given.
        let most = gives + gives / 49 + 1;
        let fitting = cores.iter().filter(|&&cores| (gives..=most).contains(&cores)).count();
        prop_assert!(fitting > 900, "{gives} given, used {fitting} of 1000 periods: {cores:?}");
        let fewest = *cores.iter().min().unwrap();
        prop_assert!(fewest >= gives, "fell to {fewest} of {gives}");
    }

    /// Nothing oscillates: once probes have failed a few times, they are far apart. Also for guests
    /// so large that the first core too many is too little to be seen.
    #[test]
    fn a_steady_host_is_left_in_peace(kind in kinds(), total in 2..=1000u32, share in 1..=99u32) {
        let gives = (total * share).div_ceil(100);
        let mut state = state_with(total);
        run(kind, &mut state, 2 * total + 1000, total, total, gives);
        let cores = run(kind, &mut state, 1000, total, total, gives);
        let given_up = cores.windows(2).filter(|pair| pair[1] < pair[0]).count();
        prop_assert!(given_up <= 1000 / longest_wait() as usize + 1, "{given_up} times: {cores:?}");
        // Up in steps of 1, 2, 4, ..., of which few fit below the threshold; and down in one.
        prop_assert!(changes(&cores) <= 6 * (given_up + 1), "{} changes: {cores:?}", changes(&cores));
    }

    /// When the host has more CPUs again, the governor takes all of them again.
    #[test]
    fn a_host_that_becomes_free_is_used(kind in kinds(), total in 2..=64u32, share in 1..=99u32) {
        let gives = (total * share).div_ceil(100);
        let mut state = state_with(total);
        run(kind, &mut state, 500, total, total, gives);
        // The wait that is under way, then at most one core a period.
        let cores = run(kind, &mut state, longest_wait() + total + 2, total, total, total);
        prop_assert_eq!(cores.last(), Some(&total));
    }

    /// Two guests that want all of one host, both with governors, share it and settle.
    #[test]
    fn two_guests_settle(kind in kinds(), host in 2..=64u32) {
        let mut guests = [state_with(host), state_with(host)];
        let mut history = Vec::new();
        for _ in 0..2000 {
            // The host divides evenly; what one guest does not use goes to the other.
            let cores = guests.map(|guest| guest.cores);
            let half = host / 2;
            let given = [
                cores[0].min(half.max(host.saturating_sub(cores[1]))),
                cores[1].min((host - half).max(host.saturating_sub(cores[0]))),
            ];
            for (guest, given) in guests.iter_mut().zip(given) {
                let input = period(host, host, given, guest.cores);
                next(&config(kind), guest, &input);
            }
            history.push(guests.map(|guest| guest.cores));
        }
        let late = &history[1000..];
        let overcommitted = late.iter().filter(|cores| cores[0] + cores[1] > host + 2).count();
        prop_assert!(overcommitted < 100, "{overcommitted} of 1000 periods");
        let wasted = late.iter().filter(|cores| cores[0] + cores[1] < host).count();
        prop_assert!(wasted < 100, "{wasted} of 1000 periods");
        let changed = late.windows(2).filter(|pair| pair[0] != pair[1]).count();
        prop_assert!(changed < 200, "{changed} changes in 1000 periods");
    }
}

/// A period of a guest that keeps all its preferred cores busy, on a host that divides `host` CPUs among
/// busy vCPUs: the guest's, and those of its neighbours.
fn period_by_vcpus(total: u32, host: u32, neighbours: u32, cores: u32) -> Input {
    let given = (100 * cores).min(100 * host * cores / (cores + neighbours));
    Input {
        total,
        steal: (100 * cores - given) * 100 / cores,
        busy: cores * 100,
        given,
        doubt: 0,
    }
}

proptest! {
    /// Where fewer busy vCPUs get less, the guest still gets 45 % of what it would with all of them,
    /// less the steal time that counts as too little to act, but for the periods in which it tries
    /// fewer, and it stays where it is most of the time.
    #[test]
    fn on_a_host_that_weighs_vcpus_a_guest_gets_nearly_half(
        total in 2..=64u32,
        host in 1..=64u32,
        neighbours in 1..=64u32,
    ) {
        let mut state = state_with(total);
        let all = period_by_vcpus(total, host, neighbours, total).given;
        let mut history = Vec::new();
        for _ in 0..1000 {
            let input = period_by_vcpus(total, host, neighbours, state.cores);
            history.push((state.cores, input.given));
            next(&config(Kind::Direct), &mut state, &input);
        }
        let enough = all * 45 / 100 * (10_000 - config(Kind::Direct).high) / 10_000;
        let poor = history.iter().filter(|(_, given)| given + 1 < enough).count();
        prop_assert!(poor < 40, "{poor} of 1000 periods below 45 % of {all}: {history:?}");
        let cores: Vec<u32> = history[100..].iter().map(|(cores, _)| *cores).collect();
        prop_assert!(changes(&cores) < 150, "{} changes: {cores:?}", changes(&cores));
    }
}

proptest! {
    /// A guest of 8 CPUs uses two CPUs of its host when a neighbour begins to work, and has one from
    /// then on. It never takes all cores back, and soon uses one, however wrong its estimates at
    /// alarms are: later ones up to a quarter of a core too low, the first a tenth of a core too high.
    #[test]
    fn a_neighbour_that_begins_to_work_is_no_loss(
        first in 150..=210u32,
        later in prop::collection::vec(75..=100u32, 5),
    ) {
        let mut state = state_with(8);
        let mut look = |given: u32| {
            let given = if state.cores == 1 { 100 } else { given };
            let mut input = Input {
                total: 8,
                steal: (100 * state.cores).saturating_sub(given) * 100 / state.cores,
                busy: 100 * state.cores,
                given,
                doubt: 0,
            };
            input.doubt = doubt(&input);
            next(&config(Kind::Direct), &mut state, &input)
        };
        let mut cores = vec![8, look(first)];
        cores.extend(later.into_iter().map(look));
        prop_assert!(cores[2..].iter().all(|later| *later <= cores[1]), "{cores:?}");
        prop_assert_eq!(cores[3], 1, "{:?}", cores);
    }
}

/// A guest is given a part of the last core that it uses, so that steal time never ends. A neighbour
/// that begins to work much later is no loss either: the guest never takes all cores back.
#[test]
fn a_neighbour_that_comes_late_is_no_loss() {
    for given in 135..=174 {
        let mut state = state_with(8);
        let mut cores = Vec::new();
        for period in 0..30 {
            let gives = if period < 20 { given } else { given / 3 };
            let given = gives.min(100 * state.cores);
            let input = Input {
                total: 8,
                steal: (100 * state.cores - given) * 100 / state.cores,
                busy: 100 * state.cores,
                given,
                doubt: 0,
            };
            cores.push(next(&config(Kind::Direct), &mut state, &input));
        }
        assert_eq!(cores[..20], [2; 20], "{given}: {cores:?}");
        assert_eq!(cores[20..], [1; 10], "{given}: {cores:?}");
    }
}

#[test]
fn step_goes_down_one_by_one() {
    let mut state = state_with(8);
    assert_eq!(run(Kind::Step, &mut state, 5, 8, 8, 4)[..4], [7, 6, 5, 4]);
}

/// `direct` needs one period, where `step` needs one for each core that must go.
#[test]
fn direct_goes_down_at_once() {
    let mut state = state_with(64);
    assert_eq!(run(Kind::Direct, &mut state, 1, 64, 64, 20), [20]);
}

/// The part of a core that two vCPUs would lose is worth more than the same part of eight.
#[test]
fn a_part_of_a_core_is_kept_where_it_is_much_of_all() {
    for (total, given, kept) in [
        (2, 160, 2),
        (2, 134, 2),
        (2, 133, 1),
        (2, 130, 1),
        (3, 266, 2),
        (3, 267, 3),
        (8, 160, 2),
        (8, 460, 4),
        (8, 475, 5),
    ] {
        let input = Input {
            total,
            steal: 10_000 - given * 100 / total,
            busy: total * 100,
            given,
            doubt: 0,
        };
        let cores = next(&config(Kind::Direct), &mut state_with(total), &input);
        assert_eq!(cores, kept, "of {given}");
    }
}

#[test]
fn direct_comes_back_in_growing_steps() {
    let periods_to = |kind| {
        let mut state = state_with(8);
        let cores = run(kind, &mut state, 200, 64, 64, 64);
        cores
            .iter()
            .position(|&cores| cores == 64)
            .expect("all of them")
            + 1
    };
    assert_eq!(periods_to(Kind::Step), 56);
    assert!(
        periods_to(Kind::Direct) <= 7,
        "{}",
        periods_to(Kind::Direct)
    );
}

/// No probe asks for cores that the guest's work does not keep busy.
#[test]
fn direct_asks_only_for_what_work_keeps_busy() {
    let mut state = state_with(8);
    let cores = run(Kind::Direct, &mut state, 100, 64, 4, 64);
    assert!(cores.iter().all(|&cores| cores == 8), "{cores:?}");
}

/// Twice as long after each failed probe.
#[test]
fn failed_probes_become_rare() {
    let mut state = state_with(4);
    let cores = run(Kind::Step, &mut state, 300, 8, 8, 4);
    let probes: Vec<usize> = (1..cores.len())
        .filter(|&i| cores[i] > cores[i - 1])
        .collect();
    let gaps: Vec<usize> = probes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.windows(2).all(|pair| pair[1] >= pair[0]), "{gaps:?}");
    assert!(gaps.last() >= Some(&(longest_wait() as usize)), "{gaps:?}");
}

/// What the monitor saw at alarms of a guest of 8 CPUs whose host gives two cores.
#[test]
fn an_alarm_leaves_as_many_cores_as_the_host_gives() {
    for given in [108, 121, 139, 165, 210] {
        for busy in [720, 770] {
            let mut input = Input {
                total: 8,
                steal: 5000,
                busy,
                given,
                doubt: 0,
            };
            input.doubt = doubt(&input);
            let cores = next(&config(Kind::Direct), &mut state_with(8), &input);
            assert!((2..=3).contains(&cores), "{cores} cores of {given}");
        }
    }
    // A large guest leaves one core more, not an eighth of what it lost.
    let taken = |busy, given| Input {
        total: 64,
        steal: 5000,
        busy,
        given,
        doubt: 0,
    };
    assert_eq!(doubt(&taken(6400, 3200)), 100);
    assert_eq!(doubt(&taken(100, 200)), 0);
}
