//! scx_magpie, a sched_ext CPU scheduler: it finds work for idle CPUs, and idle CPUs for work, at
//! the least cost.
//!
//! This file is the whole program: options, check of the host, load, attach, serve, report of the
//! exit. The scheduling itself is in `bpf/`; begin there with `bpf/main.bpf.c`.
//!
//! | file | concern |
//! |---|---|
//! | `options.rs`, `flags.rs` | the command line |
//! | `configuration.rs` | the configuration file, and how it combines with the command line |
//! | `mechanisms.rs` | the mechanisms, their files and switches |
//! | `check.rs` | whether the scheduler can run here, and the remedy where it cannot |
//! | `readiness.rs` | `scx_magpie check`: also which mechanisms would be active |
//! | `frequency.rs` | who decides how fast the CPUs run |
//! | `virtual_machine.rs` | whether there is a host that can take CPU time away |
//! | `topology.rs` | where each CPU is, in the form that the BPF side searches |
//! | `load.rs` | settings and topology into the BPF object, and its load |
//! | `privileges.rs` | the rights that are kept, and when they are used |
//! | `scheduler.rs` | the running scheduler: attach, serve, take down |
//! | `service.rs` | what systemd is told |
//! | `readings.rs` | the BPF side's memory, read |
//! | `counters.rs` | events, as numbers and as sentences |
//! | `cpus.rs` | what each CPU has measured |
//! | `cgroups.rs` | what each cgroup gets |
//! | `stats.rs` | all of these over scx_stats, server and client |
//! | `preferred.rs` | preferred CPUs: options, requests, status |
//! | `power.rs` | how much power the machine should save |
//! | `preferred_bpf.rs` | their settings and status in the kernel |
//! | `kernel_mask.rs` | the kernel's own preferred CPUs, which decide where there are any |
//! | `host_state.rs` | what follows the preferred CPUs, and how it was before |
//! | `interrupts.rs`, `irqbalance.rs` | device interrupts, without and with the daemon |
//! | `cpu_set.rs` | sets of CPUs in the kernel's notations |
//! | `libbpf_log.rs` | the end of libbpf's messages, for load failures |

mod bpf_intf;
mod bpf_skel;
mod cgroups;
mod check;
mod configuration;
mod counters;
mod cpu_set;
mod cpus;
#[cfg(test)]
mod export_tests;
mod flags;
mod frequency;
mod host_state;
mod interrupts;
mod irqbalance;
mod kernel_mask;
mod libbpf_log;
mod load;
mod mechanisms;
mod options;
mod power;
mod preferred;
mod preferred_bpf;
mod privileges;
mod readiness;
mod readings;
mod scheduler;
mod service;
mod stats;
mod topology;
mod unsupported;
mod virtual_machine;

use std::env;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use log::warn;
use serde::Serialize;
use simplelog::{ColorChoice, ConfigBuilder, LevelFilter, TermLogger, TerminalMode};

use check::Host;
use options::{Action, print_completions, print_manual};
use power::PowerSource;
use preferred::Change;
use readiness::Readiness;
use scheduler::Scheduler;

