//! The command line of `magpie bench`: its options, and what each of them accepts.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use magpie_lab::KernelChoice;

use crate::compare::parse_percent;
use crate::report::BASELINE;
use crate::setting::Boot;
use crate::shard::Shard;
use crate::suite::Where;
use crate::{callbacks, peers};

/// Measure schedulers against the kernel's own, interleaved, with statistics.
///
/// Each cell of the table reads `0.93 [  7.10]( 2.11)`: the average normalized to the baseline's
/// (eevdf), the improvement in percent, the coefficient of variation in percent. `same` marks a
/// difference that the test does not find to be real.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    magpie bench --sched scx_magpie --workload hackbench\n  \
    magpie bench --machine smt8 --sched 'scx_magpie,scx_magpie --no-steal,scx_cosmos' \\\n      \
    --workload hackbench,pipe,latency --groups 1,4 --rounds 8 --json result.json\n  \
    magpie bench --suite steal,latency,fairness --sched scx_magpie,scx_cosmos --html report.html\n  \
    magpie bench --in vtime --suite push --ablate --shard 1/4 --json part1.json\n  \
    magpie bench --sched scx_magpie --workload pipe,latency --until-sure --margin 2%\n  \
    magpie bench --host lab/hosts/neighbours.toml --sched scx_magpie --loops 50 --rounds 4\n  \
    magpie bench --sched 'eevdf@7.0,eevdf{llc_balancing=0},scx_magpie' --workload hackbench\n  \
    magpie bench bisect --git ~/linux --good v7.1 --bad v7.2 --workload hackbench\n  \
    magpie bench peers install scx_cosmos scx_lavd\n  \
    magpie bench show result.json\n  \
    magpie bench show --mail result.json\n  \
    magpie bench compare old.json result.json --fail-over 3%"
)]
pub struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) measure: Box<Measure>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Fail if a result file is worse than an older one: a gate against regressions
    Compare(Compare),
    /// Print the tables of result files, and where each file comes from
    Show(Show),
    /// Draw a result file as an SVG picture
    Plot(Plot),
    /// Join the results of all shards of a run
    Merge(Merge),
    /// List the workloads
    Workloads,
    /// List the suites
    Suites,
    Bisect(Box<Bisect>),
    /// Measure what each operation of schedulers costs per call
    Callbacks(callbacks::Args),
    Peers(peers::Args),
}

/// The options of a measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Measure {
    #[command(flatten)]
    pub(crate) setup: Setup,
    #[command(flatten)]
    pub(crate) beside: Beside,
    /// Schedulers with their options, separated by commas; eevdf (none) is always measured too.
    /// PROGRAM@KERNEL runs on another kernel (eevdf@7.0, scx_magpie@path/bzImage), and settings of
    /// the kernel stand in braces: eevdf{base_slice_ns=3000000,features=NO_PREEMPT_SHORT}
    #[arg(long, default_value = "scx_magpie", value_name = "LIST")]
    pub(crate) sched: String,
    /// Suites, separated by commas (`magpie bench suites` lists them), or files that end in .toml
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) suite: Vec<String>,
    /// Candidates of which the best is the baseline of each test: what the others are compared
    /// with. For example eevdf,eevdf{llc_balancing=0}. With --host: 'eevdf beside eevdf'
    #[arg(long, default_value = BASELINE, value_name = "LIST", conflicts_with = "until_sure")]
    pub(crate) baseline: String,
    /// Rounds that count; one more runs before them as warm-up and is dropped, but not with --host
    /// [default: 5, and at most 30 with --until-sure]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: Option<u16>,
    /// Run each row until it is decided, with at most --rounds rounds: until its difference is
    /// real, or known to be smaller than --margin
    #[arg(long)]
    pub(crate) until_sure: bool,
    /// With --until-sure, the difference below which two candidates are the same
    #[arg(long, default_value = "3%", value_parser = parse_percent, value_name = "PERCENT", requires = "until_sure")]
    pub(crate) margin: f64,
    /// Also measure the mechanisms of scx_magpie: all, each left out, each alone, none
    #[arg(long)]
    pub(crate) ablate: bool,
    /// Run part K of N of the cases, on one of several machines; `magpie bench merge` joins the
    /// results
    #[arg(long, value_name = "K/N")]
    pub(crate) shard: Option<Shard>,
    /// Write the result as JSON, compressed if FILE ends in .gz; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the table as Markdown; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) display: Display,
}

