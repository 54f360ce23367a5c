//! The counters of the BPF side, as numbers for tools and as sentences for people.
//!
//! Each CPU counts events on its own cache line. [`Metrics`] has a field for each event, summed
//! over all CPUs. A counter stands in the group of the mechanism it belongs to, or in `general`;
//! the build fails if an event of `bpf/intf.h` has no counter here.

use std::io::{self, Write};

use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};

use crate::bpf_intf;

/// The number of events that the BPF side counts.
pub const NR_EVENTS: usize = bpf_intf::magpie_event_NR_EVENTS as usize;

/// A mechanism's name, or `general`, and its counters.
#[cfg(test)]
pub struct Group {
    pub mechanism: &'static str,
    pub counters: &'static [&'static str],
}

macro_rules! metrics {
    ($($group:literal { $($field:ident = $event:ident, $description:literal;)* })*) => {
        /// How often each event happened, on all CPUs together. Fields that end in `_ns` are times.
        #[stat_doc]
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Stats)]
        #[stat(top, desc = "Events since the last request")]
        pub struct Metrics {
            $($(#[stat(desc = $description)] pub $field: u64,)*)*
        }

        impl Metrics {
            /// Makes the counters from events in the order of `enum magpie_event`.
            pub fn from_events(events: &[u64; NR_EVENTS]) -> Metrics {
                Metrics { $($($field: events[bpf_intf::$event as usize],)*)* }
            }

            /// Returns what happened since an earlier reading.
            pub fn since(&self, earlier: &Metrics) -> Metrics {
                Metrics { $($($field: self.$field.wrapping_sub(earlier.$field),)*)* }
            }
        }

        /// Which counters belong to which mechanism.
        #[cfg(test)]
        pub const GROUPS: &[Group] = &[
            $(Group { mechanism: $group, counters: &[$(stringify!($field)),*] },)*
        ];

        // Without this, an event without a counter would go unnoticed.
        const _: () = assert!([$($(stringify!($field),)*)*].len() == NR_EVENTS);
    };
}

