/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * intf.h - limits, events, settings and topology: shared by the BPF side and user space.
 *
 * Only plain C types, on which bindgen and the BPF compiler agree. User space writes the topology
 * before the load. The BPF side counts events per CPU, and user space adds them up.
 */
#ifndef __MAGPIE_INTF_H
#define __MAGPIE_INTF_H

#ifndef __VMLINUX_H__
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
typedef _Bool bool;
#endif

enum magpie_limits {
	MAX_CPUS = 4096,
	MAX_LLCS = 512,

	/* One place for each CPU, and room to start each LLC on a new line. */
	CPUS_PER_LINE = 8,
	MAX_PLACES = MAX_CPUS + MAX_LLCS * CPUS_PER_LINE,
	MAX_LINES = MAX_PLACES / CPUS_PER_LINE,

	MAX_CORE_SIZE = 8, /* POWER's SMT8 */

	NO_PLACE = 0xffff,

	FAST_CAPACITY = 820, /* of 1024: four fifths of the fastest CPU */

	/* Tasks of further cgroups count as the root's. */
	MAX_CGROUPS = 8192,
};

/* How far away a search finds work; each distance has its own measured cost. */
enum magpie_distance {
	DISTANCE_SIBLING,
	DISTANCE_LLC,
	DISTANCE_NODE,
	DISTANCE_REMOTE,
	NR_DISTANCES,
};

/* Events, each counted on the CPU where it happens. counters.rs gives each its name and text. */
enum magpie_event {
	EVENT_WAKE_IDLE, /* wakeup that passed no queue: on a claimed idle CPU, or alone on its own */
	EVENT_WAKE_PREVIOUS, /* by step, in the order of enum wakeup_step: previous CPU */
	EVENT_WAKE_RECENT, /* recent CPU */
	EVENT_WAKE_WAKER, /* next on the waker's CPU, which the waker leaves */
	EVENT_WAKE_CORE, /* an idle core of the LLC */
	EVENT_WAKE_CPU, /* an idle CPU of the LLC */
	EVENT_WAKE_BEYOND, /* idle CPU of another LLC */
	EVENT_WAKE_OTHER_QUEUE, /* queue of a drawn CPU, shorter than the previous CPU's */
	EVENT_FORK_AWAY, /* search for a new task's CPU began in another LLC */
	EVENT_SPREAD, /* running task left a shared core for an idle one */
	EVENT_IDLE_ENTER, /* CPU went idle */
	EVENT_IDLE_WRITE, /* writes to shared lines that say which CPUs are idle */
	EVENT_ENQUEUE, /* task put into a CPU's queue */
	EVENT_DISPATCH, /* task taken from the CPU's own queue */
	EVENT_KEEP, /* running task kept for another slice */
	EVENT_PREEMPT, /* wakeup preempted the running task */
	EVENT_HRTICK, /* request of the running task ended by a timer, because a task waited */
	EVENT_OVERDUE, /* task was due at once, because it had waited for too long */
	EVENT_STEAL_ATTEMPT, /* search for work in other queues */
	EVENT_STEAL_SIBLING, /* task taken from an SMT sibling */
	EVENT_STEAL_LLC, /* task taken from the own LLC */
	EVENT_STEAL_NODE, /* task taken from another LLC of the node */
	EVENT_STEAL_REMOTE, /* task taken from another node */
	EVENT_STEAL_GATED, /* search ended at the gate: the CPU idles for less than the rest costs */
	EVENT_STEAL_LOOK, /* attempt to take a task from another CPU's queue */
	EVENT_STEAL_NS, /* time spent in searches, ns */
	EVENT_STEAL_FOUND_NS, /* time spent in searches that found a task, ns */
	EVENT_ROTATE, /* task pulled by a busy CPU to even out CPU time */
	EVENT_TURN, /* scan of the other LLCs by the CPU on balance duty */
	EVENT_KICK_IDLE, /* idle CPU kicked to take a waiting task */
	EVENT_PUSH, /* idle CPU kicked because a task was requeued; counted as KICK_IDLE, too */
	EVENT_PATIENCE, /* tasks offered that have waited for a CPU that another task took */
	EVENT_BACKOFF, /* task moved away from a CPU that is not preferred */
	EVENT_RESCUE, /* task found at the last moment, which had been queued unseen */
	EVENT_SHARE_UPDATE, /* shares of all cgroups calculated */
	EVENT_SHARE_PART, /* part of that, which kept a CPU at a time */
	EVENT_SHARE_NS, /* time spent on that, ns */
	EVENT_CGROUP_LUMPED, /* cgroup beyond MAX_CGROUPS, counted as the root */
	EVENT_THROTTLE, /* cgroup used up its budget (cpu.max) */
	EVENT_THROTTLE_NS, /* time for which cgroups were throttled, ns */
	EVENT_PARK, /* task of a throttled cgroup parked */
	EVENT_TARGET_SET, /* performance target of a CPU set */
	EVENT_TARGET_RAISE, /* set higher; counted as TARGET_SET, too */
	EVENT_TARGET_IDLE, /* set to nothing by an idle CPU; counted as TARGET_SET, too */
	EVENT_TARGET_LIMITED, /* not set, because the last one was set too short a time ago */
	EVENT_POWER_CHANGE, /* other number of cores preferred to save power */
	EVENT_POWER_OPEN, /* all CPUs preferred at once, because tasks waited */
	NR_EVENTS,
};

