//! `magpie lab` answers wrong input with one clear message that has the remedy, and a non-zero exit
//! code.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

/// The `magpie` command, with a time limit.
fn magpie() -> Command {
    let mut command = Command::cargo_bin("magpie").expect("cargo builds it for this test");
    command.timeout(std::time::Duration::from_secs(120));
    command
}

#[test]
fn an_unknown_machine_lists_the_known_ones() {
    magpie()
        .args(["lab", "run", "--machine", "gigantic", "--", "true"])
        .assert()
        .code(125)
        .stderr(
            contains("unknown machine \"gigantic\"")
                .and(contains("tiny2"))
                .and(contains("uneven12")),
        );
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_magpie"))
        .args(["lab", "machines"])
        .stdout(writer)
        .output()
        .expect("magpie runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(141));
}

#[test]
fn a_malformed_machine_says_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("my.toml");
    for (text, complaint) in [
        ("name = \"my\"\n[[llc]]\ncores = \"two\"\n", "line 3"),
        ("name = \"my\"\n[[llc]]\ncores = 0\n", "at least 1"),
        ("name = \"my\"\n[[llc]]\ncores = 2\nthreads = 3\n", "1 or 2"),
        (
            "name = \"my\"\n[[llc]]\ncores = 2\nnode = 1\n",
            "without a gap",
        ),
        (
            "name = \"my\"\noffline = [0]\n[[llc]]\ncores = 2\n",
            "CPU 0 cannot be offline",
        ),
        ("name = \"my\"\nspeed = 9\n[[llc]]\ncores = 2\n", "speed"),
    ] {
        std::fs::write(&file, text).expect("writes");
        magpie()
            .args(["lab", "check", "--machine"])
            .arg(&file)
            .assert()
            .failure()
            .stderr(contains("my.toml").and(contains(complaint)));
    }
}

#[test]
fn a_missing_kernel_file_is_named() {
    magpie()
        .args(["lab", "run", "--kernel", "/no/such/bzImage", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("/no/such/bzImage").and(contains("7.2")));
}

#[test]
fn a_config_needs_a_kernel_file() {
    magpie()
        .args([
            "lab", "run", "--kernel", "7.0", "--config", "x", "--", "true",
        ])
        .assert()
        .code(125)
        .stderr(contains("--kernel FILE"));
}

#[test]
fn a_missing_scheduler_says_how_to_get_it() {
    magpie()
        .args(["lab", "run", "--sched", "scx_nonesuch --fast", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("scx_nonesuch").and(contains("cargo")));
}

#[test]
fn a_missing_command_says_where_it_was_looked_for() {
    magpie()
        .args(["lab", "run", "--", "no-such-command-anywhere"])
        .assert()
        .code(125)
        .stderr(contains("no-such-command-anywhere").and(contains("--package")));
}

#[test]
fn a_missing_qemu_says_how_to_get_it() {
    magpie()
        .env("MAGPIE_QEMU", "/no/such/qemu")
        .args(["lab", "run", "--kernel", "/proc/self/exe", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("/no/such/qemu is not installed").and(contains("apt-get install")));
}

#[test]
fn an_unreachable_mirror_leads_to_a_question_about_the_network() {
    let folder = tempfile::tempdir().expect("a folder");
    magpie()
        .env("MAGPIE_LAB_DIR", folder.path())
        // No server listens on port 9 of this host.
        .env("MAGPIE_DEBIAN_MIRROR", "http://127.0.0.1:9/debian")
        .args(["lab", "run", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("is the network up?"));
}

#[test]
fn a_package_name_is_checked_before_apt_sees_it() {
    magpie()
        .args(["lab", "run", "--package=-oDebug=1", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("not the name of a Debian package"));
}

#[test]
fn machines_and_kernels_are_listed_as_json() {
    for (what, field) in [("machines", "memory_mib"), ("kernels", "release")] {
        let output = magpie()
            .args(["lab", what, "--json", "-"])
            .assert()
            .success();
        let text = String::from_utf8(output.get_output().stdout.clone()).expect("UTF-8");
        let list: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let list = list.as_array().expect("a list");
        assert!(
            !list.is_empty() && list.iter().all(|entry| entry.get(field).is_some()),
            "{text}"
        );
    }
}

#[test]
fn a_host_that_cannot_be_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("host.toml");
    let path = file.to_str().expect("UTF-8");
    let guest = "[[guest]]\nname = \"one\"\nmachine = \"vt2\"\ncommand = \"true\"\n";
    for (text, arguments, complaint) in [
        (
            guest,
            vec!["--guest", "tiny2", "--", "true"],
            "in virtual time",
        ),
        (guest, vec!["--guest", "vt8", "--", "true"], "neither SMT"),
        (
            guest,
            vec!["--guest", "vt2", "--guest", "vt4", "--", "true"],
            "differ in mips",
        ),
        (guest, vec![], "--guest"),
        (guest, vec!["--guest", "vt2"], "behind `--`"),
        (guest, vec![path, "--sched", "two=eevdf"], "it has one"),
        (guest, vec![path, "--sched", "one"], "NAME=SCHEDULER"),
        ("speed = 1\n", vec![path], "speed"),
        (
            &format!("{guest}background = true\n"),
            vec![path],
            "all guests are in the background",
        ),
    ] {
        std::fs::write(&file, text).expect("writes");
        magpie()
            .args(["lab", "host"])
            .args(&arguments)
            .assert()
            .code(125)
            .stderr(contains(complaint));
    }
}
