//! Runs a program of the self-check in the guest, and returns its output.

use std::time::Duration;

use anyhow::{Result, ensure};
use magpie_guest::Stream;

use crate::guest::Guest;

/// Runs a program in the guest and returns what it prints. Fails if it ends with another code than
/// those.
pub(super) fn output_of(
    guest: &mut Guest,
    argv: &[String],
    timeout: Duration,
    codes: &[i32],
) -> Result<String> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let result = guest.exec(argv, timeout, &mut |stream, bytes| match stream {
        Stream::Stdout => stdout.extend_from_slice(bytes),
        Stream::Stderr => stderr.extend_from_slice(bytes),
    })?;
    ensure!(
        codes.contains(&result.code),
        "the self-check {argv:?} ended with code {}: {}",
        result.code,
        String::from_utf8_lossy(&stderr)
    );
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}
