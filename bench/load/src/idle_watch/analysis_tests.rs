//! Synthetic traces with a known answer for the analysis.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// Two CPUs, 4 ms tick, threshold a tick; tasks 1 to 4 may run on both. Times in ms.
fn setting(end: u64) -> Setting {
    Setting {
        tick_ns: 4 * MS,
        threshold_ns: 4 * MS,
        judged: CpuSet::of([0, 1]),
        affinity: (1..=4).map(|pid| (pid, CpuSet::of([0, 1]))).collect(),
        later: HashMap::new(),
        start: 0,
        end: end * MS,
    }
}

fn at(ms: u64, cpu: usize, event: Event) -> Record {
    Record {
        time: ms * MS,
        cpu,
        event,
    }
}

fn switch(ms: u64, cpu: usize, prev: i32, prev_runs_on: bool, next: i32) -> Record {
    at(
        ms,
        cpu,
        Event::Switch {
            prev,
            prev_runs_on,
            prev_is_rt: false,
            next,
        },
    )
}

fn wakeup(ms: u64, cpu: usize, pid: i32, target: usize) -> Record {
    at(
        ms,
        cpu,
        Event::Wakeup {
            pid,
            target,
            is_rt: false,
        },
    )
}

fn hotplug(ms: u64, target: usize, online: bool) -> Record {
    at(ms, 0, Event::Hotplug { target, online })
}

/// Ticks of a busy CPU each 4 ms in a range.
fn ticks(cpu: usize, from: u64, to: u64) -> impl Iterator<Item = Record> {
    (from..to)
        .step_by(4)
        .map(move |ms| at(ms, cpu, Event::Sign))
}

fn run(setting: &Setting, mut records: Vec<Record>) -> Analysis {
    records.sort_by_key(|record| record.time);
    analyse(setting, &records)
}

/// Task 1 runs on CPU 0; task 2 waits there from 10 ms to `until`; CPU 1 is idle all the time.
fn stranded_until(until: u64) -> Vec<Record> {
    let mut records = vec![
        switch(1, 0, 0, false, 1),
        switch(1, 1, 1, false, 0),
        wakeup(10, 0, 2, 0),
        switch(until, 0, 1, true, 2),
        switch(until + 1, 0, 2, false, 1),
    ];
    records.extend(ticks(0, 1, until));
    records
}

#[test]
fn a_task_beside_an_idle_cpu_is_stranded() {
    let found = run(&setting(40), stranded_until(30));
    assert_eq!(found.violations.len(), 1);
    let worst = &found.violations[0];
    assert_eq!((worst.pid, worst.cpu, worst.idle_cpu), (2, 0, 1));
    assert_eq!(
        (worst.at_ns, worst.ns, worst.host_ns),
        (10 * MS, 20 * MS, 0)
    );
}

#[test]
fn the_cpu_that_is_named_was_idle_during_the_wait() {
    // CPU 1 is idle first, CPU 2 only later; then CPU 1 is busy, before task 2 waits.
    let mut records = stranded_until(30);
    records.extend([
        switch(1, 2, 4, false, 3),
        switch(3, 2, 3, false, 0),
        switch(5, 1, 0, false, 4),
    ]);
    records.extend(ticks(1, 5, 40));
    let mut setting = setting(40);
    setting.judged = CpuSet::of(0..3);
    for cpus in setting.affinity.values_mut() {
        *cpus = CpuSet::of(0..3);
    }
    let found = run(&setting, records);
    assert_eq!(found.violations.len(), 1);
    assert_eq!(found.violations[0].idle_cpu, 2);
}

#[test]
fn a_wait_of_a_tick_or_less_is_none() {
    let found = run(&setting(40), stranded_until(14));
    assert!(found.violations.is_empty());
    assert_eq!(found.longest_ns, 4 * MS);
}

#[test]
fn an_open_wait_counts_until_the_end() {
    let mut records = stranded_until(30);
    records.retain(|r| {
        !matches!(
            r.event,
            Event::Switch { next: 2, .. } | Event::Switch { prev: 2, .. }
        )
    });
    let found = run(&setting(33), records);
    assert_eq!(found.violations[0].ns, 23 * MS);
}

#[test]
fn affinity_decides_which_cpu_counts() {
    let mut pinned = setting(40);
    pinned.affinity.insert(2, CpuSet::of([0]));
    assert!(run(&pinned, stranded_until(30)).violations.is_empty());
    // Freed at 20 ms: stranded for the rest.
    let mut records = stranded_until(30);
    let both = CpuSet::of([0, 1]);
    records.push(at(
        19,
        0,
        Event::Affinity {
            pid: 2,
            cpus: both.clone(),
            done: false,
        },
    ));
    records.push(at(
        20,
        0,
        Event::Affinity {
            pid: 2,
            cpus: both,
            done: true,
        },
    ));
    let found = run(&pinned, records);
    assert_eq!(found.violations.len(), 1);
    assert_eq!(found.violations[0].ns, 10 * MS);
}

