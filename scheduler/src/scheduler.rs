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
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use libbpf_rs::{Link, OpenObject};
use log::{info, warn};
use scx_stats::prelude::*;
use scx_utils::{UserExitInfo, compat, scx_ops_attach, scx_ops_load, scx_ops_open};
use scx_utils::{uei_exited, uei_report};

use crate::bpf_intf;
use crate::bpf_intf::magpie_limits_FAST_CAPACITY;
use crate::bpf_skel::{BpfSkel, BpfSkelBuilder, OpenBpfSkel, types};
use crate::cgroups::{CgroupStatus, CgroupsStatus};
use crate::check;
use crate::cpu_set::CpuSet;
use crate::cpus::{CpuStatus, CpusStatus};
use crate::host_state::HostState;
use crate::libbpf_log;
use crate::options::Settings;
use crate::preferred::{Change, PreferredStatus};
use crate::preferred_bpf;
use crate::stats::{self, Answer, Metrics, NR_EVENTS, Request};
use crate::topology::{self, NO_PLACE, Tables};
use crate::virtual_machine::is_virtual_machine;

/// How soon a request, also one to stop, or the kernel's decision to, is seen.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Where the kernel shows cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

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
    rodata.preferred_enabled = settings.loads_preferred(is_virtual_machine(Path::new("/")));
    describe(rodata, &tables);
    if settings.places_wakeups() {
        // The kernel's own masks of idle CPUs would be written for nobody.
        skel.struct_ops.magpie_ops_mut().flags &= !*compat::SCX_OPS_KEEP_BUILTIN_IDLE;
    }
    honour_cgroups(&mut skel)?;
    let change = Change {
        set: Some(settings.preferred.clone()),
        knobs: settings.knobs.clone(),
    };
    let (Some(data), Some(bss)) = (&mut skel.maps.data_data, &mut skel.maps.bss_data) else {
        bail!("the BPF object has no variables");
    };
    let to = &mut data.preferred_settings;
    to.source = settings.steal_source.number();
    let online = preferred_bpf::online_cpus()?;
    preferred_bpf::write(&change, &online, to, &mut bss.requested_bits)
        .map_err(|error| anyhow!("--preferred {}: {error}", settings.preferred))?;

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
    rodata.steal_gate_enabled = settings.gates_steal();
    rodata.preempt_enabled = !settings.no_preempt;
    rodata.idle_map_enabled = settings.places_wakeups();
    rodata.wakeup_idle_core = !settings.no_wakeup_idle_core;
    rodata.push_enabled = settings.pushes();
    rodata.cpu_weight_enabled = !settings.no_cpu_weight;
    rodata.cpu_max_enabled = !settings.no_cpu_max;
}

/// Lets the kernel tell of cgroups as far as it can and the settings use it.
fn honour_cgroups(skel: &mut OpenBpfSkel) -> Result<()> {
    let can = |operation| compat::struct_has_field("sched_ext_ops", operation).unwrap_or(false);
    let Some(rodata) = skel.maps.rodata_data.as_mut() else {
        bail!("the BPF object has no constants");
    };
    let (weight, max) = (rodata.cpu_weight_enabled, rodata.cpu_max_enabled);
    let has_cgroups = can("cgroup_init");
    rodata.cpu_weight_enabled &= has_cgroups;
    rodata.cpu_max_enabled &= has_cgroups && can("cgroup_set_bandwidth");
    if weight && !rodata.cpu_weight_enabled {
        warn!("cpu.weight has no effect: this kernel has no CONFIG_EXT_GROUP_SCHED");
    }
    if max && !rodata.cpu_max_enabled {
        let limited = limited_cgroups(Path::new(CGROUPS));
        warn!(
            "cpu.max has no effect: this kernel does not tell sched_ext schedulers of it. Without \
             their limit are now: {}",
            match limited.len() {
                0 => "none".into(),
                _ => limited.join(", "),
            }
        );
    }
    let (weight, max) = (rodata.cpu_weight_enabled, rodata.cpu_max_enabled);
    let nr_cpus = rodata.nr_cpus;
    if weight {
        skel.maps.cgroup_rows.set_max_entries(nr_cpus)?;
    }
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

/// The cgroups below `folder`, by path, that have a limit. One that goes meanwhile has none.
fn limited_cgroups(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let limit = fs::read_to_string(path.join("cpu.max")).unwrap_or_default();
        if !limit.is_empty() && !limit.starts_with("max") {
            found.push(path.display().to_string());
        }
        found.extend(limited_cgroups(&path));
    }
    found.sort();
    found
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
        to.node_first = from.node_first;
        to.node_llcs = from.node_llcs;
    }
    let mut known = tables.cpus.iter().filter(|cpu| cpu.place != NO_PLACE);
    rodata.is_hybrid = known.any(|cpu| u32::from(cpu.capacity) < magpie_limits_FAST_CAPACITY);
    rodata.has_smt = tables.cpus.iter().any(|cpu| cpu.core_size > 1);
    rodata.nr_cores = tables.core_at_rank.len() as u32;
    rodata.core_at_rank[..tables.core_at_rank.len()].copy_from_slice(&tables.core_at_rank);
    rodata.cpu_at_place.fill(NO_PLACE);
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

