//! Schedule fuzzing: a seed has the same run in each boot and another seed another one, and the
//! search finds a scheduler that strands tasks.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::fuzz::{Fuzzer, Scenario, Trial, Verdict};
use magpie_lab::{GuestOptions, Machine};
use magpie_tests::scheduler::{PATIENCE, program};
use magpie_tests::{build_agent, share_of};

/// The longest run of a seed, in real time. Hosts can be slow.
const LIMIT: Duration = Duration::from_secs(120);

/// Boots a scenario under a scheduler on four CPUs, and hands it to `test`.
fn fuzz<T>(
    scenario: &str,
    scheduler: &str,
    test: impl FnOnce(&mut Fuzzer) -> Result<T>,
) -> Result<T> {
    build_agent()?;
    let options = GuestOptions {
        machine: Machine::find("vt4")?,
        files: vec![program("scx_magpie")?, program("magpie-load")?],
        ..GuestOptions::default()
    };
    let _share = share_of(&options.machine);
    let words: Vec<String> = scheduler.split_whitespace().map(String::from).collect();
    let scenario = Scenario::find(scenario)?;
    test(&mut Fuzzer::boot(
        &options,
        Some(&words),
        &scenario,
        PATIENCE,
    )?)
}

#[test]
fn a_seed_repeats_in_each_boot_and_another_differs() -> Result<()> {
    let boot_and_run = |seeds: &[u64]| -> Result<Vec<Trial>> {
        fuzz("wakeups", "scx_magpie", |fuzzer| {
            seeds.iter().map(|seed| fuzzer.run(*seed, LIMIT)).collect()
        })
    };
    let [first, other, again] = &boot_and_run(&[7, 8, 7])?[..] else {
        unreachable!("three seeds have three runs")
    };
    let [elsewhere] = &boot_and_run(&[7])?[..] else {
        unreachable!("one seed has one run")
    };
    let turns = first.perturbation.as_ref().context("a schedule")?;
    ensure!(turns.turns > 1000 && turns.stops > 10, "{turns:?}");
    for same in [again, elsewhere] {
        assert_eq!(first.perturbation, same.perturbation);
        assert_eq!(first.virtual_seconds, same.virtual_seconds);
        assert_eq!(first.report, same.report);
    }
    let others = other.perturbation.as_ref().context("a schedule")?;
    assert_ne!(turns.schedule, others.schedule);
    assert_ne!(first.report, other.report);
    assert_eq!(first.verdict, Verdict::Holds, "{}", first.report);
    Ok(())
}

/// With stealing, a wait of a quarter of a tick beside an idle CPU is so rare that the first seed has
/// none: 120 seeds of a quarter of a second each had none either. Without it, a task waits until a
/// tick offers it, which one of the first seeds shows.
const STRICT: &str = "scenario() {
	watch --seconds 0.05 --with hackbench,forks --threshold-ms 1
}
";

#[test]
fn a_scheduler_that_strands_tasks_is_found() -> Result<()> {
    let folder = tempfile::tempdir().context("a folder for the scenario")?;
    let path = folder.path().join("strict.sh");
    std::fs::write(&path, STRICT).context("write the scenario")?;
    let path = path.to_string_lossy();
    fuzz(&path, "scx_magpie", |fuzzer| {
        let trial = fuzzer.run(1, LIMIT)?;
        ensure!(trial.verdict == Verdict::Holds, "{}", trial.report);
        Ok(())
    })?;
    fuzz(&path, "scx_magpie --no-steal", |fuzzer| {
        for seed in 1..=12 {
            let trial = fuzzer.run(seed, LIMIT)?;
            println!("seed {seed}: {}\n{}", trial.verdict.words(), trial.report);
            if trial.verdict == Verdict::Stranded {
                ensure!(trial.report.contains("queued on CPU"), "{}", trial.report);
                return Ok(());
            }
        }
        bail!("12 seeds found no stranded task without stealing")
    })
}
