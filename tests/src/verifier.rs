//! The verifier baseline: how many instructions each kernel's verifier processes for each program.
//!
//! The verifier gives up on a program after a million instructions, and its work is most of the
//! time that scx_magpie takes to start. Both grow unseen, so the counts are kept in
//! `tests/verifier.json`, per kernel series and program, and a test fails when one has grown by
//! more than [`GROWTH`]. `MAGPIE_REFRESH=1` makes the test rewrite the file instead: [`REFRESH`] is
//! the command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use serde_json::Value;

use crate::scheduler::{json, number};

/// The largest growth that passes: one that a compiler of another version causes stays below it.
pub const GROWTH: f64 = 0.2;

/// Measures anew and rewrites the baseline.
pub const REFRESH: &str = "MAGPIE_REFRESH=1 cargo test --release -p magpie-tests every_kernel_and";

/// Instructions processed, by program. The kernel keeps 15 characters of a program's name; programs
/// whose names do not differ within these are one entry, their sum.
pub type Counts = BTreeMap<String, u64>;

/// Counts by kernel series, as in the file.
type Baseline = BTreeMap<String, Counts>;

/// The counts of the scheduler that is loaded in the guest, which has `magpie-load`.
pub fn counts(guest: &mut Guest) -> Result<Counts> {
    let found = json(guest, "magpie-load programs --json")?;
    let programs = found["programs"].as_array().context("a list of programs")?;
    let mut counts = Counts::new();
    for program in programs {
        let name = program["name"].as_str().context("a program's name")?;
        let count = number(program, "/verified_instructions")?;
        *counts.entry(name.to_string()).or_default() += count as u64;
    }
    ensure!(!counts.is_empty(), "no program is loaded: {found}");
    Ok(counts)
}

/// Holds the counts against the baseline, or makes them the baseline if `MAGPIE_REFRESH` is set.
pub fn check(series: &str, counts: &Counts) -> Result<()> {
    let file = path();
    let mut baseline = read(&file)?;
    if std::env::var_os("MAGPIE_REFRESH").is_some() {
        baseline.insert(series.to_string(), counts.clone());
        return write(&file, &baseline);
    }
    let differences = differences(baseline.get(series).unwrap_or(&Counts::new()), counts);
    ensure!(
        differences.is_empty(),
        "kernel {series}: the verifier's work differs from {}:\n{}\nIf that is meant: {REFRESH}",
        file.display(),
        differences.join("\n")
    );
    Ok(())
}

/// Programs that are new, gone, or have grown too much, one a line.
fn differences(before: &Counts, now: &Counts) -> Vec<String> {
    let grown = now
        .iter()
        .filter_map(|(name, count)| match before.get(name) {
            None => Some(format!("{name}: {count} instructions, and not known")),
            Some(old) if *count as f64 > *old as f64 * (1.0 + GROWTH) => Some(format!(
                "{name}: {count} instructions instead of {old}, {:+.0} %",
                100.0 * (*count as f64 / *old as f64 - 1.0)
            )),
            Some(_) => None,
        });
    let gone = before.keys().filter(|name| !now.contains_key(*name));
    grown
        .chain(gone.map(|name| format!("{name}: gone")))
        .collect()
}

/// The path of the baseline.
fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("verifier.json")
}

fn read(file: &Path) -> Result<Baseline> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("in {}", file.display()))
}

fn write(file: &Path, baseline: &Baseline) -> Result<()> {
    let value: Value = serde_json::to_value(baseline)?;
    let text = serde_json::to_string_pretty(&value)? + "\n";
    std::fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts_of(counts: &[(&str, u64)]) -> Counts {
        let owned = counts
            .iter()
            .map(|(name, count)| (name.to_string(), *count));
        owned.collect()
    }

    #[test]
    fn only_growth_beyond_the_limit_and_other_programs_are_differences() {
        let before = counts_of(&[("dispatch", 1000), ("tick", 500), ("yield", 10)]);
        let same = counts_of(&[("dispatch", 1200), ("tick", 100), ("yield", 10)]);
        assert_eq!(differences(&before, &same), Vec::<String>::new());

        let other = counts_of(&[("dispatch", 1201), ("tick", 500), ("enable", 7)]);
        assert_eq!(
            differences(&before, &other),
            [
                "dispatch: 1201 instructions instead of 1000, +20 %",
                "enable: 7 instructions, and not known",
                "yield: gone",
            ]
        );
    }
}
