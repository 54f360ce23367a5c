//! The tree that `make` compiles: the source with the patches, kept between builds.
//!
//! `make` compiles what is newer than its object. So a file of the tree is written only if its
//! contents differ from what is wanted now, and then it gets the present time, also when a patch is
//! taken back. All other files keep their times, and with them their objects.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use walkdir::WalkDir;

use super::patch::Patched;
use super::source::Unpacked;

/// Makes `tree` what the source is with the patched files in it. Returns how many files changed.
///
/// # Errors
/// If a file cannot be read or written. The next call completes the tree.
pub fn sync(source: &Unpacked, patched: &Patched, tree: &Path) -> Result<usize> {
    let is_new = !tree.exists();
    fs::create_dir_all(tree).with_context(|| format!("cannot create {}", tree.display()))?;
    let mut changed = 0;
    let mut wanted: BTreeSet<PathBuf> = source.files()?.into_iter().collect();
    for path in wanted.iter().filter(|path| !patched.contains_key(*path)) {
        let (from, to) = (source.folder.join(path), tree.join(path));
        if is_new {
            place_first(&from, &to, source.is_ours)
        } else if are_same(&from, &to)? {
            continue;
        } else {
            changed += 1;
            place(&from, &to)
        }
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    for (path, content) in patched {
        let Some(content) = content else {
            wanted.remove(path);
            continue;
        };
        wanted.insert(path.clone());
        let (from, to) = (source.folder.join(path), tree.join(path));
        if fs::read(&to).is_ok_and(|there| there == *content) {
            continue;
        }
        changed += 1;
        write(&to, content, &from).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(changed + remove_others(tree, &wanted)?)
}

/// Puts a file into a new tree. A file of the lab becomes a link: it takes no space, and no build
/// writes to it. One of the user's keeps its time, by which the next build recognises it.
fn place_first(from: &Path, to: &Path, is_ours: bool) -> Result<()> {
    make_folder_of(to)?;
    if is_ours && fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    place(from, to)?;
    if !to.is_symlink() {
        fs::File::open(to)?.set_modified(fs::metadata(from)?.modified()?)?;
    }
    Ok(())
}

/// Copies a file or link, with the present time. The old file is removed first, because it may be a
/// link to the source.
fn place(from: &Path, to: &Path) -> Result<()> {
    make_way(to)?;
    if from.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(from)?, to)?;
    } else {
        fs::copy(from, to)?;
    }
    Ok(())
}

/// Writes a patched file, with the permissions of `original` if there is one.
fn write(to: &Path, content: &[u8], original: &Path) -> Result<()> {
    make_way(to)?;
    fs::write(to, content)?;
    if let Ok(meta) = fs::metadata(original) {
        fs::set_permissions(to, meta.permissions())?;
    }
    Ok(())
}

fn make_way(to: &Path) -> Result<()> {
    make_folder_of(to)?;
    if to.symlink_metadata().is_ok() {
        fs::remove_file(to)?;
    }
    Ok(())
}

fn make_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().context("a file has a folder")?;
    if !folder.is_dir() {
        fs::create_dir_all(folder)?;
    }
    Ok(())
}

/// Has the tree this file? Times are looked at before contents.
fn are_same(from: &Path, to: &Path) -> Result<bool> {
    let meta = |path: &Path| path.symlink_metadata();
    let Ok(there) = meta(to) else {
        return Ok(false);
    };
    let wanted = meta(from).with_context(|| format!("cannot read {}", from.display()))?;
    if wanted.is_symlink() || there.is_symlink() {
        let is_same = wanted.is_symlink() && there.is_symlink();
        return Ok(is_same && fs::read_link(from)? == fs::read_link(to)?);
    }
    let is_link = (wanted.dev(), wanted.ino()) == (there.dev(), there.ino());
    let time = |meta: &fs::Metadata| (meta.mtime(), meta.mtime_nsec());
    if is_link || (wanted.len() == there.len() && time(&wanted) == time(&there)) {
        return Ok(true);
    }
    Ok(wanted.len() == there.len() && fs::read(from)? == fs::read(to)?)
}

