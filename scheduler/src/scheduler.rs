//! The running scheduler: attached, served until it ends, taken down.
//!
//! [`Scheduler::attach`] makes the loaded BPF object the system's scheduler. The kernel keeps it
//! for exactly as long as this process holds the link, so whatever happens to the process, the
//! kernel's own scheduler is back. [`Scheduler::serve`] answers requests for statistics until the
//! user or the kernel ends the scheduler.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use libbpf_rs::Link;
use log::{info, warn};
use scx_stats::prelude::*;
use scx_utils::{scx_ops_attach, uei_exited, uei_report};

use crate::bpf_skel::{BpfSkel, types};
use crate::check;
use crate::cpu_set::CpuSet;
use crate::host_state::HostState;
use crate::kernel_mask::KernelMask;
use crate::power::{Level, PowerSource};
use crate::preferred::{Change, PreferredStatus};
use crate::preferred_bpf;
use crate::privileges::Loading;
use crate::readings;
use crate::service::Watchdog;
use crate::stats::{self, Answer, Request};

/// How soon a request, a wish to stop, or the kernel's decision to stop is seen.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How soon a change of the power profile is seen. Not sooner, because drivers interrupt each CPU to
/// read its energy-performance preference.
const POWER_INTERVAL: Duration = Duration::from_secs(10);

/// Where scx_stats serves. The socket is removed at the end: tools would connect to one left
/// behind, and wait.
const STATS_SOCKET: &str = "/var/run/scx/root/stats";

const NO_CONSTANTS: &str = "the BPF object has no constants";
const NO_VARIABLES: &str = "the BPF object has no variables";

/// The system's scheduler. Dropping it brings back the kernel's own scheduler, and puts interrupts
/// and workqueues back to where they were.
pub struct Scheduler<'a> {
    skel: BpfSkel<'a>,
    link: Link,
    stats: StatsServer<Request, Answer>,
    host: HostState,
    kernel: KernelMask,
    power: PowerSource,
    /// The level of power, and why, when it was last read.
    level: (Level, String),
    /// When the level of power is read next.
    power_due: Instant,
    /// When the kernel's mask is read next.
    kernel_due: Instant,
    /// The preferred CPUs and the online CPUs that the host's interrupts follow now.
    followed: Option<(CpuSet, CpuSet)>,
}

impl<'a> Scheduler<'a> {
    /// Makes the loaded programs the system's scheduler.
    ///
    /// # Errors
    /// When the kernel refuses, with the reason it gave; when the statistics socket cannot be made.
    pub fn attach(
        mut skel: BpfSkel<'a>,
        power: PowerSource,
        level: (Level, String),
    ) -> Result<Self> {
        let host = HostState::new(Path::new("/"))?;
        let rodata = skel.maps.rodata_data.as_ref().context(NO_CONSTANTS)?;
        let has_preferred = rodata.preferred_enabled;
        let mut kernel = KernelMask::new(preferred_bpf::cores(rodata));
        if has_preferred {
            // CPUs that the user or the kernel chose are preferred from the start. The own governor
            // begins while the kernel still attaches, and a busy host needs a period for that.
            follow_kernel_mask(&mut skel, &mut kernel)?;
        }
        // The server starts before the kernel shows the scheduler, so that a client that waits for
        // the scheduler can ask it at once.
        let stats = StatsServer::new(stats::server_data())
            .launch()
            .context("serving statistics; run as root, where /var/run can be written")?;
        let loading = Loading::begin()?;
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
        drop(loading);
        info!("scx_magpie is the scheduler now");
        let mut scheduler = Scheduler {
            skel,
            link,
            stats,
            host,
            kernel,
            power,
            level,
            power_due: Instant::now() + POWER_INTERVAL,
            kernel_due: Instant::now(),
            followed: None,
        };
        if has_preferred {
            scheduler.apply_settings()?;
        }
        Ok(scheduler)
    }

