//! `magpie bench callbacks`: what each operation of a sched_ext scheduler costs per call.
//!
//! The kernel counts the calls of BPF programs and the time in them if `kernel.bpf_stats_enabled`
//! is set; `magpie-load programs` reads the counts. One guest runs hackbench under each scheduler
//! in turn, and the table has the differences. Every figure includes the two clock reads of the
//! counting: compare figures, do not add them up to a share of the CPU time.
//!
//! The default machine runs in virtual time, where a nanosecond is a fixed number of instructions.
//! Therefore the figures repeat, and do not include cache misses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::{GuestOptions, KernelChoice, Machine, files};
use serde::{Deserialize, Serialize};

use crate::candidate::{self, Candidate};
use crate::file;
use crate::place::{Place, Vm};
use crate::progress::Spinner;
use crate::provenance::{self, Origin, Values};
use crate::report::{SCHEMA, now_unix};
use crate::table::{Align, Style, write_lines};

/// Real time that hackbench may take, and below the time of every other command.
const WORK_LIMIT: Duration = Duration::from_secs(900);
const SHORT: Duration = Duration::from_secs(120);

/// Measure what each operation of schedulers costs per call, under hackbench, in a guest
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Machine of the guest: a preset (`magpie lab machines`) or a TOML file
    #[arg(long, default_value = "vt4", value_name = "NAME|FILE")]
    machine: String,
    /// Kernel of the guest: a series (`magpie lab kernels`) [default: the newest]
    #[arg(long, value_name = "SERIES")]
    kernel: Option<String>,
    /// Schedulers with their options, separated by commas
    #[arg(long, default_value = "scx_magpie", value_name = "LIST")]
    sched: String,
    /// hackbench groups
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    groups: u32,
    /// hackbench loops
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    loops: u32,
    /// Write the result as JSON, `-` for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print the table as Markdown
    #[arg(long)]
    markdown: bool,
}

/// The counts of one BPF program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// How often it was called.
    pub calls: u64,
    /// Time in it, in nanoseconds of the machine.
    pub ns: u64,
}

impl Cost {
    /// None if it was never called.
    pub fn ns_per_call(&self) -> Option<f64> {
        (self.calls > 0).then(|| self.ns as f64 / self.calls as f64)
    }
}

/// One scheduler's costs, by operation.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    scheduler: String,
    operations: BTreeMap<String, Cost>,
    context_switches: u64,
}

/// A result file of `magpie bench callbacks`. Readers ignore keys that they do not know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Costs {
    schema: u32,
    machine: Values,
    kernel: String,
    /// Seconds since the epoch at the start of the run.
    #[serde(default)]
    started_unix: u64,
    /// Command line, commit and versions.
    #[serde(default)]
    options: Values,
    workload: String,
    schedulers: Vec<Measured>,
}

impl Costs {
    /// Where the result comes from.
    pub fn origin(&self) -> Origin<'_> {
        Origin {
            machine: &self.machine,
            kernel: &self.kernel,
            started_unix: self.started_unix,
            options: &self.options,
        }
    }
}

/// Runs `magpie bench callbacks`.
///
/// # Errors
/// If a program is missing, the guest or a scheduler fails, or nothing was counted.
pub fn run(args: &Args) -> Result<()> {
    let mut candidates: Vec<Candidate> = candidate::parse_list(&args.sched)?;
    candidates.retain(|candidate| !candidate.is_baseline());
    if candidates.is_empty() {
        bail!(
            "the kernel's own scheduler has no BPF programs; name sched_ext schedulers in --sched"
        );
    }
    let load = files::find_program("magpie-load")
        .context("magpie-load is not built: cargo build --release")?;
    let mut files = vec![load];
    for candidate in &candidates {
        let program = candidate::find_scheduler(&candidate.argv[0])?;
        if !files.contains(&program) {
            files.push(program);
        }
    }
    let mut options = Values::from([("rounds".into(), 1.into())]);
    provenance::record(&mut options, files[1..].iter().map(PathBuf::as_path));
    let started_unix = now_unix();
    let spinner = Spinner::new();
    let mut place = Vm::boot(&GuestOptions {
        machine: Machine::find(&args.machine)?,
        kernel: KernelChoice::parse(args.kernel.as_deref(), None)?,
        packages: vec!["rt-tests".into()],
        files,
        progress: spinner.of_lab(),
        ..GuestOptions::default()
    })?;

    let workload = format!("hackbench -g {} -l {}", args.groups, args.loops);
    let mut schedulers = Vec::new();
    for candidate in candidates {
        spinner.show(&format!("{workload} under {}", candidate.name));
        schedulers.push(measure(&mut place, candidate, &workload)?);
    }
    drop(spinner);
    let costs = Costs {
        schema: SCHEMA,
        machine: place.machine(),
        kernel: place.kernel(),
        started_unix,
        options,
        workload,
        schedulers,
    };
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&costs).context("encode the result")?;
        file::write(path, &(text + "\n"))?;
    }
    if !args.json.as_deref().is_some_and(file::is_standard_stream) {
        let style = Style::of(args.markdown);
        print!("{}", describe(&costs, style));
    }
    Ok(())
}

