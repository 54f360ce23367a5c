//! A guest beside others on the physical CPUs of one host, in virtual time: the place of `--host`.
//!
//! ```text
//!   measured   boot, scheduler |  run  |  run  |  run  |    ends once --repeat seconds are over
//!   neighbour  boot, scheduler |  run   |  run   |  run     ends with the measured guest
//!                              ^ begin: at another moment in each round
//! ```
//!
//! Each run of a case is a run of the whole host, which boots anew. Its sample is the average of the
//! runs of the workload in it, for each guest. Of the guests beside, those runs count that ended
//! before the measured guest did.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::Progress;
use magpie_lab::vtime::host::file::{GuestEntry, HostFile};
use magpie_lab::vtime::host::{self, End, GuestOutcome, Host, HostGuest};
use serde_json::{Value, json};

use crate::candidate::Candidate;
use crate::options::Setup;
use crate::place::{Place, Ran};
use crate::provenance::{HOST, Values};
use crate::runner::Suite;
use crate::stats::{Average, Better};
use crate::workload::{Case, Metric};

/// Real time that a host may take, boots included: many times what it takes on a busy one.
const LIMIT: Duration = Duration::from_secs(3600);

/// Begins the line that a guest prints behind each run of the workload; its begin and its end follow,
/// in nanoseconds of virtual time.
const MARK: &str = "magpie-run:";

/// What a guest runs: the command over and over, for `$2` nanoseconds if given. In a guest with a
/// scheduler (`$1`), one that ends by itself is a failure, also before the first run, because the kernel
/// goes on with its own.
const SCRIPT: &str = r#"must_run() {
    [ "$1" = scheduler ] || return 0
    read -r state </sys/kernel/sched_ext/state
    [ "$state" = enabled ] || { echo "the scheduler ended by itself"; cat /run/scheduler; exit 125; }
}
must_run "$1"
begin=$(vtime-mark now)
while :; do
    from=$(vtime-mark now)
    {command} </dev/null
    code=$?
    to=$(vtime-mark now)
    printf '\n{mark} %s %s\n' "$from" "$to"
    [ $code = 0 ] || exit $code
    must_run "$1"
    [ -z "$2" ] || [ $((to - begin)) -lt "$2" ] || exit 0
done
"#;

/// A case, and what its runs yield in each guest.
struct Work {
    case: Case,
    metrics: Vec<Metric>,
}

/// A host with several guests, of which the first is measured.
pub struct Beside {
    host: Host,
    guests: Vec<GuestEntry>,
    /// For how long the measured guest repeats the workload.
    repeat: Duration,
    work: Vec<Work>,
    /// Programs of schedulers and workloads, for all guests.
    pub(crate) files: Vec<PathBuf>,
    /// Packages of the workloads, for all guests.
    pub(crate) packages: Vec<String>,
    kernel: String,
    /// The options that say which kernel a candidate has.
    setup: Option<Setup>,
    /// The candidate whose turn it is.
    candidate: Candidate,
    /// How often each command ran under each candidate.
    runs: BTreeMap<(String, Vec<String>), u32>,
    folder: tempfile::TempDir,
}

impl Beside {
    /// Reads a host's file.
    ///
    /// # Errors
    /// If it does not describe one guest beside others.
    pub fn read(path: &Path, repeat: f64) -> Result<Self> {
        Self::new(HostFile::read(path)?, repeat).with_context(|| format!("{}", path.display()))
    }

    fn new(file: HostFile, repeat: f64) -> Result<Self> {
        let host = file.host();
        let (beside, measured): (Vec<GuestEntry>, Vec<GuestEntry>) =
            file.guest.into_iter().partition(|guest| guest.background);
        ensure!(
            measured.len() == 1,
            "{} guests are not in the background, and the bench measures one: give `background = \
             true` to all others",
            measured.len()
        );
        ensure!(
            !beside.is_empty(),
            "no guest is beside the one that is measured: add a [[guest]] with `background = true`"
        );
        Ok(Self {
            host,
            guests: measured.into_iter().chain(beside).collect(),
            repeat: Duration::from_secs_f64(repeat),
            work: Vec::new(),
            files: Vec::new(),
            packages: Vec::new(),
            kernel: String::new(),
            setup: None,
            candidate: Candidate::default(),
            runs: BTreeMap::new(),
            folder: tempfile::tempdir().context("make a folder for the guests' scripts")?,
        })
    }

