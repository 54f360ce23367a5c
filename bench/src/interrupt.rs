//! Ctrl-C: the first one ends the measurement in good order (what was measured is kept, guests and
//! schedulers are ended), another one a second later ends the program at once.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Signals that come together are one request: timeout(1) and batch systems signal a process and then
/// its whole group.
const ONE_REQUEST: Duration = Duration::from_secs(1);

static REQUESTED: OnceLock<Instant> = OnceLock::new();

/// Was the program asked to stop?
pub fn is_requested() -> bool {
    REQUESTED.get().is_some()
}

/// Starts listening for SIGINT, SIGTERM and SIGHUP.
pub fn listen() -> Result<()> {
    ctrlc::set_handler(|| {
        // Whatever waits for a guest now fails at once; the runner sees why.
        magpie_lab::qemu::abandon_all();
        if REQUESTED.get_or_init(Instant::now).elapsed() > ONE_REQUEST {
            std::process::exit(130);
        }
    })
    .context("listen for Ctrl-C")
}
