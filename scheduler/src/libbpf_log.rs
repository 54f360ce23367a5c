//! Keeps the last messages of libbpf.
//!
//! Without a print callback libbpf turns every failure into a bare error number; with one, a
//! verifier log of thousands of lines buries the reason. So all messages go to the debug log, and
//! the last warnings are kept for a failed load.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{PrintLevel, set_print};

/// How many lines are kept. The reason stands at the end of the verifier's log.
const KEPT_LINES: usize = 40;

static TAIL: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Starts to keep messages. Messages before this call are lost, so call it before opening an
/// object.
pub fn keep() {
    set_print(Some((PrintLevel::Debug, keep_message)));
}

/// Returns the last warnings, oldest line first.
pub fn tail() -> Vec<String> {
    TAIL.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .cloned()
        .collect()
}

/// Receives each message of libbpf: logs it at debug level, and keeps it if it is a warning.
fn keep_message(level: PrintLevel, message: String) {
    log::debug!("{}", message.trim_end());
    // Debug messages report each step; only warnings say why a step failed.
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
