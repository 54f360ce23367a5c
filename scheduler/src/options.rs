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
use clap::{ArgAction, Args, Command, CommandFactory, Parser, Subcommand};
use scx_utils::build_id;
use toml::de::{DeTable, DeValue};

/// Read when it exists and `--config` names no other.
pub const DEFAULT_CONFIG: &str = "/etc/scx_magpie.toml";

const AFTER_HELP: &str = "\
Examples:
  sudo scx_magpie                  run until Ctrl-C
  sudo scx_magpie --stats 1        run, and say every second what it does
  sudo scx_magpie --monitor 1      say what the running instance does
  sudo scx_magpie --no-steal       run without one mechanism

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

    /// What packaging asks for.
    #[command(subcommand)]
    pub document: Option<Document>,
}

/// The options that may be in the configuration file, too.
#[derive(Args, Debug)]
pub struct Settings {
    /// How long a task runs before the next one has its turn, in microseconds [default: 3000]
    ///
    /// Shorter slices answer sooner under load, longer ones switch less.
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    pub slice_us: Option<u64>,

    /// An idle CPU takes no waiting task from another CPU's queue
    ///
    /// Without it a queued task waits for its own CPU, and busy CPUs do not even
    /// out their queues.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_steal: bool,

    /// An idle CPU always searches, also when it will idle for less than a search costs
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_steal_gate: bool,

    /// A woken task never preempts the running one; it waits for the slice's end
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true, hide_possible_values = true, action = ArgAction::Set)]
    pub no_preempt: bool,

    /// Which CPUs a guest uses when its host is short of CPUs
    ///
    /// auto: as many as the host gives, if this is a virtual machine; off: all.
    #[arg(long, value_name = "WHEN", default_value = "off")]
    pub preferred: Preferred,

    /// How often the time that the host took is looked at, in milliseconds [default: 1000]
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub period: Option<u64>,

    /// Steal time above which fewer CPUs are used, in 1/100 of a percent [default: 200]
    #[arg(long, value_name = "RATIO", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub high: Option<u32>,

    /// Steal time below which more CPUs are used, in 1/100 of a percent [default: 100]
    #[arg(long, value_name = "RATIO", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub low: Option<u32>,

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

/// When only preferred CPUs are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preferred {
    /// As the governor says.
    Auto,
    /// Never.
    Off,
}

