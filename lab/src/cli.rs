//! `magpie lab`: runs a command in a guest, lists and builds kernels, lists and checks machines.

mod fuzz;
mod host;
mod kernels;
mod terminal;
mod vm;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use magpie_guest::Stream;
use serde_json::json;

use crate::cli::terminal::{Spinner, write_json};
use crate::cli::vm::{LAB_FAILED, Vm, guest_name, scheduler_of, to_copy};
use crate::guest::{Guest, explain};
use crate::machine::{Machine, Memory};
use crate::options::GuestOptions;
use crate::selfcheck::Figure;
use crate::vtime::MemoryCounts;
use crate::{qemu, selfcheck, topology, vtime};

/// Arguments of `magpie lab`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Boot a guest, start a scheduler in it, run a command and print its output.
    Run(Run),
    /// Run several guests on the CPUs of one host, in virtual time.
    Host(host::Args),
    /// List the kernels: those of the lock file, and those that were built.
    Kernels(kernels::List),
    /// Build a kernel for guests; list and remove what was built.
    #[command(subcommand)]
    Kernel(kernels::Kernel),
    /// List the machine presets.
    Machines(Machines),
    /// Search the schedules of a deterministic machine for one that breaks a scheduler.
    Fuzz(fuzz::Args),
    /// Boot a machine and compare the topology that the guest sees with the machine.
    Check(Check),
}

/// Boots a guest, starts a scheduler in it, runs a command and returns the command's exit code.
///
/// The exit code is 125 if the lab itself failed, or if the scheduler ended while the command ran.
/// Then standard error has the reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    magpie lab run -- uname -a\n  \
    magpie lab run --machine smt8 --sched 'scx_magpie --verbose' --package rt-tests -- hackbench -g 2\n  \
    magpie lab run --kernel 7.0 --copy ./data.txt -- wc -l /bin/data.txt")]