    /// The guest that is measured.
    pub fn measured(&self) -> &GuestEntry {
        &self.guests[0]
    }

    /// Takes the cases of a suite, and gives it the figures of all guests in place of a workload's
    /// own.
    ///
    /// # Errors
    /// If a workload needs an input, or a candidate settings, which these guests do not take.
    pub fn take_over(&mut self, suite: &mut Suite) -> Result<()> {
        for candidate in suite.candidates.iter().flat_map(Candidate::with_neighbour) {
            ensure!(
                candidate.settings.is_empty(),
                "{} has settings, which guests of --host do not take: give it a kernel \
                 (PROGRAM@KERNEL) or words for its command line ({{boot:WORD}})",
                candidate.name
            );
        }
        let names: Vec<&str> = self
            .guests
            .iter()
            .map(|guest| guest.name.as_str())
            .collect();
        for (workload, cases) in &mut suite.work {
            let figures = metrics_of(&workload.metric, &names);
            let own = std::mem::replace(&mut workload.metric, figures);
            for case in cases.iter() {
                ensure!(
                    case.prepare.is_empty(),
                    "the workload {} makes an input before it runs, for which guests of --host have \
                     no time: choose another one",
                    workload.name
                );
                ensure!(
                    !self
                        .work
                        .iter()
                        .any(|work| work.case.argv_of("") == case.argv_of("")),
                    "two workloads run the same command, {}, and --host cannot tell them apart: \
                     measure one at a time",
                    shell_words::join(case.argv_of(""))
                );
                self.work.push(Work {
                    case: case.clone(),
                    metrics: own.clone(),
                });
            }
        }
        Ok(())
    }

    /// Checks that the guests fit together, and has their kernels at hand. Returns the releases of
    /// each candidate's guests.
    ///
    /// # Errors
    /// If something does not exist, or does not fit.
    pub(crate) fn open(
        &mut self,
        candidates: &[Candidate],
        setup: &Setup,
        progress: &Progress,
    ) -> Result<Value> {
        self.setup = Some(setup.clone());
        let mut kernels = BTreeMap::new();
        for candidate in candidates {
            self.candidate = candidate.clone();
            let guests = self.host_guests("true")?;
            host::check(&self.host, &guests).with_context(|| candidate.name.clone())?;
            let mut releases = Vec::new();
            for guest in &guests {
                let release = guest.options.kernel.release(progress)?;
                if !releases.contains(&release) {
                    releases.push(release);
                }
            }
            kernels.insert(candidate.name.clone(), releases.join(" beside "));
        }
        self.kernel = kernels[&candidates[0].name].clone();
        Ok(json!(kernels))
    }

    /// The guests under the candidate whose turn it is.
    fn host_guests(&self, command: &str) -> Result<Vec<HostGuest>> {
        let neighbour = self.candidate.neighbour.as_deref();
        let guest = |(index, entry): (usize, &GuestEntry)| {
            let candidate = neighbour.filter(|_| index > 0).unwrap_or(&self.candidate);
            let mut options = entry.options(&Progress::default())?;
            if let Some(setup) = &self.setup
                && (setup.kernel.is_some() || candidate.boot.kernel.is_some())
            {
                options.kernel = setup.kernel_of(&candidate.boot)?;
            }
            options
                .kernel_cmdline
                .clone_from(&candidate.boot.parameters);
            options.packages.extend(self.packages.iter().cloned());
            options.files.extend(self.files.iter().cloned());
            let limit = (index == 0).then(|| self.repeat.as_nanos().to_string());
            let scheduler = (!candidate.argv.is_empty()).then(|| candidate.argv.clone());
            let has = if scheduler.is_some() {
                "scheduler"
            } else {
                "none"
            };
            Ok(HostGuest {
                name: entry.name.clone(),
                options,
                scheduler,
                command: format!("{command} {has} {}", limit.unwrap_or_default()),
                background: entry.background,
                weight: entry.weight(),
            })
        };
        self.guests.iter().enumerate().map(guest).collect()
    }