/// Removes the files of the tree that are not wanted.
fn remove_others(tree: &Path, wanted: &BTreeSet<PathBuf>) -> Result<usize> {
    let mut removed = 0;
    for entry in WalkDir::new(tree) {
        let entry = entry.with_context(|| format!("cannot read {}", tree.display()))?;
        let path = entry.path().strip_prefix(tree)?;
        if !entry.file_type().is_dir() && !wanted.contains(path) {
            fs::remove_file(entry.path())
                .with_context(|| format!("cannot remove {}", entry.path().display()))?;
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A source with two files and a link, and a place for its tree.
    struct Fixture {
        folder: tempfile::TempDir,
        source: Unpacked,
    }

    impl Fixture {
        fn new(is_ours: bool) -> Fixture {
            let folder = tempfile::tempdir().expect("a folder");
            let source = folder.path().join("source");
            fs::create_dir_all(source.join("kernel")).expect("created");
            for (path, text) in [("kernel/fair.c", "fair"), ("kernel/core.c", "core")] {
                let path = source.join(path);
                fs::write(&path, text).expect("written");
                let old = SystemTime::now() - Duration::from_secs(1000);
                let file = fs::File::open(&path).expect("there");
                file.set_modified(old).expect("set");
            }
            std::os::unix::fs::symlink("core.c", source.join("kernel/link.c")).expect("linked");
            Fixture {
                source: Unpacked {
                    folder: source,
                    name: "it".into(),
                    is_ours,
                },
                folder,
            }
        }

        fn tree(&self) -> PathBuf {
            self.folder.path().join("tree")
        }

        fn sync(&self, patched: &[(&str, Option<&str>)]) -> usize {
            let patched = patched.iter().map(|(path, text)| {
                let content = text.map(|text| text.as_bytes().to_vec());
                (PathBuf::from(path), content)
            });
            sync(&self.source, &patched.collect(), &self.tree()).expect("syncs")
        }

        fn text(&self, path: &str) -> String {
            fs::read_to_string(self.tree().join(path)).expect("there")
        }

        fn is_fresh(&self, path: &str) -> bool {
            let meta = fs::metadata(self.tree().join(path)).expect("there");
            let age = meta.modified().expect("a time").elapsed();
            age.unwrap_or_default() < Duration::from_secs(500)
        }
    }

    #[test]
    fn only_what_differs_is_written_and_then_it_is_new() {
        for is_ours in [true, false] {
            let fixture = Fixture::new(is_ours);
            fixture.sync(&[]);
            assert!(!fixture.is_fresh("kernel/fair.c"));
            assert_eq!(fixture.sync(&[]), 0);
            let patch = [("kernel/fair.c", Some("patched")), ("new.c", Some("new"))];
            assert_eq!(fixture.sync(&patch), 2);
            assert_eq!(fixture.text("kernel/fair.c"), "patched");
            assert!(fixture.is_fresh("kernel/fair.c") && !fixture.is_fresh("kernel/core.c"));
            assert_eq!(fixture.sync(&patch), 0, "the same patch again");
            assert_eq!(fixture.sync(&[]), 2, "taken back");
            assert_eq!(fixture.text("kernel/fair.c"), "fair");
            assert!(
                fixture.is_fresh("kernel/fair.c"),
                "its object is that of the patch"
            );
            assert!(!fixture.tree().join("new.c").exists());
            assert_eq!(fixture.sync(&[("kernel/core.c", None)]), 1);
            assert!(!fixture.tree().join("kernel/core.c").exists());
            // The source is as it was.
            let original = fs::read_to_string(fixture.source.folder.join("kernel/fair.c"));
            assert_eq!(original.expect("there"), "fair");
        }
    }

    #[test]
    fn a_change_of_the_source_reaches_the_tree() {
        let fixture = Fixture::new(false);
        fixture.sync(&[]);
        fs::write(fixture.source.folder.join("kernel/fair.c"), "FAIR").expect("written");
        fs::remove_file(fixture.source.folder.join("kernel/link.c")).expect("removed");
        assert_eq!(fixture.sync(&[]), 2);
        assert_eq!(fixture.text("kernel/fair.c"), "FAIR");
    }
}