#[test]
fn unknown_affinity_is_counted_not_judged() {
    let mut unknown = setting(40);
    unknown.affinity.remove(&2);
    let found = run(&unknown, stranded_until(30));
    assert!(found.violations.is_empty());
    assert_eq!(found.unknown, 1);
    // A child inherits its parent's.
    let mut records = stranded_until(30);
    records.push(at(
        9,
        0,
        Event::Fork {
            parent: 1,
            child: 2,
        },
    ));
    assert_eq!(run(&unknown, records.clone()).violations.len(), 1);
    // The kernel makes a worker and then binds it to a CPU.
    unknown.later.insert(2, CpuSet::of([0]));
    assert!(run(&unknown, records).violations.is_empty());
}

#[test]
fn excluded_and_offline_cpus_do_not_count() {
    let mut one = setting(40);
    one.judged = CpuSet::of([0]);
    assert!(run(&one, stranded_until(30)).violations.is_empty());
    let mut records = stranded_until(30);
    records.extend([5, 5].map(|ms| hotplug(ms, 1, false)));
    records.push(hotplug(28, 1, true));
    assert!(run(&setting(40), records).violations.is_empty());
}

#[test]
fn a_cpu_that_went_while_the_recording_began_was_not_idle() {
    let mut records = stranded_until(20);
    assert_eq!(run(&setting(40), records.clone()).violations.len(), 1);
    records.extend([hotplug(18, 1, false), hotplug(30, 1, true)]);
    assert!(run(&setting(40), records.clone()).violations.is_empty());
    // With both marks the CPU was there before, and idle.
    records.push(hotplug(18, 1, false));
    assert_eq!(run(&setting(40), records).violations.len(), 1);
}

#[test]
fn real_time_tasks_are_the_kernels_business() {
    let mut records = stranded_until(30);
    for record in &mut records {
        if let Event::Wakeup { is_rt, .. } = &mut record.event {
            *is_rt = true;
        }
    }
    assert!(run(&setting(40), records).violations.is_empty());
}

#[test]
fn a_preempted_task_waits_too() {
    let mut records = vec![
        switch(1, 1, 1, false, 0),
        switch(2, 0, 2, true, 1),
        switch(22, 0, 1, true, 2),
    ];
    records.extend(ticks(0, 2, 40));
    let found = run(&setting(40), records);
    // Task 2 from 2 to 22, then task 1 from 22 to the end at 40.
    assert_eq!(
        found
            .violations
            .iter()
            .map(|s| (s.pid, s.ns / MS))
            .collect::<Vec<_>>(),
        [(2, 20), (1, 18)]
    );
}

#[test]
fn cpus_that_blink_in_turn_are_one_stretch() {
    // Three CPUs: 1 and 2 are idle in turn, without a moment in which both are busy.
    let mut three = setting(40);
    three.judged = CpuSet::of([0, 1, 2]);
    three.affinity.insert(2, CpuSet::of([0, 1, 2]));
    let mut records = stranded_until(30);
    records.push(switch(1, 2, 0, false, 3));
    for ms in (12..30).step_by(4) {
        records.push(switch(ms, 2, 3, false, 0));
        records.push(switch(ms + 1, 1, 0, false, 4));
        records.push(switch(ms + 2, 1, 4, false, 0));
        records.push(switch(ms + 3, 2, 0, false, 3));
    }
    let found = run(&three, records);
    assert!(
        found
            .violations
            .iter()
            .any(|s| s.pid == 2 && s.ns == 20 * MS),
        "{found:?}"
    );
}

#[test]
fn a_kicked_cpu_that_does_not_answer_is_late_not_idle() {
    // Kicked at 12 ms, answers by switching to the task at 30 ms.
    let mut records = stranded_until(50);
    records.retain(|r| {
        !matches!(
            r.event,
            Event::Switch { next: 2, .. } | Event::Switch { prev: 2, .. }
        )
    });
    records.push(at(12, 0, Event::Kick { target: 1 }));
    records.push(switch(30, 1, 0, false, 2));
    let found = run(&setting(40), records.clone());
    assert!(found.violations.is_empty(), "{found:?}");
    assert_eq!(found.slowest_answer_ns, 18 * MS);
    // It answers at 13 ms but takes nothing: stranded, apart from the hole.
    records.push(at(13, 1, Event::IdleEnter));
    let found = run(&setting(40), records);
    assert_eq!(found.violations.len(), 1);
    assert_eq!(
        (found.violations[0].ns, found.violations[0].host_ns),
        (20 * MS, MS)
    );
}

#[test]
fn interrupts_on_an_idle_cpu_do_not_hide_a_stranded_task() {
    let mut records = stranded_until(30);
    for ms in 11..29 {
        records.push(at(ms, 1, Event::Sign));
        records.push(at(ms, 1, Event::IdleEnter));
    }
    let found = run(&setting(40), records);
    assert_eq!(
        found
            .violations
            .iter()
            .map(|s| s.own_ns() / MS)
            .collect::<Vec<_>>(),
        [20]
    );
}

