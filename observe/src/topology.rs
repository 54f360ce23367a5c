//! Where each online CPU is: its core, its LLC and its node, from sysfs.
//!
//! `scx_utils::Topology` would do, but a replayed session and the tests need other roots than `/`,
//! and the numbers that a screen shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where a CPU is. Cores and LLCs are numbered through the machine, in the order of their lowest
/// CPU; nodes have the kernel's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The core, which SMT siblings share.
    pub core: usize,
    /// The LLC.
    pub llc: usize,
    /// The node.
    pub node: usize,
}

/// The online CPUs, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The kernel's list of online CPUs, from which the rest was made.
    pub online: String,
    /// Where each of them is.
    pub places: BTreeMap<usize, Place>,
}

impl Topology {
    /// Reads the topology below `root`, which is `/` but in tests. Where sysfs is silent, a CPU is
    /// a core of its own, and a package is an LLC.
    pub fn read(root: &Path) -> Topology {
        let online = Topology::read_online(root);
        let system = root.join("sys/devices/system");
        let mut cores = BTreeMap::new();
        let mut llcs = BTreeMap::new();
        let mut places = BTreeMap::new();
        for number in parse_list(&online) {
            let cpu = system.join(format!("cpu/cpu{number}"));
            let core = read(&cpu.join("topology/thread_siblings_list"));
            let llc = last_level_cache(&cpu)
                .or_else(|| read(&cpu.join("topology/package_cpus_list")))
                .unwrap_or_else(|| online.clone());
            let place = Place {
                core: number_of(&mut cores, core.unwrap_or_else(|| number.to_string())),
                llc: number_of(&mut llcs, llc),
                node: node_of(&cpu),
            };
            places.insert(number, place);
        }
        Topology { online, places }
    }

    /// Returns the kernel's list of online CPUs; no text where it cannot be read.
    pub fn read_online(root: &Path) -> String {
        read(&root.join("sys/devices/system/cpu/online")).unwrap_or_default()
    }

    /// Returns the LLCs: the node of each, and its CPUs.
    pub fn llcs(&self) -> BTreeMap<usize, (usize, Vec<usize>)> {
        let mut llcs: BTreeMap<usize, (usize, Vec<usize>)> = BTreeMap::new();
        for (number, place) in &self.places {
            let llc = llcs.entry(place.llc).or_default();
            llc.0 = place.node;
            llc.1.push(*number);
        }
        llcs
    }
}

/// Reads a list of CPUs such as `0-3,8`. Text that is no number is skipped.
pub fn parse_list(list: &str) -> BTreeSet<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

/// Reads a file without the newline at its end; none if it cannot be read.
fn read(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_string())
}

/// Returns the number of a group of CPUs; one that is new has the next number.
fn number_of(numbers: &mut BTreeMap<String, usize>, group: String) -> usize {
    let next = numbers.len();
    *numbers.entry(group).or_insert(next)
}

/// Returns the list of CPUs that share this CPU's cache of the highest level.
fn last_level_cache(cpu: &Path) -> Option<String> {
    let caches = fs::read_dir(cpu.join("cache")).ok()?;
    let levels = caches.flatten().filter_map(|cache| {
        let level: u32 = read(&cache.path().join("level"))?.parse().ok()?;
        Some((level, read(&cache.path().join("shared_cpu_list"))?))
    });
    levels.max().map(|(_, shared)| shared)
}

/// Returns the node of a CPU, which its folder names; 0 where the kernel has no nodes.
fn node_of(cpu: &Path) -> usize {
    let entries = fs::read_dir(cpu).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("node")?.parse().ok()
    });
    numbers.min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_share_a_core_and_caches_make_llcs() {
        let root = tempfile::tempdir().unwrap();
        let system = root.path().join("sys/devices/system/cpu");
        let write = |file: String, text: &str| {
            let path = system.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("online".into(), "0-2,5\n");
        for (cpu, siblings, llc, node) in [
            (0, "0,2", "0,2", 0),
            (1, "1", "1", 1),
            (2, "0,2", "0,2", 0),
            (5, "5", "5", 1),
        ] {
            write(format!("cpu{cpu}/topology/thread_siblings_list"), siblings);
            write(format!("cpu{cpu}/cache/index0/level"), "1\n");
            write(format!("cpu{cpu}/cache/index0/shared_cpu_list"), "9\n");
            write(format!("cpu{cpu}/cache/index3/level"), "3\n");
            write(format!("cpu{cpu}/cache/index3/shared_cpu_list"), llc);
            write(format!("cpu{cpu}/node{node}/cpulist"), "");
        }
        let topology = Topology::read(root.path());
        let places: Vec<_> = topology
            .places
            .iter()
            .map(|(cpu, place)| (*cpu, place.core, place.llc, place.node))
            .collect();
        assert_eq!(
            places,
            [(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 0, 0), (5, 2, 2, 1)]
        );
        assert_eq!(topology.llcs()[&0], (0, vec![0, 2]));
    }

    #[test]
    fn a_silent_sysfs_is_one_llc() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Topology::read(root.path()), Topology::default());
        let cpu = root.path().join("sys/devices/system/cpu");
        fs::create_dir_all(&cpu).unwrap();
        fs::write(cpu.join("online"), "0-1\n").unwrap();
        let topology = Topology::read(root.path());
        assert_eq!(topology.llcs(), [(0, (0, vec![0, 1]))].into());
        assert_ne!(topology.places[&0].core, topology.places[&1].core);
    }

    #[test]
    fn lists_of_cpus_are_read() {
        let cpus: Vec<_> = parse_list("0-3,8\n").into_iter().collect();
        assert_eq!(cpus, [0, 1, 2, 3, 8]);
        assert!(parse_list("").is_empty());
    }
}
