//! Schedule fuzzing: a scenario under a scheduler, with a schedule of the vCPUs that follows from a
//! seed. `docs/fuzz.md` says what that finds, and what it does not.
//!
//! ```text
//!   scenario (lab/scenarios/NAME.sh), scheduler
//!        |
//!        v   once                          for each seed
//!      boot, scheduler, prepare() --mark--> scenario() --> verdict
//! ```

mod scenario;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

pub use self::scenario::Scenario;
pub use self::verdict::Verdict;

use crate::options::GuestOptions;
use crate::run_folder::RunFolder;
use crate::vtime::Perturbation;
use crate::vtime::snapshot::Snapshot;

/// The script that every scenario's guest runs: it starts the scheduler and judges the run.
const HARNESS: &str = include_str!("../scenarios/harness");

/// A machine with a scheduler, ready to run a scenario with any seed.
#[derive(Debug)]
pub struct Fuzzer {
    snapshot: Snapshot,
    _folder: RunFolder,
}

/// The run of one seed.
#[derive(Debug, Clone, Serialize)]
pub struct Trial {
    /// The seed.
    pub seed: u64,
    /// The verdict of the run.
    pub verdict: Verdict,
    /// The guest's output.
    pub report: String,
    /// Turns and stops of the vCPUs, unless the run exceeded its limit.
    pub perturbation: Option<Perturbation>,
    /// Virtual time since the boot at the run's end.
    pub virtual_seconds: Option<f64>,
}

impl Fuzzer {
    /// Boots the machine, starts the scheduler and prepares the scenario. `scheduler` names a
    /// program of the guest with its options; without one the kernel's own scheduler runs.
    ///
    /// # Errors
    /// When the machine or the scheduler does not start.
    pub fn boot(
        options: &GuestOptions,
        scheduler: Option<&[String]>,
        scenario: &Scenario,
        timeout: Duration,
    ) -> Result<Fuzzer> {
        let folder = RunFolder::new()?;
        let file = |name: &str, text: &str| -> Result<PathBuf> {
            let path = folder.path().join(name);
            std::fs::write(&path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
            Ok(path)
        };
        let mut options = options.clone();
        options.files.extend([
            file("fuzz-harness", HARNESS)?,
            file("fuzz-scenario", scenario.script())?,
        ]);
        options.packages.push("rt-tests".into());
        let scheduler = scheduler.map(shell_words::join).unwrap_or_default();
        let job = format!("sh /bin/fuzz-harness {}\n", shell_words::quote(&scheduler));
        let snapshot = Snapshot::boot(&options, &job, timeout)
            .with_context(|| format!("the scenario {} does not begin", scenario.name()))?;
        Ok(Fuzzer {
            snapshot,
            _folder: folder,
        })
    }

    /// Runs the scenario with a seed, for at most `limit` of real time.
    ///
    /// # Errors
    /// When the machine itself fails.
    pub fn run(&mut self, seed: u64, limit: Duration) -> Result<Trial> {
        let run = self.snapshot.run(seed, limit)?;
        Ok(Trial {
            seed,
            verdict: Verdict::of(&run),
            report: verdict::report(&run.console),
            virtual_seconds: run.fidelity.as_ref().map(|f| f.virtual_seconds),
            perturbation: run.fidelity.and_then(|f| f.perturbation),
        })
    }
}
