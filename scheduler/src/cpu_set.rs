//! Sets of CPUs in the kernel's notations: lists such as `0-3,8` and masks such as `ff,ffffffff`.
//!
//! `scx_utils::Cpumask` would not do: it is as wide as the machine it runs on, and the tests move
//! interrupts of machines that are made of files.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::topology::MAX_CPUS;

/// A set of CPU numbers, all below [`MAX_CPUS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<usize>);

impl CpuSet {
    /// Reads a mask: groups of 32 bits in hexadecimal, the highest group first.
    ///
    /// # Errors
    /// With the group that is no hexadecimal number; when a CPU is not below [`MAX_CPUS`].
    pub fn from_mask(text: &str) -> Result<CpuSet, String> {
        let mut cpus = BTreeSet::new();
        for (index, group) in text.trim().split(',').rev().enumerate() {
            let bits = u32::from_str_radix(group, 16)
                .map_err(|_| format!("{group:?} is no group of a mask of CPUs"))?;
            let set = (0..32).filter(|bit| bits & (1 << bit) != 0);
            cpus.extend(set.map(|bit| 32 * index + bit));
        }
        match cpus.last() {
            Some(last) if *last >= MAX_CPUS => Err(too_large(*last)),
            _ => Ok(CpuSet(cpus)),
        }
    }

    /// Returns the set as a mask that the kernel reads.
    pub fn to_mask(&self) -> String {
        let mut groups = vec![0u32; self.0.last().map_or(0, |last| last / 32) + 1];
        for cpu in &self.0 {
            groups[cpu / 32] |= 1 << (cpu % 32);
        }
        let groups: Vec<_> = groups
            .iter()
            .rev()
            .map(|bits| format!("{bits:08x}"))
            .collect();
        groups.join(",")
    }

    /// Reads words of 64 bits, the lowest first.
    pub fn from_words(words: &[u64]) -> CpuSet {
        let bits = words.iter().enumerate().flat_map(|(index, word)| {
            (0..64)
                .filter(move |bit| word & (1 << bit) != 0)
                .map(move |bit| 64 * index + bit)
        });
        bits.collect()
    }

    /// Returns the set as words of 64 bits, the lowest first, enough for [`MAX_CPUS`].
    pub fn to_words(&self) -> [u64; MAX_CPUS / 64] {
        let mut words = [0; MAX_CPUS / 64];
        for cpu in &self.0 {
            words[cpu / 64] |= 1 << (cpu % 64);
        }
        words
    }

    /// Returns the CPUs that are in both sets.
    pub fn and(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    /// Returns the CPUs that are in either set.
    pub fn or(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }

    /// Returns the CPUs that are not in `other`.
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().collect())
    }

    /// Returns whether the set has no CPU.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
    }
}

/// Reads a list such as `0-3,8`; an empty list is the empty set.
impl FromStr for CpuSet {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuSet, String> {
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            let wrong = || format!("{part:?} is neither a CPU nor a range of CPUs such as 0-3");
            let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(wrong());
            }
            if last >= MAX_CPUS {
                return Err(too_large(last));
            }
            cpus.extend(first..=last);
        }
        Ok(CpuSet(cpus))
    }
}

/// Returns the message for a CPU that is not below [`MAX_CPUS`].
fn too_large(cpu: usize) -> String {
    format!(
        "there is no CPU {cpu}; the highest possible is {}",
        MAX_CPUS - 1
    )
}

/// Writes the shortest list that the kernel reads.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<_> = self.0.iter().copied().collect();
        for (index, run) in cpus.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match run {
                [cpu] => write!(f, "{comma}{cpu}")?,
                _ => write!(f, "{comma}{}-{}", run[0], run[run.len() - 1])?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    proptest! {
        #[test]
        fn every_form_keeps_the_set(cpus in prop::collection::btree_set(0..MAX_CPUS, 0..70)) {
            let set = CpuSet(cpus);
            prop_assert_eq!(&list(&set.to_string()), &set);
            prop_assert_eq!(&CpuSet::from_mask(&set.to_mask()).unwrap(), &set);
            prop_assert_eq!(&CpuSet::from_words(&set.to_words()), &set);
        }
    }

    #[test]
    fn the_kernels_forms() {
        assert_eq!(list("0-2,8\n").to_string(), "0-2,8");
        assert!(list("").is_empty());
        assert_eq!(CpuSet::from_mask("3,00000001\n").unwrap(), list("0,32-33"));
        assert_eq!(list("0,32-33").to_mask(), "00000003,00000001");
        assert_eq!(list("0-3").and(&list("2-5")), list("2-3"));
        assert_eq!(list("0-3").without(&list("2-5")), list("0-1"));
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for wrong in [
            "a",
            "1-",
            "-1",
            "3-1",
            "1,,2",
            "0 1",
            "99999",
            "1-99999999999",
        ] {
            assert!(wrong.parse::<CpuSet>().is_err(), "{wrong}");
        }
        assert!(CpuSet::from_mask("xyz").is_err());
    }
}