metrics! {
    "general" {
        idle_enter = magpie_event_EVENT_IDLE_ENTER, "CPUs that went idle";
        rescue = magpie_event_EVENT_RESCUE, "Tasks that were queued unseen, found by a CPU that goes idle or by the monitor";
    }
    "queue" {
        enqueue = magpie_event_EVENT_ENQUEUE, "Tasks put into a CPU's queue";
        dispatch = magpie_event_EVENT_DISPATCH, "Tasks taken from the CPU's own queue";
        keep = magpie_event_EVENT_KEEP, "Running tasks kept for another slice";
        preempt = magpie_event_EVENT_PREEMPT, "Wakeups that preempted the running task";
        hrtick = magpie_event_EVENT_HRTICK, "Requests of running tasks that a timer ended, because a task waited";
        overdue = magpie_event_EVENT_OVERDUE, "Queued tasks that were due at once, because they had waited for 4 s";
    }
    "steal" {
        steal_attempt = magpie_event_EVENT_STEAL_ATTEMPT, "Searches for work in other CPUs' queues";
        steal_sibling = magpie_event_EVENT_STEAL_SIBLING, "Tasks taken from an SMT sibling";
        steal_llc = magpie_event_EVENT_STEAL_LLC, "Tasks taken from another core of the LLC";
        steal_node = magpie_event_EVENT_STEAL_NODE, "Tasks taken from another LLC of the node";
        steal_remote = magpie_event_EVENT_STEAL_REMOTE, "Tasks taken from another node";
        steal_gated = magpie_event_EVENT_STEAL_GATED, "Searches not made, because the CPU idles for less than they cost";
        steal_look = magpie_event_EVENT_STEAL_LOOK, "Queues of other CPUs that searches tried";
        steal_ns = magpie_event_EVENT_STEAL_NS, "Time spent in searches, in nanoseconds";
        steal_found_ns = magpie_event_EVENT_STEAL_FOUND_NS, "Time spent in searches that found a task, in nanoseconds";
    }
    "wakeup" {
        wake_idle = magpie_event_EVENT_WAKE_IDLE, "Wakeups that passed no queue: on an idle CPU, or alone on their own";
        wake_previous = magpie_event_EVENT_WAKE_PREVIOUS, "Wakeups placed on the previous CPU, whose core was idle";
        wake_recent = magpie_event_EVENT_WAKE_RECENT, "Wakeups placed on the recent CPU, whose core was idle";
        wake_waker = magpie_event_EVENT_WAKE_WAKER, "Sync wakeups of a task that takes the waker's place on its CPU";
        wake_core = magpie_event_EVENT_WAKE_CORE, "Wakeups placed on another idle core of the LLC";
        wake_cpu = magpie_event_EVENT_WAKE_CPU, "Wakeups placed on an idle CPU of the LLC whose core was busy";
        wake_beyond = magpie_event_EVENT_WAKE_BEYOND, "Wakeups placed on an idle CPU of another LLC";
        wake_other_queue = magpie_event_EVENT_WAKE_OTHER_QUEUE, "Wakeups put into another queue than the previous CPU's, where the task preempts or fewer tasks wait";
        idle_write = magpie_event_EVENT_IDLE_WRITE, "Writes to shared cache lines that say which CPUs are idle";
    }
    "fork" {
        fork_away = magpie_event_EVENT_FORK_AWAY, "New tasks that searched another LLC than their parent's";
    }
    "spread" {
        spread = magpie_event_EVENT_SPREAD, "Running tasks that left a shared core for an idle one";
    }
    "balance" {
        rotate = magpie_event_EVENT_ROTATE, "Tasks pulled by a busy CPU to even out CPU time";
        turn = magpie_event_EVENT_TURN, "Scans of the other LLCs by the CPU on balance duty, for all CPUs of its LLC";
    }
    "push" {
        kick_idle = magpie_event_EVENT_KICK_IDLE, "Idle CPUs kicked to take a waiting task";
        push = magpie_event_EVENT_PUSH, "Idle CPUs kicked at once, because a task was requeued";
        patience = magpie_event_EVENT_PATIENCE, "Offers of tasks that waited for a CPU, which another task took and kept";
    }
    "cpu-weight" {
        share_update = magpie_event_EVENT_SHARE_UPDATE, "Calculations of the shares of all cgroups";
        share_part = magpie_event_EVENT_SHARE_PART, "Parts of these calculations, each of which kept a CPU at a time";
        share_ns = magpie_event_EVENT_SHARE_NS, "Time spent on these calculations, in nanoseconds";
        cgroup_lumped = magpie_event_EVENT_CGROUP_LUMPED, "Cgroups beyond the largest number, treated as the root";
    }
    "cpu-max" {
        throttle = magpie_event_EVENT_THROTTLE, "Cgroups throttled, because they used up cpu.max for a period";
        throttle_ns = magpie_event_EVENT_THROTTLE_NS, "Time for which they were throttled, in nanoseconds";
        park = magpie_event_EVENT_PARK, "Tasks parked, because their cgroup was throttled";
    }
    "frequency" {
        target_set = magpie_event_EVENT_TARGET_SET, "Performance targets set";
        target_raise = magpie_event_EVENT_TARGET_RAISE, "Performance targets that were higher than before";
        target_idle = magpie_event_EVENT_TARGET_IDLE, "Performance targets set to nothing by idle CPUs";
        target_limited = magpie_event_EVENT_TARGET_LIMITED, "Performance targets not set, because the CPU had set others shortly before";
    }
    "power" {
        power_change = magpie_event_EVENT_POWER_CHANGE, "Changes of the number of cores that are used to save power";
        power_open = magpie_event_EVENT_POWER_OPEN, "All CPUs used at once, because tasks had waited";
    }
    "preferred" {
        backoff = magpie_event_EVENT_BACKOFF, "Tasks moved away from CPUs that are not preferred";
    }
}

impl Metrics {
    /// Returns how many tasks were stolen, at any distance.
    fn stolen(&self) -> u64 {
        self.steal_sibling + self.steal_llc + self.steal_node + self.steal_remote
    }

