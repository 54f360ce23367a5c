//! The end of a job, again and again: each time from the same state of the machine, with another
//! schedule of its vCPUs.
//!
//! A job runs `vtime-mark begin`, and there the machine stops. Each seed runs in a copy of the
//! machine, up to `vtime-mark end`, and perturbs turns, interrupts and timers
//! (`lab/vtime/snapshot.c` and `perturb.c`). A deterministic machine reaches the mark in the same
//! state in each boot, so a seed has the same run in each.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Fidelity, REPORT, batch, plugin};
use crate::options::GuestOptions;
use crate::qemu::Qemu;
use crate::run_folder::RunFolder;

/// How much longer than a seed's limit the machine may take to answer: it kills the copy itself.
const GRACE: Duration = Duration::from_secs(20);

/// A machine that has reached the mark.
#[derive(Debug)]
pub struct Snapshot {
    qemu: Qemu,
    stream: BufReader<UnixStream>,
    /// Bytes of the console before the next seed's.
    shown: usize,
    _folder: RunFolder,
}

/// How the run of a seed ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// At the end mark.
    Mark,
    /// The copy of the machine ended before the mark, with this exit code (128 and more: by a
    /// signal).
    Exit(i32),
    /// The limit was over.
    Limit,
}

/// The run of one seed.
#[derive(Debug, Clone)]
pub struct Run {
    /// How it ended.
    pub end: End,
    /// The text that the guest wrote to its console.
    pub console: String,
    /// The plugin's report, of a run that did not exceed its limit.
    pub fidelity: Option<Fidelity>,
}

impl Snapshot {
    /// Boots a deterministic machine, and runs `job` until it reaches the mark. `timeout` is in real
    /// time.
    ///
    /// # Errors
    /// When the machine does not boot, or ends before it has reached the mark.
    pub fn boot(options: &GuestOptions, job: &str, timeout: Duration) -> Result<Snapshot> {
        let folder = RunFolder::new()?;
        let socket = folder.path().join("seeds");
        let listener = UnixListener::bind(&socket).context("cannot create the seeds' socket")?;
        listener
            .set_nonblocking(true)
            .context("make a socket non-blocking")?;
        let mut options = options.clone();
        options.snapshot = Some(socket);
        options.files.push(plugin::mark_program(&options.progress)?);
        let time = options.machine.virtual_time.as_mut().with_context(|| {
            format!(
                "only a machine in virtual time, such as vt4, has schedules to choose from; {} is \
                 not one",
                options.machine.name
            )
        })?;
        time.deterministic = true;
        let qemu = batch::start(&options, job)?;
        let deadline = Instant::now() + timeout;
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot accept the machine's connection"),
            }
            if qemu.wait(Duration::ZERO).is_some() {
                bail!("{}", qemu.report("the machine ended before its mark"));
            }
            ensure!(
                Instant::now() < deadline,
                "{}",
                qemu.report("the machine does not reach its mark")
            );
            thread::sleep(Duration::from_millis(5));
        };
        stream
            .set_nonblocking(false)
            .context("make a socket blocking")?;
        Ok(Snapshot {
            shown: qemu.console().len(),
            qemu,
            stream: BufReader::new(stream),
            _folder: folder,
        })
    }

    /// Runs one seed from the mark on, for at most `limit` of real time.
    ///
    /// # Errors
    /// When the machine has ended.
    pub fn run(&mut self, seed: u64, limit: Duration) -> Result<Run> {
        let answer = self.ask(seed, limit).with_context(|| {
            let what = "the machine runs no more seeds";
            self.qemu.report(what)
        })?;
        let end = match answer {
            -1 => End::Limit,
            0 => End::Mark,
            code => End::Exit(code),
        };
        let console = self.qemu.console();
        let new = console.get(self.shown..).unwrap_or_default().to_string();
        self.shown = console.len();
        let report = self.qemu.folder().join(REPORT);
        let fidelity = match end {
            End::Limit => None,
            // A machine that died by a signal has written none.
            End::Exit(_) => Fidelity::read(&report).ok(),
            End::Mark => Some(Fidelity::read(&report)?),
        };
        let _ = std::fs::remove_file(&report);
        // A guest that powers off ends QEMU with 0, too, but not by the mark.
        let end = match (&fidelity, end) {
            (Some(fidelity), End::Mark) if fidelity.end != "mark" => End::Exit(0),
            _ => end,
        };
        Ok(Run {
            end,
            console: new,
            fidelity,
        })
    }

    /// Sends a seed to the machine and waits for its answer.
    fn ask(&mut self, seed: u64, limit: Duration) -> Result<i32> {
        let stream = self.stream.get_mut();
        stream.set_read_timeout(Some(limit + GRACE))?;
        writeln!(stream, "{seed} {}", limit.as_millis())?;
        let mut line = String::new();
        let size = self.stream.read_line(&mut line)?;
        ensure!(size > 0, "it has closed its socket");
        line.trim()
            .parse()
            .with_context(|| format!("it answered {line:?}"))
    }
}
