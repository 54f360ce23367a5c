//! Makes a loaded BPF object of the settings and of this machine.
//!
//! ```text
//! open -> switches, topology: constants -> operations the kernel knows -> load (verifier)
//! ```
//!
//! Settings and topology become constants before the load. The verifier then removes the code of
//! whatever is left out, so a mechanism that is off costs nothing.

use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::OpenObject;
use log::{info, warn};
use scx_utils::{compat, scx_ops_load, scx_ops_open};

use crate::bpf_intf::magpie_limits_FAST_CAPACITY;
use crate::bpf_skel::{BpfSkel, BpfSkelBuilder, OpenBpfSkel, types};
use crate::cgroups;
use crate::check;
use crate::frequency::Frequency;
use crate::libbpf_log;
use crate::options::Settings;
use crate::power::Level;
use crate::preferred::Change;
use crate::preferred_bpf;
use crate::privileges::Loading;
use crate::readiness;
use crate::topology::{self, NO_PLACE, Tables};
use crate::virtual_machine::is_virtual_machine;

const NO_CONSTANTS: &str = "the BPF object has no constants";
const NO_VARIABLES: &str = "the BPF object has no variables";

/// Opens the BPF object, configures it for this machine, loads it. `level`: how much power it saves
/// at the start.
///
/// # Errors
/// When the topology cannot be read, or the kernel refuses the programs; then with the end of the
/// verifier's log.
pub fn load<'a>(
    settings: &Settings,
    level: Level,
    object: &'a mut MaybeUninit<OpenObject>,
) -> Result<BpfSkel<'a>> {
    let _loading = Loading::begin()?;
    let tables = topology::lay_out(&topology::describe_host()?)?;
    announce(&tables);

    let options = None::<libbpf_rs::libbpf_sys::bpf_object_open_opts>;
    let mut skel = scx_ops_open!(BpfSkelBuilder::default(), object, magpie_ops, options)?;
    skel.struct_ops.magpie_ops_mut().exit_dump_len = settings.exit_dump_len;
    let rodata = skel.maps.rodata_data.as_mut().context(NO_CONSTANTS)?;
    configure(rodata, settings);
    rodata.steal_governs = settings.loads_preferred(is_virtual_machine(Path::new("/")));
    rodata.power_enabled = level.saves() && settings.may_save_power();
    rodata.preferred_enabled = rodata.steal_governs || rodata.power_enabled;
    let frequency = Frequency::of(Path::new("/"));
    rodata.frequency_enabled = settings.asks_for_performance(frequency.has_schedutil());
    if !settings.switches.no_frequency {
        info!("frequency: {}", frequency.note(rodata.frequency_enabled));
    }
    describe(rodata, &tables);
    if rodata.idle_map_enabled {
        // The idle map is used instead of the kernel's own masks of idle CPUs.
        skel.struct_ops.magpie_ops_mut().flags &= !*compat::SCX_OPS_KEEP_BUILTIN_IDLE;
    }
    honour_cgroups(&mut skel)?;
    size_maps(&mut skel)?;
    choose_preferred(&mut skel, settings)?;
    let data = skel.maps.bss_data.as_mut().context(NO_VARIABLES)?;
    data.power_level = level.number();

    scx_ops_load!(skel, magpie_ops, uei).map_err(|error| {
        let malformed = compat::malformed_scx_kfuncs();
        let is_verbose = settings.log.verbose;
        let why = check::explain_load_failure(&malformed, &libbpf_log::tail(), is_verbose);
        if malformed.is_empty() {
            error.context(why)
        } else {
            anyhow!(why)
        }
    })
}

/// Hands the settings to the BPF side, which keeps its own default for a slice that is not given.
fn configure(rodata: &mut types::rodata, settings: &Settings) {
    if let Some(slice_us) = settings.slice_us {
        rodata.slice_ns = slice_us * 1000;
    }
    settings.switches.configure(settings.only, rodata);
}

/// Gives the maps that have an entry for each CPU as many, where a mechanism uses them.
fn size_maps(skel: &mut OpenBpfSkel) -> Result<()> {
    let rodata = skel.maps.rodata_data.as_ref().context(NO_CONSTANTS)?;
    let nr_cpus = rodata.nr_cpus;
    let (weight, hrtick) = (rodata.cpu_weight_enabled, rodata.hrtick_enabled);
    skel.maps.patience_timers.set_max_entries(nr_cpus)?;
    if weight {
        skel.maps.cgroup_rows.set_max_entries(nr_cpus)?;
    }
    if hrtick {
        skel.maps.hrtick_timers.set_max_entries(nr_cpus)?;
    }
    Ok(())
}