    /// The figures of all guests, in the form that [`metrics_of`] reads.
    fn figures(&self, metrics: &[Metric], outcomes: &[GuestOutcome]) -> Result<Value> {
        let measured = Runs::of(&outcomes[0].output, f64::INFINITY);
        let figures = |outcome: &GuestOutcome| {
            let name = &outcome.name;
            let had = outcome
                .had
                .with_context(|| format!("the guest {name} did not begin its command"))?;
            let runs = Runs::of(&outcome.output, measured.last_end());
            ensure!(
                !runs.0.is_empty(),
                "the guest {name} ended no run of the workload in the time of {}'s {}, {:.2} s: give \
                 more seconds to --repeat",
                outcomes[0].name,
                measured.0.len(),
                measured.0.len() as f64 * measured.mean_seconds(),
            );
            let part = had.cpu_seconds / had.seconds;
            let mut figures = runs.averages(metrics)?;
            figures.push(part * runs.mean_seconds());
            figures.push(100.0 * part / f64::from(self.host.physical_cpus));
            Ok(figures)
        };
        let guests: Vec<Vec<f64>> = outcomes.iter().map(figures).collect::<Result<_>>()?;
        Ok(json!({ "guests": guests }))
    }
}

impl Place for Beside {
    fn machine(&self) -> Values {
        let guests = self.host_guests("").unwrap_or_default();
        let describe = |guest: &HostGuest| {
            let machine = &guest.options.machine;
            json!({"name": guest.name, "machine": machine.name, "cpus": machine.cpus(),
                   "host_weight": guest.weight})
        };
        let mut machine = Values::from([
            ("in".into(), "vm".into()),
            (
                HOST.into(),
                json!({
                    "physical_cpus": self.host.physical_cpus,
                    "host_slice_ns": self.host.host_slice_ns,
                    "cgroups": self.host.cgroups,
                    "start_seconds": self.host.start_seconds,
                    "repeat_seconds": self.repeat.as_secs_f64(),
                    "guests": guests.iter().map(describe).collect::<Vec<_>>(),
                }),
            ),
        ]);
        if let Some(measured) = guests.first() {
            machine.insert("cpus".into(), measured.options.machine.cpus().into());
            let own = host::machine_on(&self.host, measured).ok();
            machine.insert("machine".into(), json!(own));
        }
        machine
    }

    fn kernel(&self) -> String {
        self.kernel.clone()
    }

    /// Runs the whole host. The output is that of [`Beside::figures`].
    fn run(&mut self, argv: &[String], timeout: Duration) -> Result<Ran> {
        let name = &self.candidate.name;
        let work = self.work.iter();
        let (index, work) = work
            .enumerate()
            .find(|(_, work)| work.case.argv_of(name) == argv)
            .context("the guests of --host run nothing but workloads")?;
        let script = self.folder.path().join(format!("repeat{index}"));
        let text = SCRIPT.replace("{mark}", MARK);
        let text = text.replace("{command}", &shell_words::join(argv));
        // A file that is written anew would make the guests' image anew.
        if fs::read_to_string(&script).ok().as_deref() != Some(&text) {
            fs::write(&script, text).context("write the guests' script")?;
        }
        let mut guests = self.host_guests(&format!("sh /bin/repeat{index}"))?;
        for guest in &mut guests {
            guest.options.files.push(script.clone());
        }
        let runs = self.runs.entry((name.clone(), argv.to_vec())).or_default();
        let host = Host {
            delay: delay(*runs),
            ..self.host.clone()
        };
        *runs += 1;
        let outcomes = host::run(&host, &guests, timeout.max(LIMIT))?;
        for (outcome, guest) in outcomes.iter().zip(&guests) {
            match &outcome.end {
                End::Exited(0) | End::Over => {}
                End::Exited(code) => bail!(
                    "the guest {} ended with code {code}:\n{}",
                    guest.name,
                    outcome.output.trim_end()
                ),
                End::Died(how) => bail!("the guest {}: {how}", guest.name),
            }
        }
        Ok(Ran {
            code: 0,
            output: self.figures(&work.metrics, &outcomes)?.to_string(),
            seconds: outcomes[0].had.map_or(0.0, |had| had.seconds),
        })
    }