/// Where and on what is measured, by a measurement and by `magpie bench bisect`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Setup {
    /// Where to measure
    #[arg(long = "in", value_enum, default_value = "vm", value_name = "WHERE")]
    pub(crate) place: Where,
    /// Machine of the guest: a preset (`magpie lab machines`) or a TOML file [default: the suite's,
    /// else tiny2, or vt16 in virtual time]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) machine: Option<String>,
    /// Kernel of the guest: a series or the name of a built one (`magpie lab kernels`), or a
    /// bzImage [default: the newest series]
    #[arg(long, value_name = "SERIES|NAME|FILE")]
    pub(crate) kernel: Option<String>,
    /// Configuration of a kernel that is given as a file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Workloads, separated by commas (`magpie bench workloads` lists them) [default: those of the
    /// suites, else hackbench]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) workload: Vec<String>,
    /// More workloads, in the form of bench/workloads.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) workloads: Option<PathBuf>,
    /// hackbench groups, one case for each value: 1,4 [short for --set groups=1,4]
    #[arg(long, value_name = "LIST")]
    pub(crate) groups: Option<String>,
    /// hackbench loops, one case for each value [short for --set loops=...]
    #[arg(long, value_name = "LIST")]
    pub(crate) loops: Option<String>,
    /// Values of a parameter, one case for each: --set threads=2,8 for all workloads that have it,
    /// --set tbench.seconds=1 for one
    #[arg(long = "set", value_name = "[WORKLOAD.]NAME=LIST")]
    pub(crate) parameters: Vec<String>,
}

impl Setup {
    /// The kernel of a guest: the candidate's, else that of `--kernel`. The configuration of a
    /// candidate's file is looked for beside it, as FILE.config.
    pub(crate) fn kernel_of(&self, boot: &Boot) -> Result<KernelChoice> {
        let Some(kernel) = &boot.kernel else {
            return KernelChoice::parse(self.kernel.as_deref(), self.config.as_deref());
        };
        let config = PathBuf::from(format!("{kernel}.config"));
        let config = config.is_file().then_some(config.as_path());
        KernelChoice::parse(Some(kernel), config)
    }
}

/// A guest beside others on one host.
#[derive(Debug, clap::Args)]
pub(crate) struct Beside {
    /// Measure a guest beside others on one host, in virtual time. FILE describes the host, as for
    /// `magpie lab host`: the guest without `background = true` is measured. All guests repeat the
    /// workload instead of the file's commands, each --sched beside each --neighbour
    #[arg(long, value_name = "FILE", conflicts_with_all = ["place", "machine"])]
    pub(crate) host: Option<PathBuf>,
    /// With --host, the schedulers of the guests beside, as --sched takes them [default: those of
    /// --sched]
    #[arg(long, value_name = "LIST", requires = "host")]
    pub(crate) neighbour: Option<String>,
    /// With --host, for how long the measured guest repeats the workload in each round, in virtual
    /// seconds; the run that is begun by then is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = parse_seconds, requires = "host")]
    pub(crate) repeat: f64,
}

/// Reads seconds of the virtual time.
fn parse_seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds| (0.0..=1000.0).contains(seconds))
        .ok_or_else(|| "give seconds from 0, which is one run, to 1000".into())
}

/// How a result is shown, by a measurement and by `magpie bench show`.
#[derive(Debug, clap::Args)]
pub(crate) struct Display {
    /// Write a report with pictures as one HTML file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print published results beside these: a table of reference/
    #[arg(long, value_name = "CSV")]
    pub(crate) compare: Option<PathBuf>,
    /// Print what the kernel and the scheduler counted in a run (mean of the rounds)
    #[arg(long, value_enum, default_value = "magpie", num_args = 0..=1, default_missing_value = "all")]
    pub(crate) show_counters: ShowCounters,
}

/// Whose counters are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShowCounters {
    /// Of scx_magpie
    Magpie,
    /// Of every scheduler
    All,
    /// Of none
    None,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Compare {
    /// The older result file
    pub(crate) old: PathBuf,
    /// The newer result file
    pub(crate) new: PathBuf,
    /// Largest loss that passes
    #[arg(long, default_value = "3%", value_parser = parse_percent, value_name = "PERCENT")]
    pub(crate) fail_over: f64,
    /// Compare values relative to each file's eevdf, for files from hosts of different speed
    #[arg(long)]
    pub(crate) normalized: bool,
    /// Judge only these candidates, for a new file that has fewer than the old one
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) sched: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// Result files, of `magpie bench --json` or `magpie bench callbacks --json`; `-` is standard
    /// input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print the tables as Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
    /// Print command, tables and provenance as docs/results.md has them
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) docs: bool,
    /// Print plain text for a mailing list, at most 72 columns wide
    #[arg(long, conflicts_with_all = ["markdown", "docs"])]
    pub(crate) mail: bool,
    /// Write what --docs prints into PAGE, for each FILE between `<!-- table: NAME -->` and
    /// `<!-- end -->`, where NAME is the file's name without .json.gz
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["markdown", "docs", "mail"])]
    pub(crate) into: Option<PathBuf>,
    /// Write a picture of all tests as SVG; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["markdown", "docs", "mail", "into", "html"])]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) display: Display,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Merge {
    /// The result files of all shards
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Write the whole result to FILE; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: PathBuf,
}

