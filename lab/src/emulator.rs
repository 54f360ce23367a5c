//! The QEMU to run: the host's, or a newer one from the backports of the host's release.
//!
//! QEMU before 8.1 is avoided, because its translator can keep a block that it translated while
//! another vCPU rewrote the code. Linux rewrites its code often (static keys, also when a scheduler
//! is loaded), and a guest that executes such a stale block dies of "Oops: int3": 2 of 8 boots did
//! with QEMU 7.2 of Debian 12 on a busy host. On such hosts the QEMU of the release's backports is
//! unpacked into the lab's folder; nothing is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

use anyhow::{Context, Result, bail};

use crate::apt::{self, Apt};
use crate::files;
use crate::options::GuestOptions;
use crate::progress::Progress;

/// Name of QEMU's binary.
const PROGRAM: &str = "qemu-system-x86_64";

/// The Debian package with [`PROGRAM`].
const PACKAGE: &str = "qemu-system-x86";

/// The first version whose translator holds a page's lock while it translates.
const OLDEST_SAFE: (u32, u32) = (8, 1);

/// A QEMU, and what it needs to run from its folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Emulator {
    /// The binary.
    pub program: PathBuf,
    /// Arguments that name the folders of its firmware.
    pub arguments: Vec<String>,
    /// Environment variables that name the folder of its libraries.
    pub environment: Vec<(String, String)>,
}

impl Emulator {
    /// A QEMU that finds its libraries and firmware by itself, as an installed one does.
    fn installed(program: impl Into<PathBuf>) -> Emulator {
        Emulator {
            program: program.into(),
            ..Emulator::default()
        }
    }

    /// Returns major and minor version, or `None` if the binary does not run.
    pub fn version(&self) -> Option<(u32, u32)> {
        let output = self.run_version().ok()?;
        parse_version(&String::from_utf8_lossy(&output.stdout))
    }

    /// Runs `--version`, which also shows whether the binary runs on this host at all.
    fn run_version(&self) -> io::Result<Output> {
        Command::new(&self.program)
            .arg("--version")
            .envs(self.environment.iter().cloned())
            .output()
    }
}

/// Returns the QEMU that the options name, or `MAGPIE_QEMU`, or the host's if it is new enough, or
/// that of the backports. The host's old QEMU is the last resort: most guests survive it.
pub fn find(options: &GuestOptions) -> Result<Emulator> {
    if let Some(program) = &options.qemu_program {
        return Ok(Emulator::installed(program));
    }
    if let Some(program) = std::env::var_os("MAGPIE_QEMU") {
        return Ok(Emulator::installed(program));
    }
    let installed = Emulator::installed(PROGRAM);
    let version = installed.version();
    if version.is_some_and(|version| version >= OLDEST_SAFE) {
        return Ok(installed);
    }
    match (backported(&options.progress), version) {
        (Ok(emulator), _) => Ok(emulator),
        (Err(_), Some(_)) => Ok(installed),
        (Err(error), None) => Err(error.context(format!(
            "{PROGRAM} is not installed; install it with `apt-get install {PACKAGE}`"
        ))),
    }
}

/// Reads major and minor version from the output of `--version`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let version = text.strip_prefix("QEMU emulator version ")?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Returns the QEMU of the backports of the host's Debian release. The first call downloads and
/// unpacks it into the lab's folder.
pub fn backported(progress: &Progress) -> Result<Emulator> {
    let release = apt::host_release().context("this host is not Debian")?;
    let root = files::lab_dir()?.join("qemu");
    let emulator = in_tree(&root);
    if emulator.program.is_file() {
        return Ok(emulator);
    }
    let _lock = files::lock(&root.with_extension("lock"))?;
    if emulator.program.is_file() {
        return Ok(emulator);
    }
    progress.say(&format!("downloading {PACKAGE} of {release}-backports"));
    let backports = format!("{release}-backports");
    let status = Path::new(apt::STATUS);
    let apt = Apt::open("qemu", &[&release, &backports], Some(status))?;
    apt.update(false)?;
    // One tree for all packages, as if installed: QEMU finds libraries and firmware by folder.
    let work = tempfile::tempdir_in(files::lab_dir()?).context("cannot create a folder")?;
    let tree = work.path().join("qemu");
    apt.unpack_with_dependencies(&format!("{PACKAGE}/{backports}"), &tree)?;
    let unpacked = in_tree(&tree);
    let output = unpacked
        .run_version()
        .with_context(|| format!("cannot run the {PACKAGE} of {backports}"))?;
    if parse_version(&String::from_utf8_lossy(&output.stdout)).is_none_or(|v| v < OLDEST_SAFE) {
        bail!(
            "the {PACKAGE} of {backports} does not run on this host: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    fs::rename(&tree, &root).with_context(|| format!("cannot create {}", root.display()))?;
    Ok(emulator)
}

/// The QEMU whose packages are unpacked into `root`.
fn in_tree(root: &Path) -> Emulator {
    let path = |name: &str| root.join(name).display().to_string();
    let libraries = path(&format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    Emulator {
        program: root.join("usr/bin").join(PROGRAM),
        arguments: ["usr/share/qemu", "usr/share/seabios"]
            .iter()
            .flat_map(|folder| ["-L".to_string(), path(folder)])
            .collect(),
        environment: vec![
            ("LD_LIBRARY_PATH".to_string(), libraries.clone()),
            ("QEMU_MODULE_DIR".to_string(), format!("{libraries}/qemu")),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::{OLDEST_SAFE, parse_version};

    #[test]
    fn versions_are_read_and_compared() {
        let old = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright";
        assert_eq!(parse_version(old), Some((7, 2)));
        assert_eq!(parse_version("QEMU emulator version 10.0.2"), Some((10, 0)));
        assert!(parse_version("QEMU emulator version 10.0.2") > Some(OLDEST_SAFE));
        assert_eq!(parse_version("something else"), None);
    }
}
