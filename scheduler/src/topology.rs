//! Lays out where each CPU is, in the form that the BPF side reads.
//!
//! The BPF side searches bitmaps for work. Neighbours in the machine shall be neighbours in the
//! bitmap, and CPUs of different LLCs shall never write the same cache line of it. So each CPU gets
//! a *place*: its index in an order in which SMT siblings are adjacent, then the CPUs of an LLC,
//! then the LLCs of a node. Each LLC starts at a multiple of [`CPUS_PER_LINE`].
//!
//! ```text
//! CPU    0 4 1 5 2 6 . .   3 7 . . . . . .      two LLCs with SMT
//! place  0 1 2 3 4 5 6 7   8 9 ...
//!        '-' core          '-' core
//!        '---- LLC 0 ----' '---- LLC 1 ----'
//! ```
//!
//! [`describe_host`] reads the machine; [`lay_out`] is a pure function from that description to the
//! tables. A CPU that is offline at the start may come online later, and sysfs does not say where
//! it is: [`guess_offline`] puts it where the numbers of the online CPUs suggest. A wrong guess
//! costs locality until the next start, but loses no task.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use scx_utils::{NR_CPU_IDS, Topology};

use crate::bpf_intf::{
    cpu_topology, llc_topology, magpie_limits_CPUS_PER_LINE,
    magpie_limits_FAST_CAPACITY as FAST_CAPACITY, magpie_limits_MAX_CPUS, magpie_limits_MAX_LLCS,
    magpie_limits_MAX_PLACES, magpie_limits_NO_PLACE,
};

/// How many CPUs share a cache line of a bitmap.
const CPUS_PER_LINE: usize = magpie_limits_CPUS_PER_LINE as usize;
/// How many CPU numbers the BPF side has room for.
pub const MAX_CPUS: usize = magpie_limits_MAX_CPUS as usize;
/// How many LLCs the BPF side has room for.
pub const MAX_LLCS: usize = magpie_limits_MAX_LLCS as usize;
/// How many places the BPF side has room for.
const MAX_PLACES: usize = magpie_limits_MAX_PLACES as usize;
/// Stands in the tables for "no CPU" at a place, and for "no place" of a CPU.
pub const NO_PLACE: u16 = magpie_limits_NO_PLACE as u16;

/// The capacity of the fastest CPU.
const FULL_CAPACITY: usize = 1024;

/// A CPU and where it is. The numbers of cores and LLCs only have to be unique in the whole
/// machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The kernel's CPU number.
    pub id: usize,
    /// The core: SMT siblings have the same number.
    pub core: usize,
    /// The LLC: CPUs that share a last-level cache have the same number.
    pub llc: usize,
    /// The kernel's NUMA node number.
    pub node: usize,
    /// Speed in any unit that is the same for all CPUs.
    pub capacity: usize,
}

/// A machine: its online CPUs, and how many CPU numbers it may have.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Online CPUs, in order of their number.
    pub cpus: Vec<Cpu>,
    /// One more than the highest possible CPU number.
    pub nr_cpu_ids: usize,
}

/// The tables that the BPF side reads. `bpf/intf.h` explains the fields of each entry.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The place of each CPU, by CPU number.
    pub cpus: Vec<cpu_topology>,
    /// The places of each LLC, by the index of the LLC.
    pub llcs: Vec<llc_topology>,
    /// The CPU at each place, [`NO_PLACE`] where there is none.
    pub cpu_at_place: Vec<u16>,
    /// The first place of each core, in the order in which cores become preferred in a guest.
    pub core_at_rank: Vec<u16>,
    /// The same, in the order in which a machine that saves power uses them.
    pub frugal_core_at_rank: Vec<u16>,
    /// Whether each node is treated as one LLC, because there are more than [`MAX_LLCS`].
    pub llcs_merged: bool,
}

