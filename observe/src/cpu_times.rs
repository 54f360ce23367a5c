//! How busy each CPU was, how long tasks waited for it, and how fast it runs: from `/proc/stat`,
//! `/proc/schedstat` and cpufreq.
//!
//! The scheduler does not tell how busy a CPU is. The `procfs` crate would read the file, but it
//! counts the lines, and so gives an online CPU behind an offline one a wrong number.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

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

/// The files of the times. They stay open, and are read anew from their beginning.
pub struct CpuFiles {
    root: PathBuf,
    stat: Kept,
    schedstat: Kept,
    /// By CPU number: the highest frequency and the file of the one now; none where cpufreq has no
    /// driver, so that its folder is looked for once.
    frequencies: BTreeMap<usize, Option<(f64, Kept)>>,
}

impl CpuFiles {
    /// The files below `root`, which is `/` but in tests.
    pub fn new(root: &Path) -> CpuFiles {
        CpuFiles {
            root: root.into(),
            stat: Kept::new(root.join("proc/stat")),
            schedstat: Kept::new(root.join("proc/schedstat")),
            frequencies: BTreeMap::new(),
        }
    }

    /// Reads the times; none where there is no such file.
    pub fn read(&mut self) -> CpuTimes {
        let waits = waits(self.schedstat.read());
        let mut times = CpuTimes::default();
        for line in self.stat.read().lines() {
            let (name, numbers) = line.split_once(' ').unwrap_or((line, ""));
            let number = name
                .strip_prefix("cpu")
                .and_then(|number| number.parse().ok());
            if let Some(number) = number {
                times.cpus.extend(cpu_time(numbers).map(|time| {
                    let waited_ns = waits.get(&number).copied().unwrap_or(0);
                    (number, CpuTime { waited_ns, ..time })
                }));
            } else if name == "procs_running" {
                times.runnable = numbers.trim().parse().unwrap_or(0);
            }
        }
        for (number, time) in &mut times.cpus {
            time.frequency = self.frequency(*number);
        }
        times
    }

    /// Reads the frequency of a CPU, as a part of its highest one.
    fn frequency(&mut self, cpu: usize) -> Option<f64> {
        let file = self.frequencies.entry(cpu).or_insert_with(|| {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq");
            let folder = self.root.join(folder);
            let highest = fs::read_to_string(folder.join("cpuinfo_max_freq")).ok()?;
            let highest = highest.trim().parse().ok().filter(|khz| *khz > 0.0)?;
            Some((highest, Kept::new(folder.join("scaling_cur_freq"))))
        });
        let (highest, now) = file.as_mut()?;
        let now: f64 = now.read().trim().parse().ok()?;
        Some(now / *highest)
    }
}

/// Returns the times in a CPU's line of `/proc/stat`, behind its name.
fn cpu_time(numbers: &str) -> Option<CpuTime> {
    let mut numbers = numbers.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    // The times of guests, which follow, are counted in `user` and `nice` already.
    let [user, nice, system, idle] = [next()?, next()?, next()?, next()?];
    let [iowait, irq, softirq, steal] = [next()?, next()?, next()?, next()?];
    Some(CpuTime {
        busy: user + nice + system + irq + softirq,
        idle: idle + iowait,
        steal,
        ..CpuTime::default()
    })
}

/// Returns how long the tasks that ran on each CPU had waited, in nanoseconds.
fn waits(schedstat: &str) -> BTreeMap<usize, u64> {
    /// Where the run delay stands behind the CPU's name, in every version of the file.
    const RUN_DELAY: usize = 7;
    let cpus = schedstat
        .lines()
        .filter_map(|line| line.strip_prefix("cpu"));
    cpus.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        Some((number, words.nth(RUN_DELAY)?.parse().ok()?))
    })
    .collect()
}

/// A file that stays open.
struct Kept {
    path: PathBuf,
    file: Option<File>,
    text: Vec<u8>,
}

impl Kept {
    fn new(path: PathBuf) -> Kept {
        Kept {
            path,
            file: None,
            text: Vec::new(),
        }
    }

    /// Reads the file as it is now; no text where that is not possible.
    fn read(&mut self) -> &str {
        self.text.clear();
        let read = match &mut self.file {
            Some(file) => file.rewind(),
            closed => File::open(&self.path).map(|file| {
                *closed = Some(file);
            }),
        };
        let file = self.file.as_mut().filter(|_| read.is_ok());
        if file.is_none_or(|file| file.read_to_end(&mut self.text).is_err()) {
            self.file = None;
            self.text.clear();
        }
        str::from_utf8(&self.text).unwrap_or_default()
    }
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
        let mut files = CpuFiles::new(root.path());
        let times = files.read();
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
        fs::write(root.path().join("proc/stat"), "cpu0 1 2 3 40 5 6 7 9\n").unwrap();
        assert_eq!(files.read().cpus[&0].steal, 9, "a file that stays open");
        assert_eq!(
            CpuFiles::new(Path::new("/none")).read(),
            CpuTimes::default()
        );
    }
}