#[test]
fn an_idle_cpu_that_an_interrupt_woke_is_about_to_look() {
    // Task 2 is woken on the idle CPU 1 by an interrupt; the host takes the CPU away until 30 ms.
    let records = vec![
        switch(1, 0, 0, false, 1),
        switch(1, 1, 3, false, 0),
        wakeup(10, 1, 2, 1),
        at(11, 1, Event::IdleExit),
        switch(30, 1, 0, false, 2),
    ];
    let found = run(&setting(40), records);
    assert!(found.violations.is_empty(), "{found:?}");
    assert_eq!(found.slowest_answer_ns, 20 * MS);
}

#[test]
fn a_host_that_does_not_run_the_busy_cpu_is_late() {
    // No tick on CPU 0 between 9 and 29 ms.
    let mut records = stranded_until(30);
    records.retain(|r| !(matches!(r.event, Event::Sign) && (10..29).contains(&(r.time / MS))));
    let found = run(&setting(40), records);
    assert!(found.violations.is_empty(), "{found:?}");
    assert_eq!(found.late_host, 1);
}

#[test]
fn waits_older_than_the_trace_are_seen() {
    let mut records = vec![switch(20, 0, 1, true, 2), switch(25, 1, 0, false, 3)];
    records.extend(ticks(0, 0, 20));
    let found = run(&setting(30), records);
    // Task 3, too, was woken before the trace began: its wakeup would be in it.
    assert_eq!(
        found
            .violations
            .iter()
            .map(|s| (s.pid, s.ns / MS))
            .collect::<Vec<_>>(),
        [(2, 20), (3, 25), (1, 5)]
    );
}

/// The definition, straight: for each task and each millisecond, is it queued beside an idle CPU?
fn brute_force(records: &[Record], cpus: usize, end: u64) -> u64 {
    let mut longest = 0;
    for pid in 1..=4 {
        let (mut queued, mut idle) = (false, vec![false; cpus]);
        let mut run = 0;
        let mut next = records.iter().peekable();
        for ms in 0..end {
            while let Some(record) = next.next_if(|r| r.time == ms * MS) {
                match record.event {
                    Event::Switch {
                        prev,
                        prev_runs_on,
                        next,
                        ..
                    } => {
                        idle[record.cpu] = next == 0;
                        if prev == pid {
                            queued = prev_runs_on;
                        }
                        if next == pid {
                            queued = false;
                        }
                    }
                    Event::Wakeup { pid: woken, .. } if woken == pid => queued = true,
                    _ => {}
                }
            }
            run = if queued && idle.contains(&true) {
                run + 1
            } else {
                0
            };
            longest = longest.max(run);
        }
    }
    longest
}

proptest! {
    /// Random but consistent schedules: the tracker's longest stretch is the one of the definition.
    #[test]
    fn the_tracker_agrees_with_the_definition(
        choices in prop::collection::vec((0_usize..3, 0_u8..4), 1..200)
    ) {
        let mut running = [0_i32; 3];
        let mut ready: Vec<i32> = Vec::new();
        let mut asleep = vec![1, 2, 3, 4];
        let mut records: Vec<Record> = (0..3).map(|cpu| switch(0, cpu, 0, false, 0)).collect();
        let mut ms = 0;
        for (cpu, action) in choices {
            ms += 1;
            let prev = running[cpu];
            match action {
                0 | 1 if !asleep.is_empty() => {
                    let pid = asleep.remove(0);
                    records.push(wakeup(ms, cpu, pid, cpu));
                    if prev == 0 {
                        // Woken by an interrupt, and at once back in its idle state.
                        records.push(at(ms, cpu, Event::IdleEnter));
                    }
                    ready.push(pid);
                }
                2 if !ready.is_empty() => {
                    let next = ready.remove(0);
                    records.push(switch(ms, cpu, prev, prev != 0, next));
                    running[cpu] = next;
                    if prev != 0 { ready.push(prev); }
                }
                3 if prev != 0 => {
                    records.push(switch(ms, cpu, prev, false, 0));
                    running[cpu] = 0;
                    asleep.push(prev);
                }
                _ => {}
            }
        }
        let setting = Setting {
            // A huge tick: no gap is blamed on the host.
            tick_ns: 1_000_000 * MS,
            threshold_ns: 4 * MS,
            judged: CpuSet::of(0..3),
            affinity: (1..=4).map(|pid| (pid, CpuSet::of(0..3))).collect(),
            later: HashMap::new(),
            start: 0,
            end: (ms + 1) * MS,
        };
        let found = analyse(&setting, &records);
        let expected = brute_force(&records, 3, ms + 1);
        prop_assert_eq!(found.longest_ns / MS, expected);
        prop_assert_eq!(!found.violations.is_empty(), expected > 4);
    }
}