/// Prints the reason and exits with 1 on any error.
fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scx_magpie: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the scheduler until it ends, or does what the options ask for instead.
fn run() -> Result<()> {
    let options = configuration::read_options()?;
    if let Some(action) = options.action {
        return act(action);
    }
    if options.help_stats {
        return stats::explain(&mut io::stdout());
    }
    if options.stats_json {
        println!("{}", stats::totals()?);
        return Ok(());
    }
    if let Some(interval) = options.monitor {
        return stats::monitor(Duration::from_secs_f64(interval));
    }

    start_logging(options.settings.log.verbose)?;
    let host = Host::default();
    host.check()?;
    privileges::keep_few()?;
    let stop = stop_on_signal()?;
    host_state::recover(&host.root)?;
    if let Some(interval) = options.settings.stats {
        monitor_in_background(Duration::from_secs_f64(interval));
    }

    // Held until the end: the kernel drops the limit when the file is closed, after a crash, too.
    let limit = options.settings.idle_resume_us;
    let _limit = limit.map(power::limit_idle_resume).transpose()?;
    let power = PowerSource::new(options.settings.power, &host.root);
    loop {
        let mut object = MaybeUninit::uninit();
        let level = power.level();
        let skel = load::load(&options.settings, level.0, &mut object)?;
        let may_save = options.settings.may_save_power();
        let again = Scheduler::attach(skel, power.clone(), level)?.serve(&stop, may_save)?;
        if !again || stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

/// Carries out a command that does not start the scheduler.
fn act(action: Action) -> Result<()> {
    match action {
        Action::Preferred { change, json } => tell_preferred(&change.into(), json),
        Action::Cpus { json } => {
            let status = stats::cpus()?;
            print(&status, json, |output| status.tell(output))
        }
        Action::Cgroups { json } => {
            let status = stats::cgroups()?;
            print(&status, json, |output| status.tell(output))
        }
        Action::Check { json } => {
            let readiness = Readiness::examine(&configuration::read_settings()?)?;
            print(&readiness, json, |output| readiness.tell(output))?;
            match readiness.can_run {
                true => Ok(()),
                false => bail!("cannot run here"),
            }
        }
        Action::Try { .. } => Err(become_trial()),
        Action::Restore => {
            start_logging(false)?;
            host_state::recover(&Host::default().root).map(|_| ())
        }
        Action::Completions { shell } => {
            print_completions(shell);
            Ok(())
        }
        Action::Man => print_manual(),
    }
}

/// Replaces this program by `magpie try`, and returns why that is impossible.
fn become_trial() -> anyhow::Error {
    let beside = env::current_exe().map(|program| program.with_file_name("magpie"));
    let program = match beside {
        Ok(program) if program.is_file() => program,
        _ => "magpie".into(),
    };
    // As they were given, because the parser drops a `--` that comes first.
    let arguments = env::args_os().skip_while(|word| word != "try");
    let error = Command::new(&program).args(arguments).exec();
    let remedy = "install the program magpie beside scx_magpie: `make install` does";
    anyhow::Error::new(error).context(format!("cannot run {}; {remedy}", program.display()))
}

/// Changes which CPUs are preferred, and prints the status after it.
fn tell_preferred(change: &Change, json: Option<PathBuf>) -> Result<()> {
    let status = stats::preferred(change)?;
    let Some(file) = json else {
        return Ok(status.tell(&mut io::stdout())?);
    };
    write_json(&status, &file)
}

/// Prints a status to standard output, as JSON or in the words of `tell`.
fn print(
    status: &impl Serialize,
    json: bool,
    tell: impl FnOnce(&mut io::Stdout) -> io::Result<()>,
) -> Result<()> {
    match json {
        true => write_json(status, Path::new("-")),
        false => Ok(tell(&mut io::stdout())?),
    }
}

/// Writes a status as JSON to a file, or to standard output if the file is called `-`.
fn write_json(status: &impl Serialize, file: &Path) -> Result<()> {
    let text = serde_json::to_string(status)? + "\n";
    match file.to_str() {
        Some("-") => Ok(io::stdout().write_all(text.as_bytes())?),
        _ => fs::write(file, text).with_context(|| format!("writing {}", file.display())),
    }
}

/// Starts the log on standard error. Messages of libbpf and the verifier are kept for failures.
fn start_logging(verbose: bool) -> Result<()> {
    let level = if verbose {
        LevelFilter::Debug
    } else {
        LevelFilter::Info
    };
    let config = ConfigBuilder::new()
        .set_time_level(LevelFilter::Off)
        .set_target_level(LevelFilter::Off)
        .set_thread_level(LevelFilter::Off)
        .set_location_level(LevelFilter::Off)
        .build();
    // Auto alone would also colour a file.
    let colours = match io::stderr().is_terminal() {
        true => ColorChoice::Auto,
        false => ColorChoice::Never,
    };
    TermLogger::init(level, config, TerminalMode::Stderr, colours).context("starting the log")?;
    libbpf_log::keep();
    Ok(())
}

/// Returns a flag that SIGINT, SIGTERM and SIGHUP set.
fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    ctrlc::set_handler(move || seen.store(true, Ordering::Relaxed))
        .context("installing the handler for SIGINT and SIGTERM")?;
    Ok(stop)
}

/// Prints statistics from a thread of its own. Nothing waits for that thread, because it may sleep
/// for a whole interval.
fn monitor_in_background(interval: Duration) {
    std::thread::spawn(move || {
        if let Err(error) = stats::monitor(interval) {
            warn!("statistics end here: {error:#}");
        }
    });
}