/// Reads the topology of the machine that this process runs on.
///
/// # Errors
/// When sysfs lacks a file that every kernel has, with its name.
pub fn describe_host() -> Result<Machine> {
    let topology = Topology::new().context("reading the CPU topology from /sys/devices/system")?;
    let exact = topology
        .all_cpus
        .values()
        .all(|cpu| cpu.kernel_cpu_capacity.is_some());
    let mut cpus = Vec::new();

    // Core numbers may repeat in several LLCs, so `all_cores` would lose cores: walk the hierarchy.
    let cores = topology
        .nodes
        .values()
        .flat_map(|node| node.llcs.values().map(move |llc| (node, llc)))
        .flat_map(|(node, llc)| llc.cores.values().map(move |core| (node, llc, core)));
    for (index, (node, llc, core)) in cores.enumerate() {
        cpus.extend(core.cpus.values().map(|cpu| Cpu {
            id: cpu.id,
            core: index,
            llc: llc.id,
            node: node.id,
            capacity: match cpu.kernel_cpu_capacity {
                Some(capacity) if exact => capacity,
                _ => cpu.cpu_capacity,
            },
        }));
    }
    cpus.sort_by_key(|cpu| cpu.id);
    Ok(Machine {
        cpus,
        nr_cpu_ids: *NR_CPU_IDS,
    })
}

/// Lays out the tables for a machine.
///
/// # Errors
/// When the machine has no online CPU, or may have more CPUs than the BPF side has room for.
pub fn lay_out(machine: &Machine) -> Result<Tables> {
    ensure!(!machine.cpus.is_empty(), "the machine has no online CPU");
    ensure!(
        machine.nr_cpu_ids <= MAX_CPUS,
        "the machine may have {} CPUs, this build of scx_magpie handles {MAX_CPUS}. Raise MAX_CPUS \
         in scheduler/src/bpf/intf.h and build again, or boot with nr_cpus={MAX_CPUS}",
        machine.nr_cpu_ids
    );

    let mut cpus = machine.cpus.clone();
    let llcs_merged = count_llcs(&cpus) > MAX_LLCS;
    if llcs_merged {
        for cpu in &mut cpus {
            cpu.llc = cpu.node;
        }
    }
    guess_offline(&mut cpus, machine.nr_cpu_ids);
    let fastest = cpus
        .iter()
        .map(|cpu| cpu.capacity)
        .max()
        .unwrap_or(0)
        .max(1);

    let nowhere = |cpu: usize| cpu_topology {
        place: NO_PLACE,
        llc: 0,
        node: 0,
        core_first: 0,
        core_size: 0,
        sibling: cpu as u16,
        capacity: 0,
    };
    let mut tables = Tables {
        cpus: (0..machine.nr_cpu_ids).map(nowhere).collect(),
        llcs: Vec::new(),
        cpu_at_place: Vec::new(),
        core_at_rank: Vec::new(),
        frugal_core_at_rank: Vec::new(),
        llcs_merged,
    };

    for ((node, _), cores) in group(cpus) {
        let llc = tables.llcs.len();
        let first = tables.cpu_at_place.len();
        for core in cores {
            let core_first = tables.cpu_at_place.len();
            let siblings = core.iter().cycle().skip(1);
            for (cpu, sibling) in core.iter().zip(siblings) {
                tables.cpus[cpu.id] = cpu_topology {
                    place: tables.cpu_at_place.len() as u16,
                    llc: llc as u16,
                    node: node as u16,
                    core_first: core_first as u16,
                    core_size: core.len() as u16,
                    sibling: sibling.id as u16,
                    capacity: (cpu.capacity * FULL_CAPACITY / fastest).max(1) as u16,
                };
                tables.cpu_at_place.push(cpu.id as u16);
            }
        }
        let size = tables.cpu_at_place.len() - first;
        tables.llcs.push(llc_topology {
            first: first as u16,
            size: size as u16,
            node: node as u16,
            node_first: llc as u16,
            node_llcs: 1,
        });
        let padded = tables.cpu_at_place.len().next_multiple_of(CPUS_PER_LINE);
        tables.cpu_at_place.resize(padded, NO_PLACE);
    }
    count_in_nodes(&mut tables.llcs);
    tables.core_at_rank = rank_cores(&tables.cpus);
    tables.frugal_core_at_rank = rank_frugally(&tables.cpus);
    debug_assert!(tables.llcs.len() <= MAX_LLCS && tables.cpu_at_place.len() <= MAX_PLACES);
    Ok(tables)
}