/// Runs the workload under one scheduler, and takes the differences of the counts.
fn measure(place: &mut Vm, candidate: Candidate, workload: &str) -> Result<Measured> {
    let mut argv = candidate.argv;
    let program = Path::new(&argv[0]).file_name();
    argv[0] = format!("/bin/{}", program.context("a program")?.to_string_lossy());
    place.start_scheduler(&argv)?;
    let before = programs(place)?;
    let switches_before = context_switches(place)?;
    let work: Vec<String> = workload.split(' ').map(String::from).collect();
    let ran = place.run(&work, WORK_LIMIT)?;
    let context_switches = context_switches(place)? - switches_before;
    let after = programs(place)?;
    let name = candidate.name;
    if let Some(why) = place.scheduler_died()? {
        bail!("{name} ended while {workload} ran: {why}");
    }
    place.stop_scheduler()?;
    ensure!(
        ran.code == 0,
        "{workload} failed under {name}: {}",
        ran.output
    );

    let mut operations = BTreeMap::new();
    for (id, (operation, cost)) in after {
        let earlier = before.get(&id).map(|(_, cost)| *cost).unwrap_or_default();
        let cost = Cost {
            calls: cost.calls - earlier.calls,
            ns: cost.ns - earlier.ns,
        };
        if cost.calls > 0 {
            operations.insert(operation, cost);
        }
    }
    ensure!(
        !operations.is_empty(),
        "the kernel counted no call of a BPF program of {name}: has it kernel.bpf_stats_enabled?"
    );
    Ok(Measured {
        scheduler: name,
        operations,
        context_switches,
    })
}

/// Runs a script in the guest, and returns its output.
fn output(place: &mut Vm, script: &str) -> Result<String> {
    let argv = ["sh", "-c", script].map(String::from);
    let ran = place.run(&argv, SHORT)?;
    ensure!(
        ran.code == 0,
        "`{script}` failed in the guest: {}",
        ran.output
    );
    Ok(ran.output)
}

/// The context switches of the machine since boot.
fn context_switches(place: &mut Vm) -> Result<u64> {
    let stat = place.read("/proc/stat")?;
    stat.lines()
        .find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok())
        .context("/proc/stat has no line ctxt")
}

/// The loaded struct_ops programs: operation and cost since they were loaded, by the program's id.
fn programs(place: &mut Vm) -> Result<BTreeMap<u64, (String, Cost)>> {
    parse_programs(&output(place, "magpie-load programs --enable --json")?)
}

/// Reads the list that `magpie-load programs --json` prints.
fn parse_programs(json: &str) -> Result<BTreeMap<u64, (String, Cost)>> {
    #[derive(Deserialize)]
    struct List {
        programs: Vec<Program>,
    }
    #[derive(Deserialize)]
    struct Program {
        id: u64,
        name: String,
        #[serde(flatten)]
        cost: Cost,
    }
    let list: List =
        serde_json::from_str(json).with_context(|| format!("magpie-load printed {json}"))?;
    Ok(list
        .programs
        .into_iter()
        .map(|program| (program.id, (operation(&program.name), program.cost)))
        .collect())
}

/// Operations of sched_ext, to complete names that the kernel cut to 15 characters.
const OPERATIONS: &[&str] = &[
    "select_cpu",
    "enqueue",
    "dequeue",
    "dispatch",
    "tick",
    "runnable",
    "running",
    "stopping",
    "quiescent",
    "yield",
    "core_sched_before",
    "set_weight",
    "set_cpumask",
    "update_idle",
    "cpu_acquire",
    "cpu_release",
    "cpu_online",
    "cpu_offline",
    "init_task",
    "exit_task",
    "enable",
    "disable",
];

