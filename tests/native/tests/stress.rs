//! Many threads on one sparsemask, under the sanitizers: builds and runs `c/stress.c`.
//!
//! The sanitizers need runtime libraries that Rust programs cannot have, so this is a C program of
//! its own. Every run has a time limit: threads that wait for each other forever are a failure, not
//! a hang.

use magpie_native::{CC, PORTABLE};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Seconds for one run, which takes one or two.
const TIME_LIMIT: &str = "60";

struct Stress {
    _folder: TempDir,
    program: PathBuf,
}

impl Stress {
    fn build(flags: &[&str]) -> Stress {
        let folder = TempDir::new().expect("a temporary folder");
        let program = folder.path().join("stress");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/stress.c");
        let output = Command::new(CC)
            .args([
                "-std=gnu11",
                "-O2",
                "-g",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pthread",
            ])
            .args(flags)
            .arg(format!("-I{PORTABLE}"))
            .arg("-o")
            .arg(&program)
            .arg(source)
            .output()
            .unwrap_or_else(|error| panic!("running the C compiler {CC}: {error}"));
        assert!(
            output.status.success(),
            "{CC} {flags:?} failed; if it misses a sanitizer's library, install the one for this \
             compiler (Debian's gcc has all; Fedora: libtsan libasan libubsan)\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Stress {
            _folder: folder,
            program,
        }
    }

    fn command(&self, wrapper: &[&str], places: u32, rounds: u32) -> Output {
        Command::new("timeout")
            .arg(TIME_LIMIT)
            .args(wrapper)
            .arg(&self.program)
            .args([places.to_string(), rounds.to_string()])
            .env("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1")
            .output()
            .expect("running the stress program under timeout")
    }

    fn run(&self, places: u32, rounds: u32) -> Output {
        let output = self.command(&[], places, rounds);
        // Older thread sanitizers cannot cope with how far recent kernels randomize addresses.
        if String::from_utf8_lossy(&output.stderr).contains("unexpected memory mapping") {
            return self.command(&["setarch", "--addr-no-randomize"], places, rounds);
        }
        output
    }

    fn assert_passes(&self, places: u32, rounds: u32) {
        let output = self.run(places, rounds);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{places} places: {} (124 is the time limit)\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// The scheduler's layout, the densest and the sparsest.
const LAYOUTS: [&[&str]; 3] = [
    &[],
    &["-DSPARSEMASK_BITS=64", "-DSPARSEMASK_LINE=8"],
    &["-DSPARSEMASK_BITS=2"],
];

fn stress_all(sanitizer: &[&str], rounds: u32) {
    for layout in LAYOUTS {
        let stress = Stress::build(&[sanitizer, layout].concat());
        for places in [4, 64, 1000, 4096] {
            stress.assert_passes(places, rounds);
        }
    }
}

#[test]
fn no_data_race() {
    stress_all(&["-fsanitize=thread"], 150_000);
}

#[test]
fn no_access_outside_and_no_undefined_behaviour() {
    stress_all(&["-fsanitize=address,undefined"], 300_000);
}

/// At full speed, where threads meet most often.
#[test]
fn no_lost_update() {
    stress_all(&[], 1_000_000);
}

/// A check of the check: with set and clear that are not atomic, the sanitizer reports. The program
/// itself can notice first that a write was lost, and end: then it is run again.
#[test]
fn a_data_race_would_be_seen() {
    let stress = Stress::build(&["-fsanitize=thread", "-DBREAK_ATOMICS"]);
    let mut said = String::new();
    for _ in 0..20 {
        let output = stress.run(64, 100_000);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{said}");
        if said.contains("data race") {
            break;
        }
    }
    assert!(said.contains("data race"), "{said}");
    assert!(
        said.contains("broken_or") || said.contains("broken_and"),
        "{said}"
    );
}

/// Neither memory nor a result is out of bounds unseen: the mask here is one line too short.
#[test]
fn a_wrong_size_would_be_seen() {
    let stress = Stress::build(&["-fsanitize=address", "-DMISSING_LINES=1"]);
    let output = stress.run(64, 1000);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("heap-buffer-overflow"), "{said}");
}
