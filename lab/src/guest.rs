//! A booted guest: it runs commands and a scheduler, and is powered off in an orderly way.
//!
//! Every wait has a limit and every failure explains itself: a guest that panics, hangs or never
//! boots is an error with the tail of its console.

mod connection;
mod scheduler;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use magpie_guest::{Event, ExecResult, PROTOCOL, Request, SchedulerExit, Stream, decode};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub use self::scheduler::explain;

use self::connection::Connection;
use self::scheduler::Scheduler;
use crate::kernel::Kernel;
use crate::options::{Accelerator, GuestOptions};
use crate::vtime::profile::{self, Counts, Profile, Symbols};
use crate::vtime::{self, Fidelity};
use crate::{accelerator, boot, text};

/// Lines of a failed command's output that its error shows.
const LINES_SHOWN: usize = 40;

/// How long a guest may take to print its kernel's symbols, in real time.
const SYMBOLS_TIMEOUT: Duration = Duration::from_secs(300);

/// A booted virtual machine. Dropping it kills QEMU.
#[derive(Debug)]
pub struct Guest {
    connection: Connection,
    scheduler: Scheduler,
    release: String,
    warnings: Vec<String>,
    accelerator: Accelerator,
    in_virtual_time: bool,
}

impl Guest {
    /// Downloads what is missing, boots, and waits until the agent says hello.
    ///
    /// # Errors
    /// When a download fails, QEMU is missing, or the guest does not boot in time.
    pub fn boot(options: &GuestOptions) -> Result<Guest> {
        let prepared;
        let options = if options.machine.virtual_time.is_some() {
            prepared = vtime::prepare(options)?;
            &prepared
        } else {
            options
        };
        let kernel = options.kernel.resolve(&options.progress)?;
        let accelerator = match options.accelerator {
            Some(accelerator) => accelerator,
            None => accelerator::probe(options, |trial| {
                Guest::boot_with(trial, &kernel, Accelerator::Kvm).map(drop)
            })?,
        };
        let watched;
        let options = if accelerator == Accelerator::Tcg && options.machine.virtual_time.is_none() {
            watched = vtime::watch_breakpoints(options);
            &watched
        } else {
            options
        };
        Guest::boot_with(options, &kernel, accelerator)
    }

    /// Boots with a kernel and an accelerator that are settled.
    fn boot_with(
        options: &GuestOptions,
        kernel: &Kernel,
        accelerator: Accelerator,
    ) -> Result<Guest> {
        let qemu = boot::start(options, kernel, accelerator)?;
        let deadline = Instant::now() + options.boot_timeout;
        let mut connection = Connection::open(qemu, deadline, options.answer_timeout)?;
        let what = "the guest did not boot";
        match connection.next_event(deadline).context(what)? {
            Some(Event::Hello {
                protocol,
                release,
                warnings,
            }) => {
                ensure!(
                    protocol == PROTOCOL,
                    "magpie-guest speaks protocol {protocol}, this program {PROTOCOL}: build both \
                     from the same source with `cargo build`"
                );
                Ok(Guest {
                    connection,
                    scheduler: Scheduler::none(options.scheduler_timeout),
                    release,
                    warnings,
                    accelerator,
                    in_virtual_time: options.machine.virtual_time.is_some(),
                })
            }
            Some(event) => bail!("the guest's first event must be hello, it was {event:?}"),
            None => {
                let limit = options.boot_timeout.as_secs_f64();
                bail!("{}", connection.report(&format!("{what} within {limit} s")))
            }
        }
    }

