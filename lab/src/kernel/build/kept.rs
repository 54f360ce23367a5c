//! The sources of kernels that builds keep: each is a folder with the unpacked tree and its objects.
//! They are gigabytes, and only save the time to build them again.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use walkdir::WalkDir;

use crate::files;

/// Locked by the build that uses the folder; each folder of a source has it.
const LOCK: &str = "lock";

/// The file that says which source this is, for people.
const ORIGIN: &str = "origin";

/// Prefix of a folder that is being removed.
const REMOVED: &str = ".removed-";

/// Locked while a folder is being removed; beside the folder of all sources.
const REMOVING: &str = "kernel-build.lock";

/// Bytes of a block of `st_blocks`.
const BLOCK: u64 = 512;

/// A source that a build has left.
#[derive(Debug, Clone, Serialize)]
pub struct Kept {
    /// The name of its folder.
    pub name: String,
    /// The source that was built there last, with its version or commit; empty if no build came so
    /// far.
    pub origin: String,
    /// How much of the disk it occupies.
    pub bytes: u64,
}

/// The folder of all sources.
pub(super) fn root() -> Result<PathBuf> {
    Ok(files::lab_dir()?.join("kernel-build"))
}

/// Makes the folder of a source, and locks it until the returned file is dropped, because two builds
/// in one tree would mix their objects. Waits while another build has the lock.
pub(super) fn lock_source(folder: &Path) -> Result<fs::File> {
    files::lock(&folder.join(LOCK))
}

/// Notes what the source is.
pub(super) fn note(folder: &Path, origin: &str) -> Result<()> {
    files::write_atomically(&folder.join(ORIGIN), origin.as_bytes())
}

/// Returns the sources by name. A folder that cannot be read is left out.
///
/// # Errors
/// If the lab has no folder.
pub fn list() -> Result<Vec<Kept>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(root()?).into_iter().flatten().flatten() {
        let folder = entry.path();
        if folder.join(LOCK).is_file() {
            all.push(Kept {
                name: entry.file_name().to_string_lossy().into_owned(),
                origin: fs::read_to_string(folder.join(ORIGIN)).unwrap_or_default(),
                bytes: bytes_of(&folder),
            });
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Bytes that a folder occupies. A file with several links counts once; one that goes away
/// meanwhile does not count.
pub fn bytes_of(folder: &Path) -> u64 {
    let mut seen = HashSet::new();
    let entries = WalkDir::new(folder).into_iter().flatten();
    let metadata = entries.filter_map(|entry| entry.metadata().ok());
    metadata
        .filter(|meta| meta.nlink() < 2 || seen.insert((meta.dev(), meta.ino())))
        .map(|meta| meta.blocks() * BLOCK)
        .sum()
}

/// Removes a source with its tree and objects. The kernels that were built from it stay.
///
/// # Errors
/// If there is none of this name, or a build uses it.
pub fn remove(name: &str) -> Result<()> {
    let root = root()?;
    // One call at a time, because each removes what an interrupted one has left.
    let _removing = files::lock(&root.with_file_name(REMOVING))?;
    remove_leftovers(&root);
    let names: Vec<String> = list()?.into_iter().map(|kept| kept.name).collect();
    ensure!(
        names.iter().any(|known| known == name),
        "no build has left a source \"{name}\": {}; `magpie lab kernel list` shows them",
        match names.is_empty() {
            true => "there is none".to_string(),
            false => format!("there are {}", names.join(", ")),
        }
    );
    let folder = root.join(name);
    let lock = fs::File::open(folder.join(LOCK)).context("cannot open the source's lock")?;
    if let Err(error) = lock.try_lock() {
        return Err(io::Error::from(error))
            .with_context(|| format!("a build uses {name}: remove it once the build has ended"));
    }
    // Under another name first: if this is interrupted, no build takes the rest for a whole source.
    let old = tempfile::Builder::new()
        .prefix(REMOVED)
        .tempdir_in(&root)
        .with_context(|| format!("cannot create a folder in {}", root.display()))?;
    fs::rename(&folder, old.path().join(name))
        .with_context(|| format!("cannot rename {}", folder.display()))?;
    old.close()
        .with_context(|| format!("cannot remove all of {}", folder.display()))
}

/// Removes what an interrupted call has left.
fn remove_leftovers(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(REMOVED) {
            // The next call tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_links_counts_once() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("one"), vec![1; 1 << 20]).expect("written");
        let before = bytes_of(folder.path());
        assert!(before >= 1 << 20, "{before}");
        fs::hard_link(folder.path().join("one"), folder.path().join("two")).expect("linked");
        assert!(bytes_of(folder.path()) < before + (1 << 19));
        fs::copy(folder.path().join("one"), folder.path().join("three")).expect("copied");
        assert!(bytes_of(folder.path()) >= 2 << 20);
    }
}