/// Groups CPUs by (node, LLC), then by core, cores with the most siblings first. In this order no
/// core lies across two cache lines of a bitmap, even on hybrid machines where only some cores have
/// SMT.
fn group(cpus: Vec<Cpu>) -> BTreeMap<(usize, usize), Vec<Vec<Cpu>>> {
    let mut llcs: BTreeMap<_, BTreeMap<usize, Vec<Cpu>>> = BTreeMap::new();
    for cpu in cpus {
        llcs.entry((cpu.node, cpu.llc))
            .or_default()
            .entry(cpu.core)
            .or_default()
            .push(cpu);
    }
    llcs.into_iter()
        .map(|(key, cores)| {
            let mut cores: Vec<_> = cores.into_values().collect();
            cores.sort_by_key(|core| (usize::MAX - core.len(), core[0].id));
            (key, cores)
        })
        .collect()
}

/// Returns the first place of each core, in an order of which any first part uses the nodes evenly:
/// each node has its share within less than one core, also when nodes differ in size. Within a node
/// the order is that of places, so that the used cores share as few LLCs as possible.
///
/// A node with `n` of all `N` cores may take core `i` (from 0) after `i N / n` turns, and must take
/// it by turn `(i + 1) N / n`, rounded up. Earliest deadline first meets all these deadlines: this
/// is proportionate fair (pfair) scheduling of one processor. Order by the middle of each core's
/// turn does not meet them: several small nodes become due at once and keep a large node waiting.
fn rank_cores(cpus: &[cpu_topology]) -> Vec<u16> {
    let mut nodes: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for cpu in cpus.iter().filter(|cpu| cpu.place == cpu.core_first) {
        nodes.entry(cpu.node).or_default().push(cpu.place);
    }
    for cores in nodes.values_mut() {
        cores.sort_unstable();
    }
    let all: usize = nodes.values().map(Vec::len).sum();
    // How many of its cores each node has given so far.
    let mut given: Vec<_> = nodes.into_values().map(|cores| (0, cores)).collect();
    let mut ranked = Vec::with_capacity(all);
    for turn in 1..=all {
        let next = given
            .iter_mut()
            .filter(|(taken, cores)| *taken * all < turn * cores.len())
            .min_by_key(|(taken, cores)| ((*taken + 1) * all).div_ceil(cores.len()));
        if let Some((taken, cores)) = next {
            ranked.push(cores[*taken]);
            *taken += 1;
        }
    }
    ranked
}

/// Returns the first place of each core, in the order in which a machine that saves power uses them:
/// the slowest first, which are the efficient ones of a hybrid machine, and LLC by LLC. Cores of
/// nearly the same speed count as equal, or one favoured core would split an LLC.
fn rank_frugally(cpus: &[cpu_topology]) -> Vec<u16> {
    let first = cpus.iter().filter(|cpu| cpu.place == cpu.core_first);
    let mut cores: Vec<_> = first
        .map(|cpu| (u32::from(cpu.capacity) >= FAST_CAPACITY, cpu.place))
        .collect();
    cores.sort_unstable();
    cores.into_iter().map(|(_, place)| place).collect()
}

/// Tells each LLC which LLCs are in its node; they are its neighbours in the table.
fn count_in_nodes(llcs: &mut [llc_topology]) {
    let mut first = 0;
    for node in llcs.chunk_by_mut(|a, b| a.node == b.node) {
        let count = node.len();
        for llc in node {
            (llc.node_first, llc.node_llcs) = (first as u16, count as u16);
        }
        first += count;
    }
}

