//! `magpie-load`: the load generators and checkers that the bench and the tests run, usually inside
//! a lab guest. One small program has one subcommand per load. Each prints a short text for people
//! or, with `--json`, one JSON object for programs; each ends by itself within a bounded time and
//! leaves no process behind. The exception is `burn`, which runs until its caller kills it.

mod audio;
mod beside;
mod churn;
mod core_sharing;
mod counters;
mod cpus;
mod deadlines;
mod even_out;
mod frames;
mod hogs;
mod idle_periods;
mod idle_watch;
mod latency;
mod pairs;
mod pipe;
mod programs;
mod services;
mod spread;
mod starvation;
mod stream;
mod sys;
mod times;
mod video;
mod wakeup;
mod working_set;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "magpie-load",
    version,
    about = "Load generators and checkers for schedulers"
)]
struct Args {
    #[command(subcommand)]
    load: Load,
}

#[derive(Subcommand)]
enum Load {
    Hogs(hogs::Args),
    /// Be a CPU hog, one process, until killed
    ///
    /// On a machine in virtual time this costs the host next to nothing, unlike a loop of a shell.
    Burn,
    Latency(latency::Args),
    Pipe(pipe::Args),
    Pairs(pairs::Args),
    Frames(frames::Args),
    Audio(audio::Args),
    Programs(programs::Args),
    Services(services::Args),
    Spread(spread::Args),
    EvenOut(even_out::Args),
    Stream(stream::Args),
    WorkingSet(working_set::Args),
    Video(video::Args),
    Churn(churn::Args),
    IdlePeriods(idle_periods::Args),
    IdleWatch(idle_watch::Args),
    Wakeup(wakeup::Args),
    CoreSharing(core_sharing::Args),
    Starvation(starvation::Args),
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// The result of a subcommand, printed in one of two forms.
struct Finding {
    /// For people; it may have several lines.
    text: String,
    /// For programs.
    json: serde_json::Value,
    /// False if the check fails; the exit code is then 2.
    holds: bool,
}

/// Exits with 2 if a check does not hold, and with 1 if the load could not run.
fn main() -> ExitCode {
    if let Some(code) = beside::build_step() {
        return code;
    }
    match run(Args::parse().load) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("magpie-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the manual page, made from the options.
fn print_manual() -> Result<bool> {
    magpie_manual::write(Args::command(), "1", &mut io::stdout())?;
    Ok(true)
}

/// Runs a subcommand and prints its result; whether its check holds.
fn run(load: Load) -> Result<bool> {
    let (finding, json) = match load {
        Load::Hogs(args) => (hogs::run(&args)?, args.json),
        Load::Burn => sys::burn_forever(),
        Load::Latency(args) => (latency::run(&args)?, args.json),
        Load::Pipe(args) => (pipe::run(&args)?, args.json),
        Load::Pairs(args) => (pairs::run(&args)?, args.json),
        Load::Frames(args) => (frames::run(&args)?, args.json),
        Load::Audio(args) => (audio::run(&args)?, args.json),
        Load::Programs(args) => (programs::run(&args)?, args.json),
        Load::Services(args) => (services::run(&args)?, args.json),
        Load::Spread(args) => (spread::run(&args)?, args.json),
        Load::EvenOut(args) => (even_out::run(&args)?, args.json),
        Load::Stream(args) => (stream::run(&args)?, args.json),
        Load::WorkingSet(args) => (working_set::run(&args)?, args.json),
        Load::Video(args) => (video::run(&args)?, args.json),
        Load::Churn(args) => (churn::run(&args)?, args.json),
        Load::IdlePeriods(args) => (idle_periods::run(&args)?, args.json),
        Load::IdleWatch(args) => (idle_watch::run(&args)?, args.json),
        Load::Wakeup(args) => (wakeup::run(&args)?, args.json),
        Load::CoreSharing(args) => (core_sharing::run(&args)?, args.json),
        Load::Starvation(args) => (starvation::run(&args)?, args.json),
        Load::Man => return print_manual(),
    };
    if json {
        println!("{}", finding.json);
    } else {
        println!("{}", finding.text.trim_end());
    }
    Ok(finding.holds)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        super::Args::command().debug_assert();
    }

    #[test]
    fn lists_of_nice_values_may_begin_with_a_negative_one() -> Result<(), clap::Error> {
        super::Args::try_parse_from(["magpie-load", "hogs", "--nice", "-5,0,5"])?;
        Ok(())
    }
}
