//! `placement.h`: each step of the order of a wakeup, on made-up machines; `idle_map.h`: its counts
//! after any sequence, and what it writes; `llc_order.h`: every LLC once, the node's own first.

use magpie_native::placement::{Cpu, Machine, NO_CPU, Step, Wakeup, others_by_distance};
use proptest::prelude::*;

const ALL: u64 = u64::MAX;

/// One node with 2 LLCs of 2 cores of 2 threads: CPUs 0-3 and 4-7, siblings adjacent. All idle.
fn small() -> Machine {
    let mut machine = Machine::new(1, 2, 2, 2);
    machine.set(0..8, Cpu::Free);
    machine
}

fn choose(machine: &mut Machine, mut at: Wakeup) -> (Step, u32) {
    machine.choose(ALL, &mut at)
}

#[test]
fn the_previous_cpu_comes_first_if_its_core_is_idle() {
    let mut machine = small();
    let at = Wakeup {
        recent: 6,
        is_sync: true,
        ..Wakeup::new(2, 4)
    };
    machine.waker_leaves = true;
    assert_eq!(choose(&mut machine, at.clone()), (Step::Previous, 2));
    // Claimed: a second wakeup at the same moment goes elsewhere.
    assert_ne!(choose(&mut machine, at).1, 2);
}

#[test]
fn a_vcpu_that_the_host_took_gets_no_second_task() {
    let mut machine = small();
    let first = Wakeup::new(2, 4);
    let later = Wakeup {
        now: first.now + 5_000_000,
        ..first.clone()
    };
    assert_eq!(choose(&mut machine, first), (Step::Previous, 2));
    // The claim has lapsed: the CPU is asked, once, and gets no task before it has answered.
    assert_ne!(choose(&mut machine, later.clone()).1, 2);
    assert_eq!(machine.called, 1 << 2);
    machine.called = 0;
    assert_ne!(choose(&mut machine, later.clone()).1, 2);
    assert_eq!(machine.called, 0);
    // It answers that it idles: its task went elsewhere.
    machine.set([2], Cpu::Free);
    assert_eq!(choose(&mut machine, later).1, 2);
}

#[test]
fn a_cpu_is_late_if_its_claim_is_old_or_made_anew() {
    for odd in [0, 1] {
        let mut machine = small();
        let first = Wakeup::new(2, 4);
        let first = Wakeup {
            now: (first.now & !1) + odd,
            ..first
        };
        let now = first.now;
        assert!(!machine.is_late(2, now));
        assert_eq!(choose(&mut machine, first.clone()).1, 2);
        assert!(!machine.is_late(2, now + 3_900_000));
        let later = now + 5_000_000;
        assert!(machine.is_late(2, later));
        choose(
            &mut machine,
            Wakeup {
                now: later,
                ..first
            },
        );
        assert!(machine.is_late(2, later + 1));
        machine.set([2], Cpu::Free);
        assert!(!machine.is_late(2, later + 1));
    }
}

#[test]
fn a_search_that_nobody_claimed_the_cpu_for_leaves_the_claim_of_a_waker() {
    let mut machine = small();
    let first = Wakeup::new(2, 4);
    let now = first.now;
    assert_eq!(choose(&mut machine, first.clone()).1, 2);
    machine.search_in_vain(2, false, now);
    assert_ne!(choose(&mut machine, first.clone()).1, 2);
    machine.search_in_vain(2, true, now);
    assert_eq!(choose(&mut machine, first.clone()).1, 2);

    // The claim lapses, and a search ends it.
    machine.search_in_vain(2, false, now + 5_000_000);
    assert_eq!(choose(&mut machine, first.clone()).1, 2);

    // It lapses again; a waker claims the CPU anew, and only to ask whether it is there.
    let later = Wakeup {
        now: now + 5_000_000,
        ..first
    };
    assert_ne!(choose(&mut machine, later.clone()).1, 2);
    machine.search_in_vain(2, false, later.now);
    assert_eq!(choose(&mut machine, later).1, 2);

    // A CPU that has not announced that it idles does so now.
    machine.wake(2);
    machine.search_in_vain(2, false, now);
    assert_eq!(choose(&mut machine, Wakeup::new(2, 4)).1, 2);
}