    /// Writes one line for each mechanism; some lines only if there is something to say.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn tell<W: Write>(&self, output: &mut W) -> io::Result<()> {
        writeln!(
            output,
            "queue      {} tasks queued, {} dispatched from there; {} slices renewed, {} ended by \
             a timer; {} wakeups preempted; {} tasks had waited for too long",
            self.enqueue, self.dispatch, self.keep, self.hrtick, self.preempt, self.overdue
        )?;
        self.tell_steal(output)?;
        writeln!(
            output,
            "wakeup     {} placed on an idle CPU: the previous CPU {}, the recent one {}, an idle \
             core {}, an idle CPU {}, beyond the LLC {}; in the waker's place {}, in a shorter \
             queue {}; {} writes to idle masks",
            self.wake_idle,
            self.wake_previous,
            self.wake_recent,
            self.wake_core,
            self.wake_cpu,
            self.wake_beyond,
            self.wake_waker,
            self.wake_other_queue,
            self.idle_write
        )?;
        writeln!(
            output,
            "fork       {} new tasks searched another LLC\n\
             spread     {} running tasks left a shared core\n\
             balance    {} tasks pulled by busy CPUs; {} scans of other LLCs\n\
             push       {} idle CPUs kicked, {} of them by a push; {} offers of tasks that \
             waited in vain for their CPU\n\
             preferred  {} tasks moved away from CPUs that are not preferred\n\
             idle       {} entries to idle; {} tasks found that were queued unseen",
            self.fork_away,
            self.spread,
            self.rotate,
            self.turn,
            self.kick_idle,
            self.push,
            self.patience,
            self.backoff,
            self.idle_enter,
            self.rescue
        )?;
        if let Some(cost) = self.share_ns.checked_div(self.share_update) {
            writeln!(
                output,
                "cpu-weight {} calculations of shares in {} parts, {cost} ns each; {} cgroups \
                 treated as the root",
                self.share_update, self.share_part, self.cgroup_lumped
            )?;
        }
        if self.throttle > 0 || self.park > 0 {
            writeln!(
                output,
                "cpu-max    {} cgroups throttled, for {} us each; {} tasks parked",
                self.throttle,
                self.throttle_ns / 1000 / self.throttle.max(1),
                self.park
            )?;
        }
        if self.target_set > 0 || self.target_limited > 0 {
            writeln!(
                output,
                "frequency  {} performance targets set, {} of them higher than before, {} to nothing by \
                 idle CPUs; {} not set so soon",
                self.target_set, self.target_raise, self.target_idle, self.target_limited
            )?;
        }
        if self.power_change > 0 || self.power_open > 0 {
            writeln!(
                output,
                "power      {} changes of the number of cores, {} times all at once",
                self.power_change, self.power_open
            )?;
        }
        Ok(())
    }

    /// Writes the line of `steal`: searches, what they found and what they cost.
    fn tell_steal<W: Write>(&self, output: &mut W) -> io::Result<()> {
        write!(
            output,
            "steal      {} searches of {} queues took {} tasks",
            self.steal_attempt,
            self.steal_look,
            self.stolen()
        )?;
        if self.stolen() > 0 {
            write!(
                output,
                " ({} from the sibling, {} in the LLC, {} in the node, {} beyond)",
                self.steal_sibling, self.steal_llc, self.steal_node, self.steal_remote
            )?;
        }
        match self.steal_ns.checked_div(self.steal_attempt) {
            Some(cost) => write!(output, ", {cost} ns per search")?,
            None => write!(output, ", no search made")?,
        }
        if let Some(cost) = self.steal_found_ns.checked_div(self.stolen()) {
            write!(output, ", {cost} ns per task taken")?;
        }
        writeln!(
            output,
            "; {} searches not worth their cost",
            self.steal_gated
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> [u64; NR_EVENTS] {
        std::array::from_fn(|event| 10 + event as u64)
    }

    fn told(metrics: &Metrics) -> String {
        let mut text = Vec::new();
        metrics.tell(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn each_event_has_its_own_field() {
        let json = serde_json::to_value(Metrics::from_events(&counting())).unwrap();
        let mut values: Vec<_> = json
            .as_object()
            .unwrap()
            .values()
            .map(|value| value.as_u64().unwrap())
            .collect();
        values.sort_unstable();
        assert_eq!(values, counting());
    }

    #[test]
    fn a_delta_is_what_happened_between() {
        let earlier = Metrics::from_events(&counting());
        let later = Metrics::from_events(&counting().map(|count| 3 * count));
        assert_eq!(
            later.since(&earlier),
            Metrics::from_events(&counting().map(|count| 2 * count))
        );
        assert_eq!(later.since(&later), Metrics::default());
    }

    #[test]
    fn every_counter_is_told() {
        // Large and distinct, so that no number is part of another.
        let events = std::array::from_fn(|event| 1_000_003 * (event as u64 + 1));
        let metrics = Metrics::from_events(&events);
        let text = told(&metrics);
        let derived = [
            metrics.steal_ns,
            metrics.steal_found_ns,
            metrics.share_ns,
            metrics.throttle_ns,
        ];
        for count in events.iter().filter(|count| !derived.contains(count)) {
            assert!(
                text.contains(&count.to_string()),
                "{count} is missing in\n{text}"
            );
        }
    }

    #[test]
    fn nothing_happened_reads_well() {
        let text = told(&Metrics::default());
        assert!(text.contains("no search made"), "{text}");
        assert!(!text.contains("sibling"), "{text}");
    }
}
