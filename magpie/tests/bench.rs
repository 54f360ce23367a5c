//! `magpie bench` on this host, as a user runs it, with the kernel's own scheduler and a workload
//! of shell commands: parts of a run can be merged, and an interrupted run keeps its samples.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use magpie_bench::report::Report;

const WORKLOAD: &str = "
[[workload]]
name = 'echo'
about = ''
command = \"sh -c 'echo Time: 1.5; sleep {seconds}'\"
timeout_s = 10
parameters = { seconds = ['0.01', '0.02', '0.03', '0.04', '0.05'] }
metric = [{ unit = 's', better = 'lower', after = 'Time:' }]
";

/// A temporary folder with the workload, in which `magpie bench` writes its results.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("echo.toml"), WORKLOAD).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_magpie"));
        command.current_dir(self.0.path());
        command.arg("bench").args(arguments.split(' '));
        command
    }

    /// A command that measures the workload under the kernel's own scheduler on this host.
    fn measure(&self, arguments: &str) -> Command {
        self.command(&format!(
            "--in host --sched eevdf --workloads echo.toml --workload echo {arguments}"
        ))
    }
}

/// Runs a command that must succeed.
fn ended_well(mut command: Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

#[test]
fn merged_shards_are_what_one_run_of_all_cases_gives() {
    let bench = Bench::new();
    ended_well(bench.measure("--rounds 2 --json whole.json"));
    for number in 1..=4 {
        ended_well(bench.measure(&format!(
            "--rounds 2 --shard {number}/4 --json {number}.json"
        )));
    }
    let output = ended_well(bench.command("merge 3.json 1.json 4.json 2.json --json merged.json"));
    assert!(String::from_utf8_lossy(&output.stdout).contains("sleep 0.05"));
    let load = |name: &str| Report::load(&bench.file(name)).unwrap();
    let (whole, merged) = (load("whole.json"), load("merged.json"));
    let rows = |report: &Report| -> Vec<(String, Vec<f64>)> {
        let rows = report.results.iter();
        rows.map(|row| (row.case.clone(), row.samples.clone()))
            .collect()
    };
    assert_eq!(rows(&merged).len(), 5);
    assert_eq!(rows(&merged), rows(&whole));
    assert_eq!(load("1.json").results.len(), 2);

    let output = bench
        .command("merge 1.json 2.json 3.json --json x.json")
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("4/4"),
        "{output:?}"
    );
    assert!(!bench.file("x.json").exists());
}

#[test]
fn an_interrupted_run_leaves_valid_partial_reports() {
    let bench = Bench::new();
    let child = bench
        .measure("--rounds 1000 --json partial.json --html partial.html")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_samples(&child, &bench.file("partial.json"));
    // Two signals, as timeout(1) sends them: the second must not cut the first one's work short.
    for _ in 0..2 {
        let pid = child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("eevdf average"),
        "{output:?}"
    );
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("is kept"),
        "{output:?}"
    );
    let report = Report::load(&bench.file("partial.json")).unwrap();
    assert!(!report.complete);
    for row in &report.results {
        assert!(!row.samples.is_empty() && row.samples.len() < 1000);
        assert!(row.failed.is_none(), "{row:?}");
    }
    let page = std::fs::read_to_string(bench.file("partial.html")).unwrap();
    assert!(page.contains("interrupted") && page.ends_with("</html>"));
}

/// Waits until each case has a sample, so that an interruption leaves something to keep.
fn wait_for_samples(child: &Child, file: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let measured = || {
        let report = file.exists().then(|| Report::load(file).unwrap())?;
        Some(report.results.iter().all(|row| !row.samples.is_empty()))
    };
    while measured() != Some(true) {
        assert!(Instant::now() < deadline, "{} measured nothing", child.id());
        std::thread::sleep(Duration::from_millis(20));
    }
}
