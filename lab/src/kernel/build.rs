//! Builds kernels for the lab's guests: `magpie lab kernel build`.
//!
//! ```text
//!   SOURCE            --patch          base configuration, --config
//!      |                 |                        |
//!   source            patch                    config
//!      |  unpacked       |  patched files         |  one fragment
//!      +------> tree <---+                        |
//!                 |  what `make` compiles         |
//!                 +------------> make <-----------+      tools: compiler, pahole, ...
//!                                  |
//!                               built             a name for --kernel
//! ```
//!
//! Below `kernel-build/` of the lab's folder, each source has a folder with its tree and a folder
//! of objects per base configuration. Both are kept, so that the next build compiles what has
//! changed; `kept` lists and removes them.

mod config;
pub mod kept;
mod make;
pub mod patch;
mod source;
mod tools;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use self::config::Config;
use self::make::Make;
use self::source::{Source, Unpacked};
use crate::kernel::built::{self, Built};
use crate::kernel::{KernelChoice, SERIES};
use crate::progress::Progress;

/// The lab's configuration for its guests.
const TINY: &str = include_str!("../../kernels/tiny.config");

/// The changes of the base `stock` to the configuration of a stock kernel.
const STOCK: &str = include_str!("../../kernels/stock.config");

/// The configuration that a build begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Base {
    /// Only the options that the lab's guests need: built in minutes
    Tiny,
    /// The configuration of the lab's stock kernel, without its modules: takes several times as
    /// long
    Stock,
}

/// A kernel to build.
#[derive(Debug, Clone)]
pub struct Request {
    /// The word that names the source.
    pub source: String,
    /// Files with patches, in their order.
    pub patches: Vec<PathBuf>,
    /// Apply only so many patches of all files.
    pub first: Option<usize>,
    /// Changes to the base configuration.
    pub config: Option<PathBuf>,
    /// The configuration to begin with.
    pub base: Base,
    /// The kernel's name; `None` makes one of the source's and the patches'.
    pub name: Option<String>,
    /// Processes that run at a time.
    pub jobs: usize,
    /// Hears of each step.
    pub progress: Progress,
}

impl Base {
    fn name(self) -> &'static str {
        match self {
            Base::Tiny => "tiny",
            Base::Stock => "stock",
        }
    }
}

/// Builds a kernel and registers it. All that can be known to fail does so before a compiler runs,
/// and a build that fails or is interrupted registers nothing.
///
/// # Errors
/// If a tool is missing, a patch does not apply, the configuration is refused or does not compile.
pub fn build(request: &Request) -> Result<Built> {
    let began = Instant::now();
    let source = Source::parse(&request.source)?;
    let name = match &request.name {
        Some(name) => name.clone(),
        None => default_name(&source, request),
    };
    ensure!(
        built::is_name(&name),
        "\"{name}\" cannot be the name of a kernel: it has letters, digits and . _ + - only, at \
         most 40, and is no series; give another with --name"
    );
    let mut wanted = Config::default();
    if let Some(path) = &request.config {
        wanted.merge(&path.display().to_string(), &read(path)?)?;
    }
    let mut patches = Vec::new();
    for path in &request.patches {
        patches.extend(patch::read(path)?);
    }
    if let Some(first) = request.first {
        ensure!(
            first <= patches.len(),
            "--first {first} asks for more than the {} patches of the files",
            patches.len()
        );
        patches.truncate(first);
    }
    tools::check()?;

    let root = kept::root()?;
    let folder = root.join(source.key()?);
    let _lock = kept::lock_source(&folder)?;
    let unpacked = source.unpack(&folder, &request.progress)?;
    kept::note(&folder, &unpacked.name)?;
    let patched = patch::apply(&patches, &unpacked.folder, &unpacked.name)?;
    let pahole = tools::pahole(&request.progress)?;

    request.progress.say("copying what has changed");
    let tree = folder.join("tree");
    tree::sync(&unpacked, &patched, &tree)?;
    let objects = folder.join(request.base.name());
    fs::create_dir_all(&objects).with_context(|| format!("cannot create {}", objects.display()))?;
    let make = Make {
        tree: &tree,
        objects: &objects,
        pahole: &pahole,
        jobs: request.jobs,
        log: new_log(&root, &name)?,
        progress: &request.progress,
    };
    let cpu_before = make::cpu_seconds_of_children();
    configure(&make, request.base, wanted, &unpacked)?;
    make.run("bzImage", &[format!("LOCALVERSION=-{name}")])?;
    let built = Built {
        name,
        release: read(&objects.join("include/config/kernel.release"))?
            .trim()
            .to_string(),
        source: unpacked.name,
        patches: patches.into_iter().map(|patch| patch.name).collect(),
        base: request.base.name().to_string(),
        config: request.config.clone(),
        seconds: began.elapsed().as_secs_f64(),
        cpu_seconds: make::cpu_seconds_of_children() - cpu_before,
        built_unix: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
        log: make.log,
    };
    let image = objects.join("arch/x86/boot/bzImage");
    built::register(&built, &image, &objects.join(".config"))?;
    Ok(built)
}

