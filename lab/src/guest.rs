//! A booted guest: commands, a scheduler, an orderly end.
//!
//! Every wait has a limit and every failure explains itself: a guest that panics, hangs or never
//! comes up ends in an error with the tail of its console.

use crate::kernel::{Kernel, KernelChoice};
use crate::machine::Machine;
use crate::qemu::Qemu;
use crate::vtime::{self, Fidelity};
use crate::{accelerator, image, packages};
use anyhow::{Context, Result, anyhow, bail, ensure};
use magpie_guest::{Event, PROTOCOL, Request, decode};
pub use magpie_guest::{ExecResult, SchedulerExit, Stream};
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a healthy guest may take to answer something that needs no work.
const ANSWER: Duration = Duration::from_secs(20);

/// How long a panicked guest may take to end QEMU.
const LAST_BREATH: Duration = Duration::from_secs(5);

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// Hardware virtualisation.
    Kvm,
    /// QEMU's translator, one host thread per vCPU.
    Tcg,
}

/// What to boot and how. `Default` gives tiny2 with the default kernel.
#[derive(Debug, Clone)]
pub struct GuestOptions {
    /// Shape of the machine.
    pub machine: Machine,
    /// Kernel to boot.
    pub kernel: KernelChoice,
    /// Debian packages to unpack into the image.
    pub packages: Vec<String>,
    /// Host executables and files copied to /bin of the guest with the libraries they need.
    pub files: Vec<PathBuf>,
    /// How long the guest may take to report for work.
    pub boot_timeout: Duration,
    /// How long a scheduler may take to be enabled, or to be gone after it was asked to stop.
    pub scheduler_timeout: Duration,
    /// How long a healthy guest may take to answer something that needs no work.
    pub answer_timeout: Duration,
    /// More words for the kernel's command line.
    pub kernel_cmdline: Vec<String>,
    /// Accelerator; probed when none is given.
    pub accelerator: Option<Accelerator>,
    /// QEMU's CPU model with its features; one that suits the accelerator when none is given.
    pub cpu: Option<String>,
    /// QEMU binary; `qemu-system-x86_64` from PATH when none is given.
    pub qemu_program: Option<PathBuf>,
    /// More arguments for QEMU; `{folder}` in one stands for the folder of this run.
    pub extra_qemu_args: Vec<String>,
    /// More environment variables for QEMU.
    pub qemu_environment: Vec<(String, String)>,
    /// Hears what is going on while it takes time (downloads, boot).
    pub progress: Progress,
}

/// Hears what is going on while it takes time.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(&str) + Send + Sync>);

impl Progress {
    /// Passes each message to `listener`.
    pub fn new(listener: impl Fn(&str) + Send + Sync + 'static) -> Progress {
        Progress(Arc::new(listener))
    }

    /// Says what begins now.
    pub fn say(&self, what: &str) {
        (self.0)(what);
    }
}

impl Default for Progress {
    fn default() -> Self {
        Progress::new(|_| {})
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

impl Default for GuestOptions {
    fn default() -> Self {
        GuestOptions {
            machine: Machine::default(),
            kernel: KernelChoice::Default,
            packages: Vec::new(),
            files: Vec::new(),
            boot_timeout: Duration::from_secs(120),
            scheduler_timeout: Duration::from_secs(90),
            answer_timeout: ANSWER,
            kernel_cmdline: Vec::new(),
            accelerator: None,
            cpu: None,
            qemu_program: None,
            extra_qemu_args: Vec::new(),
            qemu_environment: Vec::new(),
            progress: Progress::default(),
        }
    }
}

/// A booted VM; dropping it kills QEMU.
#[derive(Debug)]
pub struct Guest {
    requests: UnixStream,
    events: Receiver<Result<Event>>,
    next_id: u64,
    release: String,
    warnings: Vec<String>,
    accelerator: Accelerator,
    scheduler_timeout: Duration,
    answer_timeout: Duration,
    in_virtual_time: bool,
    /// Name of the scheduler that was started and not stopped.
    scheduler: Option<String>,
    /// How it ended by itself.
    scheduler_exit: Option<SchedulerExit>,
    qemu: Qemu,
}

impl Guest {
    /// Boots and waits until the agent reports for work.
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
            None => accelerator::probe(options, &kernel)?,
        };
        Guest::boot_with(options, &kernel, accelerator)
    }