#[test]
fn then_the_recent_one_near_the_waker() {
    let mut machine = small();
    machine.set([3, 4], Cpu::Busy);
    let recent = |recent, waker| Wakeup {
        recent,
        ..Wakeup::new(2, waker)
    };
    assert_eq!(
        choose(&mut machine.clone(), recent(6, 4)),
        (Step::Recent, 6)
    );
    // Not if the recent CPU is far from the waker, is the waker's own, or its core is busy.
    for at in [recent(6, 0), recent(4, 4), recent(5, 4)] {
        assert_eq!(choose(&mut machine.clone(), at), (Step::IdleCore, 0));
    }
}

#[test]
fn then_the_wakers_if_it_leaves_an_idle_core() {
    let mut machine = small();
    machine.set([3, 4], Cpu::Busy);
    let at = Wakeup {
        is_sync: true,
        ..Wakeup::new(2, 4)
    };
    assert_eq!(
        choose(&mut machine.clone(), at.clone()),
        (Step::IdleCore, 0)
    );
    machine.waker_leaves = true;
    assert_eq!(choose(&mut machine.clone(), at.clone()), (Step::Waker, 4));
    let not_sync = Wakeup::new(2, 4);
    assert_eq!(choose(&mut machine.clone(), not_sync), (Step::IdleCore, 0));
    machine.set([5], Cpu::Busy);
    assert_eq!(choose(&mut machine, at), (Step::IdleCore, 0));
}

#[test]
fn then_an_idle_core_an_idle_cpu_another_llc_and_the_queue() {
    let mut machine = small();
    machine.set([3], Cpu::Busy);
    assert_eq!(
        choose(&mut machine.clone(), Wakeup::new(2, 0)),
        (Step::IdleCore, 0)
    );
    machine.set([1], Cpu::Busy);
    assert_eq!(
        choose(&mut machine.clone(), Wakeup::new(2, 0)),
        (Step::IdleCpu, 2)
    );
    machine.set([2, 0], Cpu::Busy);
    assert_eq!(
        choose(&mut machine.clone(), Wakeup::new(2, 0)).0,
        Step::Beyond
    );
    let stays = Wakeup {
        may_go_far: false,
        ..Wakeup::new(2, 0)
    };
    assert_eq!(choose(&mut machine.clone(), stays), (Step::Queue, 2));
    machine.set(4..8, Cpu::Busy);
    assert_eq!(choose(&mut machine, Wakeup::new(2, 0)), (Step::Queue, 2));
}

#[test]
fn the_wakers_of_an_llc_begin_at_different_cores_of_another_one() {
    for waker in 0..8 {
        // Two LLCs of four cores: CPUs 0-7, all busy, and 8-15.
        let mut machine = Machine::new(1, 2, 4, 2);
        machine.set(8..16, Cpu::Free);
        let same_core = 8 + waker / 2 * 2;
        assert_eq!(
            choose(&mut machine, Wakeup::new(0, waker)),
            (Step::Beyond, same_core)
        );
    }
}

#[test]
fn a_task_that_runs_long_prefers_a_far_idle_core_to_sharing_one() {
    let mut machine = small();
    machine.set([1, 3], Cpu::Busy);
    let long = Wakeup {
        core_is_worth_it: true,
        ..Wakeup::new(2, 0)
    };
    assert_eq!(choose(&mut machine.clone(), long.clone()).0, Step::Beyond);
    machine.set([4, 6], Cpu::Busy);
    assert_eq!(
        choose(&mut machine.clone(), long.clone()),
        (Step::IdleCpu, 2)
    );
    machine.set([0, 2], Cpu::Busy);
    assert_eq!(choose(&mut machine, long).0, Step::Beyond);
}

