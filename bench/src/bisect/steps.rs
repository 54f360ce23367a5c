//! The steps of a bisection: which to try next, and which are left.
//!
//! Commits form a graph, in which git knows the best commit to try. Anything else is a list.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use magpie_lab::git::git;

/// A commit's name has this many characters.
const SHORT: usize = 12;

/// The steps, and which of them are known to be good or bad so far.
pub enum Steps {
    /// Names in their order.
    List {
        /// All names.
        names: Vec<String>,
        /// Index of the last step that is known to be good.
        good: usize,
        /// Index of the first that is known to be bad.
        bad: usize,
    },
    /// Commits of a git tree.
    Commits {
        /// The tree.
        tree: PathBuf,
        /// Commits that are known to be good, and with each all that came before it.
        good: Vec<String>,
        /// The earliest commit that is known to be bad.
        bad: String,
    },
}

impl Steps {
    /// The steps of a list from `good` to `bad`: the first and the last if they are not named.
    ///
    /// # Errors
    /// If a name is not in the list, or `bad` does not come after `good`.
    pub fn list(names: Vec<String>, good: Option<&str>, bad: Option<&str>) -> Result<Self> {
        let index = |name: &str| {
            names
                .iter()
                .position(|step| step == name)
                .with_context(|| format!("there is no step `{name}` in {}", names.join(", ")))
        };
        let good = good.map_or(Ok(0), index)?;
        let bad = bad.map_or(Ok(names.len().saturating_sub(1)), index)?;
        ensure!(
            good < bad,
            "there is nothing between the good step and the bad one, which must come after it"
        );
        Ok(Self::List { names, good, bad })
    }

    /// The commits that are in `bad` and not in `good`.
    ///
    /// # Errors
    /// If one of them is no commit, or `bad` has nothing that `good` has not.
    pub fn commits(tree: PathBuf, good: &str, bad: &str) -> Result<Self> {
        let full = |commit: &str| {
            let wanted = format!("{commit}^{{commit}}");
            let found = git(&tree, &["rev-parse", "--verify", "--quiet", &wanted], None)
                .with_context(|| format!("{} has no commit {commit}", tree.display()))?;
            Ok::<_, anyhow::Error>(found.trim().to_string())
        };
        let steps = Self::Commits {
            good: vec![full(good)?],
            bad: full(bad)?,
            tree,
        };
        ensure!(
            !steps.left()?.is_empty(),
            "the commit {bad} has nothing that {good} has not: is --good the older one?"
        );
        Ok(steps)
    }

    /// The step that is known to be good, to compare with.
    pub fn good(&self) -> String {
        match self {
            Self::List { names, good, .. } => names[*good].clone(),
            Self::Commits { good, .. } => short(&good[0]),
        }
    }

    /// The step that is known to be bad.
    pub fn bad(&self) -> String {
        match self {
            Self::List { names, bad, .. } => names[*bad].clone(),
            Self::Commits { bad, .. } => short(bad),
        }
    }

    /// The steps of which one is the first bad one; the known bad one is among them. Those that
    /// divide the others best come first.
    pub fn left(&self) -> Result<Vec<String>> {
        match self {
            Self::List { names, good, bad } => {
                let mut left: Vec<usize> = (good + 1..=*bad).collect();
                // The known bad one tells nothing new.
                let middle = (good + bad) / 2;
                left.sort_by_key(|index| (index == bad, index.abs_diff(middle.max(good + 1))));
                Ok(left.into_iter().map(|index| names[index].clone()).collect())
            }
            Self::Commits { tree, good, bad } => {
                let mut words = vec!["rev-list", "--bisect-all", bad.as_str(), "--not"];
                words.extend(good.iter().map(String::as_str));
                let listed = git(tree, &words, None)?;
                let hashes = listed.lines().filter_map(|line| line.split(' ').next());
                let mut left: Vec<&str> = hashes.collect();
                left.sort_by_key(|hash| hash == bad); // The sort is stable.
                Ok(left.into_iter().map(short).collect())
            }
        }
    }

    /// The step to try next; None if no step is left that says more. `skipped` could not be judged.
    pub fn next(&self, skipped: &BTreeSet<String>) -> Result<Option<String>> {
        let bad = self.bad();
        let mut left = self.left()?.into_iter();
        Ok(left.find(|step| *step != bad && !skipped.contains(step)))
    }

