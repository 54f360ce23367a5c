//! `make gate`: it passes on the results of the last release, and fails when one of their rows is
//! worse. The tree here is a git repository with one release; what the gate measures is replaced by
//! files (`MEASURED=1`), because a measurement takes a quarter of an hour.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

/// The results that the gate measures, from the line `gated="..."` of the script.
fn gated() -> Vec<String> {
    let script = fs::read_to_string(root().join("scripts/results.sh")).expect("the script");
    let line = script.lines().find_map(|line| line.strip_prefix("gated="));
    let names = line.expect("the gate's results").trim_matches('"');
    names.split(' ').map(str::to_string).collect()
}

fn root() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    folder.expect("the crate is a folder of the tree").into()
}

/// Runs a program that must succeed, and returns its standard output.
fn run(folder: &Path, program: &str, arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    output.stdout
}

/// A tree with the results of this one as release v0.1.0, and the same results as just measured.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().expect("a folder"));
        for folder in ["scripts", "docs/results", "target/release", "target/gate"] {
            fs::create_dir_all(tree.path(folder)).expect("a folder");
        }
        let script = root().join("scripts/results.sh");
        fs::copy(script, tree.path("scripts/results.sh")).expect("the script");
        let magpie = tree.path("target/release/magpie");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_magpie"), magpie).expect("a link");
        for name in gated() {
            let file = root().join(format!("docs/results/{name}.json.gz"));
            for folder in ["docs/results", "target/gate"] {
                let copy = tree.path(folder).join(format!("{name}.json.gz"));
                fs::copy(&file, copy).expect("a result that the tree has");
            }
        }
        tree.git(&["init", "--quiet"]);
        tree.commit();
        tree.git(&["tag", "v0.1.0"]);
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn git(&self, arguments: &[&str]) {
        let author = ["-c", "user.name=Test", "-c", "user.email=test@example.org"];
        run(self.0.path(), "git", &[&author, arguments].concat());
    }

    fn commit(&self) {
        self.git(&["add", "docs"]);
        self.git(&["commit", "--quiet", "--no-gpg-sign", "-m", "Results"]);
    }

    /// Makes the first row of scx_magpie in a result worse, by this factor; a factor below one
    /// makes it better.
    fn worsen(&self, file: &str, factor: f64) {
        let text = run(self.0.path(), "gzip", &["-dc", file]);
        let mut result: Value = serde_json::from_slice(&text).expect("a result");
        let rows = result["results"].as_array_mut().expect("rows");
        let row = rows.iter_mut().find(|row| row["scheduler"] == "scx_magpie");
        let row = row.expect("a row of scx_magpie");
        let factor = match row["better"] == "lower" {
            true => factor,
            false => 1.0 / factor,
        };
        let samples = row["samples"].as_array().expect("samples");
        let scaled = samples
            .iter()
            .map(|one| json!(one.as_f64().expect("a number") * factor));
        row["samples"] = scaled.collect();
        let plain = self.path("result.json");
        fs::write(&plain, result.to_string()).expect("a file");
        let packed = run(self.0.path(), "gzip", &["-c", "result.json"]);
        fs::write(self.path(file), packed).expect("a file");
    }

    /// Compares, as `make gate MEASURED=1` does, and returns whether the gate is open.
    fn is_open(&self) -> (bool, Output) {
        let mut command = Command::new("bash");
        command.arg("scripts/results.sh").current_dir(self.0.path());
        command.env_remove("ONLY").env_remove("LIMIT");
        let output = command.env("GATE", "1").env("MEASURED", "1").output();
        let output = output.expect("bash runs");
        (output.status.success(), output)
    }
}

#[test]
fn the_same_and_better_results_pass() {
    let tree = Tree::new();
    let (is_open, output) = tree.is_open();
    assert!(is_open, "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let all = format!("gate: {} passed, 0 failed", gated().len());
    assert!(
        text.contains("against that of v0.1.0") && text.contains(&all),
        "{text}"
    );

    tree.worsen(&format!("target/gate/{}.json.gz", gated()[0]), 0.5);
    let (is_open, output) = tree.is_open();
    assert!(is_open, "{output:?}");
}

#[test]
fn a_worse_row_fails_whatever_the_tree_has_since_the_release() {
    for name in gated() {
        let tree = Tree::new();
        // Ten times, because a worst deviation from fair shares varies much from round to round.
        tree.worsen(&format!("target/gate/{name}.json.gz"), 10.0);
        // Worse figures in the tree do not open the gate: the release counts.
        tree.worsen(&format!("docs/results/{name}.json.gz"), 10.0);
        tree.commit();
        let (is_open, output) = tree.is_open();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!is_open && errors.contains(&name), "{name}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.matches("WORSE").count(), 1, "{name}: {text}");
    }
}

#[test]
fn without_a_result_to_compare_with_the_gate_is_closed() {
    let tree = Tree::new();
    tree.git(&["tag", "--delete", "v0.1.0"]);
    let (is_open, output) = tree.is_open();
    assert!(is_open, "the tree's own results count: {output:?}");
    tree.git(&["rm", "--quiet", "docs/results/steal-vt8.json.gz"]);
    tree.git(&["commit", "--quiet", "--no-gpg-sign", "-m", "None"]);
    let (is_open, output) = tree.is_open();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !is_open && errors.contains("make results ONLY=steal-vt8"),
        "{output:?}"
    );
}
