//! Several guests on the physical CPUs of one host, in one run of virtual time.
//!
//! Each guest is a QEMU process with a batch job. The plugin in each of them shares one clock, one
//! set of physical CPUs and one order of turns with the others (`lab/vtime/guests.c`), so turns
//! follow from virtual time. All guests boot at the same time, and begin their commands at the same
//! time.

pub mod file;

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::batch::Prepared;
use super::{Fidelity, REPORT, batch, plugin};
use crate::machine::{Machine, VirtualTime};
use crate::options::{GuestOptions, Seat};
use crate::qemu::Qemu;
use crate::run_folder::RunFolder;

/// Most guests of a host: `MAX_GUESTS` of the plugin.
pub const MOST_GUESTS: usize = 16;

/// Most CPUs of all guests of a host: `MAX_VCPUS` of the plugin.
const MOST_CPUS: u32 = 1024;

/// Name of the file that the guests share.
const STATE: &str = "state";

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Physical CPUs.
    pub physical_cpus: u32,
    /// For how long a vCPU has a physical CPU while others wait for one, in virtual nanoseconds.
    pub host_slice_ns: u64,
    /// Whether each guest is in a cgroup with a weight, which its busy CPUs divide. Else each CPU has
    /// the weight of its guest, and a guest with more busy CPUs gets more.
    pub cgroups: bool,
    /// When all guests begin their commands, in seconds since the beginning of the run.
    pub start_seconds: u32,
    /// By how much later than that they begin. Runs of one host are the same, to the last byte, so
    /// whoever wants several samples has the work meet ticks and slices at another moment in each.
    pub delay: Duration,
}

impl Host {
    /// The usual second: schedulers are loaded by then, and idle time costs nothing.
    pub const START_SECONDS: u32 = 30;

    /// Returns a host with so many physical CPUs, and the default for all else.
    #[must_use]
    pub fn new(physical_cpus: u32) -> Host {
        Host {
            physical_cpus,
            host_slice_ns: VirtualTime::default().host_slice_ns,
            cgroups: true,
            start_seconds: Host::START_SECONDS,
            delay: Duration::ZERO,
        }
    }

    /// When all guests begin their commands, since the beginning of the run.
    fn start(&self) -> Duration {
        Duration::from_secs(self.start_seconds.into()) + self.delay
    }
}

/// A guest of a host.
#[derive(Debug, Clone)]
pub struct HostGuest {
    /// Its name in the report.
    pub name: String,
    /// Its machine in virtual time, its kernel, packages and files.
    pub options: GuestOptions,
    /// Its scheduler, a program of the guest with its options; `None` is the kernel's own.
    pub scheduler: Option<Vec<String>>,
    /// What it runs from the start on: a shell script.
    pub command: String,
    /// Whether it only runs beside the others, and ends when they have ended.
    pub background: bool,
    /// Its weight on the host, as `cpu.weight` of a cgroup.
    pub weight: u32,
}

impl HostGuest {
    /// The weight of a cgroup that has no other.
    pub const WEIGHT: u32 = 100;
}

/// How a guest ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Its command ended with this code.
    Exited(i32),
    /// It ran in the background until all others had ended.
    Over,
    /// It ended before its command did. The text says how, with the ends of its logs.
    Died(String),
}

/// What a guest had of the host while its command ran, or, in the background, until the commands of
/// the others had ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Had {
    /// Virtual time at which the command began, since the start of the run.
    pub begin_seconds: f64,
    /// How long that was, in virtual time.
    pub seconds: f64,
    /// Time of physical CPUs that all its CPUs had.
    pub cpu_seconds: f64,
    /// Time in which its CPUs wanted to execute and had no physical CPU: the true steal time.
    pub steal_seconds: f64,
    /// Time in which its CPUs were halted.
    pub idle_seconds: f64,
}

