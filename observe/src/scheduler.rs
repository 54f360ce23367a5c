//! The running scx_magpie, asked over its scx_stats socket.
//!
//! The structs here have the fields of the scheduler's answers. A field that the scheduler lacks,
//! because it is older than this program, reads as zero or as no text.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use scx_stats::{StatsClient, StatsErrno, StatsMeta};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Where a running scheduler serves its statistics.
pub const SOCKET: &str = "/var/run/scx/root/stats";

/// The name under which the scheduler describes its counters.
const COUNTERS: &str = "Metrics";

/// Everything that scx_magpie tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// How often each event happened since the start. Those in `_ns` are times in nanoseconds.
    pub counters: BTreeMap<String, u64>,
    /// The preferred CPUs; nothing where the scheduler runs without them.
    pub preferred: Option<Preferred>,
    /// The measurements of each online CPU, by its number.
    pub cpus: BTreeMap<usize, Cpu>,
    /// The share and throttling of each cgroup, by its path below the root.
    pub cgroups: BTreeMap<String, Cgroup>,
}

/// The preferred CPUs, and why these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Preferred {
    /// Preferred CPUs, as a list.
    pub preferred: String,
    /// Online CPUs, as a list.
    pub online: String,
    /// `auto`, `kernel`, `set` or `off`.
    pub mode: String,
    /// Why these CPUs, as a sentence.
    pub why: String,
    /// The kernel's own preferred CPUs, as a list, where they decide.
    pub kernel_mask: String,
    /// How much power is saved: `performance` (none), `balanced` or `saver`.
    pub power: String,
    /// Why so much, as the end of a sentence.
    pub power_why: String,
    /// 1 if these CPUs are preferred to save power, else 0.
    pub power_rules: u64,
    /// `step` or `direct`.
    pub governor: String,
    /// How steal time is known: `kernel`, `estimate`, `none`, or `no host` to take any.
    pub source: String,
    /// 1 if the kernel has ever counted steal time, else 0.
    pub kernel_counts: u64,
    /// Share of the preferred CPUs' time that the host took, in percent.
    pub steal_percent: f64,
    /// Cores that were busy, as the guest sees it.
    pub wanted_cores: f64,
    /// Cores that the host gave.
    pub given_cores: f64,
    /// Direction of the number of cores in the last period: -1, 0 or 1.
    pub direction: i64,
    /// Changes of the number of cores since the start.
    pub changes: u64,
    /// Tasks moved away from withheld CPUs since the start.
    pub moved_away: u64,
    /// Milliseconds between two decisions.
    pub period: u64,
    /// Steal time above which fewer cores are used, in 1/100 of a percent.
    pub high: u64,
    /// Steal time below which more cores are used, in 1/100 of a percent.
    pub low: u64,
}

/// The measurements of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Average idle period, in nanoseconds.
    pub avg_idle_ns: u64,
    /// Average cost of a search at the SMT siblings, in nanoseconds; 0: none made.
    pub search_sibling_ns: u64,
    /// The same for a search in the LLC.
    pub search_llc_ns: u64,
    /// The same for a search in other LLCs of the node.
    pub search_node_ns: u64,
    /// The same for a search in other nodes.
    pub search_remote_ns: u64,
    /// Scans of other LLCs on behalf of its own LLC.
    pub turns: u64,
    /// Utilisation, of 1024, the capacity of the fastest CPU.
    pub utilisation: u64,
    /// Performance that it asks for, of 1024.
    pub perf_target: u64,
    /// How often it asked.
    pub targets_set: u64,
}

/// The share and throttling of one cgroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cgroup {
    /// Share of its own tasks in the CPU time in use, in percent.
    pub share_percent: f64,
    /// Limit (`cpu.max`) in percent of one CPU; 0: none.
    pub limit_percent: f64,
    /// How often it was throttled since the scheduler started.
    pub throttled: u64,
    /// For how long it was throttled since then, in nanoseconds.
    pub throttled_ns: u64,
}