    /// Runs a command and passes its output to `output` as it comes. An exit code other than 0 is
    /// no error.
    ///
    /// # Errors
    /// When the command cannot be started or the guest is gone. Also when the command takes longer
    /// than `timeout`, in real time: it is killed, and the guest remains usable.
    pub fn exec(
        &mut self,
        argv: &[String],
        timeout: Duration,
        output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<ExecResult> {
        let id = self.connection.new_id();
        self.connection.send(&Request::Exec {
            id,
            argv: argv.to_vec(),
        })?;
        let limit = timeout.as_secs_f64();
        let mut deadline = Instant::now() + timeout;
        let mut killed = false;
        loop {
            match self.connection.next_event(deadline)? {
                Some(Event::Output {
                    id: of,
                    stream,
                    data,
                }) if of == id => {
                    let bytes = decode(&data).context("the guest sent malformed output")?;
                    output(stream, &bytes);
                }
                Some(Event::Exited { id: of, result }) if of == id => {
                    ensure!(
                        !killed,
                        "{argv:?} exceeded its limit of {limit} s and was killed"
                    );
                    return Ok(result);
                }
                Some(Event::Failed { id: of, message }) if of == id => bail!(message),
                Some(event) => self.scheduler.note(event),
                None if !killed => {
                    killed = true;
                    deadline = self.connection.answer_deadline();
                    self.connection.send(&Request::Kill { id })?;
                }
                None => {
                    let what = format!(
                        "{argv:?} exceeded its limit of {limit} s and the guest does not answer: \
                         it hangs"
                    );
                    bail!("{}", self.connection.report(&what));
                }
            }
        }
    }

    /// Runs a command and returns its standard output as text.
    ///
    /// # Errors
    /// As [`Guest::exec`], and when the exit code is not 0; then with the tail of both streams.
    pub fn capture(&mut self, argv: &[&str], timeout: Duration) -> Result<String> {
        let argv: Vec<String> = argv.iter().map(|word| word.to_string()).collect();
        let (mut stdout, mut all) = (Vec::new(), Vec::new());
        let result = self
            .exec(&argv, timeout, &mut |stream, bytes| {
                all.extend_from_slice(bytes);
                if stream == Stream::Stdout {
                    stdout.extend_from_slice(bytes);
                }
            })
            .with_context(|| format!("in the guest; its output:\n{}", tail(&stdout)))?;
        ensure!(
            result.code == 0,
            "{argv:?} ended with code {} in the guest:\n{}",
            result.code,
            tail(&all)
        );
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    }

    /// Asks a machine in virtual time how well it keeps its promises so far. `None` in real time.
    ///
    /// # Errors
    /// When QEMU has ended or writes no report.
    pub fn fidelity(&self) -> Result<Option<Fidelity>> {
        if !self.in_virtual_time {
            return Ok(None);
        }
        let qemu = self.connection.qemu();
        Fidelity::of_running(qemu.pid(), &qemu.folder().join(vtime::REPORT)).map(Some)
    }

    /// Reads where virtual time went since the machine's start, if [`GuestOptions::profile`] is set.
    ///
    /// # Errors
    /// When QEMU has ended or writes no report.
    pub fn counts(&self) -> Result<Counts> {
        self.fidelity()?;
        Counts::read(&self.connection.qemu().folder().join(profile::COUNTS))
    }

    /// Returns counts by function of the guest's kernel. A BPF program is named only while it is
    /// loaded.
    ///
    /// # Errors
    /// When the guest does not tell its kernel's symbols.
    pub fn profile(&mut self, counts: &Counts, mips: f64) -> Result<Profile> {
        let kallsyms = self.capture(&["cat", "/proc/kallsyms"], SYMBOLS_TIMEOUT)?;
        Ok(Profile::new(counts, &Symbols::parse(&kallsyms), mips))
    }

    /// Starts a scheduler. Returns when the kernel's sched_ext state is "enabled".
    ///
    /// # Errors
    /// When one is running, or when it ends or is not enabled in time; then with its output and the
    /// kernel's reason.
    pub fn start_scheduler(&mut self, argv: &[String]) -> Result<()> {
        self.scheduler.start(&mut self.connection, argv)
    }

    /// Sends the scheduler SIGINT and waits until the kernel's state is "disabled". A scheduler
    /// that has ended by itself is no error: the exit that is returned says so.
    ///
    /// # Errors
    /// When no scheduler was started, or it does not end in time.
    pub fn stop_scheduler(&mut self) -> Result<SchedulerExit> {
        self.scheduler.stop(&mut self.connection)
    }

    /// Returns how the scheduler ended if it exited by itself, or if the kernel has disabled it and
    /// it does not come back. A scheduler that restarts itself, as after CPU hotplug, has 10 s.
    ///
    /// # Errors
    /// When the guest does not answer.
    pub fn scheduler_died(&mut self) -> Result<Option<SchedulerExit>> {
        self.scheduler.died(&mut self.connection)
    }

    /// `uname -r` of the guest.
    pub fn kernel_release(&self) -> &str {
        &self.release
    }

    /// Steps of the boot that failed, such as a mount. A test may need what they would have set up.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The means by which QEMU executes the guest's instructions.
    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Host thread id of each vCPU, in Linux's order of CPUs.
    ///
    /// # Errors
    /// When QEMU does not answer on its monitor.
    pub fn qemu_threads(&mut self) -> Result<Vec<u32>> {
        self.connection.qemu_mut().vcpu_threads()
    }

    /// Stops a guest in virtual time until [`Guest::resume`]. Otherwise the time of an idle guest
    /// would run ahead as fast as the host can. A guest in real time goes on, as its clock does.
    ///
    /// # Errors
    /// When QEMU has ended.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets a guest go on that was stopped.
    ///
    /// # Errors
    /// When QEMU has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Sends a signal to the QEMU of a guest in virtual time.
    fn signal(&self, signal: Signal) -> Result<()> {
        if self.in_virtual_time {
            let pid = Pid::from_raw(self.qemu_pid() as i32);
            kill(pid, signal).with_context(|| format!("send {signal} to QEMU"))?;
        }
        Ok(())
    }

    /// Process id of QEMU.
    pub fn qemu_pid(&self) -> u32 {
        self.connection.qemu().pid()
    }

    /// Powers the guest off and waits for QEMU to end.
    ///
    /// # Errors
    /// When the guest does not power off in time, or QEMU fails.
    pub fn shutdown(mut self) -> Result<()> {
        self.connection.send(&Request::Shutdown)?;
        let limit = self.connection.answer_timeout();
        match self.connection.qemu().wait(limit) {
            Some(status) if status.success() => Ok(()),
            Some(_) => {
                let what = "QEMU failed while the guest was powered off";
                bail!("{}", self.connection.report(what))
            }
            None => bail!("{}", self.connection.report("the guest does not power off")),
        }
    }
}

/// Returns the end of a command's output, for an error.
fn tail(output: &[u8]) -> String {
    text::last_lines(&String::from_utf8_lossy(output), LINES_SHOWN)
}
