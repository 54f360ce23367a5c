//! `magpie bench bisect` finds a planted bad step among sixteen, unattended: real programs, run on
//! this host under the kernel's own scheduler. Their figure is the number of random numbers that
//! they draw, which has noise, as a time has, but no more of it on a busy host.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use magpie_lab::git::git;
use serde_json::Value;

/// The step from which on the program draws more.
const CULPRIT: usize = 11;
const STEPS: usize = 16;

/// Each step has a program of its own, which the name of the candidate chooses.
const WORKLOAD: &str = "
[[workload]]
name = 'program'
about = ''
command = \"sh built/{candidate}/program\"
needs = ['sh']
timeout_s = 20
metric = [{ unit = 'draws', better = 'lower', after = 'draws:' }]
";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        fs::write(folder.path("program.toml"), WORKLOAD).expect("written");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `magpie bench bisect` with a workload on this host; writes found.json.
    fn bisect(&self, words: &[&str]) -> Output {
        let common = [
            "bench",
            "bisect",
            "--in",
            "host",
            "--workloads",
            "program.toml",
            "--workload",
            "program",
            "--json",
            "found.json",
        ];
        let output = Command::new(env!("CARGO_BIN_EXE_magpie"))
            .current_dir(self.0.path())
            .args(common)
            .args(words)
            .output();
        output.expect("magpie runs")
    }

    fn found(&self) -> Value {
        let text = fs::read_to_string(self.path("found.json")).expect("a result");
        serde_json::from_str(&text).expect("JSON")
    }
}

/// A program that adds random numbers below one until the sum is reached.
fn program(sum: usize) -> String {
    format!(
        "awk -v seed=$$ 'BEGIN {{ srand(seed); while (sum < {sum}) {{ sum += rand(); n++ }} \
         print \"draws: \" n }}'\n"
    )
}

/// A git tree with a good commit and sixteen more, of which one makes the program draw more, and
/// the others a little more or less.
fn tree(folder: &Folder) -> PathBuf {
    let tree = folder.path("tree");
    fs::create_dir(&tree).expect("created");
    let run = |words: &[&str]| git(&tree, words, None).expect("git succeeds");
    run(&["init", "-q"]);
    run(&["config", "user.name", "n"]);
    run(&["config", "user.email", "e@x"]);
    for step in 0..=STEPS {
        let more = if step >= CULPRIT { 25 } else { 0 };
        fs::write(tree.join("program"), program(100 + more + step % 2)).expect("written");
        run(&["add", "."]);
        run(&["commit", "-q", "-m", &format!("step {step}")]);
        run(&["tag", &format!("step-{step}")]);
    }
    tree
}

#[test]
fn the_commit_that_makes_a_program_worse_is_found_among_sixteen() {
    let folder = Folder::new();
    let tree = tree(&folder);
    let build = "mkdir -p built/{} && git -C tree archive {} | tar -x -C built/{}";
    let ends = ["--git", "tree", "--good", "step-0", "--bad", "step-16"];
    let output = folder.bisect(&[&ends[..], &["--build", build]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains(" step 11 (n, "), "{said}");

    let found = folder.found();
    let culprit = git(&tree, &["rev-parse", "--short=12", "step-11"], None).expect("a commit");
    assert_eq!(found["first_bad"], culprit.trim());
    // The bad end, and one step per halving.
    let tried = found["tried"].as_array().expect("a list");
    assert_eq!(tried.len(), 5, "{found:#}");
    // The bar is between the figures of both sides: the program draws 1.25 times as often.
    let bar = found["bar"].as_f64().expect("a number");
    assert!(bar > 1.03 && bar < 1.2, "{bar}");
}

#[test]
fn steps_that_do_not_build_are_left_out_and_what_is_left_is_named() {
    let folder = Folder::new();
    let steps: Vec<String> = (0..=8).map(|step| format!("v{step}")).collect();
    for (index, step) in steps.iter().enumerate() {
        let program = program(if index >= 4 { 200 } else { 100 });
        fs::create_dir_all(folder.path("built").join(step)).expect("created");
        fs::write(folder.path("built").join(step).join("program"), program).expect("written");
    }
    let list = steps.join(",");
    let output = folder.bisect(&["--steps", &list, "--build", "test {} != v3"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("is one of 2:\n  v"), "{said}");
    let found = folder.found();
    let mut left: Vec<&str> = found["left"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    left.sort_unstable();
    assert_eq!(left, ["v3", "v4"]);
    assert_eq!(found["first_bad"], Value::Null);
}

#[test]
fn without_a_real_difference_there_is_nothing_to_find() {
    let folder = Folder::new();
    for (step, sum) in [("old", 200), ("new", 100)] {
        fs::create_dir_all(folder.path("built").join(step)).expect("created");
        let path = folder.path("built").join(step).join("program");
        fs::write(path, program(sum)).expect("written");
    }
    let output = folder.bisect(&["--steps", "old,new"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        said.contains("the step new is not worse than old: its figure is on the good side"),
        "{said}"
    );
    // The same program twice is not twice as bad.
    fs::write(folder.path("built/new/program"), program(200)).expect("written");
    let output = folder.bisect(&["--steps", "old,new", "--limit", "100%", "--rounds", "8"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("the step new is not worse than old"),
        "{said}"
    );
}

#[test]
fn mistakes_are_named_with_their_remedy() {
    let folder = Folder::new();
    for (words, complaint) in [
        (
            &["--steps", "a,b", "--metric", "p99"][..],
            "has no metric `p99`",
        ),
        (
            &["--steps", "a,b", "--workload", "latency"],
            "name one workload",
        ),
        (
            &["--steps", "a"],
            "nothing between the good step and the bad one",
        ),
        (&["--steps", "a,b", "--good", "c"], "no step `c` in a, b"),
        (
            &["--git", "/no/such", "--good", "x", "--bad", "y"],
            "/no/such",
        ),
        (
            &["--steps", "a,b", "--build", "echo why; false"],
            "cannot build the good step a",
        ),
    ] {
        let output = folder.bisect(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words:?}");
        assert!(said.contains(complaint), "{words:?}: {said}");
    }
}
