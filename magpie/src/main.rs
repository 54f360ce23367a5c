//! The `magpie` command: stock kernels in virtual machines (`magpie lab`), measurements (`magpie
//! bench`), whether a scheduler helps this machine (`magpie try`), and what the running scheduler
//! does: as metrics (`magpie export`), on a screen (`magpie top`), event by event (`magpie trace`).

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Boot stock kernels in virtual machines, measure schedulers, and watch scx_magpie.
#[derive(Debug, Parser)]
#[command(name = "magpie", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Boot stock kernels in virtual machines, run schedulers and commands in them
    Lab(magpie_lab::cli::Args),
    Bench(magpie_bench::cli::Args),
    Try(magpie_bench::trial::Args),
    Export(magpie_observe::export::Args),
    Top(magpie_observe::top::Args),
    Trace(magpie_observe::trace::Args),
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Lab(args) => magpie_lab::cli::run(args),
        Command::Bench(args) => magpie_bench::cli::run(args),
        Command::Try(args) => magpie_bench::trial::run(args),
        Command::Export(args) => magpie_observe::export::run(&args),
        Command::Top(args) => magpie_observe::top::run(&args),
        Command::Trace(args) => magpie_observe::trace::run(&args),
        Command::Man => magpie_manual::write(Arguments::command(), "1", &mut std::io::stdout())
            .map(|()| 0)
            .map_err(Into::into),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("magpie: {error:#}");
            ExitCode::FAILURE
        }
    }
}
