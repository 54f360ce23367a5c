//! `magpie try` in a guest: it tells EEVDF from scx_magpie under messages and under frames, and
//! EEVDF from itself it does not; it refuses to begin beside another scheduler; and however it ends,
//! the kernel's own scheduler is back.

use anyhow::{Context, Result, ensure};
use magpie_bench::report::{Judged, Report};
use magpie_bench::stats::Verdict;
use magpie_bench::verdicts::Verdicts;
use magpie_lab::Guest;
use magpie_tests::TestGuest;
use magpie_tests::scheduler::{MAGPIE, boot_for_magpie, code_and_output, program, shell, under};

/// Eight to ten turns each: with eight, complete separation of one figure has a p of 0.00016 before
/// it is corrected.
const SHORT: &str = "magpie try --minutes 0.2 --turn 0.6 --json /tmp/result";
const LOAD: &str = "hackbench -g 1 -l 20";
/// Sixteen clients and a compositor, beside a CPU hog for each CPU.
const FRAMES: &str = "magpie-load frames --beside hogs --warmup 0.05 --seconds 0.2";

/// Trials of EEVDF against itself, and how many of them must find no difference at all. Each finds
/// one with a probability of at most 0.05, so this bar fails by chance in one of 13 runs.
const TRIALS: usize = 20;
const MIN_WITHOUT: usize = 18;

/// A/A trials are shorter, and their load sleeps a part of the time, so that twenty take minutes.
const SHORTER: &str = "magpie try --minutes 0.12 --turn 0.5 --json /tmp/result --sched eevdf";
const HALF_LOAD: &str = "sh -c 'hackbench -g 1 -l 10; sleep 0.1'";

/// An A/A trial tells a difference in at most one of twenty. This bar is passed by chance in one of
/// a thousand.
const CLEARLY: f64 = 0.001;

fn boot(machine: &str) -> Result<TestGuest> {
    let magpie = program("magpie")?;
    boot_for_magpie(machine, |options| options.files.push(magpie))
}

/// Runs a trial, and returns the figures of which it says that they differ, with their corrected p
/// values.
fn differences(guest: &mut Guest, command: &str) -> Result<Vec<(String, f64)>> {
    let text = shell(guest, command)?;
    println!("{text}");
    ensure!(text.lines().count() == 6, "a title and five lines");
    ensure!(state(guest)? == "disabled", "a scheduler is left");
    let result = shell(guest, "cat /tmp/result")?;
    let report: Report = serde_json::from_str(&result).context("a result file")?;
    ensure!(report.complete);
    let verdicts = Verdicts::of(&report);
    let rows = report.results.iter().zip(verdicts.judged());
    let real = rows.filter_map(|(row, judged)| {
        let is_told = |judged: &Judged| judged.verdict == Verdict::Different && !judged.is_weak();
        let judged = judged.filter(is_told)?;
        Some((row.case.clone(), judged.p_corrected?))
    });
    Ok(real.collect())
}

fn state(guest: &mut Guest) -> Result<String> {
    let state = shell(guest, "cat /sys/kernel/sched_ext/state")?;
    Ok(state.trim().into())
}

#[test]
fn a_trial_tells_schedulers_apart_and_a_scheduler_from_itself_not() -> Result<()> {
    let mut guest = boot("vt2")?;
    let found = differences(&mut guest, &format!("{SHORT} -- {LOAD}"))?;
    ensure!(
        found.iter().any(|(_, p)| *p < CLEARLY),
        "EEVDF and scx_magpie: {found:?}"
    );
    let found = differences(&mut guest, &format!("{SHORT} --sched eevdf -- {LOAD}"))?;
    ensure!(
        found.iter().all(|(_, p)| *p >= CLEARLY),
        "EEVDF and EEVDF: {found:?}"
    );
    guest.into_guest().shutdown()
}

#[test]
fn a_trial_tells_schedulers_apart_by_frames() -> Result<()> {
    let mut guest = boot("vt2")?;
    let found = differences(&mut guest, &format!("{SHORT} -- {FRAMES}"))?;
    ensure!(
        found.iter().any(|(_, p)| *p < CLEARLY),
        "EEVDF and scx_magpie: {found:?}"
    );
    guest.into_guest().shutdown()
}

#[test]
#[ignore = "twenty trials: minutes of two CPUs"]
fn a_scheduler_beside_itself_makes_no_difference() -> Result<()> {
    let mut guest = boot("vt2")?;
    let mut without = 0;
    for trial in 1..=TRIALS {
        let found = differences(&mut guest, &format!("{SHORTER} -- {HALF_LOAD}"))?;
        without += usize::from(found.is_empty());
        println!("{trial}: {found:?}, {without} without a difference so far");
    }
    ensure!(
        without >= MIN_WITHOUT,
        "{without} of {TRIALS} trials of EEVDF beside itself found no difference"
    );
    guest.into_guest().shutdown()
}

#[test]
fn beside_another_scheduler_there_is_no_trial() -> Result<()> {
    let mut guest = boot("tiny2")?;
    under(&mut guest, MAGPIE, |guest| {
        let (code, output) = code_and_output(guest, "scx_magpie try")?;
        let is_refused = code == 1 && output.contains("the sched_ext scheduler magpie");
        ensure!(
            is_refused && output.contains("stop it first"),
            "{code}: {output}"
        );
        ensure!(state(guest)? == "enabled", "the other one is left alone");
        Ok(())
    })?;
    let (code, output) = code_and_output(&mut guest, "scx_magpie try -- no-such-program")?;
    ensure!(
        code == 1 && output.contains("run no-such-program"),
        "{code}: {output}"
    );
    guest.into_guest().shutdown()
}

/// Ends a trial while scx_magpie has a turn. Returns the trial's exit code and output, once the
/// kernel's own scheduler is back.
fn ended_by(guest: &mut Guest, kill: &str) -> Result<String> {
    let output = shell(
        guest,
        &format!(
            "scx_magpie try --turn 2 > /tmp/trial 2>&1 & trial=$!\n\
             state() {{ for i in $(seq 600); do \
                 [ $(cat /sys/kernel/sched_ext/state) = $1 ] && return; sleep 0.1; done; exit 1; }}\n\
             state enabled; sleep 0.5\n\
             {kill}; wait $trial; echo code $?; cat /tmp/trial\n\
             state disabled"
        ),
    )?;
    println!("{kill}: {output}");
    Ok(output)
}

#[test]
fn however_a_trial_ends_the_kernels_own_scheduler_is_back() -> Result<()> {
    let mut guest = boot("tiny2")?;
    let output = ended_by(&mut guest, "kill -INT $trial")?;
    ensure!(
        output.contains("code 130") && output.contains("interrupted"),
        "{output}"
    );
    let output = ended_by(&mut guest, "killall -9 scx_magpie")?;
    ensure!(
        output.contains("code 1\n") && output.contains("ended by itself"),
        "{output}"
    );
    // The trial cannot end its scheduler any more; the kernel does it.
    let output = ended_by(&mut guest, "kill -9 $trial")?;
    ensure!(output.contains("code 137"), "{output}");
    guest.into_guest().shutdown()
}