    /// Answers requests until `stop` is set or the kernel ends the scheduler, then takes it down.
    /// Returns whether it is to be started again.
    ///
    /// # Errors
    /// When the kernel ended the scheduler because of an error, with the kernel's reason; its debug
    /// dump is printed to standard error.
    pub fn serve(mut self, stop: &AtomicBool, may_save: bool) -> Result<bool> {
        let mut watchdog = Watchdog::ready();
        let (answer, request) = self.stats.channels();
        let mut needs_power = false;
        while !stop.load(Ordering::Relaxed) && !uei_exited!(&self.skel, uei) {
            watchdog.feed();
            // recv_timeout() would yield some ten times before it sleeps. On a busy machine each
            // yield lasts a slice, in which this thread is one more waiting task.
            match request.try_recv() {
                Ok(request) => answer
                    .send(self.answer(request)?)
                    .context("answering a request")?,
                Err(error) if error.is_empty() => thread::sleep(POLL_INTERVAL),
                Err(error) => return Err(error).context("waiting for requests"),
            }
            if may_save && self.follow_power()? {
                needs_power = true;
                break;
            }
            if self.has_preferred() {
                match self.read_kernel_mask()? {
                    true => self.apply_settings()?,
                    false => self.follow()?,
                }
            }
        }

        // The socket goes before the link: the next scheduler can start, and make its own socket,
        // only after the link is gone.
        let restored = self.host.restore();
        drop(self.stats);
        let _ = fs::remove_file(STATS_SOCKET);
        drop(self.link);
        let exit = uei_report!(&self.skel, uei)?;
        if exit.should_restart() {
            info!("the kernel asks for a restart, as after CPU hotplug");
        }
        restored.map(|()| exit.should_restart() || needs_power)
    }

    /// Answers a request from the BPF side's memory. A change that is refused is an answer, too.
    ///
    /// # Errors
    /// When that memory is not mapped.
    fn answer(&mut self, request: Request) -> Result<Answer> {
        Ok(match request {
            Request::Totals => Answer::Totals(readings::metrics(self.bss()?)),
            Request::Preferred(change) => {
                let status = self.preferred(&change);
                Answer::Preferred(status.map_err(|error| format!("{error:#}")))
            }
            Request::Cpus => Answer::Cpus(readings::cpus(self.bss()?)),
            Request::Cgroups => Answer::Cgroups(readings::cgroups(self.bss()?)),
        })
    }

    /// Returns the variables of the BPF object that start as zero: counters, measurements, status.
    fn bss(&self) -> Result<&types::bss> {
        let bss = self.skel.maps.bss_data.as_deref();
        bss.context(NO_VARIABLES)
    }

    /// Now and then, reads how much power is to be saved. Returns whether that needs a start anew,
    /// because nothing that saves power is loaded: where none is to be saved, it shall cost nothing.
    fn follow_power(&mut self) -> Result<bool> {
        if Instant::now() < self.power_due {
            return Ok(false);
        }
        self.power_due = Instant::now() + POWER_INTERVAL;
        self.level = self.power.level();
        let (level, why) = &self.level;
        let rodata = self.skel.maps.rodata_data.as_ref();
        if !rodata.context(NO_CONSTANTS)?.power_enabled {
            if level.saves() {
                info!("power: {}, {why}; starting anew for it", level.name());
            }
            return Ok(level.saves());
        }
        let bss = self.skel.maps.bss_data.as_mut().context(NO_VARIABLES)?;
        if bss.power_level != level.number() {
            bss.power_level = level.number();
            info!("power: {}, {why}", level.name());
        }
        Ok(false)
    }

    /// Returns whether preferred CPUs are loaded.
    fn has_preferred(&self) -> bool {
        let rodata = self.skel.maps.rodata_data.as_ref();
        rodata.is_some_and(|rodata| rodata.preferred_enabled)
    }

