//! Which QEMU: the host's, or a newer one of the host's release unpacked beside it.
//!
//! Before 8.1 QEMU's translator could keep a block that it had translated while another vCPU was
//! rewriting the code. Linux rewrites itself all the time (static keys: also when a scheduler is
//! switched), and a guest that runs into the leftover dies of "Oops: int3". Seen with QEMU 7.2 of
//! Debian 12: 2 of 8 boots on a busy host. Such hosts get the QEMU of their release's backports,
//! in the lab's folder, without installing it.

use crate::apt::{self, Apt};
use crate::guest::{GuestOptions, Progress};
use crate::{place, qemu};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

/// The first version whose translator holds a page's lock while it translates.
const GOOD: (u32, u32) = (8, 1);

const PACKAGE: &str = "qemu-system-x86";

/// A QEMU and what it needs to run from where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Emulator {
    /// The binary.
    pub program: PathBuf,
    /// Arguments that name its firmware's folders.
    pub arguments: Vec<String>,
    /// Environment that names its libraries' folder.
    pub environment: Vec<(String, String)>,
}

impl Emulator {
    fn at(program: impl Into<PathBuf>) -> Emulator {
        Emulator {
            program: program.into(),
            ..Emulator::default()
        }
    }

    /// Major and minor version, none if it does not run.
    pub fn version(&self) -> Option<(u32, u32)> {
        let output = self.say_version().ok()?;
        parse_version(&String::from_utf8_lossy(&output.stdout))
    }

    fn say_version(&self) -> io::Result<Output> {
        Command::new(&self.program)
            .arg("--version")
            .envs(self.environment.iter().cloned())
            .output()
    }
}

/// The QEMU of the options, of `MAGPIE_QEMU`, of the host if it is good enough, or a private one.
pub fn find(options: &GuestOptions) -> Result<Emulator> {
    if let Some(program) = &options.qemu_program {
        return Ok(Emulator::at(program));
    }
    if let Some(program) = std::env::var_os("MAGPIE_QEMU") {
        return Ok(Emulator::at(program));
    }
    let installed = Emulator::at(qemu::PROGRAM);
    let version = installed.version();
    if version.is_some_and(|version| version >= GOOD) {
        return Ok(installed);
    }
    match (private(&options.progress), version) {
        (Ok(emulator), _) => Ok(emulator),
        // An old QEMU is better than none: most guests survive.
        (Err(_), Some(_)) => Ok(installed),
        (Err(error), None) => Err(error.context(format!(
            "{} is not installed; install it with `apt-get install {PACKAGE}`",
            qemu::PROGRAM
        ))),
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let version = text.strip_prefix("QEMU emulator version ")?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The QEMU of the backports of the host's Debian release, downloaded and unpacked once.
pub fn private(progress: &Progress) -> Result<Emulator> {
    let release = apt::host_release().context("this host is not Debian")?;
    let root = place::lab_dir()?.join("qemu");
    let emulator = in_tree(&root);
    if emulator.program.is_file() {
        return Ok(emulator);
    }
    let _lock = place::lock(&root.with_extension("lock"))?;
    if emulator.program.is_file() {
        return Ok(emulator);
    }
    progress.say(&format!("downloading {PACKAGE} of {release}-backports"));
    let backports = format!("{release}-backports");
    let status = Path::new(apt::STATUS);
    let apt = Apt::open("qemu", &[&release, &backports], Some(status))?;
    apt.update(false)?;
    // Joined in one tree, as installed: QEMU finds its libraries and firmware by folder.
    let work = tempfile::tempdir_in(place::lab_dir()?).context("cannot create a folder")?;
    let tree = work.path().join("qemu");
    for package in apt.missing_with(&format!("{PACKAGE}/{backports}"))? {
        let name = package.split('/').next().unwrap_or(&package);
        let part = work.path().join(name);
        apt.download_and_unpack(&format!("{name}/{backports}"), &part)
            .or_else(|_| apt.download_and_unpack(name, &part))?;
        let mut source = part.into_os_string();
        source.push("/.");
        fs::create_dir_all(&tree).with_context(|| format!("cannot create {}", tree.display()))?;
        let copied = Command::new("cp").arg("-a").arg(source).arg(&tree).status();
        ensure!(
            copied.context("cannot run cp")?.success(),
            "cannot copy the files of {name}"
        );
    }
    let unpacked = in_tree(&tree);
    let output = unpacked
        .say_version()
        .with_context(|| format!("cannot run the {PACKAGE} of {backports}"))?;
    if parse_version(&String::from_utf8_lossy(&output.stdout)).is_none_or(|v| v < GOOD) {
        bail!(
            "the {PACKAGE} of {backports} does not run here: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    fs::rename(&tree, &root).with_context(|| format!("cannot create {}", root.display()))?;
    Ok(emulator)
}

fn in_tree(root: &Path) -> Emulator {
    let path = |name: &str| root.join(name).display().to_string();
    let libraries = path(&format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    Emulator {
        program: root.join("usr/bin").join(qemu::PROGRAM),
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
    use super::parse_version;

    #[test]
    fn versions_are_read_and_compared() {
        let old = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright";
        assert_eq!(parse_version(old), Some((7, 2)));
        assert_eq!(parse_version("QEMU emulator version 10.0.2"), Some((10, 0)));
        assert!(parse_version("QEMU emulator version 10.0.2") > Some(super::GOOD));
        assert_eq!(parse_version("something else"), None);
    }
}