/// Texts made from the options, so that they cannot disagree with them.
#[derive(Debug, Subcommand)]
pub enum Document {
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
        self.document.is_some() || self.help_stats || self.stats_json || self.monitor.is_some()
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

/// Prints one of the texts made from the options.
///
/// # Errors
/// When standard output cannot be written.
pub fn print_document(document: &Document) -> Result<()> {
    let mut command = Options::command();
    let mut output = std::io::stdout();
    match document {
        Document::Completions { shell } => {
            clap_complete::generate(*shell, &mut command, "scx_magpie", &mut output);
            Ok(())
        }
        Document::Man => clap_mangen::Man::new(command)
            .manual("System Administration")
            .section("8")
            .render(&mut output)
            .context("writing the manual page to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> std::result::Result<Options, clap::Error> {
        Options::try_parse_from(["scx_magpie"].iter().chain(arguments))
    }

    fn with_config(text: &str, arguments: &[&str]) -> Options {
        let arguments = ["scx_magpie"]
            .iter()
            .chain(arguments)
            .map(OsString::from)
            .collect();
        Options::combine(parse_config(text).unwrap(), arguments).unwrap()
    }

    fn config_error(text: &str) -> String {
        format!("{:#}", parse_config(text).unwrap_err())
    }

    #[test]
    fn the_command_is_well_formed() {
        Options::command().debug_assert();
    }

    #[test]
    fn everything_is_on_by_default() {
        let options = parse(&[]).unwrap();
        assert!(!options.settings.no_steal && !options.settings.no_preempt);
        assert_eq!(options.settings.slice_us, None);
    }

    #[test]
    fn the_file_sets_what_the_command_line_leaves_open() {
        let text = "# a comment\nslice-us = 2000\nno-steal = true\nstats = 0.5\n";
        let options = with_config(text, &["--no-preempt"]);
        assert_eq!(options.settings.slice_us, Some(2000));
        assert!(options.settings.no_steal && options.settings.no_preempt);
        assert_eq!(options.settings.stats, Some(0.5));
    }

    #[test]
    fn the_command_line_wins() {
        let text = "slice-us = 2000\nno-steal = true\n";
        let options = with_config(text, &["--slice-us", "5000", "--no-steal=false"]);
        assert_eq!(options.settings.slice_us, Some(5000));
        assert!(!options.settings.no_steal);
    }

    #[test]
    fn only_a_start_reads_the_file() {
        assert!(!parse(&["--stats=1"]).unwrap().starts_nothing());
        for other in [
            &["man"][..],
            &["completions", "bash"],
            &["--help-stats"],
            &["--monitor=1"],
        ] {
            assert!(parse(other).unwrap().starts_nothing(), "{other:?}");
        }
    }

    #[test]
    fn mistakes_in_the_file_are_reported_with_their_line() {
        let unknown = config_error("slice-us = 2000\n\nno-stael = true\n");
        assert!(
            unknown.starts_with("line 3") && unknown.contains("no-steal"),
            "{unknown}"
        );
        let range = config_error("verbose = true\nslice-us = 5\n");
        assert!(
            range.starts_with("line 2") && range.contains("100"),
            "{range}"
        );
        let kind = config_error("no-steal = \"perhaps\"");
        assert!(
            kind.starts_with("line 1") && kind.contains("perhaps"),
            "{kind}"
        );
        let list = config_error("slice-us = [1, 2]");
        assert!(list.starts_with("line 1"), "{list}");
        let syntax = config_error("slice-us = 2000\nno-steal =\n");
        assert!(syntax.contains("line 2"), "{syntax}");
    }

    #[test]
    fn what_is_no_setting_is_refused_in_the_file() {
        for name in ["monitor", "stats-json", "config", "help"] {
            assert!(
                config_error(&format!("{name} = 1")).contains("no setting"),
                "{name}"
            );
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read_config(Path::new("/nonexistent/magpie.toml"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nonexistent/magpie.toml") && error.contains("--config"));
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            "--slice-us=0",
            "--slice-us=2s",
            "--monitor=0",
            "--stats=-1",
            "--no-such",
        ] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
    }

    /// A README that promises what the program does not have is worse than none.
    #[test]
    fn readme_and_help_name_the_same_options() {
        let readme = include_str!("../../README.md");
        let command = Options::command();
        let known: Vec<_> = command
            .get_arguments()
            .filter_map(|argument| argument.get_long())
            .chain(["help", "version"])
            .collect();
        let named: Vec<_> = readme
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
            .filter_map(|word| {
                word.strip_prefix("--")
                    .filter(|name| !name.starts_with('-'))
            })
            .filter(|name| !name.is_empty())
            .collect();
        for name in &named {
            assert!(
                known.contains(name),
                "README names --{name}, which does not exist"
            );
        }
        for name in &known {
            assert!(named.contains(name), "README does not name --{name}");
        }
    }

    #[test]
    fn the_example_file_is_valid_as_shipped_and_with_all_lines_enabled() {
        let text = include_str!("../../packaging/scx_magpie.toml");
        assert_eq!(parse_config(text).unwrap(), Vec::<String>::new());
        let enabled: String = text
            .lines()
            .map(|line| {
                line.strip_prefix('#')
                    .filter(|rest| !rest.starts_with(' '))
                    .unwrap_or(line)
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        let settings = Settings::augment_args(Command::new("settings"));
        assert_eq!(
            parse_config(&enabled).unwrap().len(),
            settings.get_arguments().count()
        );
    }
}
