//! Explanations of waits.

use std::collections::BTreeMap;

use super::super::event::Decision;
use super::super::waits::tests::{event, switch, task, wakeup};
use super::*;

const MS: u64 = 1_000_000;

/// Task 5 waits from 10 to 30 ms on CPU 0 behind task 9, and CPU 1 idles from 15 ms on.
fn recording(placed: bool, cpus: &str) -> Recording {
    let waking = What::Waking {
        task: task(5),
        target: 0,
    };
    let place = What::Decision(Decision::Place {
        pid: 5,
        step: Step::Queue,
        from: 0,
        to: 0,
        looked: 4,
    });
    let allowed = What::Allowed {
        pid: 5,
        cpus: cpus.into(),
    };
    let mut events = vec![
        event(0, 0, allowed),
        switch(MS, 0, 0, 0, 9),
        switch(MS, 1, 0, 0, 8),
        event(10 * MS - 2, 1, waking),
    ];
    events.extend(placed.then(|| event(10 * MS - 1, 1, place)));
    events.extend([
        wakeup(10 * MS, 1, 5, 0),
        switch(15 * MS, 1, 8, 1, 0),
        switch(30 * MS, 0, 9, 0x100, 5),
        switch(31 * MS, 0, 5, 1, 9),
    ]);
    Recording {
        events,
        lost: BTreeMap::new(),
    }
}

#[test]
fn the_task_that_ran_and_the_cpu_that_idled_are_named() {
    let explanation = explain(&recording(true, "0-1"), 5, 3).unwrap();
    assert_eq!((explanation.waits, explanation.longest_ns), (1, 20 * MS));
    let text = explanation.to_string();
    for part in [
        "task5 [5] in 0.031 s: 1 wait, 20.000 ms in all",
        "It may use CPUs 0-1.",
        "20.000 ms on CPU 0, from 0.010000 s on",
        "after a look at 4 CPUs), so it joined the queue of CPU 0, its previous one",
        "meanwhile CPU 0 ran task9 [9] for 20.000 ms",
        "idle: CPU 1 for 15.000 ms",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn a_pinned_task_has_no_idle_cpu_and_no_search() {
    let text = explain(&recording(false, "0"), 5, 3).unwrap().to_string();
    assert!(text.contains("It may use CPU 0 only."), "{text}");
    assert!(text.contains("it may use CPU 0 only"), "{text}");
    assert!(text.contains("idle: no CPU that it may use"), "{text}");
}

#[test]
fn a_task_without_waits_is_refused_with_those_that_have_some() {
    let error = explain(&recording(true, "0-1"), 77, 3).unwrap_err();
    assert!(error.to_string().contains("task5 [5] 20.000 ms"), "{error}");
}

#[test]
fn percentiles_are_ranks() {
    let mut events = Vec::new();
    for wait in 1..=100 {
        events.push(wakeup(wait * MS, 0, 5, 0));
        events.push(switch(wait * MS + wait, 0, 0, 0, 5));
        events.push(switch(wait * MS + wait + 1, 0, 5, 1, 0));
    }
    let recording = Recording {
        events,
        lost: BTreeMap::new(),
    };
    let explanation = explain(&recording, 5, 3).unwrap();
    assert_eq!((explanation.median_ns, explanation.p99_ns), (50, 99));
    assert_eq!((explanation.longest_ns, explanation.total_ns), (100, 5050));
    assert_eq!(explanation.longest.len(), 3);
}
