//! What else of the host follows the preferred CPUs: device interrupts and
//! unbound workqueues. And how it was before, so that it is so again after us.
//!
//! ```text
//! preferred CPUs change -> originals saved -> files written
//!                            |
//!   stopped, error, panic    +-> restored by this process
//!   kill -9, crash           +-> restored by ExecStopPost (scx_magpie restore),
//!                                or when scx_magpie starts next
//! ```
//!
//! An original is on disk before the first change: at no moment does a crash lose
//! what there was. The state file says which process it belongs to, so that
//! nobody restores under the feet of one that lives.
//!
//! Files of the kernel are named relative to a root, which the tests make
//! themselves.

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

/// Where unbound workqueues run, as a mask.
const WORKQUEUES: &str = "sys/devices/virtual/workqueue/cpumask";

/// What is on disk while anything is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Saved {
    owner: Owner,
    /// The content each changed file had.
    files: BTreeMap<String, String>,
    /// The CPUs that irqbalance was told to avoid before, as a list.
    irqbalance_banned: Option<String>,
}

/// A process; the start time tells it from a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    pid: u32,
    /// In clock ticks since boot.
    started: u64,
}

impl Owner {
    /// Nothing when there is no such process.
    fn of(root: &Path, pid: u32) -> Option<Owner> {
        let stat = fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()?;
        // The name before may contain spaces and parentheses.
        let (_, fields) = stat.rsplit_once(')')?;
        let started = fields.split_whitespace().nth(19)?.parse().ok()?;
        Some(Owner { pid, started })
    }

    fn is_alive(&self, root: &Path) -> bool {
        Owner::of(root, self.pid).as_ref() == Some(self)
    }
}

/// The host, as far as it follows. Dropping it restores the host.
#[derive(Debug)]
pub struct HostState {
    root: PathBuf,
    saved: Saved,
    /// Files that the kernel does not let anybody change, as those of per-CPU and
    /// managed interrupts.
    fixed: BTreeSet<String>,
}

impl HostState {
    /// The host as it is; nothing of it is changed yet.
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

    /// Moves interrupts and unbound workqueues to the preferred CPUs. All online
    /// CPUs preferred means: everything as it was.
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

    /// What a file contained before us and what it shall contain; nothing if
    /// nothing is to be written.
    fn plan(&self, file: &str, preferred: &CpuSet) -> Option<(String, String)> {
        if self.fixed.contains(file) {
            return None;
        }
        let now = fs::read_to_string(self.root.join(file)).ok()?;
        let now = now.trim();
        let original = self.saved.files.get(file).map_or(now, String::as_str);
        let kept = parse(file, original).ok()?.and(preferred);
        // May run on no preferred CPU: not ours to move.
        let target = match kept.is_empty() {
            true => original.to_string(),
            false => format(file, &kept),
        };
        let is_same = parse(file, now).ok()? == parse(file, &target).ok()?;
        (!is_same).then(|| (original.to_string(), target))
    }

    /// Puts the originals of what is about to change on disk, if any is new.
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

    fn banned_before(&self) -> Result<CpuSet> {
        let list = self.saved.irqbalance_banned.as_deref().unwrap_or_default();
        list.parse().map_err(anyhow::Error::msg)
    }

    /// Files that cannot be written are left alone from now on.
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

    /// Everything as it was before; without effect when nothing is changed.
    ///
    /// # Errors
    /// With what could not be restored; it stays in the state file.
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

/// Restores what a scx_magpie that is gone has left behind. Says whether there
/// was anything.
///
/// # Errors
/// When the one it belongs to still runs; when the state cannot be read or not
/// all of it be restored.
pub fn recover(root: &Path) -> Result<bool> {
    let path = root.join(STATE_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let mut saved: Saved = serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is not what scx_magpie writes. Look at it, restore by hand what it names, and \
             remove it",
            path.display()
        )
    })?;
    if saved.owner.is_alive(root) {
        bail!(
            "scx_magpie runs (process {}) and restores interrupts and workqueues itself when it \
             ends; stop it first",
            saved.owner.pid
        );
    }
    put_back(root, &mut saved)?;
    info!(
        "restored the interrupts and workqueues that process {} had moved",
        saved.owner.pid
    );
    Ok(true)
}

/// Writes the originals back and forgets those that are; the state file goes
/// with the last.
fn put_back(root: &Path, saved: &mut Saved) -> Result<()> {
    if saved.files.is_empty() && saved.irqbalance_banned.is_none() {
        return Ok(());
    }
    let mut failures = Vec::new();
    saved.files.retain(|file, original| {
        match overwrite(&root.join(file.as_str()), original) {
            Ok(()) => false,
            // The device is gone, and its interrupt with it.
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => {
                failures.push(format!("{original:?} to /{file}: {error}"));
                true
            }
        }
    });
    if let Some(list) = &saved.irqbalance_banned {
        let banned: CpuSet = list.parse().map_err(anyhow::Error::msg)?;
        // One that has ended took its bans along.
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
        "could not restore where interrupts and workqueues ran, namely writing {}. Try again with \
         `scx_magpie restore`",
        failures.join("; ")
    )
}

/// Renamed into place, so that there is always either the old state or the new.
fn save(root: &Path, saved: &Saved) -> Result<()> {
    let path = root.join(STATE_FILE);
    let next = path.with_extension("new");
    let write = || -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        let mut file = fs::File::create(&next)?;
        file.write_all(&serde_json::to_vec_pretty(saved)?)?;
        file.sync_all()?;
        fs::rename(&next, &path)
    };
    write().with_context(|| {
        format!(
            "saving to {} where interrupts and workqueues ran; without it they are not moved",
            path.display()
        )
    })
}

/// Existing files only, in one write, as the kernel wants it.
fn overwrite(path: &Path, content: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)?;
    file.write_all(format!("{content}\n").as_bytes())
}

fn parse(file: &str, text: &str) -> Result<CpuSet, String> {
    match file {
        WORKQUEUES => CpuSet::from_mask(text),
        _ => text.parse(),
    }
}

fn format(file: &str, cpus: &CpuSet) -> String {
    match file {
        WORKQUEUES => cpus.to_mask(),
        _ => cpus.to_string(),
    }
}

#[cfg(test)]
#[path = "host_state_tests.rs"]
mod tests;