/// Returns how many LLCs these CPUs are in.
fn count_llcs(cpus: &[Cpu]) -> usize {
    let mut llcs: Vec<_> = cpus.iter().map(|cpu| (cpu.node, cpu.llc)).collect();
    llcs.sort_unstable();
    llcs.dedup();
    llcs.len()
}

/// Adds the CPUs that are possible but not online. Each is guessed to be at the first of these
/// positions that exists:
///
/// 1. beside a sibling, if the online siblings show how siblings are numbered and the core of the
///    CPU at that distance has room;
/// 2. in the LLC of the next lower or higher online CPU, if that LLC is smaller than the largest
///    one or holds both;
/// 3. in an additional LLC. A thief searches an LLC as a whole, so the one real LLC of a cloud
///    machine with 4 CPUs and room for 240 more must not grow sixtyfold.
fn guess_offline(cpus: &mut Vec<Cpu>, nr_cpu_ids: usize) {
    let mut at: BTreeMap<usize, Cpu> = cpus.iter().map(|cpu| (cpu.id, *cpu)).collect();
    let online = at.clone();
    let mut core_sizes: BTreeMap<usize, usize> = BTreeMap::new();
    let mut llc_sizes: BTreeMap<usize, usize> = BTreeMap::new();
    let mut first_of_core: BTreeMap<usize, usize> = BTreeMap::new();
    let mut distance = None;
    for cpu in online.values() {
        *core_sizes.entry(cpu.core).or_default() += 1;
        *llc_sizes.entry(cpu.llc).or_default() += 1;
        let first = *first_of_core.entry(cpu.core).or_insert(cpu.id);
        if distance.is_none() && first != cpu.id {
            distance = Some(cpu.id - first);
        }
    }
    let full_core = core_sizes.values().copied().max().unwrap_or(1);
    let full_llc = llc_sizes.values().copied().max().unwrap_or(1);
    let mut next_core = core_sizes.keys().max().map_or(0, |core| core + 1);
    let mut nowhere = Vec::new();

    for id in (0..nr_cpu_ids).filter(|id| !online.contains_key(id)) {
        let sibling = distance.and_then(|distance| {
            [id.checked_sub(distance), id.checked_add(distance)]
                .into_iter()
                .flatten()
                .filter_map(|id| online.get(&id))
                .find(|cpu| core_sizes[&cpu.core] < full_core)
        });
        let lower = online.range(..id).next_back().map(|(_, cpu)| cpu);
        let upper = online.range(id..).next().map(|(_, cpu)| cpu);
        let within = lower
            .zip(upper)
            .is_some_and(|(lower, upper)| lower.llc == upper.llc);
        let neighbour = [lower, upper]
            .into_iter()
            .flatten()
            .find(|cpu| within || llc_sizes[&cpu.llc] < full_llc);

        let guess = match (sibling, neighbour) {
            (Some(cpu), _) => Cpu { id, ..*cpu },
            (None, Some(cpu)) => {
                next_core += 1;
                Cpu {
                    id,
                    core: next_core - 1,
                    ..*cpu
                }
            }
            (None, None) => {
                nowhere.push((id, lower.or(upper).copied()));
                continue;
            }
        };
        *core_sizes.entry(guess.core).or_default() += 1;
        *llc_sizes.entry(guess.llc).or_default() += 1;
        at.insert(id, guess);
    }

    let mut room = MAX_LLCS.saturating_sub(count_llcs(cpus));
    let full = full_llc.max(nowhere.len().div_ceil(room.max(1)));
    let mut next_llc = llc_sizes.keys().max().map_or(0, |llc| llc + 1);
    let mut filling: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (index, (id, like)) in nowhere.into_iter().enumerate() {
        let Some(like) = like else { continue };
        let (llc, size) = filling.entry(like.node).or_insert((like.llc, full));
        if *size >= full && room > 0 {
            (*llc, *size) = (next_llc, 0);
            next_llc += 1;
            room -= 1;
        }
        *size += 1;
        at.insert(
            id,
            Cpu {
                id,
                core: next_core + index,
                llc: *llc,
                ..like
            },
        );
    }
    *cpus = at.into_values().collect();
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
