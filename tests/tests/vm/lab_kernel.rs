//! Kernels that the lab builds: from Debian's source, and with a patch that makes wakeups worse.
//! They boot, load scx_magpie, and the bench tells them apart, but not two builds of one source.
//! The first build takes minutes of all CPUs, so these tests run only if they are asked for:
//! `cargo test --release -p magpie-tests --test vm -- --ignored lab_kernel`.

use std::path::Path;
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use magpie_bench::candidate::parse_list;
use magpie_bench::guests::Guests;
use magpie_bench::place::Place;
use magpie_bench::relation::relate;
use magpie_bench::report::{BASELINE, Report, Row};
use magpie_bench::runner::{self, Suite};
use magpie_bench::sequential::decide;
use magpie_bench::stats::Verdict;
use magpie_bench::table::{Style, render};
use magpie_bench::workload::{self, Parameters};
use magpie_lab::kernel::build::{Base, Request, build};
use magpie_lab::kernel::built::Built;
use magpie_lab::{GuestOptions, KernelChoice, Machine, Progress};
use magpie_tests::scheduler::{MAGPIE, boot_for_magpie, program, shell, under};

const SOURCE: &str = "debian:7.2";
const PATCH: &str = "../lab/examples/stack-wakees.diff";

/// The patched kernel may take this share of the first build's CPU time.
const INCREMENTAL: f64 = 0.25;

/// The kernel that the others are compared with.
const PLAIN: &str = "test-plain";

/// Comparisons of equal builds, with so many rounds each, and how many must be `same`.
const COMPARISONS: usize = 20;
const FEW_ROUNDS: usize = 4;
const MIN_SAME: usize = 18;

/// The margin of `--until-sure`, and its rounds.
const MARGIN: f64 = 0.03;
const ROUNDS: usize = 30;

fn build_kernel(name: &str, patches: &[&str]) -> Result<Built> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = build(&Request {
        source: SOURCE.into(),
        patches: patches.iter().map(|patch| folder.join(patch)).collect(),
        first: None,
        config: None,
        base: Base::Tiny,
        name: Some(name.into()),
        jobs: available_parallelism().map_or(1, usize::from),
        progress: Progress::default(),
    })?;
    println!(
        "{}: {:.0} s, {:.0} s of CPU time",
        built.release, built.seconds, built.cpu_seconds
    );
    Ok(built)
}

#[test]
#[ignore = "builds a kernel: minutes of all CPUs"]
fn a_built_kernel_runs_scx_magpie_and_a_patch_that_makes_it_worse_is_found() -> Result<()> {
    let plain = build_kernel(PLAIN, &[])?;
    let worse = build_kernel("test-worse", &[PATCH])?;
    // A tree that an earlier run built makes the first build as short.
    ensure!(
        worse.cpu_seconds < (INCREMENTAL * plain.cpu_seconds).max(180.0),
        "the second build compiled more than the patch changes: {worse:?}"
    );
    for built in [&plain, &worse] {
        let mut guest = boot_for_magpie("tiny2", |options| {
            options.kernel = KernelChoice::Built(built.name.clone());
        })?;
        ensure!(guest.kernel_release() == built.release, "{built:?}");
        under(&mut guest, MAGPIE, |guest| {
            shell(guest, "hackbench -g 1 -l 20")
        })?;
    }
    bench_finds_the_difference(&worse)
}

/// Measures the latency of wakeups under both kernels until the difference is decided. In virtual
/// time it does not depend on what else the host does.
fn bench_finds_the_difference(worse: &Built) -> Result<()> {
    let (plain, worse) = measure("latency", Some("wakeup p99"), worse, Some(MARGIN), ROUNDS)?;
    let decision = decide(&plain.samples, &worse.samples, MARGIN);
    let relation = relate(&plain, &worse).context("both have samples")?;
    ensure!(
        decision.verdict == Verdict::Different && relation.improvement < 0.0,
        "{decision:?} {relation:?}"
    );
    Ok(())
}

/// A/A: two builds of one source, of which only the names differ, are called `same`. With four
/// rounds each, one comparison in 35 is called different by chance, and three of twenty in one run
/// of 55.
#[test]
#[ignore = "builds a kernel: minutes of all CPUs"]
fn equal_builds_are_called_the_same() -> Result<()> {
    build_kernel(PLAIN, &[])?;
    let again = build_kernel("test-again", &[])?;
    let mut same = 0;
    for comparison in 1..=COMPARISONS {
        let (one, other) = measure("hackbench", None, &again, None, FEW_ROUNDS)?;
        let relation = relate(&one, &other).context("both have samples")?;
        same += usize::from(relation.verdict == Verdict::Same);
        println!("{comparison}: {relation:?}, {same} same so far");
    }
    ensure!(
        same >= MIN_SAME,
        "{same} of {COMPARISONS} comparisons of equal builds are called `same`"
    );
    Ok(())
}

/// Measures EEVDF of the plain kernel and of another one in turns, in guests of their own on `vt4`,
/// and returns the rows of one figure.
fn measure(
    workload: &str,
    metric: Option<&str>,
    other: &Built,
    until_sure: Option<f64>,
    rounds: usize,
) -> Result<(Row, Row)> {
    let machine = Machine::find("vt4")?;
    let mut work = workload::load(None)?
        .into_iter()
        .find(|known| known.name == workload)
        .with_context(|| format!("the workload {workload}"))?;
    work.metric.retain(|known| known.name.as_deref() == metric);
    let cases = work.cases(&Parameters::new(), machine.cpus())?;
    let packages = work.packages().map(str::to_string).collect::<Vec<_>>();
    let suite = Suite {
        candidates: parse_list(&format!("eevdf@{}", other.name))?,
        work: vec![(work, cases)],
        rounds,
        until_sure: until_sure.map(Into::into),
    };
    let _share = magpie_tests::share_of(&machine);
    let mut guests = Guests::boot(&suite.candidates, |boot| {
        let name = boot.kernel.clone().unwrap_or(PLAIN.into());
        Ok(GuestOptions {
            machine: machine.clone(),
            kernel: KernelChoice::Built(name),
            files: vec![program("magpie-load")?],
            packages: packages.clone(),
            ..GuestOptions::default()
        })
    })?;
    let mut report = Report::new(guests.machine(), guests.kernel(), runner::options(&suite));
    suite.run(&mut guests, &mut report, &mut |message: &str| {
        eprintln!("{message}")
    })?;
    println!("{}", render(&report, Style::Text));
    let [plain, other] = &report.results[..] else {
        anyhow::bail!("two rows, of {BASELINE} and of another kernel")
    };
    Ok((plain.clone(), other.clone()))
}
