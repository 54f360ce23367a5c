//! `magpie lab host`: several guests on the CPUs of one host, in virtual time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::terminal::{Spinner, write_json};
use super::vm::{LAB_FAILED, guest_name, scheduler_of, to_copy};
use crate::vtime::host::file::{GuestEntry, HostFile};
use crate::vtime::host::{self, End, GuestOutcome, Host, HostGuest};

/// Runs several guests on the physical CPUs of one host, in virtual time.
///
/// All guests share one clock and one set of physical CPUs, which their CPUs take turns on as under a
/// host's fair scheduler. They boot together, load their schedulers, begin their commands at the same
/// time, and the run ends when all commands have ended. Turns follow from virtual time, so figures of
/// two runs are close to each other.
///
/// For each guest the report has how long its command took, how much of the physical CPUs it had
/// meanwhile, and its true steal time, all in virtual seconds.
///
/// The exit code is that of the first guest whose command failed, or 125 if the lab failed, or if a
/// guest died. The other guests run on without that one.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// File that describes the host and its guests (see below).
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// A guest: its machine in virtual time, and its scheduler with options (without one: the
    /// kernel's own). May be given several times; all run the command at the end of the line.
    #[arg(long, value_name = "MACHINE[:SCHEDULER]", conflicts_with = "file")]
    guest: Vec<String>,
    /// Physical CPUs of the host [default: the file's, else 2].
    #[arg(long, value_name = "N")]
    physical_cpus: Option<u32>,
    /// The host weighs CPUs of guests, not guests: one with more busy CPUs gets more.
    #[arg(long)]
    no_cgroups: bool,
    /// Second of the run at which all guests begin their commands: later than the last one is
    /// ready [default: the file's, else 30].
    #[arg(long, value_name = "SECONDS")]
    start: Option<u32>,
    /// Run the scheduler SCHEDULER in the guest NAME of the file instead of the file's; `eevdf` is
    /// the kernel's own. May be given several times.
    #[arg(long, value_name = "NAME=SCHEDULER", requires = "file")]
    sched: Vec<String>,
    /// Debian package to unpack into every guest. May be given several times.
    #[arg(long, value_name = "NAME")]
    package: Vec<String>,
    /// Seconds of real time that the run may take, boot included.
    #[arg(long, value_name = "SECONDS", default_value_t = 1200)]
    timeout: u64,
    /// Write the report as JSON to a file, `-` for standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Command and its arguments, of the guests that --guest gives.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "file")]
    command: Vec<String>,
}

