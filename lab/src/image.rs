//! Guest images: initramfs archives made of cached pieces.
//!
//! ```text
//!   base      busybox, its applets, the agent, /dev/console, the skeleton of folders
//!   config    /boot/config of the kernel
//!   packages  unpacked Debian packages and the libraries they need
//!   files     programs and files of the host and the libraries they need
//! ```
//!
//! Each piece is a cpio archive of its own in `images/`, named by a hash of its sources, so a
//! second run only concatenates. The kernel unpacks one archive after the other, and a later file
//! replaces an earlier one. The archives are not compressed: QEMU copies them into the guest's
//! memory at no cost, while the guest would unpack zstd in translated instructions.
//!
//! Folders are merged as in Debian: `/bin` is a link to `/usr/bin`, and so on. Libraries of the
//! host keep their names and move to the one folder that the guest's loader searches by default.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cpio::newc::{Builder, trailer};
use lddtree::DependencyAnalyzer;
use walkdir::WalkDir;

use crate::cache::Kind;
use crate::files;

const DIRECTORY: u32 = 0o040755;
const LINK: u32 = 0o120777;
const CONSOLE: u32 = 0o020600;

/// Parts of a package that no workload reads.
const LEFT_OUT: &[&str] = &[
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
];

/// Contents of an image besides busybox and the agent.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// Configuration of the kernel, if there is one.
    pub config: Option<PathBuf>,
    /// Folders with unpacked packages.
    pub packages: Vec<PathBuf>,
    /// Programs and files of the host, for /bin.
    pub files: Vec<PathBuf>,
}

/// Writes the image to `path`.
pub fn write(contents: &Contents, path: &Path) -> Result<()> {
    let mut pieces = vec![base()?];
    if let Some(config) = &contents.config {
        pieces.push(piece("config", std::slice::from_ref(config), |tree| {
            tree.file("boot/config", config)
        })?);
    }
    if !contents.packages.is_empty() {
        pieces.push(piece("packages", &contents.packages, |tree| {
            contents
                .packages
                .iter()
                .try_for_each(|folder| tree.package(folder))?;
            tree.libraries(&contents.packages)
        })?);
    }
    if !contents.files.is_empty() {
        let mut sources = contents.files.clone();
        sources.extend(contents.packages.iter().cloned());
        pieces.push(piece("files", &sources, |tree| {
            contents
                .files
                .iter()
                .try_for_each(|file| tree.executable(file))?;
            tree.libraries(&contents.packages)
        })?);
    }
    let mut image =
        File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    for piece in pieces {
        let mut piece =
            File::open(&piece).with_context(|| format!("cannot open {}", piece.display()))?;
        std::io::copy(&mut piece, &mut image)
            .with_context(|| format!("cannot write the guest image {}", path.display()))?;
    }
    Ok(())
}

/// Returns the agent's binary: `MAGPIE_GUEST`, else the one beside this program (one folder up for
/// a test), as installed, or in the source tree's `target`.
fn agent() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MAGPIE_GUEST") {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe().context("cannot find the folder of this program")?;
    let mut places: Vec<PathBuf> = program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("magpie-guest"))
        .collect();
    if let Some(prefix) = program.ancestors().nth(2) {
        places.push(prefix.join("lib/magpie/magpie-guest"));
    }
    if let Some(tree) = files::source_tree() {
        places.push(tree.join("target/release/magpie-guest"));
        places.push(tree.join("target/debug/magpie-guest"));
    }
    places
        .iter()
        .find(|path| path.is_file())
        .cloned()
        .with_context(|| {
            format!(
                "the guest agent magpie-guest is missing (looked at {}); build it with \
                 `cargo build -p magpie-guest` or name it in MAGPIE_GUEST",
                places
                    .iter()
                    .map(|p| p.display().to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            )
        })
}

/// Returns the host's busybox.
fn busybox() -> Result<PathBuf> {
    ["/bin/busybox", "/usr/bin/busybox"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.is_file())
        .context("busybox is missing; install it with `apt-get install busybox-static`")
}

/// Returns the commands that busybox has.
fn applets() -> Result<Vec<String>> {
    let list = Command::new(busybox()?)
        .arg("--list")
        .output()
        .context("cannot run busybox")?;
    Ok(String::from_utf8_lossy(&list.stdout)
        .lines()
        .map(str::to_string)
        .collect())
}

/// Returns true if every guest has this command from busybox.
pub fn is_applet(command: &str) -> Result<bool> {
    Ok(applets()?.iter().any(|applet| applet == command))
}