/// The running scheduler. Dropping it brings back the kernel's own, and
/// interrupts and workqueues to where they were.
pub struct Scheduler<'a> {
    skel: BpfSkel<'a>,
    link: Link,
    stats: StatsServer<Request, Answer>,
    host: HostState,
    /// The preferred CPUs and the online ones that the host follows now.
    followed: Option<(CpuSet, CpuSet)>,
}

impl<'a> Scheduler<'a> {
    /// Makes the loaded programs the system's scheduler.
    ///
    /// # Errors
    /// When the kernel refuses, with the reason it gave; when the statistics
    /// socket cannot be made.
    pub fn attach(mut skel: BpfSkel<'a>) -> Result<Self> {
        let host = HostState::new(Path::new("/"))?;
        // Before the kernel says that the scheduler is there, so that whoever waits for that can ask
        // it at once.
        let stats = StatsServer::new(stats::server_data())
            .launch()
            .context("serving statistics; use a system on which /var/run can be written")?;
        let link = match scx_ops_attach!(skel, magpie_ops) {
            Ok(link) => link,
            Err(error) => {
                drop(stats);
                let _ = fs::remove_file(STATS_SOCKET);
                check::Host::default().check()?;
                uei_report!(&skel, uei)?;
                return Err(error.context(
                    "the kernel did not start the scheduler (`dmesg | tail` may say more)",
                ));
            }
        };
        info!("scx_magpie is the scheduler now");
        let mut scheduler = Scheduler {
            skel,
            link,
            stats,
            host,
            followed: None,
        };
        if scheduler.has_preferred() {
            // CPUs that the user set are preferred from the start.
            scheduler.apply_settings()?;
        }
        Ok(scheduler)
    }

    /// Answers requests until `stop` is set or the kernel ends the scheduler, then
    /// takes it down.
    ///
    /// # Errors
    /// When the kernel ended it because of an error, with the kernel's reason;
    /// its debug dump is printed to standard error.
    pub fn serve(mut self, stop: &AtomicBool) -> Result<UserExitInfo> {
        let (answer, request) = self.stats.channels();
        while !stop.load(Ordering::Relaxed) && !uei_exited!(&self.skel, uei) {
            // Not by recv_timeout(): before that sleeps it yields some ten times, and on a busy
            // machine each yield lasts a slice, in which this is one more task that waits.
            match request.try_recv() {
                Ok(request) => answer
                    .send(self.answer(request))
                    .context("answering a request")?,
                Err(error) if error.is_empty() => thread::sleep(POLL_INTERVAL),
                Err(error) => return Err(error).context("waiting for requests"),
            }
            if self.has_preferred() {
                self.follow();
            }
        }

        // In this order: the next scheduler can start, and make its own socket,
        // only after the link is gone.
        let restored = self.host.restore();
        drop(self.stats);
        let _ = fs::remove_file(STATS_SOCKET);
        drop(self.link);
        let exit = uei_report!(&self.skel, uei)?;
        restored.map(|()| exit)
    }

    fn answer(&mut self, request: Request) -> Answer {
        match request {
            Request::Totals => Answer::Totals(self.metrics()),
            Request::Preferred(change) => {
                let status = self.preferred(&change);
                Answer::Preferred(status.map_err(|error| format!("{error:#}")))
            }
            Request::Cpus => Answer::Cpus(self.cpus()),
            Request::Cgroups => Answer::Cgroups(self.cgroups()),
        }
    }

