//! Files of the lab: where it keeps what it downloads and builds, how it writes them, and where it
//! finds programs.
//!
//! In a source tree the lab's folder is `target/lab/`, and the lock file `kernels.lock` is beside
//! `Cargo.toml`, so that the kernels in use are under version control. An installed `magpie` has no
//! source tree and keeps both in `$XDG_CACHE_HOME/magpie/lab`. `MAGPIE_LAB_DIR` overrides either.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use atomic_write_file::AtomicWriteFile;
use atomic_write_file::unix::OpenOptionsExt as _;

/// Name of the lock file of the kernels.
const KERNELS_LOCK: &str = "kernels.lock";

/// Returns the root of the source tree that the working directory or this program is in.
pub fn source_tree() -> Option<PathBuf> {
    let starts = [env::current_dir().ok(), env::current_exe().ok()];
    starts.into_iter().flatten().find_map(|start| {
        start
            .ancestors()
            .find(|dir| dir.join("lab/machines/tiny2.toml").is_file())
            .map(Path::to_path_buf)
    })
}

/// Returns the folder for downloads and caches, and creates it if it is missing.
///
/// # Errors
/// When the folder cannot be created.
pub fn lab_dir() -> Result<PathBuf> {
    let dir = match (env::var_os("MAGPIE_LAB_DIR"), source_tree()) {
        (Some(dir), _) => PathBuf::from(dir),
        (None, Some(tree)) => tree.join("target/lab"),
        (None, None) => match (env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")) {
            (Some(cache), _) => PathBuf::from(cache).join("magpie/lab"),
            (None, Some(home)) => PathBuf::from(home).join(".cache/magpie/lab"),
            (None, None) => env::temp_dir().join("magpie-lab"),
        },
    };
    fs::create_dir_all(&dir).with_context(|| {
        format!(
            "cannot create {}; point MAGPIE_LAB_DIR at a writable folder",
            dir.display()
        )
    })?;
    Ok(dir)
}

/// Returns the path of the lock file of the kernels.
pub(crate) fn kernels_lock() -> Result<PathBuf> {
    match (env::var_os("MAGPIE_LAB_DIR"), source_tree()) {
        (None, Some(tree)) => Ok(tree.join(KERNELS_LOCK)),
        _ => Ok(lab_dir()?.join(KERNELS_LOCK)),
    }
}

/// Finds a program. A name with a slash is a path; any other is looked for in the source tree's
/// `target/release` and `target/peers/bin`, then in PATH, so that the scheduler that was built last
/// is the one that runs.
pub fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let tree = source_tree().into_iter();
    let built = tree.flat_map(|tree| [tree.join("target/release"), tree.join("target/peers/bin")]);
    built
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .or_else(|| which::which(name).ok())
}

/// Waits for an exclusive lock on `path` and holds it until the file is dropped. Of two processes
/// that need the same download, the second waits and then finds it done. If the one that had the
/// lock removed the folder, the second makes it anew.
pub(crate) fn lock(path: &Path) -> Result<File> {
    loop {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("cannot create {}", parent.display()))?;
        }
        let file =
            File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        file.lock()
            .with_context(|| format!("cannot lock {}", path.display()))?;
        let locked = file
            .metadata()
            .with_context(|| format!("cannot read {}", path.display()))?;
        if fs::metadata(path).is_ok_and(|now| now.ino() == locked.ino()) {
            return Ok(file);
        }
    }
}

/// Replaces `path` in one step. A reader sees the old file or all of the new one, never a part,
/// whenever this program is killed.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write_atomically(path: &Path, contents: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut options = AtomicWriteFile::options();
        options
            .mode(0o644)
            .preserve_mode(false)
            .preserve_owner(false);
        let mut file = options.open(path)?;
        file.write_all(contents)?;
        file.commit()
    };
    write().with_context(|| {
        let path = path.display();
        format!("cannot write {path}: is its folder there, and writable?")
    })
}

/// Writes a result to where the user wants it: `-` is standard output. A path that is no regular
/// file, such as `/dev/null` or a FIFO, is written to as it is, because a rename would remove it.
///
/// # Errors
/// When the file or standard output cannot be written.
pub fn write_output(path: &Path, contents: &[u8]) -> Result<()> {
    if path == Path::new("-") {
        let mut out = io::stdout().lock();
        return out
            .write_all(contents)
            .and_then(|()| out.flush())
            .context("cannot write to standard output");
    }
    if path.exists() && !path.is_file() {
        return fs::write(path, contents)
            .with_context(|| format!("cannot write {}", path.display()));
    }
    write_atomically(path, contents)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lock_whose_folder_was_removed_is_taken_anew() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("source/lock");
        let first = lock(&path).expect("locked");
        let second = std::thread::spawn({
            let path = path.clone();
            move || lock(&path).expect("locked")
        });
        // Time in which the other thread opens the file and waits.
        std::thread::sleep(Duration::from_millis(200));
        fs::rename(root.path().join("source"), root.path().join("old")).expect("renamed");
        drop(first);
        let _second = second.join().expect("no panic");
        let third = File::open(&path).expect("the folder is there again");
        assert!(third.try_lock().is_err(), "two have the lock");
    }
}