    /// Changes the settings, unless the change is empty, and returns what is preferred then.
    fn preferred(&mut self, change: &Change) -> Result<PreferredStatus> {
        ensure!(
            self.has_preferred(),
            "preferred CPUs are not in use: this is no virtual machine and no power is saved, or \
             --no-preferred or --only left them out. Start scx_magpie with --preferred off to be able \
             to set them"
        );
        let online = preferred_bpf::online_cpus()?;
        if *change != Change::default() {
            let maps = &mut self.skel.maps;
            let data = maps.data_data.as_mut().context(NO_VARIABLES)?;
            let bss = maps.bss_data.as_mut().context(NO_VARIABLES)?;
            let settings = &mut data.preferred_settings;
            preferred_bpf::write(change, &online, settings, &mut bss.requested_bits)
                .map_err(|reason| anyhow!(reason))?;
            self.kernel_due = Instant::now();
            self.read_kernel_mask()?;
            self.apply_settings()?;
        }
        let data = self.skel.maps.data_data.as_ref().context(NO_VARIABLES)?;
        let rodata = self.skel.maps.rodata_data.as_ref().context(NO_CONSTANTS)?;
        let power = match rodata.power_enabled {
            true => self.level.clone(),
            false => (
                Level::Performance,
                "because nothing that saves power is loaded".into(),
            ),
        };
        let status = preferred_bpf::status(self.bss()?, data, &online, &self.kernel, power);
        Ok(PreferredStatus {
            moved_away: readings::metrics(self.bss()?).backoff,
            source: match rodata.steal_governs {
                true => status.source,
                false => "no host".into(),
            },
            ..status
        })
    }

    /// Once a period, lets the kernel's mask decide, see [`follow_kernel_mask`].
    fn read_kernel_mask(&mut self) -> Result<bool> {
        if Instant::now() < self.kernel_due {
            return Ok(false);
        }
        let data = self.skel.maps.data_data.as_ref().context(NO_VARIABLES)?;
        let period = Duration::from_nanos(data.preferred_settings.period_ns);
        self.kernel_due = Instant::now() + period;
        follow_kernel_mask(&mut self.skel, &mut self.kernel)
    }

    /// Makes the BPF side act on changed settings, and the host follow.
    fn apply_settings(&mut self) -> Result<()> {
        preferred_bpf::apply(&self.skel.progs.apply_settings, self.bss()?)?;
        self.follow()
    }

    /// Lets interrupts and workqueues follow when the preferred CPUs have changed. If they cannot
    /// follow, tasks still do: that is a warning, not an error.
    fn follow(&mut self) -> Result<()> {
        let Ok(online) = preferred_bpf::online_cpus() else {
            return Ok(());
        };
        // The number of cores that save power changes every few seconds: too often for interrupts.
        let preferred = match preferred_bpf::saves_power(self.bss()?) {
            true => online.clone(),
            false => preferred_bpf::preferred_cpus(self.bss()?, &online),
        };
        let now = (preferred, online);
        if self.followed.as_ref() == Some(&now) {
            return Ok(());
        }
        info!("preferred CPUs: {} of {}", now.0, now.1);
        if let Err(error) = self.host.follow(&now.0, &now.1) {
            warn!("interrupts and workqueues do not follow: {error:#}");
        }
        self.followed = Some(now);
        Ok(())
    }
}

/// Lets the kernel's mask decide if there is one, and otherwise the governor. Returns whether that
/// changes the settings. Leaves alone what the user has chosen.
fn follow_kernel_mask(skel: &mut BpfSkel, kernel: &mut KernelMask) -> Result<bool> {
    let data = skel.maps.data_data.as_mut().context(NO_VARIABLES)?;
    let bss = skel.maps.bss_data.as_mut().context(NO_VARIABLES)?;
    let settings = &mut data.preferred_settings;
    if !preferred_bpf::is_auto(settings) {
        return Ok(false);
    }
    let Ok(online) = preferred_bpf::online_cpus() else {
        return Ok(false);
    };
    let before = settings.mode;
    let cpus = kernel.read(&online);
    let is_changed = preferred_bpf::follow_kernel(cpus, settings, &mut bss.requested_bits);
    match (settings.mode == before, cpus) {
        (true, _) => {}
        (false, Some(_)) => info!(
            "the kernel's steal_governor decides which CPUs are preferred; the own governor rests"
        ),
        (false, None) => info!("the own governor decides which CPUs are preferred"),
    }
    Ok(is_changed)
}