/// A guest that has ended.
#[derive(Debug, Clone, Serialize)]
pub struct GuestOutcome {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub end: End,
    /// `uname -r`, once it has booted.
    pub kernel: Option<String>,
    /// Output of the scheduler's start, and of the command.
    pub output: String,
    /// What it had of the host, if its command began and its QEMU wrote a report.
    pub had: Option<Had>,
    /// The plugin's report.
    pub fidelity: Option<Fidelity>,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exited(code) => write!(f, "exit code {code}"),
            End::Over => f.write_str("background"),
            End::Died(_) => f.write_str("died"),
        }
    }
}

/// The guests of a host that runs. Dropping it ends them.
#[derive(Debug)]
pub struct Running {
    guests: Vec<(HostGuest, Qemu)>,
    _folder: RunFolder,
}

impl Running {
    /// Starts all guests of a host. Returns while they boot.
    ///
    /// # Errors
    /// When the guests do not fit together, or a QEMU does not start.
    pub fn start(host: &Host, guests: &[HostGuest]) -> Result<Running> {
        check(host, guests)?;
        let fails = |guest: &HostGuest| {
            let message = format!("the guest {} does not start", guest.name);
            move || message
        };
        let folder = RunFolder::new()?;
        let cpus: u32 = guests
            .iter()
            .map(|guest| guest.options.machine.cpus())
            .sum();
        let mut first_cpu = 0;
        let mut prepared = Vec::new();
        for (index, guest) in guests.iter().enumerate() {
            let mut options = guest.options.clone();
            options.machine = machine_on(host, guest)?;
            options.seat = Some(Seat {
                file: folder.path().join(STATE),
                guests: guests.len(),
                guest: index,
                first_cpu,
                cpus,
                background: guest.background,
                weight: guest.weight,
                cgroups: host.cgroups,
            });
            first_cpu += options.machine.cpus();
            options.files.push(plugin::mark_program(&options.progress)?);
            let machine = Prepared::new(&options, &job(host, guest)).with_context(fails(guest))?;
            let image = folder.path().join(format!("image.{index}"));
            machine.write_image(&image).with_context(fails(guest))?;
            prepared.push((guest, machine, image));
        }
        // Time stands still until all have started, and a guest whose time stands still for long
        // gives up. So all images are there first.
        let mut guests = Vec::new();
        for (guest, machine, image) in prepared {
            let qemu = machine.start_with(&image).with_context(fails(guest))?;
            guests.push((guest.clone(), qemu));
        }
        Ok(Running {
            guests,
            _folder: folder,
        })
    }

    /// Process id of a guest's QEMU.
    pub fn qemu_pid(&self, guest: usize) -> u32 {
        self.guests[guest].1.pid()
    }

    /// What a guest wrote to its console so far.
    pub fn console(&self, guest: usize) -> String {
        self.guests[guest].1.console()
    }

    /// Waits until all guests have ended, at most for `timeout`, in real time.
    ///
    /// # Errors
    /// When a guest still runs then.
    pub fn wait(self, timeout: Duration) -> Result<Vec<GuestOutcome>> {
        let deadline = Instant::now() + timeout;
        for (guest, qemu) in &self.guests {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(
                qemu.wait(left).is_some(),
                "{}",
                qemu.report(&format!(
                    "the guest {} did not end within {} s",
                    guest.name,
                    timeout.as_secs_f64()
                ))
            );
        }
        Ok(self.guests.iter().map(outcome).collect())
    }
}

/// Runs all guests of a host until their commands have ended. `timeout` is in real time and includes
/// the boot.
///
/// # Errors
/// As [`Running::start`], and when a guest does not end in time. A guest that dies is no error.
pub fn run(host: &Host, guests: &[HostGuest], timeout: Duration) -> Result<Vec<GuestOutcome>> {
    Running::start(host, guests)?.wait(timeout)
}

