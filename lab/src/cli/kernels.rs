//! `magpie lab kernels` and `magpie lab kernel`: lists, builds and removes kernels.

use std::path::{Path, PathBuf};

use anyhow::Result;
use indicatif::DecimalBytes;
use serde_json::json;

use crate::cli::terminal::{Spinner, write_json};
use crate::kernel::build::{self, Base, Request, kept};
use crate::kernel::built::{self, Built};
use crate::kernel::{self, KernelChoice, SERIES};

#[derive(Debug, clap::Args)]
pub struct List {
    /// Write the list as JSON to a file, `-` for standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Download the stock kernels that are missing.
    #[arg(long)]
    download: bool,
}

#[derive(Debug, clap::Subcommand)]
pub enum Kernel {
    Build(Build),
    /// List the kernels that were built, and the sources that builds have left, with their sizes.
    List {
        /// Write the list as JSON to a file, `-` for standard output.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Remove a kernel that was built.
    Remove {
        /// Its name (see `magpie lab kernel list`).
        name: String,
    },
    /// Remove sources that builds have left, with their objects; the kernels stay.
    ///
    /// The next build of such a source compiles everything.
    #[command(after_help = "Examples:\n  \
        magpie lab kernel list\n  \
        magpie lab kernel clean debian-7.2\n  \
        magpie lab kernel clean --all")]
    Clean {
        /// Their names (see `magpie lab kernel list`).
        #[arg(value_name = "NAME", required_unless_present = "all")]
        names: Vec<String>,
        /// Remove all of them.
        #[arg(long, conflicts_with = "names")]
        all: bool,
    },
}

/// Build a kernel, which guests and candidates then boot by its name.
///
/// The source is kept with its objects: a second build of it compiles what a patch or a commit
/// changes. Nothing is written to the source itself. The compiler is the host's.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    magpie lab kernel build debian:7.2 --name plain\n  \
    magpie lab kernel build debian:7.2 --patch wakeup.diff --name patched\n  \
    magpie lab kernel build ~/linux@v7.2-rc3 --patch series.mbox --first 2\n  \
    magpie lab run --kernel patched --sched scx_magpie -- uname -r\n  \
    magpie bench --kernel plain --sched eevdf@patched --workload hackbench,latency")]
pub struct Build {
    /// Debian's source of a series (debian:7.2), a source tree, a commit of one (TREE@COMMIT), or
    /// an archive.
    source: String,
    /// Unified diff, or mailbox with a series of patches. May be given several times; the patches
    /// are applied in this order, without fuzz.
    #[arg(long = "patch", value_name = "FILE")]
    patches: Vec<PathBuf>,
    /// Apply only the first N patches of all files.
    #[arg(long, value_name = "N", requires = "patches")]
    first: Option<usize>,
    /// Changes to the configuration: lines CONFIG_X=y, CONFIG_X=n. A line that the kernel does
    /// not accept is an error.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Configuration to begin with.
    #[arg(long, value_enum, default_value = "tiny")]
    base: Base,
    /// Name of the kernel, which is also the end of its `uname -r`. An earlier kernel of this name
    /// is replaced [default: the names of the source and of the patches].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Compilers that run at a time [default: one per CPU].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Write what was built as JSON to a file, `-` for standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// `magpie lab kernel`.
pub fn run(command: &Kernel) -> Result<u8> {
    match command {
        Kernel::Build(args) => build(args),
        Kernel::List { json } => list_sizes(json.as_deref()),
        Kernel::Remove { name } => built::remove(name).map(|()| 0),
        Kernel::Clean { names, all } => clean(names, *all),
    }
}

/// Lists kernels and sources with their sizes.
fn list_sizes(path: Option<&Path>) -> Result<u8> {
    let (built, kept) = (built::list()?, kept::list()?);
    let mut kernels = Vec::new();
    for built in &built {
        let mut value = as_json(built)?;
        value["bytes"] = json!(kept::bytes_of(&built.folder()?));
        kernels.push(value);
    }
    if let Some(path) = path {
        write_json(path, &json!({"kernels": kernels, "sources": kept}))?;
        return Ok(0);
    }
    let size = |bytes: u64| DecimalBytes(bytes).to_string();
    for (built, value) in built.iter().zip(&kernels) {
        let bytes = value["bytes"].as_u64().unwrap_or_default();
        println!("{:<24}{:>10}  {}", built.name, size(bytes), origin(built));
    }
    println!("sources that builds have left:");
    for kept in &kept {
        println!("{:<24}{:>10}  {}", kept.name, size(kept.bytes), kept.origin);
    }
    Ok(0)
}

/// Removes the named sources that builds have left, or all.
fn clean(names: &[String], all: bool) -> Result<u8> {
    let names = match all {
        true => kept::list()?.into_iter().map(|kept| kept.name).collect(),
        false => names.to_vec(),
    };
    for name in names {
        kept::remove(&name)?;
    }
    Ok(0)
}

/// `built from linux-source-7.2 7.2.13-1, 1 patch`.
fn origin(built: &Built) -> String {
    format!("built from {}, {}", built.source, patches(built))
}

/// Builds a kernel, and prints how to use it.
fn build(args: &Build) -> Result<u8> {
    let spinner = Spinner::new();
    let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
    let built = build::build(&Request {
        source: args.source.clone(),
        patches: args.patches.clone(),
        first: args.first,
        config: args.config.clone(),
        base: args.base,
        name: args.name.clone(),
        jobs: args.jobs.map_or_else(cpus, usize::from),
        progress: spinner.progress(),
    })?;
    spinner.clear();
    match &args.json {
        Some(path) => write_json(path, &as_json(&built)?)?,
        None => println!(
            "{}: kernel {} from {}, {} in {:.0} s ({:.0} s of CPU time)\n\
             use it as --kernel {0}, or as a candidate: --sched eevdf@{0}",
            built.name,
            built.release,
            built.source,
            patches(&built),
            built.seconds,
            built.cpu_seconds,
        ),
    }
    Ok(0)
}

/// `2 patches`.
fn patches(built: &Built) -> String {
    match built.patches.len() {
        0 => "no patches".into(),
        1 => "1 patch".into(),
        count => format!("{count} patches"),
    }
}

fn as_json(built: &Built) -> Result<serde_json::Value> {
    let mut value = json!(built);
    value["image"] = json!(built.image()?);
    Ok(value)
}

/// `magpie lab kernels`: lists the kernels, and downloads the stock ones if asked to.
pub fn list(args: &List) -> Result<u8> {
    if args.download {
        let spinner = Spinner::new();
        for series in SERIES {
            KernelChoice::Series(series.to_string()).resolve(&spinner.progress())?;
        }
    }
    let mut rows = Vec::new();
    for locked in &kernel::read_lock()?.kernel {
        let kernel = kernel::downloaded(locked)?;
        let default = Some(&locked.name.as_str()) == SERIES.last();
        rows.push(json!({
            "series": locked.name,
            "release": locked.release,
            "default": default,
            "downloaded": kernel.is_some(),
            "image": kernel.as_ref().map(|k| &k.image),
            "config": kernel.as_ref().and_then(|k| k.config.as_ref()),
            "packages": locked.package,
        }));
        if args.json.is_none() {
            let state = match kernel {
                Some(_) => "downloaded",
                None => "not downloaded",
            };
            let default = if default { ", default" } else { "" };
            println!("{:<8}{:<32}{state}{default}", locked.name, locked.release);
        }
    }
    for built in built::list()? {
        if args.json.is_none() {
            println!("{:<8}{:<32}{}", built.name, built.release, origin(&built));
        }
        rows.push(as_json(&built)?);
    }
    if let Some(path) = &args.json {
        write_json(path, &json!(rows))?;
    }
    Ok(0)
}
