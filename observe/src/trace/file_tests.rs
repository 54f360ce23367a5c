//! A trace is read as it was written.

use std::collections::BTreeMap;

use super::super::event::{Decision, Step};
use super::super::waits::tests::{event, switch, task, wakeup};
use super::*;

/// A recording with each kind of event.
fn recording() -> Recording {
    let (pid, from, to) = (5, 0, 1);
    let allowed = What::Allowed {
        pid,
        cpus: "0-1,4".into(),
    };
    let place = Decision::Place {
        pid,
        step: Step::IdleCore,
        from,
        to,
        looked: 3,
    };
    let waking = What::Waking {
        task: task(pid),
        target: 0,
    };
    let new = What::WakeupNew {
        task: task(7),
        target: 1,
    };
    let migrate = What::Migrate {
        task: task(pid),
        from,
        to,
    };
    let decision = |time, decision| event(time, to, What::Decision(decision));
    Recording {
        events: vec![
            event(100, 0, allowed),
            event(100, 0, waking),
            decision(101, place),
            wakeup(102, 0, pid, 1),
            event(103, 1, new),
            event(104, 1, migrate),
            decision(105, Decision::Steal { pid, from, to }),
            decision(106, Decision::Balance { pid, from, to }),
            decision(107, Decision::Push { pid, from }),
            decision(108, Decision::Offer { pid, from }),
            decision(109, Decision::Preferred { cores: 2 }),
            switch(110, 1, 0, 0, 7),
            switch(120, 1, 7, 0x100, pid),
        ],
        lost: BTreeMap::from([(1, 42)]),
    }
}

#[test]
fn a_trace_is_read_as_it_was_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let written = recording();
    write(file.path(), &written).unwrap();
    let read = read(file.path()).unwrap();
    assert_eq!(read.lost, written.lost);
    assert_eq!(read.events, written.events);
}

#[test]
fn what_is_no_trace_is_refused_with_the_remedy() {
    let error = read(Path::new("/nonexistent")).unwrap_err();
    assert!(
        format!("{error:#}").contains("magpie trace --seconds"),
        "{error:#}"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "not a trace").unwrap();
    assert!(read(file.path()).is_err());
}
