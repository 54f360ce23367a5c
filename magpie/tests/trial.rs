//! `magpie try` on this host, with the kernel's own scheduler against itself: a whole trial, what
//! it refuses, and what Ctrl-C keeps.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use magpie_bench::report::Report;

fn trial(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_magpie"));
    command.current_dir(folder);
    command.arg("try").args(arguments.split(' '));
    command
}

fn run(arguments: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    trial(folder.path(), arguments)
        .output()
        .expect("magpie runs")
}

/// The error of a command line that is refused.
fn refused(arguments: &str) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_trial_answers_in_five_lines_and_writes_a_result_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = "--sched eevdf --minutes 0.15 --turn 0.5 --json result.json.gz -- sleep 0.05";
    let output = trial(folder.path(), line).output().expect("magpie runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 6, "a title and five lines:\n{text}");
    assert!(text.contains("eevdf again beside eevdf"), "{text}");
    for part in ["runs/s", "p50", "p99", "context switches"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }

    let file = folder.path().join("result.json.gz");
    let report = Report::load(&file).expect("a result file");
    assert!(report.complete);
    // A run takes at least 0.05 s.
    let row = report.row(("try", "throughput"), "eevdf").expect("a row");
    assert!(
        row.samples.len() >= 5 && row.samples.iter().all(|rate| *rate < 20.0),
        "{row:?}"
    );
    let shown = Command::new(env!("CARGO_BIN_EXE_magpie"))
        .args(["bench", "show"])
        .arg(&file)
        .output()
        .expect("magpie runs");
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(
        shown.contains("wakeup p99") && shown.contains("sleep 0.05"),
        "{shown}"
    );
}

#[test]
fn what_makes_no_trial_is_refused_with_the_remedy() {
    for (line, remedy) in [
        ("--sched eevdf --minutes 1", "--minutes 2"),
        ("--sched eevdf --turn 0.1", "between 0.5 and 120"),
        ("--sched scx_a,scx_b", "several schedulers"),
        ("--sched eevdf@7.0", "magpie bench"),
        ("--sched scx_no_such_thing", "magpie bench peers install"),
        ("--sched eevdf -- no-such-program", "no-such-program"),
    ] {
        let error = refused(line);
        assert!(error.contains(remedy), "{line}: {error}");
    }
    let error = refused("--sched eevdf -- ls no-such-file");
    assert!(
        error.contains("ended with code 2") && error.contains("No such file"),
        "{error}"
    );
}

#[test]
fn an_interrupted_trial_says_what_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = trial(
        folder.path(),
        "--sched eevdf --turn 0.5 --json partial.json",
    );
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("magpie runs");
    let file = folder.path().join("partial.json");
    for _ in 0..600 {
        if file.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("not known from so few turns"), "{text}");
    assert!(!Report::load(&file).expect("a result file").complete);
}
