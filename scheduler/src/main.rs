//! scx_magpie, a sched_ext CPU scheduler: it finds work for idle CPUs, and idle
//! CPUs for work, at the least cost.
//!
//! This file is the whole program: options, check of the host, load, attach,
//! serve, report of the exit. The scheduling itself is in `bpf/`, and
//! `bpf/main.bpf.c` is the place to start reading it.
//!
//! | file | concern |
//! |---|---|
//! | `options.rs` | command line and configuration file |
//! | `check.rs` | can it run here; what to tell when not |
//! | `topology.rs` | where each CPU is, in the form the BPF side searches |
//! | `scheduler.rs` | the life of the BPF object |
//! | `stats.rs` | what it did, as numbers and as sentences |
//! | `cpus.rs` | what each CPU has learned about itself |
//! | `cgroups.rs` | what each cgroup gets |
//! | `preferred.rs` | preferred CPUs: words for them, and their status |
//! | `preferred_bpf.rs` | their settings and status in the kernel |
//! | `virtual_machine.rs` | whether there is a host that can be short of CPUs |
//! | `host_state.rs` | what follows the preferred CPUs, and how it was before |
//! | `interrupts.rs`, `irqbalance.rs` | device interrupts, without and with the daemon |
//! | `cpu_set.rs` | sets of CPUs as the kernel writes them |
//! | `libbpf_log.rs` | the end of what libbpf says, for load failures |

mod bpf_intf;
mod bpf_skel;
mod cgroups;
mod check;
mod cpu_set;
mod cpus;
mod host_state;
mod interrupts;
mod irqbalance;
mod libbpf_log;
mod options;
mod preferred;
mod preferred_bpf;
mod scheduler;
mod stats;
mod topology;
mod virtual_machine;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use log::{info, warn};
use serde::Serialize;
use simplelog::{ColorChoice, ConfigBuilder, LevelFilter, TermLogger, TerminalMode};

use check::Host;
use options::{Action, Options, print_completions, print_manual};
use preferred::Change;
use scheduler::Scheduler;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scx_magpie: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let options = Options::read()?;
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

    start_logging(options.settings.verbose)?;
    let stop = stop_on_signal()?;
    let host = Host::default();
    host.check()?;
    host_state::recover(&host.root)?;
    if let Some(interval) = options.settings.stats {
        monitor_in_background(Duration::from_secs_f64(interval));
    }

    loop {
        let mut object = MaybeUninit::uninit();
        let skel = scheduler::load(&options.settings, &mut object)?;
        let exit = Scheduler::attach(skel)?.serve(&stop)?;
        if !exit.should_restart() || stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        info!("the kernel asks for a restart, as after CPU hotplug");
    }
}

/// Everything but starting the scheduler.
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

fn tell_preferred(change: &Change, json: Option<PathBuf>) -> Result<()> {
    let status = stats::preferred(change)?;
    let Some(file) = json else {
        return Ok(status.tell(&mut io::stdout())?);
    };
    write_json(&status, &file)
}

/// To standard output, as JSON or as `tell` does.
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

/// To a file, or to standard output if it is called `-`.
fn write_json(status: &impl Serialize, file: &Path) -> Result<()> {
    let text = serde_json::to_string(status)? + "\n";
    match file.to_str() {
        Some("-") => Ok(io::stdout().write_all(text.as_bytes())?),
        _ => fs::write(file, text).with_context(|| format!("writing {}", file.display())),
    }
}

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
    // simplelog's own Auto colours files, too.
    let colours = match io::stderr().is_terminal() {
        true => ColorChoice::Auto,
        false => ColorChoice::Never,
    };
    TermLogger::init(level, config, TerminalMode::Stderr, colours).context("starting the log")?;
    libbpf_log::keep();
    Ok(())
}

/// Set by SIGINT, SIGTERM and SIGHUP.
fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    ctrlc::set_handler(move || seen.store(true, Ordering::Relaxed))
        .context("installing the handler for SIGINT and SIGTERM")?;
    Ok(stop)
}

/// The thread is never waited for: it may sleep for a whole interval.
fn monitor_in_background(interval: Duration) {
    std::thread::spawn(move || {
        if let Err(error) = stats::monitor(interval) {
            warn!("no more statistics: {error:#}");
        }
    });
}