    fn has_preferred(&self) -> bool {
        let rodata = self.skel.maps.rodata_data.as_ref();
        rodata.is_some_and(|rodata| rodata.preferred_enabled)
    }

    /// Changes the settings, and says what is preferred then.
    fn preferred(&mut self, change: &Change) -> Result<PreferredStatus> {
        ensure!(
            self.has_preferred(),
            "preferred CPUs are not in use: this is no virtual machine, or they are left out by \
             --no-preferred or --only. Start scx_magpie with --preferred off to be able to set them"
        );
        let online = preferred_bpf::online_cpus()?;
        if *change != Change::default() {
            let (Some(data), Some(bss)) =
                (&mut self.skel.maps.data_data, &mut self.skel.maps.bss_data)
            else {
                bail!("the BPF object has no variables");
            };
            let settings = &mut data.preferred_settings;
            preferred_bpf::write(change, &online, settings, &mut bss.requested_bits)
                .map_err(anyhow::Error::msg)?;
            self.apply_settings()?;
        }
        let (Some(data), Some(bss)) = (&self.skel.maps.data_data, &self.skel.maps.bss_data) else {
            bail!("the BPF object has no variables");
        };
        Ok(PreferredStatus {
            moved_away: self.metrics().backoff,
            ..preferred_bpf::status(bss, data, &online)
        })
    }

    fn apply_settings(&mut self) -> Result<()> {
        if let Some(bss) = &self.skel.maps.bss_data {
            preferred_bpf::apply(&self.skel.progs.apply_settings, bss)?;
        }
        self.follow();
        Ok(())
    }

    /// Lets interrupts and workqueues follow when the preferred CPUs have changed.
    /// That this fails is no reason to stop scheduling.
    fn follow(&mut self) {
        let (Ok(online), Some(bss)) = (preferred_bpf::online_cpus(), &self.skel.maps.bss_data)
        else {
            return;
        };
        let now = (preferred_bpf::preferred_cpus(bss, &online), online);
        if self.followed.as_ref() == Some(&now) {
            return;
        }
        info!("preferred CPUs: {} of {}", now.0, now.1);
        if let Err(error) = self.host.follow(&now.0, &now.1) {
            warn!("interrupts and workqueues do not follow: {error:#}");
        }
        self.followed = Some(now);
    }

    /// What the CPUs that can be used have learned.
    fn cpus(&self) -> CpusStatus {
        let Some(bss) = self.skel.maps.bss_data.as_ref() else {
            return CpusStatus::default();
        };
        // SAFETY: see metrics().
        let read = |word: &u64| unsafe { ptr::read_volatile(word) };
        let states = bss.cpu_states.iter().enumerate();
        let cpus = states
            .filter(|(_, state)| state.is_online != 0)
            .map(|(number, state)| {
                let status = CpuStatus::new(
                    read(&state.avg_idle),
                    state.steal_cost.each_ref().map(read),
                    read(&state.events[bpf_intf::magpie_event_EVENT_TURN as usize]),
                );
                (number, status)
            })
            .collect();
        CpusStatus { cpus }
    }

    /// What the cgroups get, at the last update of shares.
    fn cgroups(&self) -> CgroupsStatus {
        let Some(bss) = self.skel.maps.bss_data.as_ref() else {
            return CgroupsStatus::default();
        };
        // SAFETY: see metrics().
        let read = |word: &u64| unsafe { ptr::read_volatile(word) };
        let states = bss
            .cgroup_states
            .iter()
            .map(|state| (read(&state.id), state));
        let by_id = states
            .filter(|(id, _)| *id != 0)
            .map(|(id, state)| {
                let status = CgroupStatus {
                    // A share is what its tasks get while they are active.
                    share_percent: read(&state.share) as f64 * f64::from(state.own_activity),
                    limit_percent: 100.0 * read(&state.quota) as f64
                        / read(&state.period).max(1) as f64,
                    throttled: read(&state.throttles),
                    throttled_ns: read(&state.throttled_ns),
                };
                (id, status)
            })
            .collect();
        CgroupsStatus::new(by_id, Path::new(CGROUPS))
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
    use crate::preferred::{Knobs, governor_name, mode_name};

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
        let mut object = MaybeUninit::uninit();
        let mut skel = BpfSkelBuilder::default().open(&mut object).unwrap();
        let settings = skel.maps.data_data.as_mut().unwrap().preferred_settings;
        for default in [
            format!("milliseconds [default: {}]", settings.period_ns / 1_000_000),
            format!(
                "fewer cores are used, in 1/100 of a percent [default: {}]",
                settings.high
            ),
            format!(
                "more cores are used, in 1/100 of a percent [default: {}]",
                settings.low
            ),
            format!("takes [default: {}]", governor_name(settings.governor)),
        ] {
            assert!(help.contains(&default), "no {default:?} in {help}");
        }
        assert_eq!(mode_name(settings.mode), "auto");
    }

