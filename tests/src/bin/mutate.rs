//! `mutate [--vm | --vm-only] [WORD...]`: applies the mutations of `mutations.rs` to a copy of the
//! tree, one at a time, and runs the test that must find each. `make mutants` runs it.
//!
//! Without `--vm` it applies only the mutations that native tests find, with `--vm-only` only the
//! others. With words, it applies only mutations in whose description all of them occur. The exit
//! code is 1 if a test did not find its mutation, or if a mutant was not built.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::{files, git};
use magpie_tests::mutations::{Finder, MUTATIONS, Mutation};

fn main() -> Result<ExitCode> {
    let (options, words): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|argument| argument.starts_with("--"));
    let (native, machine) = match &options[..] {
        [] => (true, false),
        [option] if option == "--vm" => (true, true),
        [option] if option == "--vm-only" => (false, true),
        _ => bail!("usage: mutate [--vm | --vm-only] [WORD...]"),
    };
    let chosen = MUTATIONS.iter().filter(|mutation| {
        let is_chosen = match mutation.finder {
            Finder::Native(..) => native,
            Finder::Machine(..) => machine,
        };
        is_chosen
            && words
                .iter()
                .all(|word| mutation.fault.contains(word.as_str()))
    });
    let chosen: Vec<&Mutation> = chosen.collect();

    let tree = files::source_tree().context("there is no source tree")?;
    let copy = tempfile::tempdir().context("make a folder for the copy of the tree")?;
    copy_tree(&tree, copy.path())?;
    // In the tree's own target folder, so that a second call builds less. The lab's downloads are
    // those of the tree, too.
    let target = tree.join("target/mutants");
    fs::create_dir(copy.path().join("target")).context("make the copy's target folder")?;
    symlink(files::lab_dir()?, copy.path().join("target/lab")).context("link the lab's folder")?;

    let mut missed = 0;
    for mutation in &chosen {
        let began = Instant::now();
        ensure!(
            run_test(mutation.finder, copy.path(), &target)? == Outcome::Passed,
            "{:?} does not pass without a mutation",
            mutation.finder
        );
        let before = mutation.apply(copy.path())?;
        let outcome = run_test(mutation.finder, copy.path(), &target)?;
        fs::write(copy.path().join(mutation.file), before).context("undo the mutation")?;
        missed += u32::from(outcome != Outcome::Failed);
        println!(
            "{}  {} ({:?}, {:.0} s)",
            match outcome {
                Outcome::Failed => "found    ",
                Outcome::Passed => "SURVIVED ",
                Outcome::NotBuilt => "NOT BUILT",
            },
            mutation.fault,
            mutation.finder,
            began.elapsed().as_secs_f64()
        );
    }
    println!("{} mutations, {missed} not found", chosen.len());
    Ok(match missed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Copies the files that git knows or would add.
fn copy_tree(tree: &Path, copy: &Path) -> Result<()> {
    for name in git::files(tree)? {
        let (from, to) = (tree.join(&name), copy.join(&name));
        if !from.is_file() {
            continue;
        }
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::copy(&from, &to).with_context(|| format!("copy {}", from.display()))?;
    }
    Ok(())
}

/// How a test in the copy ended.
#[derive(PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    /// The compiler refuses the mutant, which says nothing of the test.
    NotBuilt,
}

/// Builds a test in the copy, and runs it.
fn run_test(finder: Finder, copy: &Path, target: &Path) -> Result<Outcome> {
    let cargo = |arguments: &[&str]| {
        let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(arguments)
            .current_dir(copy)
            .env("CARGO_TARGET_DIR", target)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        anyhow::Ok(status.context("run cargo")?.success())
    };
    let arguments = finder.cargo_arguments();
    if !cargo(&[&arguments[..], &["--no-run"]].concat())? {
        return Ok(Outcome::NotBuilt);
    }
    Ok(match cargo(&arguments)? {
        true => Outcome::Passed,
        false => Outcome::Failed,
    })
}