/// CPUs 0 and 1, 2 and 3 and so on are siblings; the messenger on 3 wakes from the only core that
/// is free.
#[test]
fn a_task_that_runs_long_shares_with_a_waker_that_sleeps_next_and_not_with_others() {
    let mut machine = small();
    machine.set([0, 3, 4, 6], Cpu::Busy);
    machine.waker_leaves = true;
    let at = |previous| Wakeup {
        core_is_worth_it: true,
        outlasts_waker: true,
        ..Wakeup::new(previous, 3)
    };
    // From the previous CPU itself, and from a previous CPU whose core is busy.
    assert_eq!(choose(&mut machine.clone(), at(2)), (Step::Previous, 2));
    assert_eq!(choose(&mut machine.clone(), at(1)), (Step::IdleCore, 2));
    assert_eq!(choose(&mut machine.clone(), at(5)).1, 2);
    machine.waker_leaves = false;
    assert_eq!(choose(&mut machine, at(1)), (Step::IdleCpu, 1));
}

#[test]
fn without_idle_cores_any_idle_cpu_will_do() {
    let mut machine = small();
    machine.set([3], Cpu::Busy);
    let at = Wakeup {
        wants_core: false,
        ..Wakeup::new(2, 0)
    };
    assert_eq!(choose(&mut machine, at), (Step::Previous, 2));
}

#[test]
fn all_are_asked_for_an_idle_core_until_none_is_found() {
    let mut machine = Machine::new(1, 1, 16, 2);
    let few = |machine: &mut Machine| {
        let wakeup = Wakeup {
            looks: 2,
            ..Wakeup::new(0, 0)
        };
        choose(machine, wakeup)
    };
    // One CPU of each core idles: there is no idle core, and the next search is short.
    machine.set((1..32).step_by(2), Cpu::Free);
    assert!(machine.may_have_idle_core(0));
    assert_eq!(few(&mut machine).0, Step::IdleCpu);
    assert!(!machine.may_have_idle_core(0));
    assert_eq!(few(&mut machine).0, Step::IdleCpu);

    // The core that a search visits last becomes idle, and is found.
    machine.set([30], Cpu::Free);
    assert_eq!(few(&mut machine).0, Step::IdleCore);

    // A task that may not use all CPUs does not record that there is no idle core.
    machine.set([30, 31], Cpu::Free);
    let (step, _) = machine.choose(0xff, &mut Wakeup::new(0, 0));
    assert_eq!(step, Step::IdleCpu);
    assert!(machine.may_have_idle_core(0));

    // It does once those that it may not use have work, though their bits are still set.
    machine.wake(30);
    machine.wake(31);
    for cpu in (9..30).step_by(2) {
        machine.wake(cpu);
    }
    let (step, _) = machine.choose(0xff, &mut Wakeup::new(0, 0));
    assert_eq!(step, Step::IdleCpu);
    assert!(!machine.may_have_idle_core(0));
}

#[test]
fn a_bit_that_a_nap_left_set_deceives_nobody() {
    let mut machine = small();
    machine.set(0..4, Cpu::Busy);
    machine.set([0, 1], Cpu::Free);
    machine.wake(0);
    assert_eq!(machine.idle_cpus(0), 2);
    assert_eq!(choose(&mut machine, Wakeup::new(2, 2)), (Step::IdleCpu, 1));
}

#[test]
fn siblings_that_are_offline_or_run_idle_tasks_leave_the_core_idle() {
    for quiet in [Cpu::Offline, Cpu::IdlePolicy] {
        let mut machine = small();
        machine.set([3], quiet);
        assert_eq!(
            choose(&mut machine, Wakeup::new(2, 0)),
            (Step::Previous, 2),
            "{quiet:?}"
        );
    }
}

#[test]
fn a_task_of_the_idle_policy_is_preempted_but_not_by_its_like() {
    let mut machine = small();
    machine.set(0..8, Cpu::IdlePolicy);
    let mut at = Wakeup::new(2, 0);
    assert_eq!(machine.clone().choose(ALL, &mut at), (Step::Previous, 2));
    assert!(at.preempts);
    let like = Wakeup {
        may_preempt: false,
        ..Wakeup::new(2, 0)
    };
    assert_eq!(choose(&mut machine, like), (Step::Queue, 2));
}

#[test]
fn fast_cores_first_for_tasks_that_want_them() {
    let mut machine = small();
    machine.slow = 0b1100;
    let wants = Wakeup {
        wants_fast: true,
        ..Wakeup::new(2, 0)
    };
    assert_eq!(
        choose(&mut machine.clone(), wants.clone()),
        (Step::IdleCore, 0)
    );
    machine.set([0, 1], Cpu::Busy);
    assert_eq!(choose(&mut machine.clone(), wants), (Step::IdleCpu, 2));
}

