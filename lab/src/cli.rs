//! `magpie lab`.
use anyhow::{Result, bail};

/// Arguments of `magpie lab`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `magpie lab`; the process's exit code.
pub fn run(_args: Args) -> Result<u8> {
    bail!("under construction")
}
