//! Where the lab keeps what it downloads, builds and remembers.
//!
//! In a source tree that is `target/lab/` and the lock file `kernels.lock` beside `Cargo.toml`, so
//! that the kernels in use are under version control. An installed `magpie` has no source tree: it
//! keeps both in `$XDG_CACHE_HOME/magpie/lab`. `MAGPIE_LAB_DIR` overrides either.

use anyhow::{Context, Result};
use std::env;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Name of the lock file of the kernels.
pub const KERNELS_LOCK: &str = "kernels.lock";

/// The root of the source tree that the working directory or this program is in.
pub fn source_tree() -> Option<PathBuf> {
    let starts = [env::current_dir().ok(), env::current_exe().ok()];
    starts.into_iter().flatten().find_map(|start| {
        start
            .ancestors()
            .find(|dir| dir.join("lab/machines/tiny2.toml").is_file())
            .map(Path::to_path_buf)
    })
}

/// The folder for downloads and caches; created if it does not exist.
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

/// Path of the lock file.
pub fn kernels_lock() -> Result<PathBuf> {
    match (env::var_os("MAGPIE_LAB_DIR"), source_tree()) {
        (None, Some(tree)) => Ok(tree.join(KERNELS_LOCK)),
        _ => Ok(lab_dir()?.join(KERNELS_LOCK)),
    }
}

/// Holds an exclusive lock on `path` until it is dropped, so that two downloads of the same thing
/// become one: the second waits and then finds it done.
pub fn lock(path: &Path) -> Result<File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    file.lock()
        .with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Writes a file so that no reader ever sees half of it.
pub fn write_atomically(path: &Path, contents: &[u8]) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let write = || -> Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(parent)?;
        std::io::Write::write_all(&mut file, contents)?;
        file.as_file()
            .set_permissions(PermissionsExt::from_mode(0o644))?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
