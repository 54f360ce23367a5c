//! How busy each CPU was, how long tasks waited for it, and how fast it runs: from `/proc/stat`,
//! `/proc/schedstat` and cpufreq.
//!
//! The scheduler does not tell how busy a CPU is. The `procfs` crate would read the file, but it
//! counts the lines, and so gives an online CPU behind an offline one a wrong number.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The time of one CPU since boot, in ticks of the kernel's `USER_HZ`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// It ran tasks or interrupts.
    pub busy: u64,
    /// It was idle.
    pub idle: u64,
    /// It was ready to run, and the host did not run it.
    pub steal: u64,
    /// How long the tasks that ran on it had waited to run, all together, in nanoseconds.
    #[serde(default)]
    pub waited_ns: u64,
    /// Its frequency now, as a part of its highest one; none where cpufreq has no driver.
    #[serde(default)]
    pub frequency: Option<f64>,
}

/// The times of all online CPUs, and the tasks that want one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// By CPU number.
    pub cpus: BTreeMap<usize, CpuTime>,
    /// Tasks that run or wait for a CPU.
    pub runnable: u64,
}

impl CpuTimes {
    /// Reads the times below `root`, which is `/` but in tests; none where there is no such file.
    pub fn read(root: &Path) -> CpuTimes {
        let text = fs::read_to_string(root.join("proc/stat")).unwrap_or_default();
        let waits = waits(root);
        let mut times = CpuTimes::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
            let number = name
                .strip_prefix("cpu")
                .and_then(|number| number.parse().ok());
            match (number, numbers.as_slice()) {
                // The times of guests, which follow, are counted in `user` and `nice` already.
                (Some(number), [user, nice, system, idle, iowait, irq, softirq, steal, ..]) => {
                    let time = CpuTime {
                        busy: user + nice + system + irq + softirq,
                        idle: idle + iowait,
                        steal: *steal,
                        waited_ns: waits.get(&number).copied().unwrap_or(0),
                        frequency: frequency(root, number),
                    };
                    times.cpus.insert(number, time);
                }
                (None, [runnable]) if name == "procs_running" => times.runnable = *runnable,
                _ => {}
            }
        }
        times
    }
}

/// Reads how long the tasks that ran on each CPU had waited, in nanoseconds.
fn waits(root: &Path) -> BTreeMap<usize, u64> {
    /// Where the run delay stands behind the CPU's name, in every version of the file.
    const RUN_DELAY: usize = 7;
    let text = fs::read_to_string(root.join("proc/schedstat")).unwrap_or_default();
    let cpus = text.lines().filter_map(|line| line.strip_prefix("cpu"));
    cpus.filter_map(|line| {
        let mut words = line.split_whitespace();
        let number = words.next()?.parse().ok()?;
        Some((number, words.nth(RUN_DELAY)?.parse().ok()?))
    })
    .collect()
}

/// Reads the frequency of a CPU, as a part of its highest one.
fn frequency(root: &Path, cpu: usize) -> Option<f64> {
    let folder = root.join(format!("sys/devices/system/cpu/cpu{cpu}/cpufreq"));
    let read = |file: &str| -> Option<f64> {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        text.trim().parse().ok()
    };
    let highest = read("cpuinfo_max_freq").filter(|khz| *khz > 0.0)?;
    Some(read("scaling_cur_freq")? / highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offline_cpu_leaves_the_numbers_of_others_alone() {
        let root = tempfile::tempdir().unwrap();
        let cpufreq = root.path().join("sys/devices/system/cpu/cpu2/cpufreq");
        fs::create_dir_all(&cpufreq).unwrap();
        fs::write(cpufreq.join("cpuinfo_max_freq"), "4000000\n").unwrap();
        fs::write(cpufreq.join("scaling_cur_freq"), "1000000\n").unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8 1 1\ncpu2 1 0 0 9 0 0 0 0 0 0\n\
                    intr 5 0 0\nprocs_running 3\nprocs_blocked 1\n";
        fs::write(root.path().join("proc/stat"), text).unwrap();
        let text = "version 17\ntimestamp 4294\ncpu0 1 2 3 4 5 6 70 80 9\ndomain0 MC 3 0 0\n";
        fs::write(root.path().join("proc/schedstat"), text).unwrap();
        let times = CpuTimes::read(root.path());
        assert_eq!(times.runnable, 3);
        assert_eq!(times.cpus.keys().copied().collect::<Vec<_>>(), [0, 2]);
        let expected = CpuTime {
            busy: 19,
            idle: 45,
            steal: 8,
            waited_ns: 80,
            frequency: None,
        };
        assert_eq!(times.cpus[&0], expected);
        assert_eq!(times.cpus[&2].frequency, Some(0.25));
        assert_eq!(CpuTimes::read(Path::new("/none")), CpuTimes::default());
    }
}