const AFTER_HELP: &str = "\
A file:
  physical_cpus = 2
  start_seconds = 30          # optional, like all keys below but name, machine and command
  host_slice_ns = 2800000     # how long a CPU of a guest runs while others wait
  cgroups = true              # false: the host weighs CPUs of guests, not guests
  [[guest]]
  name = \"ours\"
  machine = \"vt8on2\"          # in virtual time, without SMT and memory; or a file
  scheduler = \"scx_magpie\"
  packages = [\"rt-tests\"]
  command = \"hackbench -g 1 -l 50\"
  [[guest]]
  name = \"neighbour\"
  machine = \"vt8on2\"
  kernel = \"7.2\"
  copy = [\"magpie-load\"]      # programs of this host
  host_weight = 200           # cpu.weight of its cgroup on the host; else 100
  background = true           # runs beside the others, and ends when they have
  command = \"while :; do magpie-load hogs --count 8 --seconds 1; sleep 1; done\"

Examples:
  magpie lab host --guest vt8on2 --guest vt8on2:scx_magpie --package rt-tests -- \\
      hackbench -g 1 -l 50
  magpie lab host lab/hosts/neighbours.toml --sched measured=scx_magpie --json -";

/// Runs the guests, prints their output and what each had. Returns the exit code.
pub fn run(args: &Args) -> Result<u8> {
    ensure!(
        args.file.is_some() || !(args.guest.is_empty() || args.command.is_empty()),
        "name the FILE of a host, or give each guest by --guest, and their command behind `--`; \
         `magpie lab host --help` has examples"
    );
    let spinner = Spinner::new();
    let mut file = match &args.file {
        Some(path) => HostFile::read(path)?,
        None => of_arguments(args)?,
    };
    replace_schedulers(&mut file, &args.sched)?;
    file.physical_cpus = args.physical_cpus.or(file.physical_cpus);
    file.start_seconds = args.start.or(file.start_seconds);
    let mut described = file.host();
    described.cgroups &= !args.no_cgroups;
    let guests = file
        .guest
        .iter()
        .map(|entry| guest_of(entry, args, &spinner))
        .collect::<Result<Vec<_>>>()?;
    let outcomes = host::run(&described, &guests, Duration::from_secs(args.timeout))?;
    spinner.clear();
    if args.json.as_deref() != Some(Path::new("-")) {
        print(&guests, &outcomes);
    }
    if let Some(path) = &args.json {
        write_json(path, &record(&described, &guests, &outcomes))?;
    }
    Ok(code(&outcomes))
}

/// Returns the guests that the arguments describe.
fn of_arguments(args: &Args) -> Result<HostFile> {
    let guest = |(index, text): (usize, &String)| -> Result<GuestEntry> {
        let (machine, scheduler) = match text.split_once(':') {
            Some((machine, scheduler)) => (machine, Some(scheduler.to_string())),
            None => (text.as_str(), None),
        };
        Ok(GuestEntry {
            name: format!("guest{index}"),
            machine: machine.to_string(),
            kernel: None,
            scheduler,
            packages: Vec::new(),
            copy: Vec::new(),
            host_weight: None,
            background: false,
            command: shell_words::join(&args.command),
        })
    };
    Ok(HostFile {
        physical_cpus: None,
        start_seconds: None,
        host_slice_ns: None,
        cgroups: None,
        guest: args
            .guest
            .iter()
            .enumerate()
            .map(guest)
            .collect::<Result<_>>()?,
    })
}

/// Gives guests of a file other schedulers, each as NAME=SCHEDULER.
fn replace_schedulers(file: &mut HostFile, changes: &[String]) -> Result<()> {
    for change in changes {
        let (name, scheduler) = change
            .split_once('=')
            .with_context(|| format!("--sched {change} has not the form NAME=SCHEDULER"))?;
        let names: Vec<_> = file.guest.iter().map(|guest| guest.name.clone()).collect();
        let guest = file.guest.iter_mut().find(|guest| guest.name == name);
        let guest = guest.with_context(|| {
            let names = names.join(", ");
            format!("--sched {change}: the file has no guest {name}, it has {names}")
        })?;
        guest.scheduler = Some(scheduler.to_string());
    }
    Ok(())
}

/// Returns the guest that an entry describes.
fn guest_of(entry: &GuestEntry, args: &Args, spinner: &Spinner) -> Result<HostGuest> {
    let mut options = entry.options(&spinner.progress())?;
    options.packages.extend(args.package.iter().cloned());
    let scheduler = match entry.scheduler.as_deref() {
        None | Some("eevdf") => None,
        Some(line) => Some(scheduler_of(line, &mut options)?),
    };
    let mut command = entry.command.clone();
    if let Some(program) = args.command.first()
        && let Some(path) = to_copy(program, &options)?
    {
        let mut words = args.command.clone();
        words[0] = guest_name(&path)?;
        command = shell_words::join(&words);
        options.files.push(path);
    }
    Ok(HostGuest {
        name: entry.name.clone(),
        options,
        scheduler,
        command,
        background: entry.background,
        weight: entry.weight(),
    })
}

/// Prints the output of each guest, and a table of what they had.
fn print(guests: &[HostGuest], outcomes: &[GuestOutcome]) {
    for outcome in outcomes {
        println!("{}:", outcome.name);
        for line in outcome.output.lines() {
            println!("  {line}");
        }
        if let End::Died(how) = &outcome.end {
            eprintln!("magpie lab: {}: {how}", outcome.name);
        }
    }
    let width = outcomes
        .iter()
        .map(|o| o.name.len())
        .max()
        .unwrap_or(0)
        .max(5);
    println!(
        "\n{:<width$}   seconds      CPU s    steal s  end  (scheduler)",
        "guest"
    );
    for (guest, outcome) in guests.iter().zip(outcomes) {
        let figures = outcome.had.map_or_else(
            || format!("{:>10} {:>10} {:>10}", "-", "-", "-"),
            |had| {
                format!(
                    "{:>10.4} {:>10.4} {:>10.4}",
                    had.seconds, had.cpu_seconds, had.steal_seconds
                )
            },
        );
        let (name, end) = (&outcome.name, &outcome.end);
        println!(
            "{name:<width$} {figures}  {end}  ({})",
            scheduler_name(guest)
        );
    }
}

/// The scheduler of a guest, as the report names it.
fn scheduler_name(guest: &HostGuest) -> String {
    let words = guest.scheduler.as_ref();
    words.map_or_else(|| "eevdf".to_string(), shell_words::join)
}

/// The report.
fn record(host: &Host, guests: &[HostGuest], outcomes: &[GuestOutcome]) -> Value {
    let guests: Vec<_> = guests
        .iter()
        .zip(outcomes)
        .map(|(guest, outcome)| {
            let mut value = json!(outcome);
            value["machine"] = json!(guest.options.machine.name);
            value["cpus"] = json!(guest.options.machine.cpus());
            value["scheduler"] = json!(scheduler_name(guest));
            value["command"] = json!(guest.command);
            value["host_weight"] = json!(guest.weight);
            value["background"] = json!(guest.background);
            value
        })
        .collect();
    json!({
        "physical_cpus": host.physical_cpus,
        "host_slice_ns": host.host_slice_ns,
        "cgroups": host.cgroups,
        "start_seconds": host.start_seconds,
        "guests": guests,
    })
}

/// The exit code: that of the first command that failed.
fn code(outcomes: &[GuestOutcome]) -> u8 {
    let codes = outcomes.iter().map(|outcome| match &outcome.end {
        End::Exited(code) => u8::try_from(*code).unwrap_or(u8::MAX),
        End::Over => 0,
        End::Died(_) => LAB_FAILED,
    });
    codes.into_iter().find(|code| *code != 0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{AFTER_HELP, HostFile, replace_schedulers};

    /// The file that `--help` shows, read as users would.
    #[test]
    fn the_example_of_the_help_is_valid() {
        let (_, rest) = AFTER_HELP.split_once("A file:\n").expect("it begins so");
        let (text, _) = rest.split_once("Examples:").expect("examples follow");
        let mut file: HostFile = toml::from_str(text).expect("valid");
        let names: Vec<_> = file.guest.iter().map(|guest| guest.name.as_str()).collect();
        assert_eq!(names, ["ours", "neighbour"]);
        replace_schedulers(&mut file, &["ours=eevdf".to_string()]).expect("there is such a guest");
        assert_eq!(file.guest[0].scheduler.as_deref(), Some("eevdf"));
    }
}
