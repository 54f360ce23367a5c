//! Lets device interrupts and unbound workqueues follow the preferred CPUs, and puts them back at
//! the end.
//!
//! ```text
//! preferred CPUs change -> originals saved -> files written
//!                            |
//!   stopped, error, panic    +-> restored by this process
//!   kill -9, crash           +-> restored by ExecStopPost (scx_magpie restore),
//!                                or when scx_magpie starts next
//! ```
//!
//! The original content of a file is on disk before the file is changed, so that no crash can lose
//! it. The state file names the process that wrote it: while that process lives, no other one
//! restores.
//!
//! Files of the kernel are named relative to a root, which the tests make themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use log::{debug, info, warn};
use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::interrupts;
use crate::irqbalance::Irqbalance;

const STATE_FILE: &str = "run/scx_magpie/host-state.json";

/// The mask of CPUs on which unbound workqueues run.
const WORKQUEUES: &str = "sys/devices/virtual/workqueue/cpumask";

/// The content of the state file, which exists while anything is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Saved {
    owner: Owner,
    /// The original content of each changed file.
    files: BTreeMap<String, String>,
    /// The CPUs that irqbalance avoided before, as a list.
    irqbalance_banned: Option<String>,
}

/// A process. Its start time tells it from a later process with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    pid: u32,
    /// In clock ticks since boot.
    started: u64,
}

impl Owner {
    /// Returns the process with this number, if there is one.
    fn of(root: &Path, pid: u32) -> Option<Owner> {
        let stat = fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()?;
        // The fields follow the name, which may contain spaces and parentheses.
        let (_, fields) = stat.rsplit_once(')')?;
        let started = fields.split_whitespace().nth(19)?.parse().ok()?;
        Some(Owner { pid, started })
    }

    /// Returns whether this very process still runs.
    fn is_alive(&self, root: &Path) -> bool {
        Owner::of(root, self.pid).as_ref() == Some(self)
    }
}

/// The interrupts and workqueues of the host. Dropping it puts them back.
#[derive(Debug)]
pub struct HostState {
    root: PathBuf,
    saved: Saved,
    /// Files that cannot be written, as those of per-CPU and managed interrupts.
    fixed: BTreeSet<String>,
}

impl HostState {
    /// Starts with the host as it is, and changes nothing yet.
    ///
    /// # Errors
    /// When this process cannot be found below `root`.
    pub fn new(root: &Path) -> Result<HostState> {
        let owner = Owner::of(root, std::process::id())
            .context("reading this process's own /proc/PID/stat; mount /proc")?;
        Ok(HostState {
            root: root.to_path_buf(),
            saved: Saved {
                owner,
                files: BTreeMap::new(),
                irqbalance_banned: None,
            },
            fixed: BTreeSet::new(),
        })
    }

    /// Moves interrupts and unbound workqueues to the preferred CPUs; puts them back if all online
    /// CPUs are preferred.
    ///
    /// # Errors
    /// When the originals cannot be saved; then nothing is changed.
    pub fn follow(&mut self, preferred: &CpuSet, online: &CpuSet) -> Result<()> {
        let withheld = online.without(preferred);
        if withheld.is_empty() || withheld == *online {
            return self.restore();
        }
        let irqbalance = Irqbalance::find(&self.root);
        let mut wanted = BTreeMap::new();
        let mut candidates = vec![WORKQUEUES.to_string()];
        match irqbalance {
            Some(_) => candidates.extend(self.saved.files.keys().cloned()),
            None => candidates.extend(interrupts::affinity_files(&self.root)),
        }
        for file in candidates {
            if let Some((original, target)) = self.plan(&file, preferred) {
                wanted.insert(file, (original, target));
            }
        }
        let banned = irqbalance.as_ref().and_then(|irqbalance| {
            let banned = irqbalance.banned();
            banned
                .inspect_err(|error| warn!("interrupts stay where they are: {error:#}"))
                .ok()
        });

        self.remember(&wanted, banned.as_ref())?;
        if let (Some(irqbalance), Some(_)) = (&irqbalance, &banned) {
            let before = self.banned_before()?;
            let all: CpuSet = withheld.or(&before);
            if let Err(error) = irqbalance.ban(&all) {
                warn!("interrupts stay where they are: {error:#}");
            }
        }
        self.write(&wanted)
    }

    /// Returns the original content of a file and the content that it shall have: the preferred
    /// CPUs among those of the original. Returns nothing if the file has that already or cannot be
    /// written.
    fn plan(&self, file: &str, preferred: &CpuSet) -> Option<(String, String)> {
        if self.fixed.contains(file) {
            return None;
        }
        let now = fs::read_to_string(self.root.join(file)).ok()?;
        let now = now.trim();
        let original = self.saved.files.get(file).map_or(now, String::as_str);
        let kept = parse(file, original).ok()?.and(preferred);
        // The original content allows no preferred CPU, so the file keeps that content.
        let target = match kept.is_empty() {
            true => original.to_string(),
            false => format(file, &kept),
        };
        let is_same = parse(file, now).ok()? == parse(file, &target).ok()?;
        (!is_same).then(|| (original.to_string(), target))
    }

    /// Saves the originals of the files that are about to be written, unless all are saved already.
    fn remember(
        &mut self,
        wanted: &BTreeMap<String, (String, String)>,
        banned: Option<&CpuSet>,
    ) -> Result<()> {
        let mut saved = self.saved.clone();
        for (file, (original, _)) in wanted {
            saved
                .files
                .entry(file.clone())
                .or_insert_with(|| original.clone());
        }
        if let Some(banned) = banned {
            saved
                .irqbalance_banned
                .get_or_insert_with(|| banned.to_string());
        }
        if saved != self.saved {
            save(&self.root, &saved)?;
            self.saved = saved;
        }
        Ok(())
    }

