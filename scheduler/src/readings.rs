//! Reads the counters and measurements of the BPF side from its memory.
//!
//! The maps are mapped into this process, and the kernel writes them while they are read here. Each
//! word is true for itself; two words may be of different moments.

use std::path::Path;
use std::ptr;

use crate::bpf_intf;
use crate::bpf_skel::types;
use crate::cgroups::{self, CgroupStatus, CgroupsStatus};
use crate::counters::{Metrics, NR_EVENTS};
use crate::cpus::{CpuStatus, CpusStatus, Performance};

/// As in `bpf/portable/perf.h`: utilisation has more bits than a performance target.
const UTILISATION_SHIFT: u32 = 10;

/// Reads a value that the kernel may change at the same time.
pub fn read<T: Copy>(from: &T) -> T {
    // SAFETY: a reference is valid and aligned. The read is volatile, so that the compiler neither
    // repeats nor caches it; each aligned word of plain numbers is read whole.
    unsafe { ptr::read_volatile(from) }
}

/// Returns the counters of all CPUs together, since the start.
pub fn metrics(bss: &types::bss) -> Metrics {
    let mut sums = [0u64; NR_EVENTS];
    for state in &bss.cpu_states {
        for (sum, event) in sums.iter_mut().zip(&state.events) {
            *sum = sum.wrapping_add(read(event));
        }
    }
    Metrics::from_events(&sums)
}

/// Returns what the online CPUs have measured.
pub fn cpus(bss: &types::bss) -> CpusStatus {
    let states = bss.cpu_states.iter().enumerate();
    let cpus = states
        .filter(|(_, state)| read(&state.is_online) != 0)
        .map(|(number, state)| {
            let event = |event: u32| read(&state.events[event as usize]);
            let status = CpuStatus::new(
                read(&state.avg_idle),
                state.steal_cost.each_ref().map(read),
                event(bpf_intf::magpie_event_EVENT_TURN),
                Performance {
                    utilisation: u64::from(read(&state.utilisation)) >> UTILISATION_SHIFT,
                    target: u64::from(read(&state.perf_target)),
                    targets_set: event(bpf_intf::magpie_event_EVENT_TARGET_SET),
                },
            );
            (number, status)
        })
        .collect();
    CpusStatus { cpus }
}

/// Returns what the cgroups get, as of the last update of shares.
pub fn cgroups(bss: &types::bss) -> CgroupsStatus {
    let states = bss.cgroup_states.iter();
    let by_id = states
        .map(|state| (read(&state.id), state))
        .filter(|(id, _)| *id != 0)
        .map(|(id, state)| {
            let status = CgroupStatus {
                // The BPF side's share is what the cgroup's tasks get while they are active.
                share_percent: read(&state.share) as f64 * f64::from(read(&state.own_activity)),
                limit_percent: 100.0 * read(&state.quota) as f64
                    / read(&state.period).max(1) as f64,
                throttled: read(&state.throttles),
                throttled_ns: read(&state.throttled_ns),
            };
            (id, status)
        })
        .collect();
    CgroupsStatus::new(by_id, Path::new(cgroups::FOLDER))
}
