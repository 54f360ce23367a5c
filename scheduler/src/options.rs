//! What the user asks for: command line, then configuration file, then the
//! BPF side's own defaults.
//!
//! The configuration file has no names or types of its own. Each of its entries
//! is handed to the same parser as `--name=value`, ahead of the command line,
//! and the last one given wins. So every option of [`Settings`] may be in the
//! file, a new one needs no second mention, and an error is reported with the
//! line it comes from.
//!
//! A new mechanism needs two lines: its `no_...` flag in [`Settings`], and the
//! variable it clears in `scheduler.rs`.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};
use clap::{ArgAction, Args, Command, CommandFactory, Parser, Subcommand, ValueEnum};
use scx_utils::build_id;
use toml::de::{DeTable, DeValue};

use crate::preferred::{ChangeOptions, Knobs, Preferred, StealSource};

/// Read when it exists and `--config` names no other.
pub const DEFAULT_CONFIG: &str = "/etc/scx_magpie.toml";

const AFTER_HELP: &str = "\
Examples:
  sudo scx_magpie                  run until Ctrl-C
  sudo scx_magpie --stats 1        run, and say every second what it does
  sudo scx_magpie --monitor 1      say what the running instance does
  sudo scx_magpie --no-steal       run without one mechanism
  sudo scx_magpie preferred        say which CPUs a guest prefers, and why
  sudo scx_magpie preferred --set 0-3

Exit status: 0 when asked to stop; 1 on any error, with the reason; 2 for a wrong option.";

static VERSION: LazyLock<String> =
    LazyLock::new(|| build_id::full_version(env!("CARGO_PKG_VERSION")));

/// Finds work for idle CPUs, and idle CPUs for work.
///
/// scx_magpie is a CPU scheduler for Linux kernels with sched_ext. It replaces
/// the kernel's own scheduler while it runs. Stop it with Ctrl-C or SIGTERM and
/// the kernel's own scheduler is back; the same happens if it crashes or is
/// killed.
///
/// Every mechanism is on by default and needs no tuning. The --no-... switches
/// are there to measure what each of them gives.
#[derive(Debug, Parser)]
#[command(
    name = "scx_magpie",
    version = VERSION.as_str(),
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    max_term_width = 100,
    after_help = AFTER_HELP,
)]
pub struct Options {
    /// How the scheduler shall work; these may also be in the configuration file.
    #[command(flatten)]
    pub settings: Settings,

    /// Show what the running scx_magpie does, every SECONDS, and start nothing
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub monitor: Option<f64>,

    /// Print the running scx_magpie's counters since its start as one JSON object
    #[arg(long)]
    pub stats_json: bool,

    /// Explain each counter
    #[arg(long)]
    pub help_stats: bool,

    /// Read this configuration file instead of /etc/scx_magpie.toml
    ///
    /// The file is TOML and has the same names as the options, for example
    /// `slice-us = 2000` or `no-steal = true`. The command line wins over it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// What to do instead of starting.
    #[command(subcommand)]
    pub action: Option<Action>,
}

/// The options that may be in the configuration file, too.
#[derive(Args, Debug)]
pub struct Settings {
    /// How long a task runs before the next one has its turn, in microseconds [default: 3000]
    ///
    /// Shorter slices answer sooner under load, longer ones switch less.
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    pub slice_us: Option<u64>,

    /// An idle CPU does not search other CPUs' queues for waiting tasks
    ///
    /// It still takes one when a busy CPU wakes it for that, at a tick or when a task
    /// has to wait again. Busy CPUs do not even out their queues.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_steal: bool,

    /// An idle CPU always searches, also when it will idle for less than a search costs
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_steal_gate: bool,

    /// A woken task never preempts the running one; it waits for the slice's end
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_preempt: bool,

    /// A woken or new task goes where the kernel's own idle selection says, by the kernel's masks
    ///
    /// One mask of idle CPUs for the whole machine is then written at every entry to
    /// and exit from idle.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_wakeup: bool,

    /// A woken task takes any idle CPU, rather than one whose whole core is idle first
    ///
    /// And a running one stays on a core that it shares, beside an idle core.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_wakeup_idle_core: bool,

    /// A task that was preempted or used up its slice has no idle CPU woken at once
    ///
    /// It waits until an idle CPU looks for work, or for the next tick.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_push: bool,

