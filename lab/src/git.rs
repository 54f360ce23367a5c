//! Runs git in a tree of the user.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::text;

/// Runs git in a tree, with an index of its own if one is given, so that the user's index stays as it
/// is. Returns what git prints. Removes git's variables from the environment, because a git hook that
/// calls the lab has set them for its own tree.
///
/// # Errors
/// If git fails; with its reason.
pub fn git(tree: &Path, words: &[&str], index: Option<&Path>) -> Result<String> {
    let mut command = Command::new("git");
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(variable);
    }
    if let Some(index) = index {
        // With a work tree elsewhere, git no longer looks for the repository from the folder.
        let found = git(tree, &["rev-parse", "--absolute-git-dir"], None)?;
        command.env("GIT_DIR", found.trim());
        command.env("GIT_INDEX_FILE", index);
    }
    let output = command
        .current_dir(tree)
        .args(words)
        .output()
        .context("cannot run git; install it with `apt-get install git`")?;
    ensure!(
        output.status.success(),
        "git {} failed in {}: {}",
        words.join(" "),
        tree.display(),
        text::last_lines(&String::from_utf8_lossy(&output.stderr), 4)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the files that git knows or would add, as paths from the root of the tree. A file that
/// was deleted and not yet committed is among them.
///
/// # Errors
/// If git fails; with its reason.
pub fn files(tree: &Path) -> Result<Vec<PathBuf>> {
    let words = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let listed = git(tree, &words, None)?;
    Ok(listed.split_terminator('\0').map(PathBuf::from).collect())
}
