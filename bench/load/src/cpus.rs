//! Sets of CPUs of any size, in the notation of the kernel (`0-3,8`).
//!
//! The C library's `cpu_set_t` is not used, because it ends at CPU 1023 and large machines have
//! more.

use std::fmt;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, bail};

/// The largest CPU number accepted; distributions build their kernels for at most so many CPUs.
const CPU_LIMIT: usize = 8192;

/// A set of CPU numbers.
#[derive(Clone, Debug, Default)]
pub struct CpuSet {
    words: Vec<u64>,
}

impl CpuSet {
    /// The set of the given CPUs.
    pub fn of(cpus: impl IntoIterator<Item = usize>) -> Self {
        let mut set = Self::default();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }

    /// Parses the kernel's list notation: `0-3,8`. An empty list is an empty set.
    pub fn parse(list: &str) -> Result<Self> {
        let mut set = Self::default();
        for part in list.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                text.trim()
                    .parse::<usize>()
                    .ok()
                    .filter(|cpu| *cpu < CPU_LIMIT)
                    .with_context(|| {
                        format!("`{text}` in the CPU list `{list}` is no CPU; write it like 0-3,8")
                    })
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                bail!("the range `{part}` in the CPU list `{list}` runs backwards");
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }

    /// The CPUs that are online now.
    pub fn online() -> Result<Self> {
        Self::from_file(Path::new("/sys/devices/system/cpu/online"))
    }

    fn from_file(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text)
    }

    /// The bits, 64 CPUs a word, lowest CPU first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The set with the given bits.
    pub fn from_words(words: Vec<u64>) -> Self {
        Self { words }
    }

    /// Adds a CPU.
    pub fn insert(&mut self, cpu: usize) {
        if self.words.len() <= cpu / 64 {
            self.words.resize(cpu / 64 + 1, 0);
        }
        self.words[cpu / 64] |= 1 << (cpu % 64);
    }

    /// Is this CPU in the set?
    pub fn contains(&self, cpu: usize) -> bool {
        self.words
            .get(cpu / 64)
            .is_some_and(|word| word & (1 << (cpu % 64)) != 0)
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.words.len() * 64).filter(|cpu| self.contains(*cpu))
    }

    /// The CPUs that are in both sets.
    pub fn and(&self, other: &Self) -> Self {
        Self {
            words: self
                .words
                .iter()
                .zip(&other.words)
                .map(|(a, b)| a & b)
                .collect(),
        }
    }
}

impl PartialEq for CpuSet {
    /// Equal members make equal sets, whatever the length of the vectors behind them.
    fn eq(&self, other: &Self) -> bool {
        let longest = self.words.len().max(other.words.len());
        let word = |set: &Self, i: usize| set.words.get(i).copied().unwrap_or(0);
        (0..longest).all(|i| word(self, i) == word(other, i))
    }
}

impl std::str::FromStr for CpuSet {
    type Err = anyhow::Error;

    /// Parses a list of a command line, where an empty list is a mistake.
    fn from_str(list: &str) -> Result<Self> {
        let set = Self::parse(list)?;
        if set.is_empty() {
            bail!("the CPU list is empty; write it like 0-3,8");
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<usize> = self.iter().collect();
        for (i, run) in cpus.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// How many CPUs this program may use.
pub fn usable() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_parsed_and_printed_as_the_kernel_does() {
        let set = CpuSet::parse("0-2,5,4095\n").unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 2, 5, 4095]);
        assert_eq!(set.to_string(), "0-2,5,4095");
        assert!(CpuSet::parse("").unwrap().is_empty());
        for bad in ["x", "3-1", "1-", "9999999", "-2"] {
            assert!(CpuSet::parse(bad).is_err(), "{bad} must be refused");
        }
        assert!("".parse::<CpuSet>().is_err());
    }

    #[test]
    fn members_decide_equality() {
        let long = CpuSet::from_words(vec![2, 0, 0, 0]);
        assert_eq!(long, CpuSet::of([1]));
        assert_eq!(long.and(&CpuSet::of([1, 2])), CpuSet::of([1]));
    }

    proptest! {
        #[test]
        fn printing_and_parsing_are_inverse(cpus in prop::collection::btree_set(0_usize..5000, 0..40)) {
            let set = CpuSet::of(cpus.iter().copied());
            prop_assert_eq!(set.len(), cpus.len());
            prop_assert_eq!(CpuSet::parse(&set.to_string()).unwrap(), set);
        }
    }
}