    fn read(&mut self, path: &str) -> Result<String> {
        bail!("{path} cannot be read: no guest of --host is there between two runs")
    }

    /// [`Place::enter`] has said which, and each run starts it.
    fn start_scheduler(&mut self, _: &[String]) -> Result<()> {
        Ok(())
    }

    fn stop_scheduler(&mut self) -> Result<()> {
        Ok(())
    }

    fn needs_warm_up(&self) -> bool {
        false
    }

    fn enter(&mut self, candidate: &Candidate) -> Result<()> {
        self.candidate = candidate.clone();
        Ok(())
    }
}

/// By how much later than usual the guests begin in a round: spread over a second, because the load
/// then meets ticks, slices of the host and a governor's periods at another moment. Two runs that begin
/// at the same time would be the same, and their number no evidence.
fn delay(round: u32) -> Duration {
    const GOLDEN: u64 = 618_034;
    Duration::from_micros(u64::from(round) * GOLDEN % 1_000_000)
}

/// For each figure of a workload, and for its CPU time, those of all guests.
fn metrics_of(own: &[Metric], guests: &[&str]) -> Vec<Metric> {
    let of_host = |name: &str, unit: &str, better| Metric {
        name: Some(name.into()),
        unit: unit.into(),
        better,
        after: None,
        json: None,
        time: false,
        curve: None,
    };
    let all = own.iter().cloned().chain([
        of_host("CPU time per run", "s", Better::Lower),
        of_host("share of the host", "%", Better::Higher),
    ]);
    let of_guests = |(figure, metric): (usize, Metric)| {
        let of_guest = move |(index, guest): (usize, &&str)| Metric {
            name: Some(match &metric.name {
                Some(name) => format!("{guest} {name}"),
                None => (*guest).to_string(),
            }),
            json: Some(format!("/guests/{index}/{figure}")),
            after: None,
            time: false,
            curve: None,
            ..metric.clone()
        };
        guests.iter().enumerate().map(of_guest)
    };
    all.enumerate().flat_map(of_guests).collect()
}

/// A run of the workload in a guest.
#[derive(Debug, PartialEq)]
struct Run {
    /// When it began and ended, in virtual seconds.
    from: f64,
    to: f64,
    output: String,
}

/// The runs that a guest ended.
struct Runs(Vec<Run>);

impl Runs {
    /// Reads what a guest printed; leaves out the runs that ended after `until`.
    fn of(output: &str, until: f64) -> Self {
        let (mut runs, mut printed) = (Vec::new(), String::new());
        for line in output.lines() {
            let times = line.strip_prefix(MARK).and_then(|times| {
                let (from, to) = times.trim().split_once(' ')?;
                Some((
                    from.parse::<f64>().ok()? / 1e9,
                    to.parse::<f64>().ok()? / 1e9,
                ))
            });
            match times {
                Some((from, to)) => runs.push(Run {
                    from,
                    to,
                    output: std::mem::take(&mut printed),
                }),
                None => printed += &format!("{line}\n"),
            }
        }
        runs.retain(|run| run.to <= until);
        Self(runs)
    }

    /// When the last one ended.
    fn last_end(&self) -> f64 {
        self.0.last().map_or(0.0, |run| run.to)
    }

    /// How long one took on average.
    fn mean_seconds(&self) -> f64 {
        let seconds: f64 = self.0.iter().map(|run| run.to - run.from).sum();
        seconds / self.0.len() as f64
    }

    /// The average of each metric.
    fn averages(&self, metrics: &[Metric]) -> Result<Vec<f64>> {
        let average = |metric: &Metric| {
            let runs = self.0.iter();
            let values: Vec<f64> = runs
                .map(|run| metric.read(&run.output, run.to - run.from))
                .collect::<Result<_>>()?;
            Ok(Average::for_unit(&metric.unit).of(&values))
        };
        metrics.iter().map(average).collect()
    }
}

#[cfg(test)]
#[path = "beside_tests.rs"]
mod tests;