/// Returns the piece that every image begins with.
fn base() -> Result<PathBuf> {
    let busybox = busybox()?;
    let agent = agent()?;
    piece("base", &[busybox.clone(), agent.clone()], |tree| {
        for folder in [
            "dev", "proc", "sys", "tmp", "run", "boot", "root", "etc", "var", "mnt",
        ] {
            tree.add(folder, Node::Directory);
        }
        for folder in ["bin", "sbin", "lib", "lib64"] {
            tree.add(&format!("usr/{folder}"), Node::Directory);
            tree.add(folder, Node::Link(format!("usr/{folder}")));
        }
        tree.add("var/run", Node::Link("/run".into()));
        tree.add("dev/console", Node::Console);
        tree.add(
            "etc/passwd",
            Node::Text("root:x:0:0:root:/root:/bin/sh\n".into()),
        );
        tree.add("etc/group", Node::Text("root:x:0:\n".into()));
        tree.add("etc/hosts", Node::Text("127.0.0.1 localhost\n".into()));
        tree.file("usr/bin/busybox", &busybox)?;
        for applet in applets()?.iter().filter(|applet| *applet != "busybox") {
            tree.add(&format!("usr/bin/{applet}"), Node::Link("busybox".into()));
        }
        tree.file("init", &agent)?;
        tree.libraries(&[])
    })
}

/// Returns the cached archive of that name and those sources. If it is missing, `fill` makes it.
fn piece(
    name: &'static str,
    sources: &[PathBuf],
    fill: impl FnOnce(&mut Tree) -> Result<()>,
) -> Result<PathBuf> {
    let kind = Kind {
        name,
        extension: "cpio",
        maker: include_str!("image.rs"),
        // The host's libraries.
        system: &["/etc/ld.so.cache", "/var/lib/dpkg/status"],
    };
    kind.of(sources, |file| {
        let mut tree = Tree::default();
        fill(&mut tree)?;
        tree.write(BufWriter::new(file))
            .context("cannot write it; is the disk full?")
    })
}

/// An entry of the archive.
#[derive(Debug, Clone)]
enum Node {
    Directory,
    Link(String),
    Console,
    Text(String),
    /// A file of the host.
    Host(PathBuf),
}

/// The files of a piece, by their path in the guest without the leading slash.
#[derive(Debug, Default)]
struct Tree {
    nodes: BTreeMap<String, Node>,
    /// Host paths of ELF files whose libraries have not been added yet.
    elf: BTreeSet<PathBuf>,
}

impl Tree {
    /// Adds an entry in place of an earlier one with that path.
    fn add(&mut self, path: &str, node: Node) {
        self.nodes.insert(merged(path), node);
    }

    /// Adds a file of the host. Remembers a program or library, for [`Tree::libraries`].
    fn file(&mut self, path: &str, source: &Path) -> Result<()> {
        if needs_libraries(source)? {
            self.elf.insert(source.to_path_buf());
        }
        self.add(path, Node::Host(source.to_path_buf()));
        Ok(())
    }

    /// Adds a program or file of the host to /bin.
    fn executable(&mut self, source: &Path) -> Result<()> {
        ensure!(
            source.is_file(),
            "cannot copy {} into the guest: no such file (folders are not copied)",
            source.display()
        );
        let name = source
            .file_name()
            .context("a file has a name")?
            .to_string_lossy()
            .into_owned();
        self.file(&format!("usr/bin/{name}"), source)
    }

    /// Adds the files of an unpacked package.
    fn package(&mut self, folder: &Path) -> Result<()> {
        for entry in WalkDir::new(folder).min_depth(1) {
            let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
            let path = entry
                .path()
                .strip_prefix(folder)?
                .to_string_lossy()
                .into_owned();
            if LEFT_OUT
                .iter()
                .any(|left_out| Path::new(&path).starts_with(left_out))
            {
                continue;
            }
            let kind = entry.file_type();
            if kind.is_symlink() {
                let target = fs::read_link(entry.path())?.to_string_lossy().into_owned();
                self.add(&path, Node::Link(target));
            } else if kind.is_file() {
                self.file(&path, entry.path())?;
            } else if kind.is_dir() && !MERGED.contains(&path.as_str()) {
                self.add(&path, Node::Directory);
            }
        }
        Ok(())
    }

    /// Adds the libraries of all ELF files so far that no package has, from the host. A library
    /// that the host lacks too is an error here, where the message can name a remedy.
    fn libraries(&mut self, packages: &[PathBuf]) -> Result<()> {
        let architecture = std::env::consts::ARCH;
        let folder = format!("usr/lib/{architecture}-linux-gnu");
        let mut from_packages = BTreeSet::new();
        for package in packages {
            for entry in WalkDir::new(package).into_iter().flatten() {
                from_packages.insert(entry.file_name().to_string_lossy().into_owned());
            }
        }
        for file in std::mem::take(&mut self.elf) {
            let mut analyzer = DependencyAnalyzer::new(PathBuf::from("/"));
            for package in packages {
                for sub in ["usr/lib", "lib"] {
                    let multiarch = format!("{sub}/{architecture}-linux-gnu");
                    analyzer = analyzer.add_library_path(package.join(multiarch));
                    analyzer = analyzer.add_library_path(package.join(sub));
                }
            }
            // An object file, or a program for another architecture, needs no libraries here.
            let Ok(found) = analyzer.analyze(&file) else {
                continue;
            };
            if let Some(interpreter) = &found.interpreter {
                self.add(
                    interpreter.trim_start_matches('/'),
                    Node::Host(interpreter.into()),
                );
            }
            for (name, library) in &found.libraries {
                if name.starts_with('/') || from_packages.contains(name) {
                    continue;
                }
                let Some(path) = &library.realpath else {
                    bail!(
                        "{} needs the library {name}, which this host does not have: \
                         install the Debian package with it",
                        file.display()
                    );
                };
                let is_loader = found
                    .interpreter
                    .as_ref()
                    .is_some_and(|i| i.ends_with(name));
                if !is_loader {
                    self.add(&format!("{folder}/{name}"), Node::Host(path.clone()));
                }
            }
        }
        Ok(())
    }

