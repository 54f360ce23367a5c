//! Where a kernel's source comes from, and the folder that has it unpacked.
//!
//! ```text
//!   debian:7.2          Debian's package linux-source-7.2
//!   linux-7.2.tar.xz    an archive
//!   ~/linux             a tree, with the changes that are not committed
//!   ~/linux@v7.2-rc3    a commit of a git tree; nothing is checked out there
//! ```

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use walkdir::WalkDir;

use crate::apt::Apt;
use crate::git::{self, git};
use crate::kernel::built;
use crate::progress::Progress;
use crate::text;

/// Debian suites that have sources.
const SUITES: &[&str] = &["sid", "experimental"];

/// A word of the command line that names a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A series of Debian's package `linux-source-*`.
    Debian(String),
    /// An archive.
    Archive(PathBuf),
    /// A folder.
    Tree(PathBuf),
    /// A commit of a git tree.
    Commit(PathBuf, String),
}

/// An unpacked source, which no build changes.
#[derive(Debug, Clone)]
pub struct Unpacked {
    /// The folder.
    pub folder: PathBuf,
    /// The name of the source, for people: with its version or commit.
    pub name: String,
    /// Is it a folder of the lab? Otherwise it is the user's.
    pub is_ours: bool,
}

impl Source {
    /// Reads the word.
    ///
    /// # Errors
    /// If it names nothing that exists.
    pub fn parse(word: &str) -> Result<Source> {
        if let Some(series) = word.strip_prefix("debian:") {
            ensure!(
                built::is_series(series),
                "\"{word}\" names no series of Debian's linux-source; write it like debian:7.2"
            );
            return Ok(Source::Debian(series.to_string()));
        }
        let path = PathBuf::from(word);
        if path.is_dir() {
            return Ok(Source::Tree(absolute(&path)?));
        }
        if path.is_file() {
            return Ok(Source::Archive(absolute(&path)?));
        }
        if let Some((tree, commit)) = word.rsplit_once('@')
            && Path::new(tree).is_dir()
        {
            return Ok(Source::Commit(absolute(tree.as_ref())?, commit.into()));
        }
        bail!(
            "there is no kernel source {word}: give a source tree, a commit of one (TREE@COMMIT), \
             an archive, or Debian's source (debian:7.2)"
        )
    }

    /// A name for what is built from it.
    pub fn short_name(&self) -> String {
        let last = |path: &Path| {
            let name = path.file_name().unwrap_or(OsStr::new("linux"));
            name.to_string_lossy().into_owned()
        };
        match self {
            Source::Debian(series) => format!("debian-{series}"),
            Source::Archive(path) => {
                let name = last(path);
                name.split(".tar").next().unwrap_or(&name).to_string()
            }
            Source::Tree(path) => last(path),
            Source::Commit(path, commit) => format!("{}-{commit}", last(path)),
        }
    }

    /// The name of the folder in which it is built. Commits of a tree share one, so that only what
    /// differs between them is compiled.
    pub fn key(&self) -> Result<String> {
        let hashed = |kind: &str, text: &str| {
            let hash = Sha256::digest(text);
            format!("{kind}-{}", text::hex(&hash[..6]))
        };
        Ok(match self {
            Source::Debian(series) => format!("debian-{series}"),
            Source::Archive(path) => {
                let meta = fs::metadata(path)?;
                let time = meta.modified()?.duration_since(UNIX_EPOCH)?.as_nanos();
                hashed(
                    &self.short_name(),
                    &format!("{} {} {time}", path.display(), meta.len()),
                )
            }
            Source::Tree(path) => hashed("tree", &path.to_string_lossy()),
            Source::Commit(path, _) => hashed("commits", &path.to_string_lossy()),
        })
    }

    /// Unpacks it below `folder`, unless an earlier call did.
    ///
    /// # Errors
    /// If it cannot be fetched or unpacked, or is no kernel's source.
    pub fn unpack(&self, folder: &Path, progress: &Progress) -> Result<Unpacked> {
        let unpacked = match self {
            Source::Debian(series) => debian(series, folder, progress)?,
            Source::Archive(path) => {
                let to = folder.join("source");
                if !to.is_dir() {
                    progress.say(&format!("unpacking {}", path.display()));
                    extract(path, &to)?;
                }
                ours(to, path.display().to_string())
            }
            Source::Tree(path) => Unpacked {
                folder: path.clone(),
                name: path.display().to_string(),
                is_ours: false,
            },
            Source::Commit(path, commit) => check_out(path, commit, folder, progress)?,
        };
        let lacks = |path: &&&str| !unpacked.folder.join(path).exists();
        if let Some(missing) = ["Makefile", "Kconfig", "scripts/kconfig"]
            .iter()
            .find(lacks)
        {
            bail!(
                "{} is no source of a kernel: it has no {missing}",
                unpacked.name
            );
        }
        ensure!(
            unpacked.is_ours || !unpacked.folder.join("include/config").exists(),
            "a kernel was built inside {}, and the kernel's makefile refuses to build elsewhere \
             from such a tree: run `make mrproper` there (it removes .config too), or name a \
             commit: {0}@HEAD",
            unpacked.folder.display()
        );
        Ok(unpacked)
    }
}

