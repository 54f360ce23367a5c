//! `cargo bench -p magpie-native`: the sparsemask against a plain bitmap, as tables.

use anyhow::{Context, Result};
use clap::Parser;
use magpie_native::contention::{self, Options};
use std::path::PathBuf;

/// Measure how much CPUs that use one bitmap at the same time disturb each other.
///
/// Prints tables in Markdown: nanoseconds of one operation by number of places and by layout, from
/// a few places on each cache line to a plain bitmap. docs/sparsemask.md explains them.
#[derive(Parser)]
#[command(name = "cargo bench -p magpie-native --", verbatim_doc_comment)]
struct Arguments {
    /// Only show that the benchmark works, within seconds; the numbers are worth nothing
    #[arg(long)]
    quick: bool,

    /// Threads that announce together [default: 2, 4, 8, ... up to the CPUs there are]
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    threads: Vec<u32>,

    /// Write every round that counts to a file, `-` for standard output instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// The flag that cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut options = if arguments.quick {
        Options::quick()
    } else {
        Options::full()
    };
    if !arguments.threads.is_empty() {
        options.threads = arguments.threads;
    }

    let cells = contention::measure(&options)?;
    match arguments.json {
        Some(path) if path.as_os_str() == "-" => println!("{}", serde_json::to_string(&cells)?),
        path => {
            if let Some(path) = path {
                std::fs::write(&path, serde_json::to_string(&cells)?)
                    .with_context(|| format!("writing the result to {}", path.display()))?;
            }
            print!("{}", contention::markdown(&cells));
        }
    }
    Ok(())
}