    #[test]
    fn preferred_cpus_are_loaded_where_they_are_of_use() {
        let loads =
            |arguments: &[&str], is_virtual| settings(arguments).loads_preferred(is_virtual);
        assert!(loads(&[], true) && !loads(&[], false));
        assert!(loads(&["--preferred=0-1"], false) && loads(&["--preferred=off"], false));
        assert!(!loads(&["--no-preferred", "--preferred=0-1"], true));
        assert!(!loads(&["--only=steal"], true) && loads(&["--only=preferred"], true));
    }

    #[test]
    fn a_change_is_written_whole_or_not_at_all() {
        let online = "0-7".parse().unwrap();
        let mut object = MaybeUninit::uninit();
        let mut skel = BpfSkelBuilder::default().open(&mut object).unwrap();
        let mut to = skel.maps.data_data.as_mut().unwrap().preferred_settings;
        let mut requested = [0; topology::MAX_CPUS / 64];
        let mut write = |set: &str, knobs: Knobs| {
            let set = Some(set.parse().unwrap());
            let change = Change { set, knobs };
            let result = preferred_bpf::write(&change, &online, &mut to, &mut requested);
            (result, to.mode, to.period_ns, requested[0])
        };
        let knobs = |period, low| Knobs {
            period,
            low,
            ..Knobs::default()
        };
        let (result, _, period, bits) = write("1-2", knobs(Some(50), None));
        assert!(result.is_ok());
        assert_eq!((period, bits), (50_000_000, 6));
        let (result, _, period, bits) = write("8-9", knobs(Some(70), None));
        assert!(result.unwrap_err().contains("online are 0-7"));
        assert_eq!((period, bits), (50_000_000, 6));
        let (result, mode, ..) = write("off", knobs(None, Some(5000)));
        assert!(result.is_err());
        assert_eq!(mode_name(mode), "set");
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
            configure(rodata, &settings(&["--only=preferred"]));
            assert!(rodata.steal_enabled && !rodata.steal_gate_enabled && rodata.preempt_enabled);
            configure(rodata, &settings(&["--no-preempt", "--slice-us=500"]));
            assert!(rodata.steal_enabled && !rodata.preempt_enabled && rodata.cpu_weight_enabled);
            configure(rodata, &settings(&["--no-cpu-weight"]));
            assert!(!rodata.cpu_weight_enabled && rodata.cpu_max_enabled);
            configure(rodata, &settings(&["--no-cpu-max"]));
            assert!(rodata.cpu_weight_enabled && !rodata.cpu_max_enabled);
            configure(rodata, &settings(&["--slice-us=500"]));
            assert_eq!(rodata.slice_ns, 500_000);
        });
    }

    #[test]
    fn cgroups_with_a_limit_are_found() {
        let root = tempfile::tempdir().unwrap();
        for (path, limit) in [
            ("a", "max 100000\n"),
            ("a/b", "20000 100000\n"),
            ("c", "150000 100000\n"),
            ("d", ""),
        ] {
            let folder = root.path().join(path);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cpu.max"), limit).unwrap();
        }
        let path = |path| root.path().join(path).display().to_string();
        assert_eq!(limited_cgroups(root.path()), [path("a/b"), path("c")]);
        assert!(limited_cgroups(&root.path().join("none")).is_empty());
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
            assert_eq!(rodata.llc_topology[1].node_llcs, 2);
            assert_eq!(rodata.cpu_at_place[..3], [0, 1, topology::NO_PLACE]);
            assert!(
                rodata.cpu_at_place[9..]
                    .iter()
                    .all(|cpu| *cpu == topology::NO_PLACE)
            );
        });
    }
}
