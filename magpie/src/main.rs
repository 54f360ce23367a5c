//! The `magpie` command: stock kernels in virtual machines (`magpie lab`), measurements (`magpie
//! bench`), whether a scheduler helps this machine (`magpie try`), and what the running scheduler
//! does: as metrics (`magpie export`), on a screen (`magpie top`), event by event (`magpie trace`).

use std::any::Any;
use std::panic::{self, UnwindSafe};
use std::process::ExitCode;

use anyhow::Result;
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

/// What a shell reports of a program that wrote to a closed pipe: 128 and the number of SIGPIPE.
const CLOSED_PIPE: u8 = 141;

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    match unless_pipe_closes(|| run(command)) {
        Some(Ok(code)) => ExitCode::from(code),
        Some(Err(error)) => {
            eprintln!("magpie: {error:#}");
            ExitCode::FAILURE
        }
        None => ExitCode::from(CLOSED_PIPE),
    }
}

fn run(command: Command) -> Result<u8> {
    match command {
        Command::Lab(args) => magpie_lab::cli::run(args),
        Command::Bench(args) => magpie_bench::cli::run(args),
        Command::Try(args) => magpie_bench::trial::run(args),
        Command::Export(args) => magpie_observe::export::run(&args),
        Command::Top(args) => magpie_observe::top::run(&args),
        Command::Trace(args) => magpie_observe::trace::run(&args),
        Command::Man => magpie_manual::write(Arguments::command(), "1", &mut std::io::stdout())
            .map(|()| 0)
            .map_err(Into::into),
    }
}

/// What `act` returns, or nothing if nobody reads its output any longer, as behind `| head`.
/// `println!` then panics, and that is good: it ends guests and restores the host on its way, which
/// SIGPIPE would not. Only its message would tell users nothing.
fn unless_pipe_closes<T>(act: impl FnOnce() -> T + UnwindSafe) -> Option<T> {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        if !is_closed_pipe(panicked.payload()) {
            report(panicked);
        }
    }));
    match panic::catch_unwind(act) {
        Ok(result) => Some(result),
        Err(payload) if is_closed_pipe(&*payload) => None,
        Err(payload) => panic::resume_unwind(payload),
    }
}

/// Whether the panic is `println!`'s of a closed pipe.
fn is_closed_pipe(payload: &(dyn Any + Send)) -> bool {
    let message = payload.downcast_ref::<String>();
    message.is_some_and(|text| text.starts_with("failed printing to stdout: Broken pipe"))
}