    /// Returns the CPUs that irqbalance avoided before scx_magpie.
    fn banned_before(&self) -> Result<CpuSet> {
        let list = self.saved.irqbalance_banned.as_deref().unwrap_or_default();
        list.parse().map_err(anyhow::Error::msg)
    }

    /// Writes the files. One that cannot be written is left alone from now on.
    fn write(&mut self, wanted: &BTreeMap<String, (String, String)>) -> Result<()> {
        let known = self.saved.files.len();
        let mut moved = 0;
        for (file, (_, target)) in wanted {
            match overwrite(&self.root.join(file), target) {
                Ok(()) => moved += 1,
                Err(error) => {
                    debug!("{file} stays as it is: {error}");
                    self.fixed.insert(file.clone());
                    self.saved.files.remove(file);
                }
            }
        }
        debug!(
            "{moved} of {} interrupts and workqueue masks moved",
            wanted.len()
        );
        match self.saved.files.len() == known {
            true => Ok(()),
            false => save(&self.root, &self.saved),
        }
    }

    /// Puts everything back to where it was. Does nothing if nothing is changed.
    ///
    /// # Errors
    /// With the files that could not be restored; they stay in the state file.
    pub fn restore(&mut self) -> Result<()> {
        let result = put_back(&self.root, &mut self.saved);
        if result.is_ok() {
            debug!("interrupts and workqueues are as they were");
        }
        result
    }
}

impl Drop for HostState {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            warn!("{error:#}");
        }
    }
}

/// Puts back what a scx_magpie that is gone has moved. Returns whether there was anything.
///
/// # Errors
/// When the process that moved it still runs; when the state file cannot be read; when not
/// everything can be put back.
pub fn recover(root: &Path) -> Result<bool> {
    let path = root.join(STATE_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let mut saved: Saved = serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is not a state file of scx_magpie. Look at it, restore by hand what it names, and \
             remove it",
            path.display()
        )
    })?;
    if saved.owner.is_alive(root) {
        bail!(
            "scx_magpie runs (process {}), and puts interrupts and workqueues back itself when it \
             ends; stop it first",
            saved.owner.pid
        );
    }
    put_back(root, &mut saved)?;
    info!(
        "put back the interrupts and workqueues that process {} had moved",
        saved.owner.pid
    );
    Ok(true)
}

/// Writes the originals back. Those that cannot be written stay in the state file; without any the
/// file is removed.
fn put_back(root: &Path, saved: &mut Saved) -> Result<()> {
    if saved.files.is_empty() && saved.irqbalance_banned.is_none() {
        return Ok(());
    }
    let mut failures = Vec::new();
    saved.files.retain(|file, original| {
        match overwrite(&root.join(file.as_str()), original) {
            Ok(()) => false,
            // The interrupt vanished with its device.
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            // A kill between the save and the writes leaves files in the state file that cannot be
            // written, such as those of interrupts 0 and 2. They never changed. Without this rule
            // each later restore failed, and so did each later start.
            Err(_) if has_content(root, file, original) => false,
            Err(error) => {
                failures.push(format!("{original:?} to /{file}: {error}"));
                true
            }
        }
    });
    if let Some(list) = &saved.irqbalance_banned {
        let banned: CpuSet = list.parse().map_err(anyhow::Error::msg)?;
        // An irqbalance that has ended keeps no bans.
        match Irqbalance::find(root).map_or(Ok(()), |irqbalance| irqbalance.ban(&banned)) {
            Ok(()) => saved.irqbalance_banned = None,
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    if failures.is_empty() {
        let path = root.join(STATE_FILE);
        return fs::remove_file(&path).with_context(|| format!("removing {}", path.display()));
    }
    save(root, saved)?;
    bail!(
        "could not put interrupts and workqueues back; writing failed of {}. Try again with \
         `scx_magpie restore`",
        failures.join("; ")
    )
}

/// Writes the state file. A new file is renamed into place, so that a crash leaves either the old
/// state or the new one. It is not synced, because /run does not outlive the kernel, and because
/// the unit of scx_loader forbids that.
fn save(root: &Path, saved: &Saved) -> Result<()> {
    let path = root.join(STATE_FILE);
    let next = path.with_extension("new");
    let write = || -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(&next, serde_json::to_vec_pretty(saved)?)?;
        fs::rename(&next, &path)
    };
    write().with_context(|| {
        format!(
            "saving to {} where interrupts and workqueues are; they are not moved without that",
            path.display()
        )
    })
}

/// Overwrites an existing file in one write, because the kernel takes each write as a whole value.
fn overwrite(path: &Path, content: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)?;
    file.write_all(format!("{content}\n").as_bytes())
}

/// Returns whether a file names the same CPUs as this content.
fn has_content(root: &Path, file: &str, content: &str) -> bool {
    let now = fs::read_to_string(root.join(file)).unwrap_or_default();
    let (now, content) = (parse(file, now.trim()), parse(file, content));
    now.is_ok() && now == content
}

/// Reads the content of a file: a mask for workqueues, a list for interrupts.
fn parse(file: &str, text: &str) -> Result<CpuSet, String> {
    match file {
        WORKQUEUES => CpuSet::from_mask(text),
        _ => text.parse(),
    }
}

/// Returns the content that sets a file to these CPUs.
fn format(file: &str, cpus: &CpuSet) -> String {
    match file {
        WORKQUEUES => cpus.to_mask(),
        _ => cpus.to_string(),
    }
}

#[cfg(test)]
#[path = "host_state_tests.rs"]
mod tests;
