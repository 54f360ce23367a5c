//! A host's file: its physical CPUs, and its guests (`magpie lab host --help` has an example).

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{Host, HostGuest};
use crate::files::find_program;
use crate::kernel::KernelChoice;
use crate::machine::Machine;
use crate::options::GuestOptions;
use crate::progress::Progress;

/// A file of a host.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFile {
    /// Physical CPUs; 2 if absent.
    pub physical_cpus: Option<u32>,
    /// See [`Host::start_seconds`].
    pub start_seconds: Option<u32>,
    /// See [`Host::host_slice_ns`].
    pub host_slice_ns: Option<u64>,
    /// See [`Host::cgroups`].
    pub cgroups: Option<bool>,
    /// The guests.
    pub guest: Vec<GuestEntry>,
}

/// A guest of such a file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestEntry {
    /// Its name in the report.
    pub name: String,
    /// Its machine in virtual time, a preset or a file.
    pub machine: String,
    /// Its kernel, as [`KernelChoice::parse`] takes one.
    pub kernel: Option<String>,
    /// The command of its scheduler; `eevdf` is the kernel's own, and so is none.
    pub scheduler: Option<String>,
    /// Debian packages.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Programs of this host.
    #[serde(default)]
    pub copy: Vec<String>,
    /// See [`HostGuest::weight`].
    pub host_weight: Option<u32>,
    /// See [`HostGuest::background`].
    #[serde(default)]
    pub background: bool,
    /// What it runs: a shell script.
    pub command: String,
}

impl HostFile {
    /// Reads a file of a host.
    ///
    /// # Errors
    /// If it cannot be read, or is no such file.
    pub fn read(path: &Path) -> Result<HostFile> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the host's file {}", path.display()))?;
        toml::from_str(&text)
            .with_context(|| format!("the host's file {} is not valid", path.display()))
    }

    /// Returns the host, without its guests.
    #[must_use]
    pub fn host(&self) -> Host {
        let default = Host::new(self.physical_cpus.unwrap_or(2));
        Host {
            start_seconds: self.start_seconds.unwrap_or(default.start_seconds),
            host_slice_ns: self.host_slice_ns.unwrap_or(default.host_slice_ns),
            cgroups: self.cgroups.unwrap_or(default.cgroups),
            ..default
        }
    }
}

impl GuestEntry {
    /// Returns the machine, the kernel, the packages and the programs of the guest.
    ///
    /// # Errors
    /// If one of them does not exist, or the machine is not in virtual time.
    pub fn options(&self, progress: &Progress) -> Result<GuestOptions> {
        let mut options = GuestOptions {
            machine: Machine::find(&self.machine)?,
            kernel: KernelChoice::parse(self.kernel.as_deref(), None)?,
            packages: self.packages.clone(),
            progress: progress.clone(),
            ..GuestOptions::default()
        };
        let name = &self.name;
        ensure!(
            options.machine.virtual_time.is_some(),
            "a host needs guests in virtual time, such as vt8on2; the machine {} of {name} is none",
            options.machine.name
        );
        for program in &self.copy {
            let path = find_program(program).with_context(|| {
                format!("there is no program \"{program}\" on this host to copy into {name}")
            })?;
            options.files.push(path);
        }
        Ok(options)
    }

    /// Its weight on the host.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.host_weight.unwrap_or(HostGuest::WEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::HostFile;

    #[test]
    fn the_hosts_of_the_tree_are_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts");
        let files = std::fs::read_dir(folder).expect("lab/hosts is there");
        let files = files.map(|file| HostFile::read(&file.expect("a file").path()).expect("valid"));
        assert!(files.count() > 0);
    }
}
