//! Ctrl-C. The first one ends the measurement in good order: samples are kept, guests and
//! schedulers are stopped. Another one, at least a second later, ends the program at once.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Signals within this time are one request, because timeout(1) and batch systems signal a process
/// and then its whole group.
const ONE_REQUEST: Duration = Duration::from_secs(1);

static REQUESTED: OnceLock<Instant> = OnceLock::new();

/// Was the program asked to stop?
pub fn is_requested() -> bool {
    REQUESTED.get().is_some()
}

/// Ends what the caller does if the program was asked to stop.
///
/// # Errors
/// If it was.
pub fn stop_if_requested() -> Result<()> {
    ensure!(!is_requested(), "interrupted");
    Ok(())
}

/// Handles SIGINT, SIGTERM and SIGHUP from now on.
pub fn listen() -> Result<()> {
    ctrlc::set_handler(|| {
        // Every wait for a guest fails at once, and the runner then asks is_requested().
        magpie_lab::qemu::abandon_all();
        if REQUESTED.get_or_init(Instant::now).elapsed() > ONE_REQUEST {
            std::process::exit(130);
        }
    })
    .context("listen for Ctrl-C")
}
