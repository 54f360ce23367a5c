//! The lab starts and stops schedulers in guests, on every kernel of `kernels.lock`, and explains
//! why one ended. The scheduler is scx_magpie.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::{KernelChoice, Stream, guest, kernel};
use magpie_tests::boot;
use magpie_tests::scheduler::{MAGPIE, program, words};

const SHORT: Duration = Duration::from_secs(60);

#[test]
fn a_scheduler_starts_works_and_stops_on_every_kernel() -> Result<()> {
    let scheduler = program(MAGPIE)?;
    for series in kernel::SERIES {
        let mut guest = boot("tiny2", |options| {
            options.kernel = KernelChoice::Series(series.to_string());
            options.files = vec![scheduler.clone()];
            options.packages = vec!["rt-tests".into()];
        })?;
        let state = ["cat", "/sys/kernel/sched_ext/state"];
        ensure!(
            guest.kernel_release().starts_with(series),
            "{}",
            guest.kernel_release()
        );
        assert_eq!(guest.capture(&state, SHORT)?.trim(), "disabled");
        for _ in 0..2 {
            guest.start_scheduler(&words(MAGPIE))?;
            let found = guest.capture(&state, SHORT)?;
            if found.trim() != "enabled" {
                let exit = guest.scheduler_died()?;
                let why = exit
                    .as_ref()
                    .map_or("it is alive".to_string(), guest::explain);
                bail!("kernel {series}: the state is {found} after the start: {why}");
            }
            let argv = ["hackbench", "-g", "1", "-l", "20"].map(str::to_string);
            let mut output = Vec::new();
            let result = guest.exec(&argv, SHORT, &mut |stream, bytes| {
                if stream == Stream::Stdout {
                    output.extend_from_slice(bytes);
                }
            })?;
            ensure!(result.code == 0, "hackbench: {result:?}");
            ensure!(
                String::from_utf8_lossy(&output).contains("Time:"),
                "hackbench printed no time"
            );
            if let Some(exit) = guest.scheduler_died()? {
                bail!("kernel {series}: {MAGPIE} died: {}", guest::explain(&exit));
            }
            let exit = guest.stop_scheduler()?;
            ensure!(exit.code == 0 && exit.state == "disabled", "{exit:?}");
        }
        guest.into_guest().shutdown()?;
    }
    Ok(())
}

#[test]
fn the_lab_says_why_the_kernel_ended_a_scheduler() -> Result<()> {
    let scheduler = program(MAGPIE)?;
    let mut guest = boot("tiny2", |options| options.files = vec![scheduler])?;
    guest.start_scheduler(&words(MAGPIE))?;
    // SysRq-S tells the kernel to put all tasks back to the fair class.
    guest.capture(&["sh", "-c", "echo S > /proc/sysrq-trigger"], SHORT)?;
    let exit = guest
        .scheduler_died()?
        .context("the kernel did not end the scheduler")?;
    ensure!(exit.state == "disabled", "{exit:?}");
    let log = exit.kernel_log.join("\n");
    ensure!(
        log.contains("sched_ext") && log.contains("disabled"),
        "no reason in {exit:?}"
    );
    ensure!(
        guest.stop_scheduler()? == exit,
        "the exit is kept until it is taken"
    );
    ensure!(
        guest.scheduler_died()?.is_none(),
        "the scheduler is still there after its exit was taken"
    );
    guest
        .start_scheduler(&words(MAGPIE))
        .context("start another scheduler in the same guest")?;
    Ok(())
}

#[test]
fn the_lab_says_why_a_scheduler_cannot_start() -> Result<()> {
    let scheduler = program(MAGPIE)?;
    let mut guest = boot("tiny2", |options| options.files = vec![scheduler])?;
    let argv = [MAGPIE, "--no-such-option"].map(str::to_string);
    let error = guest
        .start_scheduler(&argv)
        .expect_err("an unknown option")
        .to_string();
    ensure!(
        error.contains("--no-such-option") && error.contains("exit code"),
        "{error}"
    );
    let error = guest
        .start_scheduler(&["scx_none".into()])
        .expect_err("missing")
        .to_string();
    ensure!(error.contains("scx_none"), "{error}");
    guest.start_scheduler(&words(MAGPIE))?;
    let error = guest
        .start_scheduler(&words(MAGPIE))
        .expect_err("one at a time")
        .to_string();
    ensure!(error.contains("already running"), "{error}");
    Ok(())
}