    /// Boots a kernel that was found before, on an accelerator that was chosen before.
    pub(crate) fn boot_with(
        options: &GuestOptions,
        kernel: &Kernel,
        accelerator: Accelerator,
    ) -> Result<Guest> {
        let contents = image::Contents {
            config: kernel.config.clone(),
            packages: packages::unpacked(&options.packages, &options.progress)?,
            files: options.files.clone(),
        };
        options
            .progress
            .say(&format!("booting {}", options.machine.name));
        let deadline = Instant::now() + options.boot_timeout;
        let qemu = Qemu::start(options, kernel, accelerator, |path| {
            image::write(&contents, path)
        })?;
        let stream = qemu.accept_agent(deadline)?;
        stream
            .set_write_timeout(Some(ANSWER))
            .context("set a socket's timeout")?;
        let events = read_events(stream.try_clone().context("duplicate a socket")?);
        let mut guest = Guest {
            requests: stream,
            events,
            next_id: 1,
            release: String::new(),
            warnings: Vec::new(),
            accelerator,
            scheduler_timeout: options.scheduler_timeout,
            answer_timeout: options.answer_timeout,
            in_virtual_time: options.machine.virtual_time.is_some(),
            scheduler: None,
            scheduler_exit: None,
            qemu,
        };
        let what = "the guest did not boot";
        match guest.next_event(deadline).map_err(|e| e.context(what))? {
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
                guest.release = release;
                guest.warnings = warnings;
                Ok(guest)
            }
            Some(event) => bail!("the guest's first word must be hello, it was {event:?}"),
            None => {
                let limit = options.boot_timeout.as_secs_f64();
                bail!("{}", guest.qemu.report(&format!("{what} within {limit} s")))
            }
        }
    }

    /// Runs a command and streams its output. An exit code other than 0 is not an error; a command
    /// that takes longer than `timeout` (in real time) is: it is killed, the guest remains usable.
    pub fn exec(
        &mut self,
        argv: &[String],
        timeout: Duration,
        output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<ExecResult> {
        let id = self.new_id();
        self.send(&Request::Exec {
            id,
            argv: argv.to_vec(),
        })?;
        let mut deadline = Instant::now() + timeout;
        let mut killed = false;
        loop {
            match self.next_event(deadline)? {
                Some(Event::Output {
                    id: of,
                    stream,
                    data,
                }) if of == id => {
                    output(
                        stream,
                        &decode(&data).context("the guest sent malformed output")?,
                    );
                }
                Some(Event::Exited { id: of, result }) if of == id => {
                    let limit = timeout.as_secs_f64();
                    ensure!(
                        !killed,
                        "{argv:?} exceeded its limit of {limit} s and was killed"
                    );
                    return Ok(result);
                }
                Some(Event::Failed { id: of, message }) if of == id => bail!(message),
                Some(event) => self.note(event),
                None if !killed => {
                    killed = true;
                    deadline = Instant::now() + self.answer_timeout;
                    self.send(&Request::Kill { id })?;
                }
                None => {
                    let what = format!(
                        "{argv:?} exceeded its limit of {} s and the guest does not answer: it hangs",
                        timeout.as_secs_f64()
                    );
                    bail!("{}", self.qemu.report(&what));
                }
            }
        }
    }

    /// Runs a command; its standard output as text. An exit code other than 0 is an error that
    /// carries the tail of both streams.
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
            .with_context(|| format!("in the guest; its output:\n{}", tail(&all_text(&stdout))))?;
        ensure!(
            result.code == 0,
            "{argv:?} ended with code {} in the guest:\n{}",
            result.code,
            tail(&all_text(&all))
        );
        Ok(all_text(&stdout))
    }

    /// How well a machine in virtual time keeps its promises so far; none in real time.
    pub fn fidelity(&self) -> Result<Option<Fidelity>> {
        if !self.in_virtual_time {
            return Ok(None);
        }
        let path = self.qemu.folder().join(vtime::REPORT);
        Fidelity::of_running(self.qemu.pid(), &path).map(Some)
    }

    /// Starts a scheduler; returns when the kernel's sched_ext state is "enabled".
    pub fn start_scheduler(&mut self, argv: &[String]) -> Result<()> {
        let name = argv.first().context("an empty scheduler command")?.clone();
        ensure!(
            self.scheduler.is_none(),
            "{} is already running in the guest; stop it first",
            self.scheduler.as_deref().unwrap_or_default()
        );
        self.scheduler_exit = None;
        let id = self.new_id();
        self.send(&Request::StartScheduler {
            id,
            argv: argv.to_vec(),
        })?;
        let deadline = Instant::now() + self.scheduler_timeout;
        loop {
            match self.next_event(deadline)? {
                Some(Event::SchedulerStarted { id: of }) if of == id => {
                    self.scheduler = Some(name);
                    return Ok(());
                }
                Some(Event::SchedulerExited { exit, .. }) => {
                    bail!("{name} ended before it was enabled\n{}", explain(&exit));
                }
                Some(Event::Failed { id: of, message }) if of == id => bail!(message),
                Some(event) => self.note(event),
                None => {
                    let limit = self.scheduler_timeout.as_secs_f64();
                    let what = format!("{name} was not enabled within {limit} s");
                    let exit = self.end_scheduler().with_context(|| what.clone())?;
                    bail!("{what}\n{}", explain(&exit));
                }
            }
        }
    }

    /// SIGINT, then waits until the kernel's state is "disabled". A scheduler that has ended by
    /// itself is no error: its exit says so.
    pub fn stop_scheduler(&mut self) -> Result<SchedulerExit> {
        ensure!(
            self.scheduler.is_some(),
            "no scheduler was started in the guest"
        );
        self.collect()?;
        self.scheduler = None;
        match self.scheduler_exit.take() {
            Some(exit) => Ok(exit),
            None => self.end_scheduler(),
        }
    }

    fn end_scheduler(&mut self) -> Result<SchedulerExit> {
        let id = self.new_id();
        self.send(&Request::StopScheduler { id })?;
        let deadline = Instant::now() + self.scheduler_timeout;
        loop {
            match self.next_event(deadline)? {
                Some(Event::SchedulerExited { exit, .. }) => return Ok(exit),
                Some(Event::Failed { id: of, message }) if of == id => bail!(message),
                Some(event) => self.note(event),
                None => bail!("{}", self.qemu.report("the scheduler does not end")),
            }
        }
    }

    /// `Some` if the scheduler exited by itself, or the kernel has thrown it out and it does not come
    /// back. A scheduler that restarts itself (after CPU hotplug) is given 10 s.
    pub fn scheduler_died(&mut self) -> Result<Option<SchedulerExit>> {
        if self.scheduler.is_none() {
            return Ok(None);
        }
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let (running, state) = self.scheduler_status()?;
            if let Some(exit) = &self.scheduler_exit {
                return Ok(Some(exit.clone()));
            }
            if running && state == "enabled" {
                return Ok(None);
            }
            if Instant::now() > patience {
                let exit = self.end_scheduler()?;
                self.scheduler_exit = Some(exit.clone());
                return Ok(Some(exit));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn scheduler_status(&mut self) -> Result<(bool, String)> {
        let id = self.new_id();
        self.send(&Request::SchedulerStatus { id })?;
        let deadline = Instant::now() + self.answer_timeout;
        loop {
            match self.next_event(deadline)? {
                Some(Event::Scheduler {
                    id: of,
                    running,
                    state,
                }) if of == id => {
                    return Ok((running, state));
                }
                Some(event) => self.note(event),
                None => bail!(
                    "{}",
                    self.qemu.report("the guest does not answer: it hangs")
                ),
            }
        }
    }

    /// `uname -r` of the guest.
    pub fn kernel_release(&self) -> &str {
        &self.release
    }

    /// What failed during the boot, such as a mount.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What the guest runs on.
    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Host thread id of each vCPU, in Linux's order of CPUs.
    pub fn qemu_threads(&mut self) -> Result<Vec<u32>> {
        self.qemu.vcpu_threads()
    }

    /// Process id of QEMU.
    pub fn qemu_pid(&self) -> u32 {
        self.qemu.pid()
    }

    /// All that the guest wrote to its serial console so far.
    pub fn console(&self) -> String {
        self.qemu.console()
    }

    /// Powers the guest off and waits for QEMU.
    pub fn shutdown(mut self) -> Result<()> {
        self.send(&Request::Shutdown)?;
        match self.qemu.wait(self.answer_timeout) {
            Some(status) if status.success() => Ok(()),
            Some(_) => bail!(
                "{}",
                self.qemu
                    .report("QEMU failed while the guest was powered off")
            ),
            None => bail!("{}", self.qemu.report("the guest does not power off")),
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request).context("encode a request")?;
        line.push(b'\n');
        self.requests.write_all(&line).map_err(|error| {
            self.qemu.wait(LAST_BREATH);
            anyhow!(
                "{}",
                self.qemu
                    .report(&format!("the guest takes no requests ({error})"))
            )
        })
    }

    /// The next event, none at the deadline; an error once the guest is gone.
    fn next_event(&mut self, deadline: Instant) -> Result<Option<Event>> {
        let mut panicked_at = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left.min(Duration::from_secs(1))) {
                Ok(event) => return event.map(Some),
                Err(RecvTimeoutError::Disconnected) => {
                    self.qemu.wait(LAST_BREATH);
                    bail!("{}", self.qemu.report("the guest is gone"));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.qemu.panicked() {
                let since = *panicked_at.get_or_insert_with(Instant::now);
                ensure!(
                    since.elapsed() < LAST_BREATH,
                    "{}",
                    self.qemu.report("the guest is gone")
                );
            }
        }
    }

    /// Takes the events that have arrived.
    fn collect(&mut self) -> Result<()> {
        while let Ok(event) = self.events.try_recv() {
            let event = event?;
            self.note(event);
        }
        Ok(())
    }

    /// Keeps what came unasked; answers to requests that were given up are dropped.
    fn note(&mut self, event: Event) {
        if let Event::SchedulerExited { exit, .. } = event {
            self.scheduler_exit = Some(exit);
        }
    }
}

fn read_events(stream: UnixStream) -> Receiver<Result<Event>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            let event = serde_json::from_str(&line).with_context(|| {
                format!(
                    "the guest sent what is no event: {}",
                    line.chars().take(200).collect::<String>()
                )
            });
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

/// A scheduler's end for people: code, the kernel's reason, the tail of its output.
pub fn explain(exit: &SchedulerExit) -> String {
    let mut text = match exit.signal {
        Some(signal) => format!("signal {signal} ended it"),
        None => format!("exit code {}", exit.code),
    };
    if exit.state != "disabled" {
        text.push_str(&format!("; sched_ext is \"{}\"", exit.state));
    }
    for (title, part) in [
        ("kernel", exit.kernel_log.join("\n")),
        ("output", exit.output.clone()),
    ] {
        if !part.trim().is_empty() {
            text.push_str(&format!(
                "\n{title}:\n  {}",
                tail(&part).replace('\n', "\n  ")
            ));
        }
    }
    text
}

fn all_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
