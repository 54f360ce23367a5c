//! The command line: options, commands and their help, from which the man page is made.
//!
//! The options of [`Settings`] may also be in the configuration file, which `configuration.rs`
//! reads. A help text begins with a verb: with what the option does, not with what it is. A switch
//! that leaves a mechanism out is one line in `mechanisms.rs`.

use std::io;
use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use scx_utils::build_id;

use crate::flags::flags;
use crate::mechanisms::{Only, Switches};
use crate::power::Power;
use crate::preferred::{ChangeOptions, Knobs, Preferred, StealSource};

const AFTER_HELP: &str = "\
Examples:
  sudo scx_magpie                  run until Ctrl-C
  sudo scx_magpie --stats 1        run, and print every second what the scheduler did
  sudo scx_magpie --monitor 1      print every second what the running scx_magpie did
  sudo scx_magpie --no-steal       run without one mechanism
  sudo scx_magpie try              find out whether it helps this machine
  sudo scx_magpie preferred        print which CPUs a guest prefers, and why
  sudo scx_magpie preferred --set 0-3

Exit status: 0 when asked to stop; 1 on any error, with the reason; 2 for a wrong option.";

static VERSION: LazyLock<String> =
    LazyLock::new(|| build_id::full_version(env!("CARGO_PKG_VERSION")));

/// Find work for idle CPUs, and idle CPUs for work.
///
/// scx_magpie is a CPU scheduler for Linux kernels with sched_ext. It replaces the kernel's own
/// scheduler while it runs. The kernel's own scheduler is back when scx_magpie is stopped with
/// Ctrl-C or SIGTERM, crashes or is killed.
///
/// Every mechanism is on by default and needs no tuning. The --no-... switches are there to measure
/// what each mechanism gives.
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
    /// The options that may also be in the configuration file.
    #[command(flatten)]
    pub settings: Settings,

    /// Print every SECONDS what the running scx_magpie did, and start nothing
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
    /// The file is TOML. An option that says how the scheduler works has the same name there, for
    /// example `slice-us = 2000` or `no-steal = true`; --monitor, --stats-json, --help-stats and
    /// --config are for the command line alone. The command line overrules the file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The command to run instead of the scheduler.
    #[command(subcommand)]
    pub action: Option<Action>,
}

/// How the scheduler works: the options that may also be in the configuration file.
#[derive(Args, Debug)]
pub struct Settings {
    /// Let a task run for this long before the next one, in microseconds [default: 3000]
    ///
    /// With shorter slices tasks wait less under load, with longer ones CPUs switch less often.
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    pub slice_us: Option<u64>,

    /// Which mechanisms and parts of them are left out.
    #[command(flatten)]
    pub switches: Switches,

    /// Prefer these CPUs: auto, off (all) or a list such as 0-3,8
    ///
    /// A virtual machine whose host is short of CPUs runs faster on fewer of its own. Tasks use the
    /// preferred CPUs wherever their affinity, which is never changed, allows; device interrupts
    /// and unbound workqueues follow. auto: as many as the host gives, or, where the kernel's
    /// steal_governor is loaded (Linux 7.4), the CPUs that it prefers; on a real machine nothing is
    /// loaded. off: all CPUs, until `scx_magpie preferred --set` changes that. The kernel places
    /// real-time tasks, which do not follow.
    #[arg(long, value_name = "auto|off|CPUS", default_value = "auto")]
    pub preferred: Preferred,

    /// Ask for performance where it is of use: auto, or on: everywhere
    ///
    /// auto: where a CPU has the frequency governor schedutil when the scheduler starts. on: also
    /// where nothing follows, to see in `scx_magpie cpus` what each CPU would ask for.
    #[arg(
        long,
        value_name = "WHERE",
        default_value = "auto",
        value_enum,
        hide_possible_values = true
    )]
    pub frequency: FrequencyUse,

    /// Keep work on few cores while there is little, so that the others idle deeply: saver, balanced,
    /// performance (no) or auto
    ///
    /// saver: on as few whole cores as may be in use for 70 % of the time, and tasks wait for up to
    /// 10 ms, seen at a tick, before all CPUs are used. balanced: 45 % and 6 ms. auto: as the CPUs'
    /// energy-performance preference says, which desktops and power-profiles-daemon set, and where
    /// there is none the platform's profile; follows it while the scheduler runs. On a machine with
    /// neither: performance. Rests where --preferred or the host says which CPUs are used.
    #[arg(
        long,
        value_name = "LEVEL",
        default_value = "auto",
        value_enum,
        hide_possible_values = true
    )]
    pub power: Power,

    /// Let no CPU idle so deeply that waking it takes longer than this, in microseconds [default: no
    /// limit]
    ///
    /// The limit holds for all CPUs until scx_magpie ends, in whatever way: the kernel then drops it.
    /// Shallow idle costs power, and 0 means that idle CPUs spin.
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(i32).range(0..=1_000_000))]
    pub idle_resume_us: Option<i32>,

    /// Choose how the scheduler learns the time that the host takes
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub steal_source: StealSource,

    /// When and how the number of preferred cores changes.
    #[command(flatten)]
    pub knobs: Knobs,

    /// Use only this mechanism and a plain scheduler
    ///
    /// A plain scheduler has a fair queue for each CPU, wakeup preemption, the weights and limits
    /// of cgroups, the kernel's own idle selection for wakeups, idle CPUs that search for waiting
    /// tasks at any cost, and busy CPUs that balance. (With --no-steal CPUs neither search nor
    /// balance: tasks then wait beside idle CPUs, for up to two ticks.)
    #[arg(long, value_name = "MECHANISM")]
    pub only: Option<Only>,

    /// Print every SECONDS what the scheduler did, while it runs
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub stats: Option<f64>,

    /// Limit the dump that the kernel makes when it ends the scheduler, in bytes; 0: the kernel's
    /// default
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub exit_dump_len: u32,

    /// How much is logged.
    #[command(flatten)]
    pub log: Log,
}

