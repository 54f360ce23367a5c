//! The plugins and the programs that run in their guests, built from the sources embedded in this
//! program.
//!
//! The sources are embedded because an installed `magpie` has no source tree. `make` and a C
//! compiler build them: the plugins declare the part of QEMU's interface that they use, and need no
//! headers. The result is kept under the hash of its sources.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::progress::Progress;
use crate::{files, text};

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        const SOURCES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../vtime/", $name)))),*];
    };
}

sources!(
    "Makefile",
    "qemu-api.h",
    "vtime.h",
    "memory.h",
    "main.c",
    "turn.c",
    "wakeup.c",
    "vcpu.c",
    "work.c",
    "perturb.c",
    "snapshot.c",
    "breakpoint.c",
    "real-time.c",
    "mainloop.c",
    "clock.c",
    "smt.c",
    "frequency.c",
    "host.c",
    "guests.c",
    "span.c",
    "memory.c",
    "memory_options.c",
    "home.c",
    "contention.c",
    "bandwidth.c",
    "mode.c",
    "tlb.c",
    "fetch.c",
    "directory.c",
    "cache.c",
    "insn.c",
    "interpose.c",
    "patch.c",
    "report.c",
    "profile.c",
    "tasks.c",
    "watchdog.c",
    "check/check.h",
    "check/vtime-check.c",
    "check/memory-check.c",
    "check/vtime-batch",
    "check/vtime-mark.c",
);

/// Returns the plugin. The first call builds it.
pub fn build(progress: &Progress) -> Result<PathBuf> {
    Ok(built(progress)?.join("magpie-vtime.so"))
}

/// Returns the plugin of machines in real time, which watches breakpoints. The first call builds
/// it.
pub fn breakpoint_plugin(progress: &Progress) -> Result<PathBuf> {
    Ok(built(progress)?.join("magpie-breakpoint.so"))
}

/// Returns the self-check that runs in a guest: `vtime-check MIPS WINDOW_NS SMT_FACTOR`.
pub fn check_program(progress: &Progress) -> Result<PathBuf> {
    Ok(built(progress)?.join("vtime-check"))
}

/// Returns the self-check of a machine's memory, which runs in a guest.
pub fn memory_program(progress: &Progress) -> Result<PathBuf> {
    Ok(built(progress)?.join("memory-check"))
}

/// Returns the program that marks the part of a run which is repeated.
pub fn mark_program(progress: &Progress) -> Result<PathBuf> {
    Ok(built(progress)?.join("vtime-mark"))
}

/// Returns the script that is the init of a batch guest.
pub fn batch_init(progress: &Progress) -> Result<PathBuf> {
    Ok(built(progress)?.join("vtime-batch"))
}

/// Returns the folder with everything that is built. The first call builds.
fn built(progress: &Progress) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    for (name, text) in SOURCES {
        hash.update(name);
        hash.update(text);
    }
    let hash = text::hex(&hash.finalize()[..8]);
    let root = files::lab_dir()?.join("vtime");
    let folder = root.join(&hash);
    if folder.is_dir() {
        return Ok(folder);
    }
    let _lock = files::lock(&root.join("build.lock"))?;
    if folder.is_dir() {
        return Ok(folder);
    }
    progress.say("building the virtual-time plugin");
    let sources = tempfile::tempdir_in(&root).context("cannot create a folder to build in")?;
    write_sources(sources.path())?;
    let result = tempfile::tempdir_in(&root).context("cannot create a folder to build in")?;
    make(sources.path(), result.path())?;
    let init = result.path().join("vtime-batch");
    fs::copy(sources.path().join("check/vtime-batch"), &init)
        .and_then(|_| fs::set_permissions(&init, PermissionsExt::from_mode(0o755)))
        .context("cannot copy vtime-batch")?;
    let finished = result.keep();
    fs::set_permissions(&finished, PermissionsExt::from_mode(0o755))
        .and_then(|()| fs::rename(&finished, &folder))
        .with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Writes the embedded sources into a folder.
fn write_sources(folder: &Path) -> Result<()> {
    fs::create_dir(folder.join("check")).context("cannot create a folder to build in")?;
    for (name, text) in SOURCES {
        fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(())
}

/// Builds the sources into `result`.
fn make(sources: &Path, result: &Path) -> Result<()> {
    ensure!(
        cfg!(all(target_arch = "x86_64", target_os = "linux")),
        "virtual time needs an x86-64 Linux host: the plugin replaces functions of QEMU there"
    );
    let output = Command::new("make")
        .args(["-s", "-C"])
        .arg(sources)
        .arg(format!("OUT={}", result.display()))
        .arg("all")
        .output()
        .context(
            "cannot run make; install it and a C compiler: `apt-get install build-essential`",
        )?;
    if !output.status.success() {
        bail!(
            "cannot build the virtual-time plugin; are a C compiler and the static C library there \
             (`apt-get install build-essential`)? make says:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use walkdir::WalkDir;

    use super::SOURCES;

    /// An installed program builds from [`SOURCES`] alone, and a build in the source tree does too.
    #[test]
    fn all_sources_are_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vtime");
        let mut files = BTreeSet::new();
        for entry in WalkDir::new(&folder) {
            let entry = entry.expect("lab/vtime can be read");
            if entry.file_type().is_file() {
                let name = entry.path().strip_prefix(&folder).expect("is below it");
                files.insert(name.to_string_lossy().into_owned());
            }
        }
        let embedded: BTreeSet<_> = SOURCES.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(files, embedded);
    }
}
