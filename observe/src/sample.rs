//! A sample: what scheduler and kernel tell at one moment. A source takes samples.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::cpu_times::{CpuFiles, CpuTimes};
use crate::kernel::SchedExt;
use crate::latency::Latency;
use crate::scheduler::{Scheduler, Status};
use crate::topology::Topology;

/// Everything at one moment. Counters count since the scheduler's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When it was taken, in seconds since 1970.
    pub at: f64,
    /// The scheduler's answer, or why there is none.
    pub status: std::result::Result<Status, String>,
    /// The kernel's state of sched_ext.
    pub sched_ext: SchedExt,
    /// Where the online CPUs are. A recording has it apart.
    #[serde(skip)]
    pub topology: Topology,
    /// How busy each CPU was.
    pub cpu_times: CpuTimes,
    /// How long tasks were ready before they ran, or why that is not known. A source leaves it to
    /// those who measure it.
    #[serde(default = "not_measured")]
    pub latency: std::result::Result<Latency, String>,
}

/// The reason in a sample in which no one measured latencies.
fn not_measured() -> std::result::Result<Latency, String> {
    Err("latencies are not measured".into())
}

/// Where samples come from.
pub struct Source {
    socket: PathBuf,
    root: PathBuf,
    patience: Duration,
    topology: Topology,
    cpu_files: CpuFiles,
    /// The connection of the last sample.
    scheduler: Option<Scheduler>,
}

impl Source {
    /// A source that asks the scheduler at `socket`, waits for each of its answers for as long as
    /// `patience`, and reads the kernel's files below `root`.
    pub fn new(socket: &Path, patience: Duration, root: &Path) -> Source {
        Source {
            socket: socket.into(),
            root: root.into(),
            patience,
            topology: Topology::default(),
            cpu_files: CpuFiles::new(root),
            scheduler: None,
        }
    }

    /// Takes a sample for the screen, which shows no measurements of single CPUs, so that these are
    /// not asked for. It takes some tenths of a second, because the scheduler looks for requests ten
    /// times a second. The connection is kept for the next sample.
    pub fn take(&mut self) -> Sample {
        let answered = self.ask_again();
        self.complete(answered)
    }

    /// Asks over the kept connection. If the scheduler at its end has ended, asks the one that
    /// serves now.
    fn ask_again(&mut self) -> Result<Status> {
        let begin = Instant::now();
        if let Some(mut kept) = self.scheduler.take() {
            let answered = kept.status_without_cpus();
            if answered.is_ok() {
                self.scheduler = Some(kept);
                return answered;
            }
            // It lives and is slow: a second wait as long would only make the sample later.
            if begin.elapsed() >= self.patience {
                return answered;
            }
        }
        let mut scheduler = Scheduler::connect(&self.socket, self.patience)?;
        let status = scheduler.status_without_cpus()?;
        self.scheduler = Some(scheduler);
        Ok(status)
    }

    /// Takes a sample of everything, and the scheduler's explanations of its counters.
    pub fn take_explained(&mut self) -> (Sample, BTreeMap<String, String>) {
        let answered = Scheduler::connect(&self.socket, self.patience).and_then(|mut scheduler| {
            let explanations = scheduler.explanations()?;
            Ok((scheduler.status()?, explanations))
        });
        match answered {
            Ok((status, explanations)) => (self.complete(Ok(status)), explanations),
            Err(error) => (self.complete(Err(error)), BTreeMap::new()),
        }
    }

    /// Adds the kernel's side to the scheduler's answer.
    fn complete(&mut self, answered: Result<Status>) -> Sample {
        self.follow_topology();
        let cpu_times = self.cpu_files.read();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        Sample {
            at: since_1970.map_or(0.0, |time| time.as_secs_f64()),
            status: answered.map_err(|error| format!("{error:#}")),
            sched_ext: SchedExt::read(&self.root),
            topology: self.topology.clone(),
            cpu_times,
            latency: not_measured(),
        }
    }

    /// Reads the topology again if other CPUs are online than before, and only then, because on a
    /// large machine that is a thousand files.
    fn follow_topology(&mut self) {
        if Topology::read_online(&self.root) != self.topology.online {
            self.topology = Topology::read(&self.root);
            self.cpu_files = CpuFiles::new(&self.root);
        }
    }
}