/* Settings of preferred CPUs: user space may change them at any time. */
enum preferred_mode {
	PREFERRED_AUTO, /* the governor decides */
	PREFERRED_SET, /* requested_bits: the user decides */
	PREFERRED_OFF, /* all CPUs */
	PREFERRED_KERNEL, /* requested_bits: the kernel's steal_governor decides */
};

enum steal_source {
	STEAL_SOURCE_AUTO, /* the kernel's counter once it has counted anything */
	STEAL_SOURCE_KERNEL,
	STEAL_SOURCE_ESTIMATE, /* late ticks of busy CPUs */
};

struct preferred_settings {
	u32 mode; /* enum preferred_mode */
	u32 source; /* enum steal_source */
	u32 governor; /* enum governor_kind */
	u32 high, low; /* thresholds of steal time, 1/100 of a percent */
	u64 period_ns;
};

/* State of preferred CPUs, for user space. Ratios in 1/100 of a percent, cores in 1/100. */
struct preferred_status {
	u32 cores; /* preferred now; 0 if user space gave the CPUs */
	u32 total; /* online cores */
	u32 withheld; /* online CPUs that are not preferred */
	u32 power; /* enum power_level that decides, 0 if another reason does */
	u32 steal; /* share of the counted time that the host took */
	u32 wanted, given; /* busy cores, with and without that time */
	u32 source; /* enum steal_source in use: kernel or estimate */
	s32 direction; /* of the last period: -1, 0, 1 */
	u64 changes; /* of the number of cores, since the start */
	u64 last_period; /* time stamp, ns */
	u64 applied; /* how often the monitor has applied the settings */
	u64 kernel_steal_ns; /* non-zero if the kernel ever counted steal time */
};

/*
 * Where a CPU is. User space writes an entry for every possible CPU, and guesses those of CPUs that
 * are offline at the start.
 *
 * A *place* is a CPU's index in an order in which SMT siblings are adjacent, then the CPUs of an
 * LLC, then the LLCs of a node. Each LLC begins at a multiple of CPUS_PER_LINE, so no two LLCs
 * share a line of a sparsemask.
 */
struct cpu_topology {
	u16 place;
	u16 llc;
	u16 node;
	u16 core_first; /* place of the first sibling of the core */
	u16 core_size; /* siblings in the core, 1 without SMT */
	u16 sibling; /* the next CPU of the core, in a ring; without SMT the CPU itself */
	u16 capacity; /* 1..1024, the fastest CPU has 1024 */
};

struct llc_topology {
	u16 first; /* place of its first CPU */
	u16 size; /* number of its places */
	u16 node;
	u16 node_first; /* first LLC of its node: LLCs are numbered node by node */
	u16 node_llcs; /* number of LLCs of its node */
};

#endif /* __MAGPIE_INTF_H */
