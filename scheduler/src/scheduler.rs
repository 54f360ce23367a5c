//! The life of the BPF scheduler: loaded, attached, served until it ends.
//!
//! [`load`] hands settings and topology to the BPF side, where they become
//! constants the verifier can build on. [`Scheduler::attach`] makes it the
//! system's scheduler; from then on the kernel keeps it exactly as long as this
//! process holds the link, so whatever happens to the process, the kernel's own
//! scheduler is back. [`Scheduler::serve`] answers statistics requests until the
//! user or the kernel ends it.

use std::fs;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use libbpf_rs::{Link, OpenObject};
use log::{info, warn};
use scx_stats::prelude::*;
use scx_utils::{UserExitInfo, compat, scx_ops_attach, scx_ops_load, scx_ops_open};
use scx_utils::{uei_exited, uei_report};

use crate::bpf_skel::{BpfSkel, BpfSkelBuilder, types};
use crate::check;
use crate::libbpf_log;
use crate::options::{Preferred, Settings};
use crate::stats::{self, Metrics, NR_EVENTS};
use crate::topology::{self, Tables};

/// How soon a request to stop, or the kernel's decision to, is seen.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Where scx_stats serves. Left behind, it would let tools wait for nobody.
const STATS_SOCKET: &str = "/var/run/scx/root/stats";

/// Opens the BPF object, configures it for this machine, loads it.
///
/// # Errors
/// When the topology cannot be read, or the kernel refuses the programs; then
/// with the end of the verifier's log.
pub fn load<'a>(
    settings: &Settings,
    object: &'a mut MaybeUninit<OpenObject>,
) -> Result<BpfSkel<'a>> {
    scx_utils::try_set_rlimit_infinity();
    let tables = topology::lay_out(&topology::describe_host()?)?;
    announce(&tables);

    let options = None::<libbpf_rs::libbpf_sys::bpf_object_open_opts>;
    let mut skel = scx_ops_open!(BpfSkelBuilder::default(), object, magpie_ops, options)?;
    skel.struct_ops.magpie_ops_mut().exit_dump_len = settings.exit_dump_len;
    let rodata = skel
        .maps
        .rodata_data
        .as_mut()
        .context("the BPF object has no constants")?;
    configure(rodata, settings);
    describe(rodata, &tables);
    if let Some(data) = skel.maps.data_data.as_mut() {
        configure_preferred(&mut data.preferred_settings, settings);
    }

    scx_ops_load!(skel, magpie_ops, uei).map_err(|error| {
        let malformed = compat::malformed_scx_kfuncs();
        let why = check::explain_load_failure(&malformed, &libbpf_log::tail(), settings.verbose);
        if malformed.is_empty() {
            error.context(why)
        } else {
            anyhow!(why)
        }
    })
}

/// Hands the settings to the BPF side; what is not set keeps its default there.
fn configure(rodata: &mut types::rodata, settings: &Settings) {
    if let Some(slice_us) = settings.slice_us {
        rodata.slice_ns = slice_us * 1000;
    }
    rodata.steal_enabled = !settings.no_steal;
    rodata.steal_gate_enabled = !settings.no_steal_gate;
    rodata.preempt_enabled = !settings.no_preempt;
    rodata.preferred_enabled = settings.preferred != Preferred::Off;
}

fn configure_preferred(to: &mut types::preferred_settings, settings: &Settings) {
    if let Some(period) = settings.period {
        to.period_ns = period * 1_000_000;
    }
    to.high = settings.high.unwrap_or(to.high);
    to.low = settings.low.unwrap_or(to.low);
}

/// Hands the topology to the BPF side. Its types have the same fields as those
/// of `intf.h`, but are others to Rust.
fn describe(rodata: &mut types::rodata, tables: &Tables) {
    rodata.nr_cpus = tables.cpus.len() as u32;
    rodata.nr_llcs = tables.llcs.len() as u32;
    rodata.nr_places = tables.cpu_at_place.len() as u32;
    for (to, from) in rodata.cpu_topology.iter_mut().zip(&tables.cpus) {
        to.place = from.place;
        to.llc = from.llc;
        to.node = from.node;
        to.core_first = from.core_first;
        to.core_size = from.core_size;
        to.capacity = from.capacity;
    }
    for (to, from) in rodata.llc_topology.iter_mut().zip(&tables.llcs) {
        to.first = from.first;
        to.size = from.size;
        to.node = from.node;
        to.next_in_node = from.next_in_node;
    }
    rodata.nr_cores = tables.core_at_rank.len() as u32;
    rodata.core_at_rank[..tables.core_at_rank.len()].copy_from_slice(&tables.core_at_rank);
    rodata.cpu_at_place.fill(topology::NO_PLACE);
    rodata.cpu_at_place[..tables.cpu_at_place.len()].copy_from_slice(&tables.cpu_at_place);
}

fn announce(tables: &Tables) {
    if tables.llcs_merged {
        warn!(
            "more than {} last-level caches: the CPUs of each NUMA node are treated as sharing one",
            topology::MAX_LLCS
        );
    }
    let siblings = tables
        .cpus
        .iter()
        .map(|cpu| cpu.core_size)
        .max()
        .unwrap_or(1);
    let mut nodes: Vec<_> = tables.llcs.iter().map(|llc| llc.node).collect();
    nodes.dedup();
    info!(
        "{} CPUs ({} per core at most), {} last-level caches, {} NUMA nodes",
        tables.cpus.len(),
        siblings,
        tables.llcs.len(),
        nodes.len()
    );
}

/// The running scheduler. Dropping it brings back the kernel's own.
pub struct Scheduler<'a> {
    skel: BpfSkel<'a>,
    link: Link,
    stats: StatsServer<(), Metrics>,
}

