//! Kernels of guests: stock Debian ones, one per series, as the lock file names them; those that
//! `magpie lab kernel build` built; files of the user.
//!
//! `kernels.lock` has the packages of each series with their paths in the archive's pool and their
//! hashes, so that all users boot the same kernel. Versions leave the archive: if a locked package
//! is gone, the newest kernel of its series replaces it in the lock file.
//!
//! Within a series, a build for a newer Debian wins (`+deb14` over `+deb13`). The backports are
//! built with a pahole below 1.26, and from about 7.1 on no sched_ext program loads on a kernel
//! with BTF of such a pahole.

pub mod build;
pub mod built;
pub(crate) mod payload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::apt::{self, Apt};
use crate::progress::Progress;
use crate::{files, text};

/// The series that are locked and tested, oldest first. The last is the default.
pub const SERIES: &[&str] = &["6.19", "7.0", "7.2"];

/// Debian suites that have kernels.
const SUITES: &[&str] = &["sid", "forky", "trixie-backports"];

/// Flavour of the kernels: the smallest with sched_ext, BTF and built-in virtio.
const FLAVOUR: &str = "cloud-amd64";

/// The lock file as of the build of this program, for hosts without a source tree.
const SEED: &str = include_str!("../../kernels.lock");

/// Which kernel a guest boots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KernelChoice {
    /// The newest series of [`SERIES`].
    #[default]
    Default,
    /// A series, such as `7.0`.
    Series(String),
    /// A kernel of `magpie lab kernel build`, by its name.
    Built(String),
    /// A kernel that the user built.
    Files {
        /// A bzImage.
        kernel: PathBuf,
        /// The kernel's configuration. Without it libbpf loads no scheduler, unless the kernel has
        /// IKCONFIG.
        config: Option<PathBuf>,
    },
}

/// The files of a kernel that is ready to boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// bzImage.
    pub image: PathBuf,
    /// The kernel's configuration, if there is one.
    pub config: Option<PathBuf>,
}

/// A package of a locked kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Package {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Path below the mirror's base address.
    pub path: String,
    /// Hash of the archive, in hexadecimal.
    pub sha256: String,
}

/// A kernel of the lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Locked {
    /// Series, such as `7.2`.
    pub name: String,
    /// `uname -r`.
    pub release: String,
    /// The package with the kernel and the one with its configuration, which may be the same.
    pub package: Vec<Package>,
}

/// The lock file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lock {
    /// Kernels, the one of the oldest series first.
    #[serde(default)]
    pub kernel: Vec<Locked>,
}

impl KernelChoice {
    /// Returns the kernel that `--kernel` and `--config` name: a series if the word has the form
    /// `7.2`, the path of a file if it is one or has a slash, else the name of a built kernel.
    ///
    /// # Errors
    /// When `config` is given without the path of a kernel.
    pub fn parse(kernel: Option<&str>, config: Option<&Path>) -> Result<KernelChoice> {
        match kernel {
            None => {
                ensure!(config.is_none(), "--config needs --kernel FILE");
                Ok(KernelChoice::Default)
            }
            Some(word) if built::is_series(word) => {
                ensure!(
                    config.is_none(),
                    "--config needs --kernel FILE; a series brings its own configuration"
                );
                Ok(KernelChoice::Series(word.to_string()))
            }
            Some(word) if built::is_name(word) && !Path::new(word).is_file() => {
                ensure!(
                    config.is_none(),
                    "--config needs --kernel FILE; the built kernel {word} has its own \
                     configuration"
                );
                Ok(KernelChoice::Built(word.to_string()))
            }
            Some(path) => Ok(KernelChoice::Files {
                kernel: PathBuf::from(path),
                config: config.map(Path::to_path_buf),
            }),
        }
    }

    /// Returns the kernel's files. Downloads them if they are not on this host.
    pub(crate) fn resolve(&self, progress: &Progress) -> Result<Kernel> {
        match self {
            KernelChoice::Default => series(SERIES[SERIES.len() - 1], progress),
            KernelChoice::Series(name) => series(name, progress),
            KernelChoice::Built(name) => {
                let built = built::find(name)?;
                Ok(Kernel {
                    image: built.image()?,
                    config: Some(built.config()?),
                })
            }
            KernelChoice::Files { kernel, config } => {
                for file in std::iter::once(kernel).chain(config) {
                    ensure!(
                        file.is_file(),
                        "there is no kernel file {}; give the path of a bzImage (and --config), or \
                         a series such as {}",
                        file.display(),
                        SERIES.join(", ")
                    );
                }
                Ok(Kernel {
                    image: kernel.clone(),
                    config: config.clone(),
                })
            }
        }
    }