impl Unpacked {
    /// The paths of all its files and links. In a git tree of the user, those that git does not
    /// ignore.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        if !self.is_ours && self.folder.join(".git").exists() {
            let mut paths = git::files(&self.folder)?;
            paths.retain(|path| self.folder.join(path).symlink_metadata().is_ok());
            return Ok(paths);
        }
        let mut files = Vec::new();
        let walk = WalkDir::new(&self.folder).into_iter();
        for entry in walk.filter_entry(|entry| entry.file_name() != ".git") {
            let entry = entry.with_context(|| format!("cannot read {}", self.folder.display()))?;
            if !entry.file_type().is_dir() {
                files.push(entry.path().strip_prefix(&self.folder)?.to_path_buf());
            }
        }
        Ok(files)
    }

    /// The series of the kernel, such as `7.2`.
    pub fn series(&self) -> Result<String> {
        let path = self.folder.join("Makefile");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().strip_prefix('='))
                .map(str::trim)
                .with_context(|| format!("{} has no {name}", path.display()))
        };
        Ok(format!("{}.{}", field("VERSION")?, field("PATCHLEVEL")?))
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("cannot find {}", path.display()))
}

fn ours(folder: PathBuf, name: String) -> Unpacked {
    Unpacked {
        folder,
        name,
        is_ours: true,
    }
}

/// Debian's source of a series, in its newest version. Without a network, the one that is there.
fn debian(series: &str, folder: &Path, progress: &Progress) -> Result<Unpacked> {
    let package = format!("linux-source-{series}");
    let apt = Apt::open("sources", SUITES, None)?;
    progress.say(&format!("looking for {package}"));
    apt.update(false)?;
    let Some(fields) = apt.show(&package)? else {
        let mut names = apt.names("linux-source-")?;
        names.sort();
        bail!(
            "Debian has no package {package} in {}; it has {}",
            SUITES.join(" or "),
            names.join(", ")
        );
    };
    let version = fields.get("Version").context("a package has a version")?;
    let to = folder.join(format!("source-{}", version.replace([':', '/'], "_")));
    if !to.is_dir() {
        progress.say(&format!("downloading {package} {version}"));
        let work = tempfile::tempdir_in(folder).context("cannot create a folder")?;
        let package_folder = work.path().join("package");
        apt.download_and_unpack(&format!("{package}={version}"), &package_folder)?;
        progress.say(&format!("unpacking {package} {version}"));
        let archive = package_folder.join(format!("usr/src/{package}.tar.xz"));
        extract(&archive, &to)?;
    }
    Ok(ours(to, format!("{package} {version}")))
}

/// Unpacks an archive whose files are below one folder, which becomes `to`, in one step.
fn extract(archive: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a folder has a parent")?;
    let work = tempfile::tempdir_in(parent)
        .with_context(|| format!("cannot create a folder in {}", parent.display()))?;
    let output = Command::new("tar")
        .arg("-xf")
        .arg(archive)
        .arg("-C")
        .arg(work.path())
        .output()
        .context("cannot run tar; install it with `apt-get install tar xz-utils`")?;
    ensure!(
        output.status.success(),
        "cannot unpack {}: {}",
        archive.display(),
        text::last_lines(&String::from_utf8_lossy(&output.stderr), 4)
    );
    let entries: Vec<_> = fs::read_dir(work.path())?.collect::<Result<_, _>>()?;
    let [top] = entries.as_slice() else {
        bail!(
            "{} has {} entries at its top; the archive of a kernel has one folder",
            archive.display(),
            entries.len()
        );
    };
    fs::rename(top.path(), to).with_context(|| format!("cannot create {}", to.display()))
}

