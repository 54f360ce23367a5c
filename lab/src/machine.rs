//! Machines: how many CPUs a guest has and how they share cores, LLCs and nodes.
//!
//! A machine is data: a list of LLCs, each with its cores, threads per core and node. The presets
//! are the TOML files of `lab/machines/`, embedded in the program. Users describe their own
//! machines in files of the same form. See `docs/lab.md` for the format.

mod frequency;
mod memory;
mod virtual_time;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use self::frequency::SlowCores;
pub use self::memory::{Bandwidth, Memory};
pub use self::virtual_time::VirtualTime;

/// One LLC, or several equal ones, and the cores that share it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Llc {
    /// Number of such LLCs (1 if absent).
    #[serde(default = "one")]
    pub count: u32,
    /// Cores that share the LLC.
    pub cores: u32,
    /// Hardware threads per core: 1 or 2 (1 if absent).
    #[serde(default = "one")]
    pub threads: u32,
    /// Node of the LLC (0 if absent).
    #[serde(default)]
    pub node: u32,
    /// Highest frequency of slow cores, on a hybrid machine (a fast core if absent).
    /// See `docs/virtual-time.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_mhz: Option<u32>,
}

// Defaults of keys that a machine file leaves out.

fn one() -> u32 {
    1
}

fn default_memory_mib() -> u64 {
    2048
}

/// The shape of a machine, and its speed if it is in virtual time. It does not depend on QEMU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Short name, as given to `--machine`.
    pub name: String,
    /// One line, for `magpie lab machines`.
    #[serde(default)]
    pub description: String,
    /// Memory in MiB, split evenly over the nodes.
    #[serde(default = "default_memory_mib")]
    pub memory_mib: u64,
    /// Number of physical packages, among which the LLCs are divided evenly; one per LLC if absent.
    #[serde(default)]
    pub packages: Option<u32>,
    /// The LLCs, in the order of CPU numbers.
    pub llc: Vec<Llc>,
    /// CPUs (Linux's numbers) that the agent takes offline before it says hello.
    #[serde(default)]
    pub offline: Vec<u32>,
    /// Speed and windows of a machine in virtual time; `None` for a functional one.
    /// See `docs/virtual-time.md`.
    #[serde(default)]
    pub virtual_time: Option<VirtualTime>,
}

/// One CPU, and what it shares with others. All numbers count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// Linux's number of the CPU.
    pub number: u32,
    /// Hardware thread within the core.
    pub thread: u32,
    /// Core within its LLC.
    pub core_in_llc: u32,
    /// Core within the machine.
    pub core: u32,
    /// LLC within the machine.
    pub llc: u32,
    /// Node.
    pub node: u32,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        const PRESETS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../machines/", $name, ".toml")))),*];
    };
}

presets!(
    "tiny2",
    "one1",
    "smt8",
    "flat8",
    "uneven12",
    "numa8",
    "wide64",
    "smt4off1",
    "vt2",
    "vt4",
    "vt8",
    "vt8w2",
    "vt8on2",
    "vt8nodes",
    "vt8-mem",
    "vt16",
    "vt16freq",
    "vt8hybrid",
    "vt64",
    "xeon-8380",
    "threadripper-3970x",
    "xeon-8380-mem",
    "threadripper-3970x-mem",
    "ryzen-7950x",
    "epyc-2x64",
    "epyc-7742",
    "sapphire-rapids-224",
);

impl Default for Machine {
    fn default() -> Self {
        Machine::preset("tiny2").expect("the preset tiny2 is embedded and tested")
    }
}

impl Machine {
    /// All presets, in the order of this file.
    pub fn presets() -> Vec<Machine> {
        PRESETS
            .iter()
            .map(|(name, _)| Machine::preset(name).expect("embedded presets are tested"))
            .collect()
    }