struct Run {
    #[command(flatten)]
    vm: Vm,
    /// Scheduler with its options, as one word. The lab looks for the program in the source tree's
    /// target/release and target/peers/bin, then in PATH, and copies it into the guest.
    #[arg(long, value_name = "COMMAND")]
    sched: Option<String>,
    /// Debian package to unpack into the guest. May be given several times.
    #[arg(long, value_name = "NAME")]
    package: Vec<String>,
    /// Program or file of this host to copy into the guest's /bin, with the libraries it needs. May
    /// be given several times.
    #[arg(long, value_name = "FILE")]
    copy: Vec<PathBuf>,
    /// Seconds of real time that the command may run.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Make every run print the same, byte for byte. For machines in virtual time: CPUs and timers
    /// run one at a time, and the host sends nothing. The output comes when the command has ended,
    /// and --timeout includes the boot.
    #[arg(long)]
    deterministic: bool,
    /// Print which functions of the kernel and the scheduler took the time of the command, on
    /// standard error, and on a machine with memory which cache lines they took from other CPUs.
    /// For machines in virtual time.
    #[arg(long, conflicts_with = "deterministic")]
    profile: bool,
    /// Write exit code, times, kernel and machine as JSON to a file, `-` for standard output. For a
    /// machine in virtual time, also how well it kept its promises.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Command and its arguments: a program of a package, a busybox applet, or a program of this
    /// host, which the lab copies into the guest.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct Machines {
    /// Write the list as JSON to a file, `-` for standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Check {
    #[command(flatten)]
    vm: Vm,
    /// Seconds of real time that the self-check of a machine in virtual time may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

/// Runs `magpie lab` and returns the process's exit code.
///
/// # Errors
/// When a command other than `run` fails; `run` prints its error and returns 125.
pub fn run(args: Args) -> Result<u8> {
    ctrlc::set_handler(|| {
        qemu::abandon_all();
        std::process::exit(130);
    })
    .context("cannot install the handler that ends guests on Ctrl-C")?;
    match args.command {
        Command::Run(run) => Ok(code_of(run_command(&run))),
        Command::Host(args) => Ok(code_of(host::run(&args))),
        Command::Kernels(args) => kernels::list(&args),
        Command::Kernel(command) => kernels::run(&command),
        Command::Machines(machines) => list_machines(&machines),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Check(check) => check_machine(&check),
    }
}

/// `magpie lab run`: boots, runs the command, and returns its exit code.
fn run_command(run: &Run) -> Result<u8> {
    let spinner = Spinner::new();
    let mut options = run.vm.options(&spinner)?;
    options.packages = run.package.clone();
    options.files = run.copy.clone();
    let scheduler = match &run.sched {
        Some(line) => Some(scheduler_of(line, &mut options)?),
        None => None,
    };
    let mips = options.machine.virtual_time.as_ref().map(|time| time.mips);
    ensure!(
        mips.is_some() || !run.profile,
        "--profile needs a machine in virtual time, such as vt16; {} is not one",
        options.machine.name
    );
    options.profile = run.profile;
    let mut command = run.command.clone();
    if let Some(program) = to_copy(&command[0], &options)? {
        command[0] = guest_name(&program)?;
        options.files.push(program);
    }
    if run.deterministic {
        return run_deterministic(run, options, scheduler.as_deref(), &command, &spinner);
    }
    let mut guest = Guest::boot(&options)?;
    if let Some(argv) = &scheduler {
        options.progress.say(&format!("starting {}", argv[0]));
        guest.start_scheduler(argv)?;
    }
    spinner.clear();
    let timeout = Duration::from_secs(run.timeout);
    let before = match run.profile {
        true => Some(guest.counts()?),
        false => None,
    };
    let ran = guest.exec(&command, timeout, &mut |stream, bytes| {
        // The command runs on if standard output is a closed pipe (`| head`).
        let _ = match stream {
            Stream::Stdout => io::stdout()
                .write_all(bytes)
                .and_then(|()| io::stdout().flush()),
            Stream::Stderr => io::stderr().write_all(bytes),
        };
    });
    if scheduler.is_some() {
        // Before the command's own error, because a scheduler that the kernel disabled explains it.
        if let Ok(Some(exit)) = guest.scheduler_died() {
            bail!(
                "the scheduler ended while the command ran\n{}",
                explain(&exit)
            );
        }
    }
    let result = ran?;
    let profile = match (&before, mips) {
        (Some(before), Some(mips)) => {
            let counts = guest.counts()?.since(before);
            Some(guest.profile(&counts, mips)?)
        }
        _ => None,
    };
    if let Some(profile) = &profile {
        eprint!("{profile}");
    }
    if let Some(path) = &run.json {
        let record = json!({
            "command": command,
            "scheduler": scheduler,
            "machine": options.machine,
            "kernel": guest.kernel_release(),
            "accelerator": guest.accelerator(),
            "fidelity": guest.fidelity()?,
            "profile": profile,
            "result": result,
        });
        write_json(path, &record)?;
    }
    if let Some(argv) = &scheduler {
        let exit = guest.stop_scheduler()?;
        ensure!(
            exit.code == 0,
            "{} did not end cleanly\n{}",
            argv[0],
            explain(&exit)
        );
    }
    guest.shutdown()?;
    Ok(u8::try_from(result.code).unwrap_or(u8::MAX))
}

/// Runs a command as a batch job on a deterministic machine, where every run is the same.
fn run_deterministic(
    run: &Run,
    mut options: GuestOptions,
    scheduler: Option<&[String]>,
    command: &[String],
    spinner: &Spinner,
) -> Result<u8> {
    let name = options.machine.name.clone();
    let time = options.machine.virtual_time.as_mut().with_context(|| {
        format!("--deterministic needs a machine in virtual time, such as vt16; {name} is not one")
    })?;
    time.deterministic = true;
    let job = vtime::batch::job(scheduler, &shell_words::join(command));
    let outcome = vtime::batch::run(&options, &job, Duration::from_secs(run.timeout))?;
    spinner.clear();
    print!("{}", outcome.output);
    if let Some(path) = &run.json {
        let record = json!({
            "command": command,
            "scheduler": scheduler,
            "machine": options.machine,
            "kernel": outcome.kernel_release,
            "fidelity": outcome.fidelity,
            "result": { "code": outcome.code },
        });
        write_json(path, &record)?;
    }
    Ok(u8::try_from(outcome.code).unwrap_or(u8::MAX))
}

/// Returns the exit code of a command that ends with a guest's; prints why the lab failed.
fn code_of(result: Result<u8>) -> u8 {
    result.unwrap_or_else(|error| {
        eprintln!("magpie lab: {error:#}");
        LAB_FAILED
    })
}

/// `magpie lab machines`: lists the presets.
fn list_machines(args: &Machines) -> Result<u8> {
    let machines = Machine::presets();
    match &args.json {
        Some(path) => write_json(path, &json!(machines))?,
        None => {
            let lengths = machines.iter().map(|machine| machine.name.len());
            let width = lengths.max().unwrap_or(0);
            for machine in machines {
                println!("{:<width$}  {}", machine.name, machine.description);
            }
        }
    }
    Ok(0)
}

/// `magpie lab check`: fails unless the guest sees the machine's topology and, in virtual time,
/// measures the times of loops, sleeps, interrupts and accesses to memory that the machine's file
/// says.
fn check_machine(args: &Check) -> Result<u8> {
    let spinner = Spinner::new();
    let options = args.vm.options(&spinner)?;
    let mut guest = Guest::boot(&options)?;
    let differences = topology::differences(&mut guest, &options.machine)?;
    spinner.clear();
    let (machine, release) = (&options.machine.name, guest.kernel_release().to_string());
    ensure!(
        differences.is_empty(),
        "the guest (kernel {release}) differs from the machine {machine}:\n  {}",
        differences.join("\n  ")
    );
    println!("{machine}: kernel {release} sees the machine's siblings, caches, nodes and domains");
    if options.machine.virtual_time.is_some() {
        check_time(&mut guest, &options.machine, args.timeout)?;
    }
    if let Some(time) = &options.machine.virtual_time
        && let Some(memory) = &time.memory
    {
        check_memory(&mut guest, &options.machine, memory, args.timeout)?;
    }
    guest.shutdown()?;
    Ok(0)
}

/// Runs the self-check of a machine in virtual time. Prints what it measured, and how well the machine
/// kept time (the fidelity report): its speed, broken windows and late timers.
fn check_time(guest: &mut Guest, machine: &Machine, timeout: u64) -> Result<()> {
    let timeout = Duration::from_secs(timeout);
    let check = selfcheck::run(guest, machine, timeout)?;
    let percent = |value: Option<f64>, on: &str| {
        value.map_or_else(String::new, |value| format!(", {value:+.3} % {on}"))
    };
    println!(
        "loops: {:+.3} % alone, {:+.3} % on all cores{}{}; sleep {:+.0} ns{}",
        check.loop_alone_percent,
        check.loop_all_percent,
        percent(check.loop_siblings_percent, "on all threads"),
        percent(check.beside_work_percent, "beside a busy thread"),
        check.sleep_error_ns,
        check
            .ipi_round_trip_ns
            .map(|ns| format!("; interrupt and answer {ns:.0} ns"))
            .unwrap_or_default()
    );
    if let Some(f) = guest.fidelity()? {
        println!(
            "{:.3} s of virtual time in {:.1} s, {:.0} million instructions per second; \
             windows of {} ns broken {} times, timers at most {} ns late",
            f.virtual_seconds,
            f.real_seconds,
            f.real_mips,
            f.window_ns,
            f.windows_broken,
            f.timer_late_max_ns
        );
    }
    ensure!(
        check.holds,
        "the machine {} does not keep time: loops must be within 1 %, sleep within the window, an \
         interrupt and its answer within two",
        machine.name
    );
    Ok(())
}

/// Runs the self-check of a machine's memory, and prints what it measured beside what the table
/// `[virtual_time.memory]` predicts.
fn check_memory(guest: &mut Guest, machine: &Machine, memory: &Memory, timeout: u64) -> Result<()> {
    let timeout = Duration::from_secs(timeout);
    let check = selfcheck::run_memory(guest, machine, memory, timeout)?;
    let rows = [
        ("pointer chase", &check.chase),
        ("compare-and-swap of a line from", &check.transfers),
        ("a load after a move to", &check.moves),
        ("strings", &check.strings),
        ("fetch_add on one line", &check.contended),
        ("triad", &check.bandwidth),
        ("one line of each page", &check.pages),
        ("system call", &check.switches),
        ("instruction fetch", &check.code),
    ];
    println!("memory, measured and (predicted):");
    for (what, figures) in rows {
        let figures: Vec<String> = figures.iter().map(Figure::to_string).collect();
        println!("  {what}: {}", figures.join(", "));
    }
    if let Some(counts) = guest.fidelity()?.and_then(|fidelity| fidelity.memory) {
        print_served(&counts);
    }
    ensure!(
        check.holds(),
        "the memory of the machine {} does not cost what its table says: see the figures that are \
         NOT within their bounds",
        machine.name
    );
    Ok(())
}

/// Prints how many accesses each source of lines has served since the boot, and for how long they
/// stalled. Hits that needed no look-up are not counted.
fn print_served(counts: &MemoryCounts) {
    let sources = counts.causes().map(|(name, served)| {
        let ms = served.stall_ns as f64 / 1e6;
        format!("{name} {} ({ms:.1} ms)", served.count)
    });
    println!(
        "  served since the boot, and stall time: {}",
        sources.join(", ")
    );
}