    /// Returns the release, as `uname -r` prints it. Downloads the kernel if it is not on this host.
    ///
    /// # Errors
    /// If there is no such kernel, or its file is no bzImage.
    pub fn release(&self, progress: &Progress) -> Result<String> {
        let image = self.resolve(progress)?.image;
        let bytes = fs::read(&image).with_context(|| format!("cannot read {}", image.display()))?;
        release_in(&bytes).with_context(|| format!("{} is no bzImage", image.display()))
    }
}

/// The release in the header of a bzImage: the first word of a text whose place is noted at 0x20e
/// (the kernel's Documentation/arch/x86/boot.rst).
fn release_in(image: &[u8]) -> Option<String> {
    let place = image.get(0x20e..0x210)?.try_into().ok()?;
    let text = image.get(0x200 + usize::from(u16::from_le_bytes(place))..)?;
    let end = text.iter().position(|byte| matches!(byte, b' ' | 0))?;
    let is_release = image.get(0x202..0x206)? == b"HdrS" && end > 0;
    is_release.then(|| String::from_utf8_lossy(&text[..end]).into_owned())
}

/// Reads the lock file.
pub(crate) fn read_lock() -> Result<Lock> {
    let path = files::kernels_lock()?;
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => SEED.to_string(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    toml::from_str(&text).with_context(|| {
        format!(
            "{} is not valid; remove it to have it made anew",
            path.display()
        )
    })
}

/// Returns the files of a locked kernel, or `None` if they have not been downloaded.
pub(crate) fn downloaded(locked: &Locked) -> Result<Option<Kernel>> {
    let folder = folder(locked)?;
    if !folder.exists() {
        return Ok(None);
    }
    let find = |names: [String; 2]| names.iter().map(|n| folder.join(n)).find(|p| p.is_file());
    let release = &locked.release;
    let image = find([
        format!("usr/lib/modules/{release}/vmlinuz"),
        format!("boot/vmlinuz-{release}"),
    ]);
    let config = find([
        format!("usr/lib/modules/{release}/config"),
        format!("boot/config-{release}"),
    ]);
    Ok(image.map(|image| Kernel { image, config }))
}

/// The folder that a locked kernel is unpacked into.
fn folder(locked: &Locked) -> Result<PathBuf> {
    let version = locked
        .package
        .first()
        .map_or("", |package| package.version.as_str());
    let name = format!("{}_{version}", locked.release);
    Ok(files::lab_dir()?
        .join("kernels")
        .join(name.replace(['/', ':'], "_")))
}

/// Returns the kernel of a series: the locked one, or the newest of the archive if that is gone.
fn series(name: &str, progress: &Progress) -> Result<Kernel> {
    let find = |lock: Lock| lock.kernel.into_iter().find(|k| k.name == name);
    if let Some(locked) = find(read_lock()?)
        && let Some(kernel) = downloaded(&locked)?
    {
        return Ok(kernel);
    }
    // If two runs miss the same kernel, the second waits here and then finds it.
    let _lock = files::lock(&files::lab_dir()?.join("kernels.download-lock"))?;
    if let Some(locked) = find(read_lock()?) {
        if let Some(kernel) = downloaded(&locked)? {
            return Ok(kernel);
        }
        progress.say(&format!("downloading kernel {}", locked.release));
        if let Some(kernel) = download(&locked)? {
            return Ok(kernel);
        }
        progress.say(&format!("kernel {} has left the archive", locked.release));
    }
    progress.say(&format!("looking for the newest kernel of series {name}"));
    let locked = look_up(name)?;
    progress.say(&format!("downloading kernel {}", locked.release));
    let kernel = download(&locked)?.with_context(|| {
        format!(
            "kernel {} is in the mirror's index but not in its pool; try again later",
            locked.release
        )
    })?;
    remember(locked)?;
    Ok(kernel)
}

/// Downloads the packages of a kernel and keeps the kernel and its configuration. Returns `None` if
/// a package has left the pool.
fn download(locked: &Locked) -> Result<Option<Kernel>> {
    let folder = folder(locked)?;
    let parent = folder.parent().context("the kernels have a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let work = tempfile::tempdir_in(parent)
        .with_context(|| format!("cannot create a folder in {}", parent.display()))?;
    let all = work.path().join("all");
    for (number, package) in locked.package.iter().enumerate() {
        let archive = work.path().join(format!("{number}.deb"));
        if !apt::download_from_pool(&package.path, Some(&package.sha256), &archive)? {
            return Ok(None);
        }
        let part = work.path().join(number.to_string());
        apt::unpack(&archive, &part)?;
        for entry in walkdir::WalkDir::new(&part).into_iter().flatten() {
            let name = entry.file_name().to_string_lossy();
            let wanted = ["vmlinuz", "config"].iter().any(|w| name.starts_with(w));
            if entry.file_type().is_file() && wanted {
                let to = all.join(entry.path().strip_prefix(&part)?);
                fs::create_dir_all(to.parent().context("a file has a folder")?)?;
                fs::copy(entry.path(), &to)?;
            }
        }
    }
    fs::rename(&all, &folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let kernel = downloaded(locked)?;
    if kernel.is_none() {
        let _ = fs::remove_dir_all(&folder);
        bail!("the packages of kernel {} have no vmlinuz", locked.release);
    }
    Ok(kernel)
}

/// Finds the newest kernel of a series in the archive.
fn look_up(series: &str) -> Result<Locked> {
    let apt = Apt::open("kernels", SUITES, None)?;
    apt.update(true)?;
    let mut candidates: Vec<((u32, u32), String)> = Vec::new();
    for kind in ["linux-binary-", "linux-image-"] {
        for name in apt.names(&format!("{kind}{series}."))? {
            let release = name.trim_start_matches(kind);
            if let Some(order) = order(release, series) {
                candidates.push((order, release.to_string()));
            }
        }
    }
    candidates.sort();
    candidates.dedup();
    for (_, release) in candidates.iter().rev() {
        if let Some(package) = packages_of(&apt, release)? {
            return Ok(Locked {
                name: series.to_string(),
                release: release.clone(),
                package,
            });
        }
    }
    let others = read_lock()?
        .kernel
        .into_iter()
        .map(|k| k.name)
        .collect::<Vec<_>>()
        .join(", ");
    bail!(
        "the archive has no {FLAVOUR} kernel of series {series} with sched_ext; \
         try one of {others}, or bring your own with --kernel FILE --config FILE"
    )
}

/// Returns what kernels of a series are compared by: for `7.2.13+deb14-cloud-amd64` the Debian 14
/// that it was built for, then the 13. `None` for a name that is no release of the series.
fn order(release: &str, series: &str) -> Option<(u32, u32)> {
    let rest = release.strip_prefix(series)?.strip_prefix('.')?;
    let (patch, rest) = rest.split_once("+deb")?;
    let debian = rest.strip_suffix(FLAVOUR)?.strip_suffix('-')?;
    Some((debian.parse().ok()?, patch.parse().ok()?))
}

/// Returns the package that contains the kernel, and that with its configuration if it is another
/// one. `None` if one of them is not there.
fn packages_of(apt: &Apt, release: &str) -> Result<Option<Vec<Package>>> {
    let mut packages = Vec::new();
    for kind in ["linux-binary", "linux-image"] {
        if let Some(fields) = apt.show(&format!("{kind}-{release}"))? {
            packages.push(package(&fields)?);
            break;
        }
    }
    let Some(binary) = packages.first() else {
        return Ok(None);
    };
    if !binary.name.starts_with("linux-binary") {
        return Ok(Some(packages)); // The configuration is in the same package.
    }
    match apt.show(&format!("linux-base-{release}"))? {
        Some(fields) => packages.push(package(&fields)?),
        None => match unlisted_base(release, &binary.version)? {
            Some(base) => packages.push(base),
            None => return Ok(None),
        },
    }
    Ok(Some(packages))
}

/// Reads a package's entry of the index.
fn package(fields: &BTreeMap<String, String>) -> Result<Package> {
    let field = |name: &str| {
        fields
            .get(name)
            .cloned()
            .with_context(|| format!("the index has a package without {name}"))
    };
    Ok(Package {
        name: field("Package")?,
        version: field("Version")?,
        path: field("Filename")?,
        sha256: field("SHA256")?,
    })
}

/// Returns the package `linux-base-*`, which contains a kernel's configuration, although the index
/// no longer lists it, or `None` if the pool lacks it too. The index drops this package while the
/// signed kernel is still listed, and with it the hash: the hash of the first download is locked.
/// The lab takes a configuration from the package, and no code.
fn unlisted_base(release: &str, version: &str) -> Result<Option<Package>> {
    let name = format!("linux-base-{release}");
    let path = format!("pool/main/l/linux/{name}_{version}_amd64.deb");
    let work = tempfile::tempdir().context("cannot create a temporary folder")?;
    let archive = work.path().join("base.deb");
    if !apt::download_from_pool(&path, None, &archive)? {
        return Ok(None);
    }
    let hash = Sha256::digest(fs::read(&archive).context("read the downloaded package")?);
    let sha256 = text::hex(&hash);
    Ok(Some(Package {
        name,
        version: version.to_string(),
        path,
        sha256,
    }))
}

/// Writes a kernel into the lock file, in place of the earlier one of its series.
fn remember(locked: Locked) -> Result<()> {
    let mut lock = read_lock()?;
    lock.kernel.retain(|kernel| kernel.name != locked.name);
    lock.kernel.push(locked);
    let number = |name: &str| -> Vec<u32> { name.split('.').flat_map(str::parse).collect() };
    lock.kernel.sort_by_key(|kernel| number(&kernel.name));
    let text = format!(
        "# The lab's kernels, one per series. `magpie lab` replaces a kernel that has left the\n\
         # archive by the newest of its series. Remove an entry to have its series looked up again.\n\n{}",
        toml::to_string(&lock).context("cannot encode the lock file")?
    );
    files::write_atomically(&files::kernels_lock()?, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_debian_wins_over_newer_patch() {
        let mut releases = [
            "7.2.13+deb13-cloud-amd64",
            "7.2.12+deb14-cloud-amd64",
            "7.2.9+deb14-cloud-amd64",
        ];
        releases.sort_by_key(|release| order(release, "7.2"));
        assert_eq!(releases[2], "7.2.12+deb14-cloud-amd64");
        assert_eq!(releases[0], "7.2.13+deb13-cloud-amd64");
    }

    #[test]
    fn the_release_is_in_the_header_of_the_image() {
        let mut image = vec![0; 0x300];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x80_u16.to_le_bytes());
        image[0x280..0x289].copy_from_slice(b"7.2.13 (a");
        assert_eq!(release_in(&image).as_deref(), Some("7.2.13"));
        image[0x20e..0x210].copy_from_slice(&0xffff_u16.to_le_bytes());
        assert_eq!(release_in(&image), None, "the text is behind the end");
        assert_eq!(release_in(b"#!/bin/sh"), None);
    }

    #[test]
    fn other_packages_are_no_releases() {
        for name in [
            "7.2.13+deb14-cloud-amd64-dbg",
            "7.2.13+deb14-amd64",
            "unsigned-7.2.13+deb14-cloud-amd64",
            "7.20.1+deb14-cloud-amd64",
        ] {
            assert_eq!(order(name, "7.2"), None, "{name}");
        }
    }

    #[test]
    fn the_embedded_lock_is_valid_and_holds_the_matrix() {
        let lock: Lock = toml::from_str(SEED).expect("kernels.lock parses");
        for series in SERIES {
            assert!(
                lock.kernel.iter().any(|k| k.name == *series),
                "{series} is locked"
            );
        }
    }

    #[test]
    fn a_kernel_is_a_series_a_built_one_or_a_file() {
        let parse = |word| KernelChoice::parse(Some(word), None).expect("valid");
        assert_eq!(parse("7.0"), KernelChoice::Series("7.0".into()));
        assert_eq!(parse("demo"), KernelChoice::Built("demo".into()));
        assert!(matches!(parse("./bzImage"), KernelChoice::Files { .. }));
        for word in ["7.0", "demo"] {
            assert!(KernelChoice::parse(Some(word), Some(Path::new("c"))).is_err());
        }
    }
}