    /// Writes the archive. Folders come before what they hold.
    fn write(&self, mut out: impl Write) -> Result<()> {
        let mut written = BTreeSet::new();
        for (path, node) in &self.nodes {
            let parents: Vec<_> = Path::new(path).ancestors().skip(1).collect();
            for parent in parents.into_iter().rev() {
                let parent = parent.to_string_lossy().into_owned();
                if !parent.is_empty() && written.insert(parent.clone()) {
                    out = entry(out, &parent, DIRECTORY, &[])?;
                }
            }
            if !written.insert(path.clone()) {
                continue;
            }
            out = match node {
                Node::Directory => entry(out, path, DIRECTORY, &[])?,
                Node::Link(target) => entry(out, path, LINK, target.as_bytes())?,
                Node::Text(text) => entry(out, path, 0o100644, text.as_bytes())?,
                Node::Console => {
                    let console = Builder::new(path)
                        .mode(CONSOLE)
                        .nlink(1)
                        .rdev_major(5)
                        .rdev_minor(1);
                    console.write(out, 0).finish()?
                }
                Node::Host(source) => {
                    let read = || -> Result<(Vec<u8>, u32)> {
                        let mode = fs::metadata(source)?.permissions().mode();
                        Ok((fs::read(source)?, 0o100000 | (mode & 0o7777)))
                    };
                    let (bytes, mode) =
                        read().with_context(|| format!("cannot read {}", source.display()))?;
                    entry(out, path, mode, &bytes)?
                }
            };
        }
        trailer(out)?.flush()?;
        Ok(())
    }
}

/// Writes one entry of the archive.
fn entry<W: Write>(out: W, path: &str, mode: u32, bytes: &[u8]) -> Result<W> {
    let size =
        u32::try_from(bytes.len()).context("a file above 4 GiB does not fit an initramfs")?;
    let mut writer = Builder::new(path).mode(mode).nlink(1).write(out, size);
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

/// Folders of the root that are links into /usr.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib64"];

/// Returns `usr/bin/x` for `bin/x`, because a folder `bin` in an archive would replace the link.
fn merged(path: &str) -> String {
    match path.split_once('/') {
        Some((top, _)) if MERGED.contains(&top) => format!("usr/{path}"),
        _ => path.to_string(),
    }
}

/// Returns true for an ELF file of 64 bits. One of 32 bits, such as perf's helpers, is copied without
/// its libraries, because a host need not have them and no guest runs it.
fn needs_libraries(path: &Path) -> Result<bool> {
    let mut magic = [0; 5];
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(file.read(&mut magic)? == 5 && &magic == b"\x7fELF\x02")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(archive: &[u8]) -> Vec<(String, u32)> {
        let mut found = Vec::new();
        let mut rest = archive;
        loop {
            let reader = cpio::NewcReader::new(rest).expect("a valid archive");
            if reader.entry().is_trailer() {
                return found;
            }
            found.push((reader.entry().name().to_string(), reader.entry().mode()));
            rest = reader.finish().expect("a complete entry");
        }
    }

    #[test]
    fn folders_come_before_what_they_hold_and_once() {
        let mut tree = Tree::default();
        tree.add("bin/x", Node::Text("x".into()));
        tree.add("usr/bin", Node::Directory);
        tree.add("bin", Node::Link("usr/bin".into()));
        let mut archive = Vec::new();
        tree.write(&mut archive).expect("writes");
        assert_eq!(
            names(&archive),
            [
                ("bin".to_string(), LINK),
                ("usr".to_string(), DIRECTORY),
                ("usr/bin".to_string(), DIRECTORY),
                ("usr/bin/x".to_string(), 0o100644),
            ]
        );
    }

    #[test]
    fn a_program_brings_its_libraries_and_its_loader() {
        let mut tree = Tree::default();
        let program = std::env::current_exe().expect("this test");
        tree.executable(&program).expect("it is a file");
        tree.libraries(&[])
            .expect("its libraries are on this host: it runs");
        assert!(tree.nodes.keys().any(|path| path.ends_with("/libc.so.6")));
        assert!(tree.nodes.keys().any(|path| path.contains("ld-linux")));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Tree::default()
            .executable(Path::new("/no/such/file"))
            .expect_err("missing");
        assert!(error.to_string().contains("/no/such/file"));
    }
}