/// Drops the operations for cgroups that this kernel does not know, because the load would fail,
/// and those that the settings do not use, because the kernel would call them for nothing. Warns of
/// weights and limits that have no effect.
fn honour_cgroups(skel: &mut OpenBpfSkel) -> Result<()> {
    let rodata = skel.maps.rodata_data.as_mut().context(NO_CONSTANTS)?;
    let (weight, max) = (rodata.cpu_weight_enabled, rodata.cpu_max_enabled);
    rodata.cpu_weight_enabled &= readiness::knows_cpu_weight();
    rodata.cpu_max_enabled &= readiness::knows_cpu_max();
    if weight && !rodata.cpu_weight_enabled {
        warn!("cpu.weight has no effect: this kernel has no CONFIG_EXT_GROUP_SCHED");
    }
    if max && !rodata.cpu_max_enabled {
        let limited = cgroups::find_limited(Path::new(cgroups::FOLDER));
        warn!(
            "cpu.max has no effect: this kernel does not tell sched_ext schedulers of it. The \
             limits of these cgroups do not hold: {}",
            match limited.len() {
                0 => "none".into(),
                _ => limited.join(", "),
            }
        );
    }

    let (weight, max) = (rodata.cpu_weight_enabled, rodata.cpu_max_enabled);
    let ops = skel.struct_ops.magpie_ops_mut();
    if !weight {
        ops.cgroup_set_weight = ptr::null_mut();
        ops.cgroup_set_idle = ptr::null_mut();
    }
    if !max {
        ops.cgroup_set_bandwidth = ptr::null_mut();
    }
    if !weight && !max {
        ops.cgroup_init = ptr::null_mut();
        ops.cgroup_exit = ptr::null_mut();
        ops.cgroup_move = ptr::null_mut();
    }
    Ok(())
}

/// Writes which CPUs are preferred at the start, and how their number changes.
fn choose_preferred(skel: &mut OpenBpfSkel, settings: &Settings) -> Result<()> {
    let change = Change {
        set: Some(settings.preferred.clone()),
        knobs: settings.knobs.clone(),
    };
    let (Some(data), Some(bss)) = (&mut skel.maps.data_data, &mut skel.maps.bss_data) else {
        bail!(NO_VARIABLES);
    };
    let to = &mut data.preferred_settings;
    to.source = settings.steal_source.number();
    let online = preferred_bpf::online_cpus()?;
    preferred_bpf::write(&change, &online, to, &mut bss.requested_bits)
        .map_err(|error| anyhow!("--preferred {}: {error}", settings.preferred))
}

/// Hands the topology to the BPF side. Each struct is built field by field, because bindgen
/// and libbpf-cargo generate two types of each struct of `intf.h`; one that lacks a field does not
/// compile.
fn describe(rodata: &mut types::rodata, tables: &Tables) {
    rodata.nr_cpus = tables.cpus.len() as u32;
    rodata.nr_llcs = tables.llcs.len() as u32;
    for (to, from) in rodata.cpu_topology.iter_mut().zip(&tables.cpus) {
        *to = types::cpu_topology {
            place: from.place,
            llc: from.llc,
            node: from.node,
            core_first: from.core_first,
            core_size: from.core_size,
            sibling: from.sibling,
            capacity: from.capacity,
        };
    }
    for (to, from) in rodata.llc_topology.iter_mut().zip(&tables.llcs) {
        *to = types::llc_topology {
            first: from.first,
            size: from.size,
            node: from.node,
            node_first: from.node_first,
            node_llcs: from.node_llcs,
        };
    }
    let known = tables.cpus.iter().filter(|cpu| cpu.place != NO_PLACE);
    let slowest = known.map(|cpu| u32::from(cpu.capacity)).min();
    rodata.slowest_capacity = slowest.unwrap_or(rodata.slowest_capacity);
    rodata.is_hybrid = rodata.slowest_capacity < magpie_limits_FAST_CAPACITY;
    rodata.has_smt = tables.cpus.iter().any(|cpu| cpu.core_size > 1);
    rodata.nr_cores = tables.core_at_rank.len() as u32;
    rodata.core_at_rank[..tables.core_at_rank.len()].copy_from_slice(&tables.core_at_rank);
    rodata.frugal_core_at_rank[..tables.core_at_rank.len()]
        .copy_from_slice(&tables.frugal_core_at_rank);
    rodata.cpu_at_place.fill(NO_PLACE);
    rodata.cpu_at_place[..tables.cpu_at_place.len()].copy_from_slice(&tables.cpu_at_place);
}

/// Logs the size of the machine as the scheduler sees it, and warns if LLCs had to be merged.
fn announce(tables: &Tables) {
    if tables.llcs_merged {
        warn!(
            "this machine has more than {} last-level caches: the CPUs of each NUMA node are \
             treated as if they shared one",
            topology::MAX_LLCS
        );
    }
    let sizes = tables.cpus.iter().map(|cpu| cpu.core_size);
    let mut nodes: Vec<_> = tables.llcs.iter().map(|llc| llc.node).collect();
    nodes.dedup();
    info!(
        "{} CPUs (at most {} per core), {} last-level caches, {} NUMA nodes",
        tables.cpus.len(),
        sizes.max().unwrap_or(1),
        tables.llcs.len(),
        nodes.len()
    );
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
