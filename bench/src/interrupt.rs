//! Ctrl-C: the first one ends the measurement in good order (what was measured is kept, guests and
//! schedulers are ended), the second one ends the program at once.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Was the program asked to stop?
pub fn is_requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Starts listening for SIGINT, SIGTERM and SIGHUP.
pub fn listen() -> Result<()> {
    ctrlc::set_handler(|| {
        // Whatever waits for a guest now fails at once; the runner sees why.
        magpie_lab::qemu::abandon_all();
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .context("listen for Ctrl-C")
}
