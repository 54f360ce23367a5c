//! Results as data: `magpie bench show` prints result files of every age and refuses other files,
//! and docs/results.md, docs/callback-cost.md and the mechanisms' pages have the tables and pictures
//! that it makes of docs/results/.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

fn root() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    folder.expect("the crate is a folder of the tree").into()
}

/// The pages that have tables of results, each with its path in the tree and its text.
fn pages() -> Vec<(String, String)> {
    let mechanisms = std::fs::read_dir(root().join("docs/mechanisms")).expect("docs/mechanisms");
    let names = mechanisms.map(|entry| entry.expect("an entry").file_name());
    let mut paths: Vec<String> = names
        .map(|name| format!("docs/mechanisms/{}", name.to_string_lossy()))
        .chain(["docs/results.md", "docs/callback-cost.md"].map(String::from))
        .collect();
    paths.sort();
    let read = |path: &String| std::fs::read_to_string(root().join(path)).expect("a page");
    paths
        .iter()
        .map(|path| (path.clone(), read(path)))
        .collect()
}

/// Runs `magpie bench ARGUMENTS` in the root of the tree.
fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_magpie"));
    command.arg("bench").args(arguments).current_dir(root());
    command.output().expect("magpie runs")
}

/// The standard output of a command that must succeed.
fn printed(arguments: &[&str]) -> String {
    let output = bench(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The one line on standard error of a command that must fail.
fn refused(arguments: &[&str]) -> String {
    let output = bench(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

/// The names of the tables that a page has, in its order.
fn tables_of(page: &str) -> Vec<String> {
    let starts = page.split("<!-- table: ").skip(1);
    starts
        .map(|rest| rest.split(" -->").next().unwrap_or_default().to_string())
        .collect()
}

/// The result files of the tree, by the names of their tables.
fn result_files() -> BTreeSet<String> {
    let entries = std::fs::read_dir(root().join("docs/results")).expect("docs/results");
    entries
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .map(|name| {
            let stem = name.strip_suffix(".json.gz");
            stem.unwrap_or_else(|| panic!("docs/results/{name} is no result"))
                .to_string()
        })
        .collect()
}

#[test]
fn each_table_of_a_page_is_what_show_prints_of_its_file() {
    let tables = pages().into_iter().flat_map(|(path, text)| {
        let names = tables_of(&text);
        names
            .into_iter()
            .map(move |name| (path.clone(), text.clone(), name))
    });
    for (path, page, name) in tables {
        let file = format!("docs/results/{name}.json.gz");
        let expected = printed(&["show", "--docs", &file]);
        let start = format!("<!-- table: {name} -->\n");
        let rest = page.split(&start).nth(1).expect("its marker is there");
        let table = rest.split("<!-- end -->").next().expect("a table");
        assert!(
            table == expected,
            "{path} has another table {name} than {file}; this replaces it:\n  \
             target/release/magpie bench show --into {path} {file}\n{expected}"
        );
    }
}

#[test]
fn each_result_file_has_one_table_a_command_and_its_origin() {
    let tables: Vec<String> = pages()
        .iter()
        .flat_map(|(_, text)| tables_of(text))
        .collect();
    let named: BTreeSet<String> = tables.iter().cloned().collect();
    assert_eq!(
        named.len(),
        tables.len(),
        "a table stands twice: {tables:?}"
    );
    assert_eq!(named, result_files(), "tables of the pages, and files");
    let script = std::fs::read_to_string(root().join("scripts/results.sh")).expect("the commands");
    for name in named {
        let makes_it = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().take(3).collect();
            match words[..] {
                ["without", result, machine] => name == format!("{result}-{machine}"),
                ["kernels", suite, machine] => name == format!("kernels-{suite}-{machine}"),
                ["large", machine, ..] => name == format!("large-{machine}"),
                [_, result, ..] => name == result,
                _ => false,
            }
        };
        assert!(
            script.lines().any(makes_it),
            "scripts/results.sh does not make {name}"
        );
        let text = printed(&["show", &format!("docs/results/{name}.json.gz")]);
        for missing in [
            "not recorded",
            "unknown",
            "-dirty",
            "an unnamed machine",
            "did not end",
        ] {
            assert!(!text.contains(missing), "{name}: {missing}\n{text}");
        }
    }
}

/// A picture that is named after a result file is drawn from it.
#[test]
fn each_picture_of_a_result_is_what_show_draws_of_its_file() {
    for name in result_files() {
        let picture = root().join(format!("docs/pictures/{name}.svg"));
        let Ok(drawn) = std::fs::read_to_string(&picture) else {
            continue;
        };
        let file = format!("docs/results/{name}.json.gz");
        assert!(
            drawn == printed(&["show", "--svg", "-", &file]),
            "{} is not drawn from {file}; this draws it:\n  \
             target/release/magpie bench show --svg docs/pictures/{name}.svg {file}",
            picture.display()
        );
    }
}

/// A folder with files that hold these texts.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

/// A result as the first version wrote it.
fn old_result() -> Value {
    let row = |scheduler: &str, samples: [f64; 4]| {
        json!({"workload": "hackbench", "case": "-g 1", "scheduler": scheduler, "samples": samples,
               "unit": "s", "better": "lower", "counters": {}})
    };
    json!({"schema": 1, "machine": {}, "kernel": "7.2", "complete": true, "results": [
        row("eevdf", [1.0, 1.0, 1.0, 1.0]), row("scx_magpie", [0.5, 0.5, 0.5, 0.5])]})
}

#[test]
fn files_of_an_older_version_are_shown_and_say_what_they_lack() {
    let folder = folder(&[("old.json", &old_result().to_string())]);
    let file = folder.path().join("old.json");
    let text = printed(&["show", &file.to_string_lossy()]);
    assert!(
        text.contains("commit      not recorded: an older version wrote this file"),
        "{text}"
    );
    assert!(text.contains("0.50 [ 50.00]( 0.00)"), "{text}");
    assert!(text.contains("kernel      7.2"), "{text}");
    let docs = printed(&["show", "--docs", &file.to_string_lossy()]);
    assert!(docs.contains("Commit not recorded"), "{docs}");
}

#[test]
fn other_files_are_refused_with_one_message() {
    let folder = folder(&[
        ("empty.json", ""),
        ("text.json", "Time: 1.5\n"),
        ("other.json", r#"{"schema": 1, "name": "x"}"#),
        ("list.json", "[1, 2]"),
        ("part.json", &old_result().to_string()[..200]),
        (
            "rows.json",
            r#"{"schema": 1, "machine": {}, "kernel": "", "results": [1]}"#,
        ),
        (
            "future.json",
            r#"{"schema": 9, "machine": {}, "kernel": "", "results": []}"#,
        ),
        (
            "costs.json",
            r#"{"schema": 1, "schedulers": [{"name": 1}]}"#,
        ),
        ("damaged.json.gz", "\u{1f}"),
        ("good.json", &old_result().to_string()),
    ]);
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("damaged.json.gz"), [0x1f, 0x8b, 8, 0, 1, 2]).expect("a file");
    for (name, word) in [
        ("empty.json", "is not a result file"),
        ("text.json", "is not a result file"),
        ("other.json", "is not a result file"),
        ("list.json", "is not a result file"),
        ("part.json", "is not a result file"),
        ("rows.json", "is not a result file"),
        ("future.json", "format 9"),
        ("costs.json", "is not a result file"),
        ("damaged.json.gz", "is damaged"),
        ("absent.json", "No such file"),
    ] {
        // Nothing is printed of the good file either: a table that looks whole would mislead.
        for arguments in [
            vec!["show", &path(name)],
            vec!["show", "--docs", &path("good.json"), &path(name)],
        ] {
            let message = refused(&arguments);
            assert!(
                message.contains(word) && message.contains(name),
                "{message}"
            );
        }
    }
    let two = [path("good.json"), path("good.json")];
    let message = refused(&["show", "--html", "-", &two[0], &two[1]]);
    assert!(
        message.contains("one result file, and 2 were given"),
        "{message}"
    );
}