/// A name made of those of the source, the base and the patch files.
fn default_name(source: &Source, request: &Request) -> String {
    let mut parts = vec![source.short_name()];
    if request.base != Base::Tiny {
        parts.push(request.base.name().to_string());
    }
    let stems = request.patches.iter().filter_map(|path| path.file_stem());
    parts.extend(stems.map(|stem| stem.to_string_lossy().into_owned()));
    parts.extend(request.first.map(|first| first.to_string()));
    parts.join("-")
}

/// Writes the configuration.
///
/// # Errors
/// If the kernel does not accept a value that the user asks for.
fn configure(make: &Make, base: Base, users: Config, source: &Unpacked) -> Result<()> {
    make.progress.say("configuring");
    let fragment = make.objects.join("lab.config");
    let mut all = Config::default();
    let needed = match base {
        Base::Tiny => ("tiny.config", TINY),
        Base::Stock => {
            let path = stock_config(source, make.progress)?;
            all.merge(&path.display().to_string(), &read(&path)?)?;
            ("stock.config", STOCK)
        }
    };
    let mut checked = Config::default();
    checked.merge(needed.0, needed.1)?;
    checked.extend(users.clone());
    all.extend(checked.clone());
    let write = |path: &Path| {
        fs::write(path, all.text()).with_context(|| format!("cannot write {}", path.display()))
    };
    match base {
        Base::Tiny => {
            write(&fragment)?;
            let variable = format!("KCONFIG_ALLCONFIG={}", fragment.display());
            make.run("allnoconfig", &[variable])?;
        }
        Base::Stock => {
            write(&make.objects.join(".config"))?;
            make.run("olddefconfig", &[])?;
        }
    }
    let config = read(&make.objects.join(".config"))?;
    let unmet = users.unmet(&config);
    ensure!(
        unmet.is_empty(),
        "the kernel does not accept what --config asks for:\n  {}\nthe symbol does not exist in \
         this source, or what it depends on is off",
        unmet.join("\n  ")
    );
    // An older or newer kernel may lack a symbol of the lab's, and boot all the same.
    for unmet in checked.unmet(&config) {
        make.progress.say(&format!("configuring: {unmet}"));
    }
    Ok(())
}

/// The configuration of the stock kernel of the source's series, or of the default one.
fn stock_config(source: &Unpacked, progress: &Progress) -> Result<PathBuf> {
    let series = source.series()?;
    let choice = match SERIES.contains(&series.as_str()) {
        true => KernelChoice::Series(series),
        false => KernelChoice::Default,
    };
    let kernel = choice.resolve(progress)?;
    kernel.config.context("a stock kernel has a configuration")
}

/// An empty log for a kernel of this name.
fn new_log(root: &Path, name: &str) -> Result<PathBuf> {
    let folder = root.join("logs");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(format!("{name}.log"));
    fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