proptest! {
    /// Only allowed and idle CPUs are claimed, and one is found whenever there is one.
    #[test]
    fn what_is_found_is_allowed_and_idle(
        shape in (1..=2u32, 1..=3u32, 1..=4u32, 1..=2u32),
        idle in any::<u64>(),
        allowed in any::<u64>(),
        named in (any::<u32>(), any::<u32>(), any::<u32>()),
        flags in any::<[bool; 5]>(),
    ) {
        let mut machine = Machine::new(shape.0, shape.1, shape.2, shape.3);
        let cpus = machine.cpus();
        machine.set((0..cpus).filter(|cpu| idle >> cpu & 1 == 1), Cpu::Free);
        let mut at = Wakeup {
            recent: if flags[0] { NO_CPU } else { named.2 % cpus },
            is_sync: flags[1],
            wants_core: flags[2],
            core_is_worth_it: flags[3],
            outlasts_waker: flags[4],
            ..Wakeup::new(named.0 % cpus, named.1 % cpus)
        };
        let (step, cpu) = machine.choose(allowed, &mut at);
        let usable = (0..cpus).filter(|cpu| (idle & allowed) >> cpu & 1 == 1).count();
        prop_assert_eq!(step == Step::Queue, usable == 0);
        if step != Step::Queue {
            prop_assert_eq!((idle & allowed) >> cpu & 1, 1);
        }
    }

    /// The counts are right after any sequence, and only changes are written.
    #[test]
    fn counts_follow_the_bits(
        shape in (1..=2u32, 1..=4u32, 1..=4u32, 1..=2u32),
        changes in prop::collection::vec((any::<u32>(), any::<bool>()), 0..200),
    ) {
        let mut machine = Machine::new(shape.0, shape.1, shape.2, shape.3);
        let (cpus, llcs) = (machine.cpus(), shape.0 * shape.1);
        let mut bits = vec![false; cpus as usize];
        for (cpu, is_set) in changes {
            let cpu = cpu % cpus;
            let changed = bits[cpu as usize] != is_set;
            bits[cpu as usize] = is_set;
            prop_assert_eq!(machine.set_bit(cpu, is_set) > 0, changed);
            let counts: Vec<usize> = bits
                .chunks((cpus / llcs) as usize)
                .map(|llc| llc.iter().filter(|bit| **bit).count())
                .collect();
            for (llc, count) in counts.iter().enumerate() {
                prop_assert_eq!(machine.idle_cpus(llc as u32) as usize, *count);
            }
            let any = counts.iter().filter(|count| **count > 0).count();
            prop_assert_eq!(machine.idle_llcs() as usize, any);
        }
    }

    #[test]
    fn every_other_llc_once_and_the_nodes_own_first(nodes in 1..=8u32, llcs in 1..=8u32) {
        let all = nodes * llcs;
        for llc in 0..all {
            let first = llc - llc % llcs;
            let seen = others_by_distance(llc, first..first + llcs, all);
            let (near, far) = seen.split_at(llcs as usize - 1);
            prop_assert!(near.iter().all(|other| (first..first + llcs).contains(other)));
            prop_assert!(far.iter().all(|other| !(first..first + llcs).contains(other)));
            let mut once = seen.clone();
            once.extend([llc]);
            once.sort_unstable();
            prop_assert_eq!(once, (0..all).collect::<Vec<_>>());
        }
    }
}

/// Compared with one mask of the whole machine, which is written twice for every idle period.
#[test]
fn naps_between_ticks_write_nothing_shared() {
    const NAPS: u32 = 20;
    let mut machine = small();
    let mut writes = 0;
    for _tick in 0..10 {
        for _nap in 0..NAPS {
            writes += machine.set_bit(5, true);
            machine.wake(5);
        }
        writes += machine.set_bit(5, false);
    }
    let one_mask = 10 * NAPS * 2;
    assert!(
        writes * 5 <= one_mask,
        "{writes} writes, {one_mask} with one mask"
    );
}
