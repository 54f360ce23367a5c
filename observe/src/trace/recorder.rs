//! Records events: loads the BPF side, empties its ring buffer until the recording is over.
//!
//! The events are kept in memory and sorted by time at the end, because the CPUs share one buffer
//! and write to it out of order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::mem::{self, MaybeUninit};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, RingBufferBuilder};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::event::{Event, What};
use super::hooks::Targets;
use super::record::Decoder;
use super::skeleton::TraceSkelBuilder;
use crate::topology::{Topology, parse_list};

/// How often the ring buffer is emptied.
const PAUSE: Duration = Duration::from_millis(20);

/// The recorded events.
#[derive(Debug)]
pub struct Recording {
    /// The events in order of time.
    pub events: Vec<Event>,
    /// Events for which the buffer had no room, by CPU.
    pub lost: BTreeMap<u32, u64>,
}

/// Records until `is_over` says so, which is asked fifty times a second. The first time, recording
/// has just begun.
///
/// # Errors
/// If the kernel refuses the BPF programs; mostly because this is not root.
pub fn record(
    targets: &Targets,
    buffer_mib: u32,
    mut is_over: impl FnMut() -> Result<bool>,
) -> Result<Recording> {
    let mut object = MaybeUninit::uninit();
    let mut skel = TraceSkelBuilder::default()
        .open(&mut object)
        .context("open the BPF programs")?;
    skel.maps
        .records
        .set_max_entries(buffer_mib << 20)
        .context("set the size of the buffer")?;
    targets.choose(skel.open_object_mut())?;
    let mut skel = skel.load().context(
        "load the BPF programs: tracing takes root (CAP_BPF and CAP_PERFMON), and a kernel with \
         BTF (CONFIG_DEBUG_INFO_BTF)",
    )?;

    let events = RefCell::new(Vec::new());
    let mut decoder = Decoder::default();
    let mut builder = RingBufferBuilder::new();
    builder
        .add(&skel.maps.records, |record| {
            events.borrow_mut().extend(decoder.decode(record));
            0
        })
        .context("open the ring buffer")?;
    let ring = builder.build().context("open the ring buffer")?;

    skel.attach()
        .context("attach the BPF programs: tracing takes root")?;
    let online = Topology::read_online("/".as_ref());
    // Only part of the programs was attached before.
    let begin = now()?;
    let begun = is_over();
    touch(&online);
    let mut affinities = Affinities::new(online);
    let mut ended = begun;
    while let Ok(false) = ended {
        thread::sleep(PAUSE);
        let known = events.borrow().len();
        ring.consume().context("read the ring buffer")?;
        affinities.note(&events.borrow()[known..]);
        ended = is_over();
    }
    let end = now()?;
    drop(mem::take(&mut skel.links));
    ring.consume().context("read the ring buffer")?;
    ended?;

    drop(ring);
    let mut events = events.into_inner();
    events.retain(|event: &Event| (begin..=end).contains(&event.time));
    events.sort_by_key(|event| event.time);
    affinities.note(&events);
    ensure!(!events.is_empty(), "nothing was recorded");
    events.splice(0..0, affinities.events(begin));
    Ok(Recording {
        events,
        lost: lost(&skel.maps.scratches)?,
    })
}

/// Returns the time of the records' clock.
fn now() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).context("read the boot clock")?;
    Ok(Duration::from(time).as_nanos() as u64)
}

/// Makes every CPU switch, so that the trace tells its state: one that idles, or runs one task, all
/// the time would leave no event.
fn touch(online: &str) {
    thread::scope(|scope| {
        for cpu in parse_list(online) {
            scope.spawn(move || {
                let mut one = CpuSet::new();
                // A CPU that goes offline at this moment, or has a number too large for a set,
                // stays unknown.
                let _ = one
                    .set(cpu)
                    .and_then(|()| sched_setaffinity(Pid::from_raw(0), &one));
            });
        }
    });
}

/// Reads how many events each CPU had no room for.
fn lost(scratches: &libbpf_rs::Map<'_>) -> Result<BTreeMap<u32, u64>> {
    let values = scratches
        .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
        .context("read how many events were lost")?
        .unwrap_or_default();
    let count = |value: &Vec<u8>| {
        value
            .first_chunk()
            .map_or(0, |first| u64::from_ne_bytes(*first))
    };
    Ok((0..)
        .zip(values.iter().map(count))
        .filter(|(_, count)| *count > 0)
        .collect())
}

/// On which CPUs tasks may run.
struct Affinities {
    online: String,
    of: BTreeMap<i32, Option<String>>,
}

impl Affinities {
    fn new(online: String) -> Affinities {
        Affinities {
            online,
            of: BTreeMap::new(),
        }
    }

    /// Reads the affinities of tasks that were not seen before. A task that ends before it is seen
    /// has none.
    fn note(&mut self, events: &[Event]) {
        for event in events {
            let pid = match &event.what {
                What::Wakeup { task, .. } | What::WakeupNew { task, .. } => task.pid,
                What::Switch { prev, .. } if prev.pid != 0 => prev.pid,
                _ => continue,
            };
            self.of.entry(pid).or_insert_with(|| allowed(pid));
        }
    }

    /// Returns the affinities as events: those at the end, and the first ones of tasks that have
    /// ended.
    fn events(self, time: u64) -> Vec<Event> {
        let known = self.of.into_iter().filter_map(|(pid, first)| {
            let cpus = allowed(pid).or(first)?;
            Some(Event {
                time,
                cpu: 0,
                current: 0,
                what: What::Allowed { pid, cpus },
            })
        });
        known
            .chain([Event {
                time,
                cpu: 0,
                current: 0,
                what: What::Allowed {
                    pid: 0,
                    cpus: self.online,
                },
            }])
            .collect()
    }
}

/// Reads on which CPUs a task may run; none if it has ended.
fn allowed(pid: i32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_string())
}