    /// Remembers what a step is.
    ///
    /// # Errors
    /// If it is none of the steps.
    pub fn mark(&mut self, step: &str, is_bad: bool) -> Result<()> {
        match self {
            Self::List { names, good, bad } => {
                let index = names.iter().position(|name| name == step);
                let index = index.with_context(|| format!("no step `{step}`"))?;
                match is_bad {
                    true => *bad = index,
                    false => *good = index,
                }
            }
            Self::Commits { tree, good, bad } => {
                let full = git(tree, &["rev-parse", "--verify", step], None)?;
                match is_bad {
                    true => *bad = full.trim().to_string(),
                    false => good.push(full.trim().to_string()),
                }
            }
        }
        Ok(())
    }

    /// A line that says what a step is; its name if there is nothing more to say.
    pub fn describe(&self, step: &str) -> String {
        let described = match self {
            Self::List { .. } => None,
            Self::Commits { tree, .. } => {
                let format = "--format=%h %s (%an, %as)";
                git(tree, &["show", "-s", "--abbrev=12", format, step], None).ok()
            }
        };
        described.map_or_else(|| step.to_string(), |line| line.trim().to_string())
    }
}

fn short(hash: impl AsRef<str>) -> String {
    let hash = hash.as_ref();
    hash.get(..SHORT).unwrap_or(hash).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bisects, with `is_bad` for a measurement. Returns the first bad step and the steps tried.
    fn bisect(mut steps: Steps, is_bad: impl Fn(&str) -> bool) -> (String, usize) {
        let mut tried = 0;
        while let Some(step) = steps.next(&BTreeSet::new()).expect("lists") {
            steps.mark(&step, is_bad(&step)).expect("known");
            tried += 1;
        }
        assert_eq!(steps.left().expect("lists"), [steps.bad()]);
        (steps.bad(), tried)
    }

    #[test]
    fn each_of_sixteen_steps_is_found_in_four() {
        let names: Vec<String> = (0..=16).map(|step| step.to_string()).collect();
        for first in 1..=16 {
            let steps = Steps::list(names.clone(), None, None).expect("valid");
            let is_bad = |step: &str| step.parse::<usize>().expect("a number") >= first;
            assert_eq!(bisect(steps, is_bad), (first.to_string(), 4));
        }
    }

    #[test]
    fn a_step_that_cannot_be_judged_is_left_out() {
        let names = ["a", "b", "c", "d"].map(String::from).to_vec();
        let mut steps = Steps::list(names, Some("a"), Some("d")).expect("valid");
        let skipped = BTreeSet::from([steps.next(&BTreeSet::new()).expect("lists").expect("one")]);
        assert_eq!(skipped, BTreeSet::from(["b".to_string()]));
        assert_eq!(steps.next(&skipped).expect("lists").as_deref(), Some("c"));
        steps.mark("c", true).expect("known");
        assert_eq!(steps.next(&skipped).expect("lists"), None);
        assert_eq!(steps.left().expect("lists"), ["b", "c"]);
    }

    #[test]
    fn ends_that_do_not_fit_are_refused() {
        let names = || ["a", "b"].map(String::from).to_vec();
        for (good, bad) in [("b", "a"), ("a", "a"), ("a", "x")] {
            assert!(Steps::list(names(), Some(good), Some(bad)).is_err());
        }
        assert!(Steps::list(vec!["a".into()], None, None).is_err());
    }

    #[test]
    fn a_commit_of_a_merged_branch_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let run = |words: &[&str]| git(path, words, None).expect("git succeeds");
        run(&["init", "-q", "-b", "main"]);
        run(&["config", "user.name", "n"]);
        run(&["config", "user.email", "e@x"]);
        let commit = |name: &str| run(&["commit", "-q", "--allow-empty", "-m", name]);
        commit("base");
        run(&["tag", "base"]);
        run(&["checkout", "-q", "-b", "side"]);
        for name in ["side1", "side2 bad", "side3"] {
            commit(name);
        }
        run(&["tag", "culprit", "side~1"]);
        run(&["checkout", "-q", "main"]);
        commit("main1");
        run(&["merge", "-q", "--no-edit", "side"]);
        commit("main2");
        let steps = Steps::commits(path.into(), "base", "main").expect("commits");
        assert_eq!(steps.left().expect("lists").len(), 6);
        let has_culprit = |step: &str| {
            git(
                path,
                &["merge-base", "--is-ancestor", "culprit", step],
                None,
            )
            .is_ok()
        };
        let (found, _) = bisect(steps, has_culprit);
        let steps = Steps::commits(path.into(), "base", "main").expect("commits");
        let line = steps.describe(&found);
        assert!(
            line.starts_with(&format!("{found} side2 bad (n, ")),
            "{line}"
        );
        assert!(Steps::commits(path.into(), "main", "base").is_err());
    }
}
