//! Checks on the running kernel that idle-watch finds stranded tasks.
//!
//! Two CPUs become an isolated cpuset partition, inside which the kernel does not balance. Four
//! hogs are put on the first CPU, then allowed on both. Nothing migrates them, so three are always
//! queued beside the idle second CPU: they are stranded, and must be found. (Each of only two hogs
//! would wait for one tick at a time, which is allowed.) Then two hogs are put on a CPU each: none
//! is stranded, and none may be found.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::finding::Stretch;
use super::trace::Recorder;
use super::{Args, analysis, record, running_scheduler};
use crate::Finding;
use crate::cpus::CpuSet;
use crate::sys::{self, Child};

const CGROUPS: &str = "/sys/fs/cgroup";
const KIB_PER_CPU: usize = 4096;

/// Plants stranded tasks, watches, and compares what was found with what was planted.
pub fn run(args: &Args) -> Result<Finding> {
    let scheduler = running_scheduler();
    if scheduler != "eevdf" {
        bail!(
            "the self-test needs the kernel's own scheduler, {scheduler} is loaded: stop it first"
        );
    }
    let online: Vec<usize> = CpuSet::online()?.iter().collect();
    let [.., _, first, second] = online[..] else {
        bail!("the self-test needs 3 CPUs: two to isolate, and one for everything else");
    };
    // Dropped in reverse: the hogs leave the cpuset before it is removed.
    let partition = Partition::new(&CpuSet::of([first, second]))?;
    let mut hogs = (0..4)
        .map(|_| Child::fork(|| sys::burn_forever()))
        .collect::<Result<Vec<_>>>()?;
    // Wake the second CPU now and then: an idle CPU without any event could as well be busy.
    let visitor = Child::fork(|| {
        loop {
            std::thread::sleep(Duration::from_millis(50));
        }
    })?;
    for child in hogs.iter().chain([&visitor]) {
        partition.add(child.pid())?;
    }
    sys::set_affinity(visitor.pid(), &CpuSet::of([second]))?;
    let look = |hogs: &[Child], places: &[usize]| -> Result<Vec<Stretch>> {
        for (hog, &cpu) in hogs.iter().zip(places) {
            sys::set_affinity(hog.pid(), &CpuSet::of([cpu]))?;
        }
        // Give the hogs time to migrate and to be queued there before the restriction is lifted.
        std::thread::sleep(Duration::from_millis(200));
        for hog in hogs {
            sys::set_affinity(hog.pid(), &CpuSet::of([first, second]))?;
        }
        let recorder = Recorder::new(KIB_PER_CPU)?;
        let (setting, trace) =
            record(&recorder, KIB_PER_CPU, args, Duration::from_secs(1), |_| {})?;
        let mut found = analysis::analyse(&setting, &trace.records).violations;
        found.retain(|stretch| hogs.iter().any(|hog| hog.pid() == stretch.pid));
        Ok(found)
    };
    let planted = look(&hogs, &[first; 4])?;
    hogs.truncate(2);
    let control = look(&hogs, &[first, second])?;
    let longest = planted.iter().map(Stretch::own_ns).max().unwrap_or(0) as f64 / 1e6;
    let right_cpu = planted
        .iter()
        .all(|stretch| stretch.cpu == first && stretch.idle_cpu == second);
    let holds = !planted.is_empty() && right_cpu && control.is_empty();
    let text = format!(
        "self-test {}: planted: {} found, longest {longest:.3} ms, {} CPUs; control: {} found (0 \
         expected)",
        if holds { "passed" } else { "FAILED" },
        planted.len(),
        if right_cpu { "right" } else { "wrong" },
        control.len()
    );
    let json = json!({
        "passed": holds, "planted": planted, "longest_ms": longest, "control": control,
    });
    Ok(Finding { text, json, holds })
}

/// An isolated cpuset partition of its own; removed when dropped.
struct Partition(PathBuf);

impl Partition {
    fn new(cpus: &CpuSet) -> Result<Self> {
        let root = PathBuf::from(CGROUPS);
        let write = |path: PathBuf, text: &str| {
            fs::write(&path, text).with_context(|| format!("write `{text}` to {}", path.display()))
        };
        write(root.join("cgroup.subtree_control"), "+cpuset").context(
            "the self-test needs cgroup v2 with the cpuset controller at /sys/fs/cgroup, and root",
        )?;
        let partition = Self(root.join(format!("magpie-selftest-{}", std::process::id())));
        fs::create_dir(&partition.0).with_context(|| format!("make {}", partition.0.display()))?;
        write(partition.0.join("cpuset.cpus"), &cpus.to_string())?;
        write(partition.0.join("cpuset.cpus.partition"), "isolated")?;
        let state = fs::read_to_string(partition.0.join("cpuset.cpus.partition"))
            .context("read the partition's state")?;
        if state.trim() != "isolated" {
            bail!("the kernel did not isolate CPUs {cpus}: {}", state.trim());
        }
        Ok(partition)
    }

    /// Moves a process into the partition.
    fn add(&self, pid: i32) -> Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())
            .with_context(|| format!("move process {pid} to {}", self.0.display()))
    }
}

impl Drop for Partition {
    /// Tries for a second, because the kernel keeps a cgroup until a killed child has ended.
    fn drop(&mut self) {
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!(
            "magpie-load: could not remove {}: remove it with rmdir",
            self.0.display()
        );
    }
}