flags! {
    /// How much is logged.
    Log {
        /// Log more, including the messages of libbpf
        #[arg(short)]
        verbose,
    }
}

/// Where CPUs ask for performance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FrequencyUse {
    /// Where a governor follows.
    Auto,
    /// Everywhere.
    On,
}

impl Settings {
    /// Returns whether CPUs ask for performance. Where no governor follows, that would be of no use.
    pub fn asks_for_performance(&self, has_schedutil: bool) -> bool {
        !self.switches.no_frequency && (has_schedutil || self.frequency == FrequencyUse::On)
    }

    /// Returns whether work may be kept on few cores to save power. Where the user says which CPUs are
    /// preferred, these are used.
    pub fn may_save_power(&self) -> bool {
        !self.switches.no_power
            && !self.switches.no_preferred
            && self.only.is_none_or(|only| only == Only::Preferred)
            && self.preferred == Preferred::Auto
    }

    /// Returns whether preferred CPUs are loaded, so that they can be set at any time.
    ///
    /// On a real machine nothing takes time away, so there they are loaded only if the user chose
    /// some.
    pub fn loads_preferred(&self, is_virtual_machine: bool) -> bool {
        !self.switches.no_preferred
            && self.only.is_none_or(|only| only == Only::Preferred)
            && (is_virtual_machine || self.preferred != Preferred::Auto)
    }
}

/// The commands: what can be done instead of starting the scheduler.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Print which CPUs the running scx_magpie prefers and why, or change them
    ///
    /// Without options nothing is changed. A change takes effect at once, and lasts until the next
    /// change or the end of the scheduler.
    Preferred {
        /// The changes.
        #[command(flatten)]
        change: ChangeOptions,

        /// Print one JSON object, to standard output or to FILE
        #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
        json: Option<PathBuf>,
    },
    /// Print what each CPU has measured: how long it idles, what its searches for work cost, how busy
    /// it is
    ///
    /// A CPU searches other LLCs for work only if it idles for longer than such searches have taken
    /// so far.
    Cpus {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print what each cgroup gets: its share of CPU time, its limit, how often it was throttled
    ///
    /// Lists the cgroups that are active or limited, with --json all of them. A share is a part of
    /// the CPU time in use, by weight and by how often the cgroup is active. It follows both within
    /// about a tenth of a second.
    Cgroups {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print whether scx_magpie can run here, which mechanisms would be active, and why one would
    /// not
    ///
    /// Starts and changes nothing. Counts the configuration file in. The exit status is 1 if the
    /// scheduler cannot run.
    Check {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Try whether scx_magpie helps this machine: `magpie try`, with the same options
    ///
    /// Runs the program `magpie` beside this one or in PATH. `scx_magpie try --help` is its help.
    #[command(disable_help_flag = true)]
    Try {
        /// Options of `magpie try`, and the command behind `--`
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "OPTIONS"
        )]
        arguments: Vec<String>,
    },
    /// Put interrupts and workqueues back to where they were before a scx_magpie that was killed
    ///
    /// The next start of scx_magpie does the same. Does nothing if there is nothing to restore.
    Restore,
    /// Print the completions for a shell
    #[command(hide = true)]
    Completions {
        /// Print them for this shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// Reads an interval in seconds, between 0.01 s and a day.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds between 0.01 and 86400".into()),
    }
}

/// Prints the completions for a shell, made from the options.
pub fn print_completions(shell: clap_complete::Shell) {
    let mut output = io::stdout();
    clap_complete::generate(shell, &mut Options::command(), "scx_magpie", &mut output);
}

/// Prints the manual page, made from the options.
///
/// # Errors
/// When standard output cannot be written.
pub fn print_manual() -> Result<()> {
    magpie_manual::write(Options::command(), "8", &mut io::stdout())
        .context("writing the manual page to standard output")
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
