//! `magpie trace`: what the scheduler did, event by event, as a file for Perfetto; and why a task
//! waited.
//!
//! ```text
//!   bpf/trace.bpf.c --records--> recorder --events--> file (Perfetto) --> explain
//!        ^                                              |                    |
//!      hooks: functions of scx_magpie                   +---- waits ---------+
//! ```

mod event;
mod explain;
mod file;
mod hooks;
mod proto;
mod record;
mod recorder;
mod skeleton;
mod waits;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use event::{Event, What};
use hooks::Targets;
use recorder::Recording;

/// How long is recorded if nothing says so.
const SECONDS: f64 = 5.0;

/// Record what the scheduler does for Perfetto, or explain why a task waited
///
/// Records every switch, wakeup and migration, under any scheduler, and the decisions of a running
/// scx_magpie: at which step of the wakeup order a CPU was found and how many CPUs were looked at,
/// steals, balancing, pushes, changes of the preferred cores. It ends after --seconds, when COMMAND
/// ends, or at Ctrl-C, and keeps what it has. Open the file at https://ui.perfetto.dev, or ask it
/// with --explain. Recording takes root; while no one records, it costs nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
In Perfetto, each CPU has its task slices; below them are its decisions, with their facts as
arguments, and how many tasks wait for it. The tables sched, thread_state and slice answer queries:
  select name, count(*) from slice where category = 'scx_magpie' group by name

Examples:
  magpie trace --seconds 5
  magpie trace -o build.pftrace -- make -j8
  magpie trace --explain 1234                   the longest waits of task 1234
  magpie trace --explain 1234 build.pftrace --worst 20 --json")]
pub struct Args {
    /// Record for so long [default: until COMMAND ends, without one 5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,

    /// Write the trace to FILE
    #[arg(short, long, value_name = "FILE", default_value = "magpie.pftrace")]
    output: PathBuf,

    /// Memory for events that are not yet read, MiB: a power of two
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = power_of_two)]
    buffer: u32,

    /// Say in words why the task with this number waited; records nothing
    #[arg(long, value_name = "PID", conflicts_with_all = ["seconds", "output", "buffer", "command"])]
    explain: Option<i32>,

    /// The trace to explain [default: magpie.pftrace]
    #[arg(value_name = "FILE", requires = "explain")]
    file: Option<PathBuf>,

    /// How many of the longest waits to explain
    #[arg(long, value_name = "N", default_value_t = 5, requires = "explain")]
    worst: usize,

    /// Print the explanation as JSON
    #[arg(long, requires = "explain")]
    json: bool,

    /// Run this command, and record until it ends; after --seconds it is stopped
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Reads a time in seconds, up to an hour.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=3_600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds between 0.01 and 3600".into()),
    }
}

/// Reads the size of the buffer.
fn power_of_two(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(mib) if mib.is_power_of_two() && mib <= 1_024 => Ok(mib),
        _ => Err("give a power of two, at most 1024".into()),
    }
}

/// Records or explains, and returns the exit code.
///
/// # Errors
/// If recording is not possible here, or a file cannot be read or written.
pub fn run(args: &Args) -> Result<u8> {
    if let Some(pid) = args.explain {
        let file = args.file.as_ref().unwrap_or(&args.output);
        let explanation = explain::explain(&file::read(file)?, pid, args.worst)?;
        match args.json {
            true => println!("{}", serde_json::to_string_pretty(&explanation)?),
            false => print!("{explanation}"),
        }
        return Ok(0);
    }
    let targets = Targets::find().unwrap_or_else(|why| {
        eprintln!("magpie trace: without decisions of scx_magpie: {why:#}");
        Targets::none()
    });
    let recording = record(args, &targets)?;
    file::write(&args.output, &recording)?;
    println!("{}", summary(&recording, &args.output));
    Ok(0)
}

/// Records until the time is over, the command has ended, or a signal comes.
fn record(args: &Args, targets: &Targets) -> Result<Recording> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let interrupt = interrupted.clone();
    ctrlc::set_handler(move || interrupt.store(true, Ordering::Relaxed))
        .context("handling SIGINT and SIGTERM")?;
    let seconds = match (args.seconds, args.command.is_empty()) {
        (Some(seconds), _) => Some(seconds),
        (None, true) => Some(SECONDS),
        (None, false) => None,
    };
    let mut command = Load(None);
    let mut begun = None;
    let is_over = || {
        let Some(begun) = begun else {
            begun = Some(Instant::now());
            return command.start(&args.command).map(|()| false);
        };
        let limit = seconds.map(Duration::from_secs_f64);
        Ok(interrupted.load(Ordering::Relaxed)
            || limit.is_some_and(|limit| begun.elapsed() >= limit)
            || command.has_ended()?)
    };
    recorder::record(targets, args.buffer, is_over)
}

/// The command that is traced. It is stopped when this is dropped.
struct Load(Option<Child>);

impl Load {
    fn start(&mut self, argv: &[String]) -> Result<()> {
        if let Some((program, arguments)) = argv.split_first() {
            let child = Command::new(program).args(arguments).spawn();
            self.0 = Some(child.with_context(|| format!("start {program}"))?);
        }
        Ok(())
    }

    fn has_ended(&mut self) -> Result<bool> {
        let Some(child) = &mut self.0 else {
            return Ok(false);
        };
        let status = child.try_wait().context("wait for the command")?;
        if let Some(status) = status.filter(|status| !status.success()) {
            eprintln!("magpie trace: the command failed: {status}");
        }
        if status.is_some() {
            self.0 = None;
        }
        Ok(status.is_some())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may take its time: the recording is over.
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
        }
    }
}

/// Says in one line what was recorded, and in another what is missing.
fn summary(recording: &Recording, file: &Path) -> String {
    let events = &recording.events;
    let count = |is: fn(&What) -> bool| events.iter().filter(|event| is(&event.what)).count();
    let ns = match (events.first(), events.last()) {
        (Some(Event { time: first, .. }), Some(Event { time: last, .. })) => last - first,
        _ => 0,
    };
    let mut text = format!(
        "{}: {:.3} s, {} switches, {} wakeups, {} migrations, {} decisions",
        file.display(),
        ns as f64 / 1e9,
        count(|what| matches!(what, What::Switch { .. })),
        count(|what| matches!(what, What::Wakeup { .. } | What::WakeupNew { .. })),
        count(|what| matches!(what, What::Migrate { .. })),
        count(|what| matches!(what, What::Decision(_))),
    );
    let lost: u64 = recording.lost.values().sum();
    if lost > 0 {
        text += &format!("\n{lost} events were lost: give more memory with --buffer");
    }
    text
}