/// Checks a commit out below `folder`. Of files that are there already, only those that differ are
/// written. The user's tree, its index and its branches stay as they are.
fn check_out(tree: &Path, commit: &str, folder: &Path, progress: &Progress) -> Result<Unpacked> {
    let wanted = format!("{commit}^{{commit}}");
    let full = git(tree, &["rev-parse", "--verify", "--quiet", &wanted], None)
        .with_context(|| format!("{} has no commit {commit}", tree.display()))?;
    let full = full.trim();
    let short = full.get(..12).unwrap_or(full);
    progress.say(&format!("checking out {short}"));
    let to = folder.join("source");
    fs::create_dir_all(&to).with_context(|| format!("cannot create {}", to.display()))?;
    let work_tree = format!("--work-tree={}", to.display());
    let index = folder.join("index");
    // The folder is locked for this build, so a lock of git is what a killed build has left.
    let _ = fs::remove_file(folder.join("index.lock"));
    let words = [work_tree.as_str(), "read-tree", "-u", "--reset", full];
    git(tree, &words, Some(&index))
        .with_context(|| format!("cannot check out {short} into {}", to.display()))?;
    Ok(ours(to, format!("{} at {short}", tree.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A git tree that looks like a kernel's, with two commits.
    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        fs::create_dir_all(path.join("scripts/kconfig")).expect("created");
        fs::write(path.join("scripts/kconfig/Makefile"), "").expect("written");
        fs::write(path.join("Kconfig"), "").expect("written");
        fs::write(path.join("Makefile"), "VERSION = 7\nPATCHLEVEL = 2\n").expect("written");
        fs::write(path.join("same.c"), "same").expect("written");
        let run = |words: &[&str]| git(path, words, None).expect("git succeeds");
        run(&["init", "-q"]);
        run(&["config", "user.name", "n"]);
        run(&["config", "user.email", "e@x"]);
        run(&["add", "."]);
        run(&["commit", "-q", "-m", "one"]);
        run(&["tag", "one"]);
        fs::write(path.join("new.c"), "new").expect("written");
        run(&["add", "."]);
        run(&["commit", "-q", "-m", "two"]);
        folder
    }

    #[test]
    fn the_word_says_what_kind_of_source_it_is() {
        let tree = tree();
        let word = tree.path().to_str().expect("UTF-8");
        let parse = |word: &str| Source::parse(word).expect("valid");
        assert_eq!(parse("debian:7.2"), Source::Debian("7.2".into()));
        assert!(matches!(parse(word), Source::Tree(_)));
        assert!(matches!(
            parse(&format!("{word}/Makefile")),
            Source::Archive(_)
        ));
        let commit = parse(&format!("{word}@v7.2"));
        assert!(matches!(&commit, Source::Commit(_, commit) if commit == "v7.2"));
        for wrong in ["debian:sid", "/no/such/tree", "/no/such/tree@v7.2"] {
            assert!(Source::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_commit_is_checked_out_elsewhere_and_only_what_differs_is_written() {
        let tree = tree();
        let folder = tempfile::tempdir().expect("a folder");
        let unpack = |commit: &str| {
            let path = tree.path().canonicalize().expect("there");
            Source::Commit(path, commit.into()).unpack(folder.path(), &Progress::default())
        };
        let unpacked = unpack("HEAD").expect("unpacks");
        assert_eq!(unpacked.series().expect("a Makefile"), "7.2");
        let written = |path: &str| {
            let meta = fs::metadata(unpacked.folder.join(path));
            meta.and_then(|meta| meta.modified()).ok()
        };
        let before = written("same.c");
        assert!(written("new.c").is_some() && before.is_some());
        fs::write(folder.path().join("index.lock"), "").expect("as a killed git leaves it");
        unpack("one").expect("unpacks");
        assert_eq!((written("new.c"), written("same.c")), (None, before));
        let error = format!("{:#}", unpack("no-such").expect_err("unknown"));
        assert!(error.contains("no commit no-such"), "{error}");
        // The user's tree has what it had.
        assert!(tree.path().join("new.c").is_file());
    }

    #[test]
    fn a_tree_with_objects_and_a_folder_without_a_kernel_are_refused() {
        let tree = tree();
        let unpack = || {
            let source = Source::Tree(tree.path().into());
            source.unpack(tree.path(), &Progress::default())
        };
        unpack().expect("a clean tree");
        fs::create_dir_all(tree.path().join("include/config")).expect("created");
        let error = unpack().expect_err("not clean").to_string();
        assert!(error.contains("make mrproper"), "{error}");
        fs::remove_file(tree.path().join("Kconfig")).expect("removed");
        let error = unpack().expect_err("no kernel").to_string();
        assert!(error.contains("it has no Kconfig"), "{error}");
    }

    #[test]
    fn a_git_tree_is_copied_without_what_git_ignores() {
        let tree = tree();
        fs::write(tree.path().join(".gitignore"), "*.o\n").expect("written");
        fs::write(tree.path().join("a.o"), "").expect("written");
        fs::write(tree.path().join("changed.c"), "").expect("written");
        fs::remove_file(tree.path().join("same.c")).expect("removed");
        let source = Source::Tree(tree.path().into());
        let unpacked = source
            .unpack(tree.path(), &Progress::default())
            .expect("unpacks");
        let files = unpacked.files().expect("listed");
        let has = |name: &str| files.contains(&PathBuf::from(name));
        assert!(has("new.c") && has("changed.c") && !has("a.o") && !has("same.c"));
        assert!(!files.iter().any(|path| path.starts_with(".git/")));
    }
}
