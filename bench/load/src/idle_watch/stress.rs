//! The loads that run while idle-watch records: each a process of its own, ended with it.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::unistd::{Pid, setpgid};

use super::event::{affinity_marker, hotplug_marker};
use crate::churn::{self, Kind};
use crate::cpus::CpuSet;
use crate::sys::{self, Child};

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stress {
    /// hackbench -g 1 -l 100, again and again
    Hackbench,
    /// Random affinity, nice and policy changes
    Affinity,
    /// CPUs go offline and come back, one after the other
    Hotplug,
    /// Bursts of tasks that end at once
    Forks,
    /// One CPU hog less than there are CPUs, so that one CPU is idle
    Hogs,
}

/// Restores the CPUs that were online when it was made. Keep it until the stress has ended.
pub struct OnlineGuard(CpuSet);

impl OnlineGuard {
    /// Remembers which CPUs are online.
    pub fn new() -> Result<Self> {
        Ok(Self(CpuSet::online()?))
    }
}

impl Drop for OnlineGuard {
    fn drop(&mut self) {
        let Ok(online) = CpuSet::online() else { return };
        for cpu in self.0.iter().filter(|cpu| !online.contains(*cpu)) {
            if let Err(error) = set_online(cpu, true) {
                eprintln!("magpie-load: {error:#}");
            }
        }
    }
}

/// Checks that a load can run here, before anything is started.
pub fn check(stress: Stress) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if stress == Stress::Hackbench
        && !std::env::split_paths(&path).any(|folder| folder.join("hackbench").is_file())
    {
        bail!(
            "hackbench is not in PATH: install the Debian package rt-tests, or leave it out of \
             --with"
        );
    }
    if stress == Stress::Hotplug
        && CpuSet::online()?
            .iter()
            .all(|cpu| !online_file(cpu).is_file())
    {
        bail!("no CPU can go offline here: leave hotplug out of --with");
    }
    Ok(())
}

/// Starts a load that runs until `until` or until the returned process is dropped, which ends what
/// the load has started, too.
pub fn start(stress: Stress, until: Instant, seed: u64, marker: &File) -> Result<Child> {
    Child::fork(|| {
        let mut mark = |text: String| {
            // Ignore errors: a write fails while nothing is recorded, and then no mark is needed.
            let _ = (&*marker).write_all(text.as_bytes());
        };
        let pause = Duration::from_millis(2);
        match stress {
            Stress::Hackbench => hackbench(until),
            Stress::Affinity => {
                let kinds = [Kind::Affinity, Kind::Affinity, Kind::Nice, Kind::Policy];
                let tasks = CpuSet::online()?.len() as u32;
                churn::churn(tasks, &kinds, seed, pause, until, &mut |pid, cpus, done| {
                    mark(affinity_marker(pid, cpus, done));
                })
                .map(|_| ())
            }
            Stress::Forks => {
                churn::churn(2, &[Kind::Forks], seed, pause, until, &mut |_, _, _| {}).map(|_| ())
            }
            Stress::Hotplug => hotplug(until, seed, &mut mark),
            Stress::Hogs => {
                let count = CpuSet::online()?.len().max(2) - 1;
                let hogs: Vec<Child> = (0..count)
                    .map(|_| Child::fork(|| sys::burn_forever()))
                    .collect::<Result<_>>()?;
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                drop(hogs);
                Ok(())
            }
        }
    })
}

/// Runs hackbench again and again, in a process group, because its processes do not end with it. If
/// this process is killed from outside, they send and receive their hundred messages first.
fn hackbench(until: Instant) -> Result<()> {
    setpgid(Pid::from_raw(0), Pid::from_raw(0)).context("make a process group")?;
    while Instant::now() < until {
        let status = Command::new("hackbench")
            .args(["-g", "1", "-l", "100"])
            .stdout(Stdio::null())
            .status()
            .context("run hackbench")?;
        if !status.success() {
            bail!("hackbench ended with {status}");
        }
    }
    Ok(())
}

/// Takes random CPUs offline and online again, and marks both in the trace.
fn hotplug(until: Instant, seed: u64, mark: &mut dyn FnMut(String)) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let cpus: Vec<usize> = CpuSet::online()?
        .iter()
        .filter(|cpu| online_file(*cpu).is_file())
        .collect();
    while Instant::now() < until {
        let cpu = cpus[random.usize(..cpus.len())];
        // Mark the change before and after. A recording that begins in between finds the CPU
        // online, and would take it for an idle one.
        mark(hotplug_marker(cpu, false));
        set_online(cpu, false)?;
        mark(hotplug_marker(cpu, false));
        std::thread::sleep(Duration::from_millis(random.u64(20..200)));
        set_online(cpu, true)?;
        mark(hotplug_marker(cpu, true));
        std::thread::sleep(Duration::from_millis(random.u64(20..300)));
    }
    Ok(())
}

fn online_file(cpu: usize) -> std::path::PathBuf {
    format!("/sys/devices/system/cpu/cpu{cpu}/online").into()
}

fn set_online(cpu: usize, online: bool) -> Result<()> {
    let path = online_file(cpu);
    std::fs::write(&path, if online { "1" } else { "0" }).with_context(|| {
        format!(
            "take CPU {cpu} {} by {}",
            if online { "online" } else { "offline" },
            path.display()
        )
    })
}
