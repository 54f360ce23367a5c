//! The kernels that `magpie lab kernel build` built, by name.
//!
//! Each has a folder below `built-kernels/` with the bzImage, the configuration and `build.json`. A
//! kernel is registered in one step, when all of it is there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::files;

/// The kernel, in its folder.
const IMAGE: &str = "bzImage";

/// The kernel's configuration, in its folder.
const CONFIG: &str = "config";

/// The file that says where a kernel comes from: a [`Built`] as JSON.
const RECORD: &str = "build.json";

/// A name is a part of the kernel's release, which has at most 64 characters.
const LONGEST_NAME: usize = 40;

/// A kernel that was built, and from what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Built {
    /// Its name, which `--kernel` takes.
    pub name: String,
    /// `uname -r`.
    pub release: String,
    /// The source, with its version or commit.
    pub source: String,
    /// The patches, in their order.
    pub patches: Vec<String>,
    /// Name of the configuration that it began with.
    pub base: String,
    /// A file with changes to that configuration.
    pub config: Option<PathBuf>,
    /// Seconds of real time from the source to the kernel.
    pub seconds: f64,
    /// Seconds of CPU time of the compilers.
    pub cpu_seconds: f64,
    /// When it was built, in seconds since 1970.
    pub built_unix: u64,
    /// The file with the output of `make`.
    pub log: PathBuf,
}

impl Built {
    /// The folder with all that is registered.
    pub fn folder(&self) -> Result<PathBuf> {
        Ok(folder()?.join(&self.name))
    }

    /// The bzImage.
    pub fn image(&self) -> Result<PathBuf> {
        Ok(self.folder()?.join(IMAGE))
    }

    /// The configuration.
    pub fn config(&self) -> Result<PathBuf> {
        Ok(self.folder()?.join(CONFIG))
    }
}

/// The folder of all built kernels.
fn folder() -> Result<PathBuf> {
    Ok(files::lab_dir()?.join("built-kernels"))
}

/// Can a built kernel have this name? It is a part of `uname -r` and of a candidate's name.
pub fn is_name(name: &str) -> bool {
    let valid = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    begins_well && name.len() <= LONGEST_NAME && name.chars().all(valid) && !is_series(name)
}

/// Has the word the form of a series, such as `7.2`?
pub fn is_series(word: &str) -> bool {
    let is_number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    word.split_once('.')
        .is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

/// Returns the kernels by name.
///
/// # Errors
/// If a record cannot be read.
pub fn list() -> Result<Vec<Built>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder()?).into_iter().flatten().flatten() {
        let record = entry.path().join(RECORD);
        // A folder without a record is a kernel that is being registered.
        if record.is_file() && is_name(&entry.file_name().to_string_lossy()) {
            all.push(read(&record)?);
        }
    }
    all.sort_by(|a: &Built, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Returns the kernel of that name.
///
/// # Errors
/// If there is none; with the names of those that there are.
pub fn find(name: &str) -> Result<Built> {
    let record = folder()?.join(name).join(RECORD);
    if is_name(name) && record.is_file() {
        return read(&record);
    }
    let names: Vec<String> = list()?.into_iter().map(|built| built.name).collect();
    let known = match names.is_empty() {
        true => "none is built yet".to_string(),
        false => format!("built are {}", names.join(", ")),
    };
    bail!(
        "there is no kernel \"{name}\": {known}. `magpie lab kernel build` builds one; \
         `magpie lab kernels` lists the stock ones; a file is given with its folder, as in \
         ./bzImage"
    )
}

fn read(record: &Path) -> Result<Built> {
    let text =
        fs::read_to_string(record).with_context(|| format!("cannot read {}", record.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is not valid; remove its folder and build the kernel again",
            record.display()
        )
    })
}

/// Registers a kernel, in place of an earlier one of its name.
pub(super) fn register(built: &Built, image: &Path, config: &Path) -> Result<()> {
    let all = folder()?;
    fs::create_dir_all(&all).with_context(|| format!("cannot create {}", all.display()))?;
    let work = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(&all)
        .with_context(|| format!("cannot create a folder in {}", all.display()))?;
    let new = work.path().join("new");
    fs::create_dir(&new)?;
    for (from, name) in [(image, IMAGE), (config, CONFIG)] {
        fs::copy(from, new.join(name))
            .with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let record = serde_json::to_string_pretty(built).context("cannot encode the record")?;
    files::write_atomically(&new.join(RECORD), record.as_bytes())?;
    let registered = all.join(&built.name);
    if registered.exists() {
        fs::rename(&registered, work.path().join("old"))?;
    }
    fs::rename(&new, &registered).with_context(|| format!("cannot create {}", registered.display()))
}

/// Removes a kernel.
///
/// # Errors
/// If there is no such kernel.
pub fn remove(name: &str) -> Result<()> {
    let built = find(name)?;
    let path = folder()?.join(&built.name);
    fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    ensure!(!path.exists(), "{} is still there", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn a_name_is_no_series_and_no_path() {
        for name in ["demo", "debian-7.2-slow", "v7.2-rc1", "7.2-mine"] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "7.2", "", "a/b", "..", "a b", "a,b", "a@b", "a{b", "-x", ".x",
        ] {
            assert!(!is_name(name), "{name}");
        }
        assert!(!is_name(&"a".repeat(41)));
    }
}