#[derive(Deserialize)]
struct Cpus {
    cpus: BTreeMap<usize, Cpu>,
}

#[derive(Deserialize)]
struct Cgroups {
    cgroups: BTreeMap<String, Cgroup>,
}

/// A connection to the scheduler.
pub struct Scheduler(StatsClient);

impl Scheduler {
    /// Connects to the scheduler that serves at `socket`, and waits for each answer for as long as
    /// `patience`.
    ///
    /// # Errors
    /// When none serves there or this user may not ask it, with the remedy.
    pub fn connect(socket: &Path, patience: Duration) -> Result<Scheduler> {
        let client = StatsClient::new().set_path(socket);
        let connected = client.connect(Some(patience.as_millis() as u64));
        connected.map(Scheduler).map_err(|error| {
            let place = socket.display();
            match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => anyhow!(
                    "scx_magpie is not running (no one answers at {place}); start it with \
                     `sudo scx_magpie`"
                ),
                Some(ErrorKind::PermissionDenied) => {
                    anyhow!("only root may ask the running scheduler at {place}; use sudo")
                }
                _ => error.context(format!("connecting to the running scheduler at {place}")),
            }
        })
    }

    /// Asks for everything. A scheduler without preferred CPUs refuses to tell of them; that is no
    /// error.
    ///
    /// # Errors
    /// When it does not answer in time, or is another scheduler than scx_magpie.
    pub fn status(&mut self) -> Result<Status> {
        Ok(Status {
            cpus: self.ask::<Cpus>("cpus")?.cpus,
            ..self.status_without_cpus()?
        })
    }

    /// Asks for everything but the measurements of each CPU, which on a large machine are most of
    /// the answer.
    ///
    /// # Errors
    /// As those of [`Scheduler::status`].
    pub fn status_without_cpus(&mut self) -> Result<Status> {
        Ok(Status {
            counters: self.ask("totals")?,
            preferred: self.preferred()?,
            cpus: BTreeMap::new(),
            cgroups: self.ask::<Cgroups>("cgroups")?.cgroups,
        })
    }

    /// Returns the scheduler's own explanation of each of its counters.
    ///
    /// # Errors
    /// When it does not answer in time.
    pub fn explanations(&mut self) -> Result<BTreeMap<String, String>> {
        let mut described: BTreeMap<String, StatsMeta> =
            self.0
                .request("stats_meta", Vec::new())
                .map_err(|error| error.context("asking the running scheduler for its counters"))?;
        let counters = described.remove(COUNTERS);
        let fields = counters.into_iter().flat_map(|counters| counters.fields);
        Ok(fields
            .filter_map(|(name, field)| Some((name, field.attrs.desc?)))
            .collect())
    }

    /// Asks for the preferred CPUs; none if the scheduler runs without them.
    fn preferred(&mut self) -> Result<Option<Preferred>> {
        match self.request("preferred") {
            Ok(status) => Ok(Some(status)),
            // The scheduler knows the target: it has answered `totals`.
            Err(error) if error.downcast_ref::<StatsErrno>().is_some() => Ok(None),
            Err(error) => Err(error.context("asking the running scheduler for preferred")),
        }
    }

    /// Asks for a target, and says which of the usual reasons it is if there is no answer.
    fn ask<T: DeserializeOwned>(&mut self, target: &str) -> Result<T> {
        self.request(target).map_err(|error| {
            if error.downcast_ref::<StatsErrno>().is_some() {
                return anyhow!(
                    "the running scheduler is not scx_magpie, or another version of it: it does \
                     not know {target}"
                );
            }
            error.context(format!("asking the running scheduler for {target}"))
        })
    }

    fn request<T: DeserializeOwned>(&mut self, target: &str) -> Result<T> {
        let arguments = vec![("target".to_string(), target.to_string())];
        self.0.request("stats", arguments)
    }
}
