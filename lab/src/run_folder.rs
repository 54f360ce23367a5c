//! The temporary folder of a run: its sockets, its image and its logs.
//!
//! Dropping a folder removes it, and so does [`remove_all`], before this process exits in the
//! middle of runs. A process that is killed leaves its folders behind, some of 80 MB, and the
//! kernel lets go of its locks. So the next run of the same user removes each folder whose lock
//! nobody holds.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// How the names of these folders begin.
const PREFIX: &str = "magpie-run-";

/// The locked file of a folder. Not the folder itself: network file systems lock files only.
const LOCK: &str = "lock";

/// A file is locked just after it was made: a younger one may be about to be locked.
const YOUNG: Duration = Duration::from_secs(60);

/// The folders of this process, for [`remove_all`].
static FOLDERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Locks a mutex, also after a thread that held it has panicked: what it guards stays valid.
pub(crate) fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A temporary folder that this process has locked.
#[derive(Debug)]
pub struct RunFolder {
    folder: TempDir,
    _lock: File,
}

impl RunFolder {
    /// Creates a folder in the system's folder for temporary files, because a socket's path may
    /// have at most 107 bytes, and removes there what killed processes left.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub fn new() -> Result<RunFolder> {
        let root = std::env::temp_dir();
        remove_abandoned(&root);
        RunFolder::new_in(&root)
    }

    fn new_in(root: &Path) -> Result<RunFolder> {
        let cannot = || format!("cannot create a folder for a run in {}", root.display());
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(root)
            .with_context(cannot)?;
        let lock = File::create(folder.path().join(LOCK)).with_context(cannot)?;
        // Where files cannot be locked, no folder looks abandoned.
        let _ = lock.lock();
        lock_mutex(&FOLDERS).insert(folder.path().to_path_buf());
        Ok(RunFolder {
            folder,
            _lock: lock,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        lock_mutex(&FOLDERS).remove(self.folder.path());
    }
}

/// Removes the folders of this process, because destructors do not run when it exits next.
pub(crate) fn remove_all() {
    for folder in lock_mutex(&FOLDERS).iter() {
        let _ = fs::remove_dir_all(folder);
    }
}

/// Removes this user's folders of runs whose process is gone.
fn remove_abandoned(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if is_ours(&entry).unwrap_or(false) && is_abandoned(&entry.path()).unwrap_or(false) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns whether it is a folder of a run of this user, and no link to one.
fn is_ours(entry: &DirEntry) -> Result<bool> {
    let is_run = entry.file_name().to_string_lossy().starts_with(PREFIX);
    let metadata = entry.metadata()?;
    let user = nix::unistd::geteuid().as_raw();
    Ok(is_run && metadata.is_dir() && metadata.uid() == user)
}

fn is_abandoned(folder: &Path) -> Result<bool> {
    let lock = File::options().write(true).open(folder.join(LOCK))?;
    let age = lock.metadata()?.modified()?.elapsed().unwrap_or_default();
    Ok(age > YOUNG && lock.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;
    use std::time::SystemTime;

    use super::*;

    /// Makes a folder look as old as its process may be.
    fn age(folder: &Path) {
        let old = FileTimes::new().set_modified(SystemTime::now() - 2 * YOUNG);
        let lock = File::create(folder.join(LOCK)).expect("opens");
        lock.set_times(old).expect("sets the time");
    }

    #[test]
    fn only_what_a_killed_process_left_is_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let running = RunFolder::new_in(root.path()).expect("a folder");
        let path = |name: &str| root.path().join(name);
        for name in ["magpie-run-left", "magpie-run-young", "another"] {
            fs::create_dir(path(name)).expect("a folder");
            fs::write(path(name).join(LOCK), "").expect("writes");
        }
        age(running.path());
        age(&path("magpie-run-left"));
        age(&path("another"));

        remove_abandoned(root.path());
        assert!(!path("magpie-run-left").exists());
        assert!(path("magpie-run-young").exists());
        assert!(path("another").exists());
        assert!(running.path().exists());

        let was = running.path().to_path_buf();
        drop(running);
        assert!(!was.exists());
    }
}