/// Find the first commit, patch or step that is worse, by measurements.
///
/// Each step that is tried is built, and measured in turns with the good one until it is certain on
/// which side it is. A step that does not build, or cannot be decided within --rounds rounds, is
/// left out. The exit code is 1 if no single step is found.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("what").required(true),
    after_help = "Examples:\n  \
    magpie bench bisect --git ~/linux --good v7.1 --bad v7.2 --workload hackbench\n  \
    magpie bench bisect --series series.mbox --source debian:7.2 \\\n      \
    --workload latency --metric 'wakeup p99'\n  \
    magpie bench bisect --git . --good v1 --bad HEAD --workload pipe \\\n      \
    --build 'scripts/build-at {} bin/scx_magpie-{}' --sched bin/scx_magpie-{}\n  \
    magpie bench bisect --steps 500000,1000000,3000000,6000000 \\\n      \
    --sched 'eevdf{base_slice_ns={}}' --workload hackbench"
)]
pub(crate) struct Bisect {
    /// Git tree whose commits are the steps; --good and --bad name two
    #[arg(long, group = "what", value_name = "TREE", requires_all = ["good", "bad"])]
    pub(crate) git: Option<PathBuf>,
    /// Mailbox whose patches are the steps: step N has the first N
    #[arg(long, group = "what", value_name = "FILE", requires = "source")]
    pub(crate) series: Option<PathBuf>,
    /// Steps by name, the good one first, separated by commas
    #[arg(long, group = "what", value_name = "LIST", value_delimiter = ',')]
    pub(crate) steps: Vec<String>,
    /// Kernel source that the patches of --series are for, as `magpie lab kernel build` takes it
    #[arg(long, value_name = "SOURCE", requires = "series")]
    pub(crate) source: Option<String>,
    /// The step that is known to be good [default: the first]
    #[arg(long, value_name = "STEP")]
    pub(crate) good: Option<String>,
    /// The step that is known to be bad [default: the last]
    #[arg(long, value_name = "STEP")]
    pub(crate) bad: Option<String>,
    /// Shell command that builds a step, whose name replaces {} [default: with --git and --series,
    /// builds the kernel bisect-{}]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) build: Option<String>,
    /// Scheduler of a step, as `magpie bench --sched` takes one, with {} for the name of the step
    /// [default: eevdf@bisect-{}, or eevdf with --build or --steps]
    #[arg(long, value_name = "SCHEDULER")]
    pub(crate) sched: Option<String>,
    /// The figure that gets worse, of a workload that has several
    #[arg(long, value_name = "NAME")]
    pub(crate) metric: Option<String>,
    /// How much worse than the good step a bad one is, at least [default: half of the difference
    /// between the good and the bad step]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) limit: Option<f64>,
    /// Most rounds for a step
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(5..=1000))]
    pub(crate) rounds: u16,
    /// Write what was found as JSON; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) setup: Setup,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Plot {
    /// The result file
    pub(crate) file: PathBuf,
    /// Write the picture to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: PathBuf,
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    /// The options of `magpie bench LINE`.
    pub(crate) fn measure(line: &str) -> Measure {
        let words = shell_words::split(&format!("bench {line}")).unwrap();
        *Program::try_parse_from(words)
            .unwrap_or_else(|e| panic!("{e}"))
            .args
            .measure
    }

    #[test]
    fn the_command_line_is_consistent() {
        Program::command().debug_assert();
    }

    #[test]
    fn the_documentation_names_every_option_and_command() {
        let documentation = include_str!("../../docs/bench.md");
        let command = Program::command();
        let options = command.get_arguments().filter_map(|a| a.get_long());
        for option in options.filter(|option| *option != "help") {
            let option = format!("--{option}");
            assert!(
                documentation.contains(&option),
                "docs/bench.md lacks {option}"
            );
        }
        for command in command.get_subcommands().map(clap::Command::get_name) {
            let command = format!("magpie bench {command}");
            assert!(
                documentation.contains(&command),
                "docs/bench.md lacks {command}"
            );
        }
    }
}
