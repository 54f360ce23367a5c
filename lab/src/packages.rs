//! Workloads from Debian packages.
//!
//! Packages are of the host's own release, because the guest's libc is the host's. A package and
//! those of its dependencies that are not installed on the host are unpacked into folders.
//! Libraries that the host has are taken from the host when the image is made.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::apt::{self, Apt, STATUS};
use crate::files;
use crate::progress::Progress;

/// Returns the folders of unpacked `packages` and of what they need beyond the host's packages.
/// Downloads what is missing.
///
/// # Errors
/// When there is no such package, or a download fails.
pub fn unpacked(packages: &[String], progress: &Progress) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for package in packages {
        for folder in with_dependencies(package, progress)? {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    Ok(folders)
}

/// Returns the folders of one package and of its dependencies that the host lacks. Downloads them
/// unless the list of an earlier call holds.
fn with_dependencies(package: &str, progress: &Progress) -> Result<Vec<PathBuf>> {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    ensure!(
        !package.is_empty() && package.chars().all(valid),
        "\"{package}\" is not the name of a Debian package"
    );
    let release = apt::host_release().context(
        "packages must fit the host's libc and come from Debian, but this host is not Debian; \
         copy a program of the host with --copy instead",
    )?;
    let root = files::lab_dir()?.join("packages").join(&release);
    // The list of an earlier call holds until the host's installed packages change.
    let installed = fs::metadata(STATUS)
        .and_then(|m| m.modified())
        .context("read dpkg's status")?;
    let list = root.join(format!("{package}.list"));
    let known = || -> Option<Vec<PathBuf>> {
        let made = fs::metadata(&list).and_then(|m| m.modified()).ok()?;
        let text = fs::read_to_string(&list).ok()?;
        let folders: Vec<_> = text.lines().map(|line| root.join(line)).collect();
        (made > installed && folders.iter().all(|folder| folder.is_dir())).then_some(folders)
    };
    if let Some(folders) = known() {
        return Ok(folders);
    }
    let _lock = files::lock(&root.join("download-lock"))?;
    if let Some(folders) = known() {
        return Ok(folders);
    }
    progress.say(&format!("downloading package {package}"));
    let updates = format!("{release}-updates");
    let apt = Apt::open("packages", &[&release, &updates], Some(Path::new(STATUS)))?;
    apt.update(false)?;
    let mut names = Vec::new();
    for name in apt.missing_with(package)? {
        let version = apt
            .newest_version(&name)?
            .with_context(|| format!("no Debian package \"{name}\""))?;
        let folder = format!("{name}_{}", version.replace([':', '/'], "_"));
        if !root.join(&folder).is_dir() {
            apt.download_and_unpack(&format!("{name}={version}"), &root.join(&folder))?;
        }
        names.push(folder);
    }
    files::write_atomically(&list, names.join("\n").as_bytes())?;
    Ok(names.iter().map(|name| root.join(name)).collect())
}
