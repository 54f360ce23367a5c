//! A guest on each functional preset sees the cores, caches, nodes and scheduling domains of the
//! preset.

use std::time::Duration;

use anyhow::{Result, ensure};
use magpie_lab::{Machine, topology};

/// Fails unless a guest on the preset sees the preset, and differs from another preset: without the
/// second comparison, one that always passes would not be noticed.
fn check(name: &str) -> Result<()> {
    let machine = Machine::preset(name)?;
    let mut guest = magpie_tests::boot(name, |options| {
        // 64 vCPUs boot slowly on a busy host of 2 CPUs.
        options.boot_timeout = Duration::from_secs(300);
    })?;
    let differences = topology::differences(&mut guest, &machine)?;
    ensure!(
        differences.is_empty(),
        "{name}:\n{}",
        differences.join("\n")
    );
    let other = Machine::preset(if name == "flat8" { "smt8" } else { "flat8" })?;
    let differences = topology::differences(&mut guest, &other)?;
    ensure!(
        !differences.is_empty(),
        "the check takes {name} for {}",
        other.name
    );
    guest.into_guest().shutdown()
}

macro_rules! presets {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() -> Result<()> {
            check(stringify!($name))
        }
    )*};
}

presets!(tiny2, one1, smt8, flat8, uneven12, numa8, wide64, smt4off1);
