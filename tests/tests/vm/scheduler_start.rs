//! How scx_magpie starts and ends in real kernels: on each of the matrix and with each switch, next
//! to another scheduler, without permission, stopped in each way that there is.

use anyhow::{Context, Result, ensure};
use magpie_bench::candidate;
use magpie_lab::{Guest, KernelChoice, SchedulerExit, kernel};
use magpie_tests::TestGuest;
use magpie_tests::scheduler::{boot_for_magpie, program, shell, under, words};
use std::process::Command;
use std::time::Duration;

const MAGPIE: &str = "scx_magpie";
const SHORT: Duration = Duration::from_secs(120);

/// Every switch that the help names.
fn switches() -> Result<Vec<String>> {
    let help = Command::new(program(MAGPIE)?)
        .arg("--help")
        .output()
        .context("run scx_magpie --help")?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let switches = candidate::switches(&help);
    ensure!(
        switches.contains(&"--no-steal".to_string()),
        "no switches in the help:\n{help}"
    );
    Ok(switches)
}

fn work(guest: &mut Guest) -> Result<()> {
    shell(guest, "hackbench -g 1 -l 20").map(|_| ())
}

fn boot_tiny(series: &str) -> Result<TestGuest> {
    boot_for_magpie("tiny2", |options| {
        options.kernel = KernelChoice::Series(series.to_string());
    })
}

/// What the verifier makes of it differs between kernels and, since constants cut code away, between
/// switches.
#[test]
fn it_works_on_every_kernel_and_with_every_switch() -> Result<()> {
    let switches = switches()?;
    let newest = kernel::SERIES.last().context("a matrix of kernels")?;
    for series in kernel::SERIES {
        let mut guest = boot_tiny(series)?;
        let mut commands = vec![
            MAGPIE.to_string(),
            format!("{MAGPIE} {}", switches.join(" ")),
        ];
        if series == newest {
            commands.extend(switches.iter().map(|switch| format!("{MAGPIE} {switch}")));
        }
        for command in commands {
            println!("kernel {series}: {command}");
            under(&mut guest, &command, work).with_context(|| format!("kernel {series}"))?;
        }
        guest.into_guest().shutdown()?;
    }
    Ok(())
}

/// Sends a signal; how the scheduler ended.
fn end_by(guest: &mut Guest, signal: &str) -> Result<SchedulerExit> {
    guest.start_scheduler(&words(MAGPIE))?;
    shell(guest, &format!("killall -{signal} {MAGPIE}"))?;
    let script = "for i in $(seq 600); do \
                  grep -q disabled /sys/kernel/sched_ext/state && exit 0; sleep 0.1; done; exit 1";
    shell(guest, script).with_context(|| format!("the kernel's state after SIG{signal}"))?;
    guest
        .scheduler_died()?
        .with_context(|| format!("{MAGPIE} survives SIG{signal}"))?;
    guest.stop_scheduler()
}

/// Runs a command that must fail with this exit code; all that it printed.
fn fails(guest: &mut Guest, command: &str, code: i32) -> Result<String> {
    let mut output = Vec::new();
    let result = guest.exec(&words(command), SHORT, &mut |_, bytes| {
        output.extend_from_slice(bytes);
    })?;
    let output = String::from_utf8_lossy(&output).into_owned();
    ensure!(
        result.code == code,
        "`{command}` ended with {}, not {code}:\n{output}",
        result.code
    );
    Ok(output)
}

#[test]
fn it_ends_when_asked_and_leaves_the_kernels_own_scheduler() -> Result<()> {
    let mut guest = boot_for_magpie("tiny2", |_| {})?;
    for signal in ["INT", "TERM"] {
        let exit = end_by(&mut guest, signal)?;
        ensure!(exit.code == 0, "after SIG{signal}: {exit:?}");
    }
    let exit = end_by(&mut guest, "KILL")?;
    ensure!(exit.code != 0 && exit.state == "disabled", "{exit:?}");
    work(&mut guest)?;

    // What a killed one left behind does not keep the next from starting, counting and answering.
    under(&mut guest, MAGPIE, |guest| {
        work(guest)?;
        let counters = shell(guest, "scx_magpie --stats-json")?;
        ensure!(counters.contains("\"wake_idle\":"), "{counters}");

        let second = fails(guest, MAGPIE, 1)?;
        ensure!(
            second.contains("another sched_ext scheduler is running: magpie")
                && second.contains("Stop it first"),
            "{second}"
        );
        Ok(())
    })?;

    let none = fails(&mut guest, "scx_magpie --stats-json", 1)?;
    ensure!(none.contains("scx_magpie is not running"), "{none}");
    shell(
        &mut guest,
        "echo nobody:x:65534:65534::/:/bin/sh >> /etc/passwd",
    )?;
    let user = "start-stop-daemon -S -c nobody -x /bin/scx_magpie";
    let refused = fails(&mut guest, user, 1)?;
    ensure!(
        refused.contains("no permission") && refused.contains("sudo scx_magpie"),
        "{refused}"
    );
    let unknown = fails(&mut guest, "scx_magpie --no-such-thing", 2)?;
    ensure!(unknown.contains("--no-such-thing"), "{unknown}");
    let state = shell(&mut guest, "cat /sys/kernel/sched_ext/state")?;
    ensure!(state.trim() == "disabled", "{state}");
    guest.into_guest().shutdown()
}