    /// The weights of cgroups (cpu.weight, cpu.idle) have no effect
    ///
    /// All tasks share the CPUs by their nice values alone, so a container with many
    /// tasks gets more than one with few.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_cpu_weight: bool,

    /// The limits of cgroups (cpu.max) have no effect
    ///
    /// Containers use as much CPU time as their weights give them.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_cpu_max: bool,

    /// Which CPUs are preferred: auto, off (all) or a list such as 0-3,8
    ///
    /// A virtual machine whose host is short of CPUs runs faster on fewer of its
    /// own. Tasks use the preferred CPUs wherever their affinity, which is never
    /// changed, allows; device interrupts and unbound workqueues follow. auto: as
    /// many as the host gives; on a real machine, nothing, at no cost. off: all
    /// CPUs, until `scx_magpie preferred --set` says otherwise. Real-time tasks are
    /// placed by the kernel and do not follow.
    #[arg(long, value_name = "auto|off|CPUS", default_value = "auto")]
    pub preferred: Preferred,

    /// Preferred CPUs are left out altogether, so that they cannot be set later either
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_preferred: bool,

    /// How the time that the host takes away is known
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub steal_source: StealSource,

    /// When and how the number of preferred cores changes.
    #[command(flatten)]
    pub knobs: Knobs,

    /// Only this mechanism; everything else stays plain
    ///
    /// Plain is what no scheduler can be without: a fair queue for each CPU,
    /// preemption by woken tasks, cgroups' weights, the kernel's own choice of an idle
    /// CPU at wakeup, and idle CPUs that take waiting tasks whenever they have none, without
    /// weighing the cost. (Without the last, add --no-steal: tasks then wait beside
    /// idle CPUs, for up to two ticks.)
    #[arg(long, value_name = "MECHANISM")]
    pub only: Option<Mechanism>,

    /// Show what the scheduler does, every SECONDS, while it runs
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub stats: Option<f64>,

    /// Size of the kernel's dump when it ends the scheduler, in bytes; 0 is the kernel's default
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub exit_dump_len: u32,

    /// Say more, including what libbpf says
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub verbose: bool,
}

/// What `--only` can leave alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mechanism {
    /// Idle CPUs search for waiting tasks when that is worth its cost
    Steal,
    /// Woken tasks go to idle cores, their previous one first
    Wakeup,
    /// A task that must wait again has an idle CPU woken at once
    Push,
    /// A guest uses as few CPUs as its host gives
    Preferred,
}

impl Settings {
    /// Whether idle CPUs weigh a search's cost; a plain scheduler does not.
    pub fn gates_steal(&self) -> bool {
        !self.no_steal_gate && self.uses(Mechanism::Steal)
    }

    /// Whether woken tasks are placed by our own knowledge of idle CPUs.
    pub fn places_wakeups(&self) -> bool {
        !self.no_wakeup && self.uses(Mechanism::Wakeup)
    }

    /// Whether a task that must wait again has an idle CPU woken.
    pub fn pushes(&self) -> bool {
        !self.no_push && self.uses(Mechanism::Push)
    }

    fn uses(&self, mechanism: Mechanism) -> bool {
        self.only.is_none_or(|only| only == mechanism)
    }

    /// Whether preferred CPUs are loaded, so that they can be set at any time.
    pub fn loads_preferred(&self, is_virtual_machine: bool) -> bool {
        !self.no_preferred
            && self.uses(Mechanism::Preferred)
            && (is_virtual_machine || self.preferred != Preferred::Auto)
    }
}

/// What can be done instead of starting the scheduler.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Say which CPUs the running scx_magpie prefers and why, or change it
    ///
    /// Without options nothing is changed. A change holds until the next one or
    /// the scheduler's end, and is acted on at once.
    Preferred {
        /// What shall be different.
        #[command(flatten)]
        change: ChangeOptions,

        /// Print one JSON object, to standard output or a file
        #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
        json: Option<PathBuf>,
    },
    /// Show what each CPU of the running scx_magpie has learned: how long it idles, what searches cost
    ///
    /// A CPU looks for work beyond its last-level cache only if it idles for longer
    /// than such a search has cost it so far.
    Cpus {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show what each cgroup gets: its share of the CPU time, its limit, how often it reached that
    ///
    /// Those that are active or limited; all of them with --json. A share is of the CPU
    /// time that is used, by weight and by how often the cgroup is active, and follows
    /// both within about a tenth of a second.
    Cgroups {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Put interrupts and workqueues back where they were before a scx_magpie that was killed
    ///
    /// The next start does the same. Does nothing where there is nothing to restore.
    Restore,
    /// Print the completions for a shell
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds between 0.01 and 86400".into()),
    }
}

