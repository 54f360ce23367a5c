//! Keeps the end of what libbpf says.
//!
//! Without its print callback libbpf turns every failure into a bare error
//! number; with it, a verifier log of thousands of lines buries the reason. So
//! everything goes to the debug log, and the last lines are kept for the one
//! case in which they matter.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{PrintLevel, set_print};

/// The reason stands at the end of the verifier's log.
const KEPT_LINES: usize = 40;

static TAIL: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Starts keeping; call it before anything is opened.
pub fn keep() {
    set_print(Some((PrintLevel::Debug, keep_message)));
}

/// The last lines, oldest first.
pub fn tail() -> Vec<String> {
    TAIL.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .cloned()
        .collect()
}

fn keep_message(level: PrintLevel, message: String) {
    log::debug!("{}", message.trim_end());
    // Its debug messages tell each step; only warnings tell why it failed.
    if level != PrintLevel::Warn {
        return;
    }
    let mut tail = TAIL.lock().unwrap_or_else(PoisonError::into_inner);
    for line in message.lines() {
        if tail.len() == KEPT_LINES {
            tail.pop_front();
        }
        tail.push_back(line.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_warnings_is_kept() {
        keep_message(PrintLevel::Debug, "loading something".into());
        let long: Vec<_> = (0..1000).map(|line| format!("line {line}")).collect();
        keep_message(PrintLevel::Warn, long.join("\n"));
        assert_eq!(tail().len(), KEPT_LINES);
        assert_eq!(tail().last(), long.last());
    }
}
