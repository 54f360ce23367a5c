//! Boots a guest with two LLCs and SMT, starts a scheduler in it and runs a command.
//!
//!     cargo build --release -p scx_magpie -p magpie-guest
//!     cargo run --release -p magpie-lab --example boot_guest
use std::time::Duration;

use anyhow::{Context, Result};
use magpie_lab::{Guest, GuestOptions, Machine, files};

fn main() -> Result<()> {
    let scheduler = files::find_program("scx_magpie").context("build scx_magpie first")?;
    let mut guest = Guest::boot(&GuestOptions {
        machine: Machine::preset("smt8")?,
        files: vec![scheduler],
        ..GuestOptions::default()
    })?;
    guest.start_scheduler(&["scx_magpie".into()])?;
    print!("{}", guest.capture(&["nproc"], Duration::from_secs(10))?);
    let exit = guest.stop_scheduler()?;
    println!("scx_magpie ended with code {}", exit.code);
    guest.shutdown()
}
