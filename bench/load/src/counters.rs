//! Counters that processes share with their parent: memory that fork does not copy.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};

/// A counter per process, each on a cache line of its own.
pub struct Counters {
    memory: *mut libc::c_void,
    count: usize,
}

/// The size of a cache line, in words of 64 bits.
pub const LINE: usize = 8;

impl Counters {
    /// Makes `count` counters of zero. Processes forked from now on share them.
    pub fn new(count: usize) -> Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                Self::bytes(count),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error())
                .context("map memory for the counters of the load's processes");
        }
        Ok(Self { memory, count })
    }

    /// Adds to one counter.
    pub fn add(&self, index: usize, number: u64) {
        self.cells()[index * LINE].fetch_add(number, Ordering::Relaxed);
    }

    /// The sum of all counters.
    pub fn sum(&self) -> u64 {
        self.cells()
            .iter()
            .map(|cell| cell.load(Ordering::Relaxed))
            .sum()
    }

    /// The size of the mapping; at least one byte, because none cannot be mapped.
    fn bytes(count: usize) -> usize {
        (count * LINE * size_of::<AtomicU64>()).max(1)
    }

    fn cells(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, has room for that many cells, holds zeros at first,
        // which are valid cells, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.memory.cast(), self.count * LINE) }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, of that size, and nothing borrows from it any more.
        unsafe { libc::munmap(self.memory, Self::bytes(self.count)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up() -> Result<()> {
        let counters = Counters::new(3)?;
        assert_eq!(counters.sum(), 0);
        counters.add(0, 1);
        counters.add(2, 5);
        counters.add(2, 5);
        assert_eq!(counters.sum(), 11);
        assert_eq!(Counters::new(0)?.sum(), 0);
        Ok(())
    }
}