/// The operation of a program: `select_cpu` for `magpie_select_cpu` and for `magpie_select_c`, to
/// which the kernel cuts it.
fn operation(program: &str) -> String {
    let name = program.split_once('_').map_or(program, |(_, name)| name);
    let is_cut = program.len() == 15;
    OPERATIONS
        .iter()
        .find(|known| **known == name || is_cut && known.starts_with(name))
        .map_or_else(|| name.to_string(), |known| known.to_string())
}

/// The table, with a line for each operation, in the order of its cost in the first scheduler that
/// has it.
pub fn render_table(costs: &Costs, style: Style) -> String {
    let mut operations: Vec<&String> = Vec::new();
    for measured in &costs.schedulers {
        let mut of_it: Vec<_> = measured.operations.iter().collect();
        of_it.sort_by_key(|(_, cost)| std::cmp::Reverse(cost.ns));
        for (operation, _) in of_it {
            if !operations.contains(&operation) {
                operations.push(operation);
            }
        }
    }
    let cell = |cost: Option<&Cost>| match cost.and_then(|c| Some((c.ns_per_call()?, c.calls))) {
        Some((ns, calls)) => format!("{ns:.0} ({calls})"),
        None => "-".into(),
    };
    let mut lines = vec![row(
        "ns per call (calls)",
        costs.schedulers.iter().map(|m| m.scheduler.clone()),
    )];
    for operation in operations {
        let cells = costs.schedulers.iter();
        lines.push(row(
            operation,
            cells.map(|m| cell(m.operations.get(operation))),
        ));
    }
    lines.push(row(
        "all, ns per context switch",
        costs.schedulers.iter().map(|measured| {
            let ns: u64 = measured.operations.values().map(|cost| cost.ns).sum();
            format!("{:.0}", ns as f64 / measured.context_switches.max(1) as f64)
        }),
    ));
    lines.push(row(
        "context switches",
        costs
            .schedulers
            .iter()
            .map(|measured| measured.context_switches.to_string()),
    ));

    let mut text = String::new();
    write_lines(&mut text, &lines, style, Align::Right);
    text
}

/// The table, and below it what was measured.
fn describe(costs: &Costs, style: Style) -> String {
    format!(
        "{}\n{}, machine {}, kernel {}\n",
        render_table(costs, style),
        costs.workload,
        costs.origin().machine_name(),
        costs.kernel
    )
}

fn row(name: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_string()).chain(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_operation() {
        assert_eq!(operation("magpie_select_cpu"), "select_cpu");
        assert_eq!(operation("magpie_select_c"), "select_cpu");
        assert_eq!(operation("bpfland_dispatch"), "dispatch");
        assert_eq!(operation("magpie_runn"), "runn");
        assert_eq!(operation("lavd_something_else"), "something_else");
    }

    #[test]
    fn programs_are_read() {
        let json = r#"{"programs": [
            {"id": 7, "name": "magpie_enqueue", "calls": 2, "ns": 300},
            {"id": 8, "name": "magpie_tick", "calls": 0, "ns": 0}]}"#;
        let programs = parse_programs(json).unwrap();
        let (operation, cost) = &programs[&7];
        assert_eq!(operation, "enqueue");
        assert_eq!(cost.ns_per_call(), Some(150.0));
        assert_eq!(programs[&8].1.ns_per_call(), None);
        assert!(parse_programs("Error: no").is_err());
    }

    #[test]
    fn the_costliest_comes_first_and_what_is_missing_is_said() {
        let measured = |scheduler: &str, operations: &[(&str, u64, u64)]| Measured {
            scheduler: scheduler.into(),
            operations: operations
                .iter()
                .map(|(name, calls, ns)| {
                    (
                        name.to_string(),
                        Cost {
                            calls: *calls,
                            ns: *ns,
                        },
                    )
                })
                .collect(),
            context_switches: 10,
        };
        let costs = Costs {
            schema: SCHEMA,
            machine: Values::new(),
            kernel: "7.2".into(),
            started_unix: 0,
            options: Values::new(),
            workload: "hackbench".into(),
            schedulers: vec![
                measured("a", &[("enqueue", 2, 100), ("dispatch", 1, 400)]),
                measured("b", &[("tick", 1, 7)]),
            ],
        };
        let text = describe(&costs, Style::Text);
        let words: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(words[1], ["dispatch", "400", "(1)", "-"]);
        assert_eq!(words[2], ["enqueue", "50", "(2)", "-"]);
        assert_eq!(words[3], ["tick", "-", "7", "(1)"]);
        assert_eq!(
            words[4],
            ["all,", "ns", "per", "context", "switch", "50", "1"]
        );
        assert!(describe(&costs, Style::Markdown).contains("|---|---:|---:|"));
    }
}