    /// Returns the preset of that name.
    ///
    /// # Errors
    /// When there is none; then with the names of all.
    pub fn preset(name: &str) -> Result<Machine> {
        let Some((_, text)) = PRESETS.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = PRESETS.iter().map(|(known, _)| *known).collect();
            bail!(
                "unknown machine \"{name}\": use one of {}, or the path of a .toml file \
                 (format: docs/lab.md)",
                known.join(", ")
            );
        };
        Machine::parse(text).with_context(|| format!("preset {name}"))
    }

    /// Returns the machine that `--machine` names: a preset, or the path of a TOML file.
    ///
    /// # Errors
    /// When there is no such preset or file, or the file describes no possible machine.
    pub fn find(name_or_path: &str) -> Result<Machine> {
        let path = Path::new(name_or_path);
        if path.extension().is_some_and(|e| e == "toml") || name_or_path.contains('/') {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the machine file {name_or_path}"))?;
            return Machine::parse(&text)
                .with_context(|| format!("machine file {name_or_path} is not valid"));
        }
        Machine::preset(name_or_path)
    }

    /// Reads a machine from TOML and checks that it is possible.
    pub(crate) fn parse(text: &str) -> Result<Machine> {
        let machine: Machine = toml::from_str(text)?;
        machine.check()?;
        Ok(machine)
    }

    /// Fails with the key that makes the machine impossible.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.llc.is_empty(), "a machine needs at least one [[llc]]");
        for llc in &self.llc {
            ensure!(
                llc.count >= 1 && llc.cores >= 1,
                "count and cores of an [[llc]] must be at least 1"
            );
            ensure!(
                (1..=2).contains(&llc.threads),
                "threads of an [[llc]] must be 1 or 2, not {}",
                llc.threads
            );
        }
        let total: u64 = self
            .llc
            .iter()
            .map(|l| u64::from(l.count) * u64::from(l.cores) * u64::from(l.threads))
            .sum();
        ensure!(
            total <= 1024,
            "{total} CPUs are more than the 1024 a machine may have"
        );
        let nodes: BTreeSet<u32> = self.llc.iter().map(|l| l.node).collect();
        ensure!(
            nodes.iter().copied().eq(0..nodes.len() as u32),
            "nodes must be numbered 0, 1, 2, ... without a gap; found {nodes:?}"
        );
        for &cpu in &self.offline {
            ensure!(
                cpu > 0 && u64::from(cpu) < total,
                "offline CPU {cpu} must be between 1 and {} (CPU 0 cannot be offline)",
                total - 1
            );
        }
        if let Some(packages) = self.packages {
            let even = self
                .llc
                .iter()
                .all(|llc| (llc.cores, llc.threads) == (self.llc[0].cores, self.llc[0].threads));
            ensure!(
                packages >= 1 && self.llcs().is_multiple_of(packages) && even,
                "{} LLCs cannot be divided into {packages} packages: all LLCs must be equal, and \
                 each package must have as many",
                self.llcs()
            );
        }
        if let Some(time) = &self.virtual_time {
            let has_smt = self.llc.iter().any(|llc| llc.threads > 1);
            time.check(self.memory_mib, has_smt)?;
        }
        self.check_slow_cores()?;
        ensure!(
            self.memory_mib >= 256,
            "memory_mib is {}, at least 256 are needed to boot",
            self.memory_mib
        );
        Ok(())
    }

    /// Fails for slow cores that the plugin or the kernel would not take for such, with the key.
    fn check_slow_cores(&self) -> Result<()> {
        let Some(slow) = self.slow_cores() else {
            return Ok(());
        };
        let time = self.virtual_time.as_ref();
        slow.check(time.and_then(|time| time.frequency.as_ref()))?;
        let kinds = self.llc.iter().map(|llc| llc.slow_mhz);
        ensure!(
            slow.from > 0
                && kinds
                    .skip_while(Option::is_none)
                    .all(|mhz| mhz == Some(slow.mhz)),
            "each [[llc]] with slow_mhz must come after those without, of which there is at least \
             one, and have the same slow_mhz"
        );
        ensure!(
            self.llc.iter().all(|llc| llc.threads == 1),
            "slow_mhz needs threads = 1 on all LLCs: with SMT the kernel gives all CPUs one capacity"
        );
        Ok(())
    }

    /// Returns the slow cores, if the machine is hybrid. QEMU numbers CPUs in the order of its slots,
    /// of which each LLC has as many, and there is no SMT.
    pub(crate) fn slow_cores(&self) -> Option<SlowCores> {
        let first = self.llc.iter().position(|llc| llc.slow_mhz.is_some())?;
        let fast_llcs: u32 = self.llc[..first].iter().map(|llc| llc.count).sum();
        Some(SlowCores {
            from: fast_llcs * self.most_cores(),
            mhz: self.llc[first].slow_mhz?,
        })
    }

    /// Returns every CPU in Linux's order: LLC by LLC, core by core, the threads of a core one
    /// after the other.
    pub(crate) fn layout(&self) -> Vec<Cpu> {
        let mut layout = Vec::new();
        let (mut llc_number, mut core_number) = (0, 0);
        for llc in &self.llc {
            for _ in 0..llc.count {
                for core in 0..llc.cores {
                    for thread in 0..llc.threads {
                        layout.push(Cpu {
                            number: layout.len() as u32,
                            thread,
                            core_in_llc: core,
                            core: core_number,
                            llc: llc_number,
                            node: llc.node,
                        });
                    }
                    core_number += 1;
                }
                llc_number += 1;
            }
        }
        layout
    }

    /// Returns the CPUs that are online when the guest is ready, in Linux's order.
    pub(crate) fn online(&self) -> Vec<Cpu> {
        let mut cpus = self.layout();
        cpus.retain(|cpu| !self.offline.contains(&cpu.number));
        cpus
    }

    /// Returns the table `[virtual_time]`.
    ///
    /// # Errors
    /// When the machine has none.
    pub(crate) fn time(&self) -> Result<&VirtualTime> {
        self.virtual_time
            .as_ref()
            .with_context(|| format!("the machine {} is not in virtual time", self.name))
    }

    /// Number of CPUs, offline ones included.
    pub fn cpus(&self) -> u32 {
        self.llc.iter().map(|l| l.count * l.cores * l.threads).sum()
    }

    /// Number of LLCs.
    pub(crate) fn llcs(&self) -> u32 {
        self.llc.iter().map(|l| l.count).sum()
    }

    /// Cores of the largest LLC. QEMU gives every LLC slots for as many.
    pub(crate) fn most_cores(&self) -> u32 {
        self.llc.iter().map(|l| l.cores).max().unwrap_or(1)
    }

    /// Number of nodes.
    pub(crate) fn nodes(&self) -> u32 {
        self.llc.iter().map(|l| l.node).max().unwrap_or(0) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::{Machine, PRESETS};

    /// Fails unless a preset with the replacement is refused for that reason.
    pub fn changed_preset_is_refused(preset: &str, from: &str, to: &str, reason: &str) {
        let found = PRESETS.iter().find(|(name, _)| *name == preset);
        let (_, text) = found.expect(preset);
        assert!(text.contains(from), "{from} is in the preset");
        let error = Machine::parse(&text.replace(from, to)).expect_err(to);
        let error = format!("{error:#}");
        assert!(error.contains(reason), "{to}: {error}");
    }
}
