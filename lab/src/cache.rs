//! What the lab makes of its sources and keeps in `images/`: pieces of guest images, kernels without
//! their compression. A file's name ends with a hash of what it was made of.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::{files, text};

/// A file that no run has used for this time is removed.
const KEPT: Duration = Duration::from_secs(3 * 24 * 3600);

/// A kind of files that are made and kept.
pub(crate) struct Kind {
    /// What the files' names begin with.
    pub name: &'static str,
    /// What their names end with.
    pub extension: &'static str,
    /// The program text that makes them: a file that an older one made does not count.
    pub maker: &'static str,
    /// Files besides the sources that a file depends on. Those that do not exist are left out.
    pub system: &'static [&'static str],
}

impl Kind {
    /// Returns the file that was made of these sources. If there is none, `make` writes it.
    pub(crate) fn of(
        &self,
        sources: &[PathBuf],
        make: impl FnOnce(&File) -> Result<()>,
    ) -> Result<PathBuf> {
        let folder = files::lab_dir()?.join("images");
        let hash = self.fingerprint(sources)?;
        let path = folder.join(format!("{}-{hash}.{}", self.name, self.extension));
        let _lock = files::lock(&folder.join(format!("{}.lock", self.name)))?;
        if path.exists() {
            // A new time, so that the file is not removed as unused.
            let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
            return Ok(path);
        }
        self.remove_unused(&folder);
        // What a killed process leaves behind has a name that is removed with the others.
        let file = tempfile::Builder::new()
            .prefix(&format!("{}-", self.name))
            .tempfile_in(&folder)
            .with_context(|| format!("cannot write to {}", folder.display()))?;
        make(file.as_file()).with_context(|| format!("cannot make {}", path.display()))?;
        file.persist(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Returns a hash that changes when a source changes, the system's files, or the maker. A
    /// package's folder stands for its files, because the lab writes it once, as it unpacks the
    /// package.
    fn fingerprint(&self, sources: &[PathBuf]) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(self.maker);
        let system = self.system.iter().map(PathBuf::from);
        for path in sources
            .iter()
            .cloned()
            .chain(system.filter(|path| path.exists()))
        {
            let meta =
                fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
            hash.update(path.as_os_str().as_encoded_bytes());
            hash.update(
                format!(
                    "\0{} {} {} {}\0",
                    meta.ino(),
                    meta.size(),
                    meta.mtime(),
                    meta.mtime_nsec()
                )
                .as_bytes(),
            );
        }
        Ok(text::hex(&hash.finalize()[..12]))
    }

    /// Removes the files of this kind that no run has used for [`KEPT`].
    fn remove_unused(&self, folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let has_name = entry
                .file_name()
                .to_string_lossy()
                .starts_with(&format!("{}-", self.name));
            let age = entry
                .metadata()
                .and_then(|m| m.modified())
                .ok()
                .and_then(|t| t.elapsed().ok());
            if has_name && age.is_some_and(|age| age > KEPT) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}
