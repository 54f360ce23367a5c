//! The schedulers to compare: what `--sched` names, and where their programs are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::report::BASELINE;

/// A scheduler with its options, or none: the kernel's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// As given, and as the report names it.
    pub name: String,
    /// Program and options; empty for the baseline.
    pub argv: Vec<String>,
}

impl Candidate {
    /// Is this the kernel's own scheduler?
    pub fn is_baseline(&self) -> bool {
        self.argv.is_empty()
    }

    /// Is this ours, with counters to ask for?
    pub fn is_magpie(&self) -> bool {
        self.argv.first().is_some_and(|program| {
            Path::new(program)
                .file_name()
                .is_some_and(|n| n == "scx_magpie")
        })
    }
}

/// Reads a list such as `eevdf,scx_magpie,scx_lavd --performance`. The baseline comes first, whether
/// it was named or not: without it there is nothing to compare with.
pub fn parse_list(list: &str) -> Result<Vec<Candidate>> {
    let mut candidates = vec![Candidate {
        name: BASELINE.into(),
        argv: Vec::new(),
    }];
    for part in list
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        if part == BASELINE {
            continue;
        }
        let argv =
            shell_words::split(part).with_context(|| format!("read the scheduler `{part}`"))?;
        if candidates.iter().any(|known| known.name == part) {
            bail!("the scheduler `{part}` is named twice");
        }
        candidates.push(Candidate {
            name: part.into(),
            argv,
        });
    }
    Ok(candidates)
}

/// Finds a program: a path as it is; else in the source tree's `target/release` and
/// `target/peers/bin`, then in PATH. What was built last is what shall be measured, so PATH is last.
pub fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let tree = magpie_lab::place::source_tree().into_iter();
    let mut built =
        tree.flat_map(|tree| [tree.join("target/release"), tree.join("target/peers/bin")]);
    built
        .find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
        .or_else(|| which::which(name).ok())
}

/// Finds a scheduler's program, or says how to get it.
pub fn find_scheduler(name: &str) -> Result<PathBuf> {
    let remedy = match name {
        "scx_magpie" => "build it: cargo build --release -p scx_magpie".into(),
        peer => format!("install it: magpie bench peers install {peer}"),
    };
    find_program(name).with_context(|| {
        format!("no scheduler `{name}` in target/release, target/peers/bin or PATH; {remedy}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_always_first() {
        let names = |list| {
            parse_list(list)
                .unwrap()
                .into_iter()
                .map(|c| c.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names("scx_magpie"), ["eevdf", "scx_magpie"]);
        assert_eq!(names("scx_a, eevdf"), ["eevdf", "scx_a"]);
        assert_eq!(names(""), ["eevdf"]);
        assert!(parse_list("scx_a,scx_a").is_err());
    }

    #[test]
    fn options_belong_to_the_scheduler() {
        let candidates =
            parse_list("scx_lavd --performance,target/x/scx_magpie --no-steal").unwrap();
        assert_eq!(candidates[1].argv, ["scx_lavd", "--performance"]);
        assert!(!candidates[1].is_magpie() && candidates[2].is_magpie());
        assert!(candidates[0].is_baseline());
    }

    #[test]
    fn a_missing_program_is_named_with_its_remedy() {
        let error = find_scheduler("scx_no_such_thing").unwrap_err().to_string();
        assert!(
            error.contains("magpie bench peers install scx_no_such_thing"),
            "{error}"
        );
    }
}
