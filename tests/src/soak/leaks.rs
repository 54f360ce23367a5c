//! What a scheduler leaves behind after it ended: BPF objects, open files, memory.

use std::fmt;

use anyhow::{Result, bail, ensure};
use magpie_lab::Guest;

use crate::scheduler::{json, number, shell};

/// The memory that the kernel may keep in addition, in KiB: the log of the kernel and files in /tmp
/// grow, and slabs of which one object is in use stay.
const SLACK_KIB: f64 = 8.0 * 1024.0;

/// Makes the kernel give back what nobody uses. Freed slabs are on lists of each CPU until their
/// cache is shrunk, which were up to 17 MiB on 16 CPUs.
const GIVE_BACK: &str = "sleep 2; sync; echo 3 > /proc/sys/vm/drop_caches
for cache in /sys/kernel/slab/*; do echo 1 > $cache/shrink; done; sleep 0.2";

/// How often it is looked whether objects or files are still there, every ten seconds or so. The
/// kernel frees BPF objects after grace periods.
const LOOKS_FOR_OBJECTS: u32 = 5;

/// How often it is looked whether memory is still there. The kernel's workqueues start threads to
/// free objects, about seven at each end of a scheduler on 16 CPUs and with 32 KiB each, and end them
/// after five minutes without work.
const LOOKS: u32 = 33;

/// What a guest has while no scheduler is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// BPF programs, maps and links.
    objects: [f64; 3],
    /// Open files of the whole guest.
    files: f64,
    /// What nobody can give back: memory of the kernel, but for caches.
    memory_kib: f64,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [programs, maps, links] = self.objects;
        write!(
            f,
            "{programs} BPF programs, {maps} maps, {links} links, {} open files, {:.1} MiB",
            self.files,
            self.memory_kib / 1024.0
        )
    }
}

impl Kept {
    /// Counts what a guest has.
    ///
    /// # Errors
    /// When the guest does not tell.
    pub fn of(guest: &mut Guest) -> Result<Self> {
        shell(guest, GIVE_BACK)?;
        let found = json(guest, "magpie-load programs --json")?;
        let count = |what: &str| number(&found, &format!("/objects/{what}"));
        let objects = [count("programs")?, count("maps")?, count("links")?];
        let text = shell(
            guest,
            "awk '/^(SUnreclaim|Percpu|VmallocUsed|PageTables):/ {sum += $2} \
             END {print sum}' /proc/meminfo; cut -f 1 /proc/sys/fs/file-nr",
        )?;
        let mut numbers = text.lines().filter_map(|line| line.trim().parse().ok());
        let mut next = || numbers.next().unwrap_or(f64::NAN);
        let (memory_kib, files) = (next(), next());
        ensure!(memory_kib > 0.0 && files > 0.0, "{text}");
        Ok(Self {
            objects,
            files,
            memory_kib,
        })
    }

    /// Compares with what the guest has now.
    ///
    /// # Errors
    /// When it has more.
    pub fn must_be_all(&self, guest: &mut Guest) -> Result<Self> {
        let mut now = Self::of(guest)?;
        for look in 0..LOOKS {
            let has_objects = now.has_more_objects_than(self);
            if !has_objects && now.memory_kib <= self.memory_kib + SLACK_KIB {
                return Ok(now);
            }
            if has_objects && look >= LOOKS_FOR_OBJECTS {
                break;
            }
            shell(guest, "sleep 7")?;
            now = Self::of(guest)?;
        }
        bail!("the scheduler left something behind: {self} became {now}")
    }

    fn has_more_objects_than(&self, before: &Self) -> bool {
        let mut pairs = self.objects.iter().zip(before.objects);
        pairs.any(|(now, before)| *now > before) || self.files > before.files
    }
}
