//! How busy each CPU was, from `/proc/stat`.
//!
//! The scheduler does not tell how busy a CPU is. The `procfs` crate would read the file, but it
//! counts the lines, and so gives an online CPU behind an offline one a wrong number.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The time of one CPU since boot, in ticks of the kernel's `USER_HZ`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// It ran tasks or interrupts.
    pub busy: u64,
    /// It was idle.
    pub idle: u64,
    /// It was ready to run, and the host did not run it.
    pub steal: u64,
}

/// The times of all online CPUs, and the tasks that want one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offline_cpu_leaves_the_numbers_of_others_alone() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8 1 1\ncpu2 1 0 0 9 0 0 0 0 0 0\n\
                    intr 5 0 0\nprocs_running 3\nprocs_blocked 1\n";
        fs::write(root.path().join("proc/stat"), text).unwrap();
        let times = CpuTimes::read(root.path());
        assert_eq!(times.runnable, 3);
        assert_eq!(times.cpus.keys().copied().collect::<Vec<_>>(), [0, 2]);
        let expected = CpuTime {
            busy: 19,
            idle: 45,
            steal: 8,
        };
        assert_eq!(times.cpus[&0], expected);
        assert_eq!(CpuTimes::read(Path::new("/none")), CpuTimes::default());
    }
}