impl Options {
    /// Reads the command line of this process and the configuration file.
    ///
    /// Prints and exits on `--help`, `--version` and wrong options, as every
    /// clap program does.
    ///
    /// # Errors
    /// When the configuration file cannot be read or has a mistake, with its line.
    pub fn read() -> Result<Options> {
        let arguments: Vec<OsString> = std::env::args_os().collect();
        let given = Options::try_parse_from(&arguments).unwrap_or_else(|error| error.exit());
        if given.starts_nothing() {
            return Ok(given);
        }
        let from_file = match &given.config {
            Some(path) => read_config(path)?,
            None if Path::new(DEFAULT_CONFIG).exists() => read_config(Path::new(DEFAULT_CONFIG))?,
            None => return Ok(given),
        };
        Options::combine(from_file, arguments).map_err(|error| error.exit())
    }

    /// Then the configuration file is of no concern: a mistake in it must not
    /// keep anybody from reading the manual page.
    fn starts_nothing(&self) -> bool {
        self.action.is_some() || self.help_stats || self.stats_json || self.monitor.is_some()
    }

    /// Both sources in one command line; clap's rule that the last one wins
    /// makes the command line override the file.
    fn combine(
        from_file: Vec<String>,
        arguments: Vec<OsString>,
    ) -> std::result::Result<Options, clap::Error> {
        let mut arguments = arguments.into_iter();
        let all = arguments
            .next()
            .into_iter()
            .chain(from_file.into_iter().map(OsString::from));
        Options::try_parse_from(all.chain(arguments))
    }
}

/// The file as options, each checked on its own so that a wrong one is reported
/// with its line.
fn read_config(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::NotFound => "; name an existing file with --config",
            _ => "",
        };
        anyhow::anyhow!(
            "cannot read the configuration file {}: {error}{remedy}",
            path.display()
        )
    })?;
    parse_config(&text).with_context(|| format!("in the configuration file {}", path.display()))
}

fn parse_config(text: &str) -> Result<Vec<String>> {
    // toml's message shows the line with a marker under the mistake.
    let table = DeTable::parse(text).map_err(|error| anyhow::anyhow!("{error}"))?;
    let known = Settings::augment_args(Command::new("settings"));
    let mut entries: Vec<_> = table.into_inner().into_iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    let mut options = Vec::new();

    for (name, value) in entries {
        let line = text[..name.span().start].lines().count().max(1)
            + usize::from(text[..name.span().start].ends_with('\n'));
        let name = name.into_inner();
        if !known
            .get_arguments()
            .any(|argument| argument.get_long() == Some(&name))
        {
            let names: Vec<_> = known
                .get_arguments()
                .filter_map(|argument| argument.get_long())
                .collect();
            bail!(
                "line {line}: there is no setting {name:?}; known are {}",
                names.join(", ")
            );
        }
        let value = match value.into_inner() {
            DeValue::String(value) => value.into_owned(),
            DeValue::Integer(value) => value.to_string(),
            DeValue::Float(value) => value.to_string(),
            DeValue::Boolean(value) => value.to_string(),
            _ => bail!("line {line}: {name} takes a single value, not a list, table or date"),
        };
        let option = format!("--{name}={value}");
        if let Err(error) = Options::command().try_get_matches_from(["scx_magpie", &option]) {
            let text = error.to_string();
            let reason = text.lines().next().unwrap_or_default();
            bail!("line {line}: {}", reason.trim_start_matches("error: "));
        }
        options.push(option);
    }
    Ok(options)
}

/// Prints the completions for a shell, made from the options.
pub fn print_completions(shell: clap_complete::Shell) {
    let mut output = std::io::stdout();
    clap_complete::generate(shell, &mut Options::command(), "scx_magpie", &mut output);
}

/// Prints the manual page, made from the options.
///
/// # Errors
/// When standard output cannot be written.
pub fn print_manual() -> Result<()> {
    clap_mangen::Man::new(Options::command())
        .manual("System Administration")
        .section("8")
        .render(&mut std::io::stdout())
        .context("writing the manual page to standard output")
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