impl<'a> Scheduler<'a> {
    /// Makes the loaded programs the system's scheduler.
    ///
    /// # Errors
    /// When the kernel refuses, with the reason it gave; when the statistics
    /// socket cannot be made.
    pub fn attach(mut skel: BpfSkel<'a>) -> Result<Self> {
        let link = match scx_ops_attach!(skel, magpie_ops) {
            Ok(link) => link,
            Err(error) => {
                check::Host::default().check()?;
                uei_report!(&skel, uei)?;
                return Err(error.context(
                    "the kernel did not start the scheduler (`dmesg | tail` may say more)",
                ));
            }
        };
        let stats = StatsServer::new(stats::server_data())
            .launch()
            .context("serving statistics; use a system on which /var/run can be written")?;
        info!("scx_magpie is the scheduler now");
        Ok(Scheduler { skel, link, stats })
    }

    /// Answers statistics requests until `stop` is set or the kernel ends the
    /// scheduler, then takes it down.
    ///
    /// # Errors
    /// When the kernel ended it because of an error, with the kernel's reason;
    /// its debug dump is printed to standard error.
    pub fn serve(self, stop: &AtomicBool) -> Result<UserExitInfo> {
        let (answer, request) = self.stats.channels();
        while !stop.load(Ordering::Relaxed) && !uei_exited!(&self.skel, uei) {
            match request.recv_timeout(POLL_INTERVAL) {
                Ok(()) => answer
                    .send(self.metrics())
                    .context("answering a statistics request")?,
                Err(error) if error.is_timeout() => {}
                Err(error) => return Err(error).context("waiting for statistics requests"),
            }
        }

        // In this order: the next scheduler can start, and make its own socket,
        // only after the link is gone.
        drop(self.stats);
        let _ = fs::remove_file(STATS_SOCKET);
        drop(self.link);
        uei_report!(&self.skel, uei)
    }

    /// The counters of all CPUs together, since the start.
    fn metrics(&self) -> Metrics {
        let mut sums = [0u64; NR_EVENTS];
        let Some(bss) = self.skel.maps.bss_data.as_ref() else {
            return Metrics::default();
        };
        for state in &bss.cpu_states {
            for (sum, event) in sums.iter_mut().zip(&state.events) {
                // SAFETY: points into the mapped map, valid and aligned as long
                // as the skeleton. The kernel writes it at the same time, which
                // the volatile read of an aligned word tolerates.
                *sum = sum.wrapping_add(unsafe { ptr::read_volatile(event) });
            }
        }
        Metrics::from_events(&sums)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};
    use libbpf_rs::skel::{OpenSkel, SkelBuilder};

    use super::*;
    use crate::options::Options;

    /// Runs `test` on the constants as the BPF side defines them.
    fn with_constants(test: impl FnOnce(&mut types::rodata)) {
        let mut object = MaybeUninit::uninit();
        let mut skel = BpfSkelBuilder::default().open(&mut object).unwrap();
        assert!(skel.open_object().name().is_some());
        test(skel.maps.rodata_data.as_mut().unwrap());
    }

    fn settings(arguments: &[&str]) -> Settings {
        Options::parse_from(["scx_magpie"].iter().chain(arguments)).settings
    }

    #[test]
    fn help_tells_the_default_of_the_bpf_side() {
        let help = Options::command().render_long_help().to_string();
        with_constants(|rodata| {
            let slice_us = rodata.slice_ns / 1000;
            assert!(
                help.contains(&format!("in microseconds [default: {slice_us}]")),
                "{help}"
            );
        });
    }

    #[test]
    fn without_options_the_bpf_side_keeps_its_defaults() {
        with_constants(|rodata| {
            let slice_ns = rodata.slice_ns;
            configure(rodata, &settings(&[]));
            assert_eq!(rodata.slice_ns, slice_ns);
            assert!(rodata.steal_enabled && rodata.steal_gate_enabled && rodata.preempt_enabled);
        });
    }

    #[test]
    fn each_switch_clears_its_own_mechanism() {
        with_constants(|rodata| {
            configure(rodata, &settings(&["--no-steal"]));
            assert!(!rodata.steal_enabled && rodata.steal_gate_enabled && rodata.preempt_enabled);
            configure(rodata, &settings(&["--no-steal-gate"]));
            assert!(rodata.steal_enabled && !rodata.steal_gate_enabled && rodata.preempt_enabled);
            configure(rodata, &settings(&["--no-preempt", "--slice-us=500"]));
            assert!(rodata.steal_enabled && !rodata.preempt_enabled);
            assert_eq!(rodata.slice_ns, 500_000);
        });
    }

    #[test]
    fn the_topology_arrives_and_the_rest_has_no_place() {
        let machine = topology::Machine {
            cpus: (0..3)
                .map(|id| topology::Cpu {
                    id,
                    core: id,
                    llc: id / 2,
                    node: 0,
                    capacity: 1,
                })
                .collect(),
            nr_cpu_ids: 3,
        };
        with_constants(|rodata| {
            describe(rodata, &topology::lay_out(&machine).unwrap());
            assert_eq!(
                (rodata.nr_cpus, rodata.nr_llcs, rodata.nr_places),
                (3, 2, 16)
            );
            assert_eq!(rodata.cpu_topology[2].place, 8);
            assert_eq!(rodata.llc_topology[1].next_in_node, 0);
            assert_eq!(rodata.cpu_at_place[..3], [0, 1, topology::NO_PLACE]);
            assert!(
                rodata.cpu_at_place[9..]
                    .iter()
                    .all(|cpu| *cpu == topology::NO_PLACE)
            );
        });
    }
}