/// Returns the machine of a guest as it is on a host.
///
/// # Errors
/// When it cannot be there: it has SMT or a memory model.
pub fn machine_on(host: &Host, guest: &HostGuest) -> Result<Machine> {
    let mut machine = guest.options.machine.clone();
    let time = machine.virtual_time.get_or_insert_default();
    time.deterministic = true;
    time.physical_cpus = Some(host.physical_cpus);
    time.host_slice_ns = host.host_slice_ns;
    machine
        .check()
        .with_context(|| format!("the guest {} fits no host", guest.name))?;
    Ok(machine)
}

/// Fails unless the guests can run on the host together.
///
/// # Errors
/// With the guests that do not fit, and why.
pub fn check(host: &Host, guests: &[HostGuest]) -> Result<()> {
    ensure!(
        (1..=MOST_GUESTS).contains(&guests.len()),
        "a host has from 1 to {MOST_GUESTS} guests, not {}",
        guests.len()
    );
    ensure!(
        guests.iter().any(|guest| !guest.background),
        "all guests are in the background: at least one must have a command that ends the run"
    );
    for guest in guests {
        ensure!(
            (1..=10_000).contains(&guest.weight),
            "the guest {} has the weight {} on the host: a cgroup's is from 1 to 10000",
            guest.name,
            guest.weight
        );
        machine_on(host, guest)?;
    }
    let cpus: u32 = guests.iter().map(|g| g.options.machine.cpus()).sum();
    ensure!(
        cpus <= MOST_CPUS,
        "the guests have {cpus} CPUs together, a host takes {MOST_CPUS}"
    );
    let pace = |guest: &HostGuest| -> Result<(f64, u64, u64)> {
        let time = guest.options.machine.time()?;
        Ok((time.mips, time.quantum, time.window_ns))
    };
    let first = pace(&guests[0])?;
    for guest in guests {
        ensure!(
            pace(guest)? == first,
            "the machines of the guests {} and {} differ in mips, quantum or window_ns: the \
             physical CPUs of a host are alike",
            guests[0].name,
            guest.name
        );
    }
    Ok(())
}

/// Returns what a guest runs: the scheduler, and from the start on the command, between the marks.
fn job(host: &Host, guest: &HostGuest) -> String {
    let command = format!(
        "vtime-mark begin {} || exit 125\n(\n{}\n)\ncode=$?\nvtime-mark end\n(exit $code)",
        host.start().as_secs_f64(),
        guest.command.trim_end()
    );
    // The output is the commands', without the kernel's messages.
    let quiet = "echo 1 >/proc/sys/kernel/printk\n";
    quiet.to_string() + &batch::job(guest.scheduler.as_deref(), &command)
}

/// Returns how a guest ended whose QEMU has ended.
fn outcome((guest, qemu): &(HostGuest, Qemu)) -> GuestOutcome {
    let console = qemu.console();
    // A QEMU that died has written no report.
    let fidelity = Fidelity::read(&qemu.folder().join(REPORT)).ok();
    let reason = fidelity.as_ref().map(|fidelity| fidelity.end.as_str());
    let begun = batch::parse_begin(&console);
    let kernel = begun.map(|(release, _)| release.trim().to_string());
    let (end, output) = match batch::parse(&console) {
        Some((_, code, output)) => (End::Exited(code), output),
        None => {
            let output = begun.map(|(_, output)| output.to_string());
            let end = match reason {
                Some("over") => End::Over,
                _ => End::Died(qemu.report("the guest ended before its command did")),
            };
            (end, output.unwrap_or_default())
        }
    };
    let had = fidelity.as_ref().and_then(|fidelity| {
        let span = fidelity.span.as_ref()?;
        let seconds = |ns: i64| ns as f64 / 1e9;
        Some(Had {
            begin_seconds: seconds(span.begin_ns),
            seconds: seconds(span.end_ns - span.begin_ns),
            cpu_seconds: span.instructions as f64 / 1e6 / fidelity.mips,
            steal_seconds: seconds(span.steal_ns),
            idle_seconds: seconds(span.idle_ns),
        })
    });
    GuestOutcome {
        name: guest.name.clone(),
        end,
        kernel,
        output,
        had,
        fidelity,
    }
}
