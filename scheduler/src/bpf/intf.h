/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * intf.h - what the kernel side and the user side of scx_magpie share.
 *
 * Only plain C types that bindgen and the BPF compiler agree on. User space
 * fills the topology before load; the BPF side counts events per CPU and user
 * space sums them.
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
	MAX_NODES = 64,

	/* One place for each CPU, and room to start each LLC on a new line. */
	CPUS_PER_LINE = 8,
	MAX_PLACES = MAX_CPUS + MAX_LLCS * CPUS_PER_LINE,
	MAX_LINES = MAX_PLACES / CPUS_PER_LINE,

	NO_PLACE = 0xffff,

	FAST_CAPACITY = 820, /* of 1024: four fifths of the fastest CPU */

	/* Cgroups that are told apart; tasks of further ones count as the root's. */
	MAX_CGROUPS = 8192,
};

/* How far away work was found; each distance has its own measured cost. */
enum magpie_distance {
	DISTANCE_SIBLING,
	DISTANCE_LLC,
	DISTANCE_NODE,
	DISTANCE_REMOTE,
	NR_DISTANCES,
};

/*
 * Events, counted on the CPU where they happen, on a line of its own. Names
 * and order are known to stats.rs through the generated bindings.
 */
enum magpie_event {
	EVENT_WAKE_IDLE, /* wakeup placed directly on an idle CPU */
	EVENT_WAKE_PREVIOUS, /* ... of which by step: its previous CPU */
	EVENT_WAKE_RECENT, /* the CPU before that */
	EVENT_WAKE_WAKER, /* the waker's own, whose queue it joined */
	EVENT_WAKE_CORE, /* an idle core of the LLC */
	EVENT_WAKE_CPU, /* an idle CPU of the LLC */
	EVENT_WAKE_BEYOND, /* in another LLC */
	EVENT_FORK_AWAY, /* new task looked in another LLC, which has fewer */
	EVENT_SPREAD, /* running task that left a shared core for an idle one */
	EVENT_IDLE_ENTER, /* CPU went idle */
	EVENT_IDLE_WRITE, /* writes to lines that tell which CPUs are idle */
	EVENT_ENQUEUE, /* task put into a CPU's queue */
	EVENT_DISPATCH, /* task taken from the own queue */
	EVENT_KEEP, /* running task kept for another slice */
	EVENT_PREEMPT, /* wakeup preempted the running task */
	EVENT_STEAL_ATTEMPT, /* search for work in other queues */
	EVENT_STEAL_SIBLING, /* task taken from the own core's sibling */
	EVENT_STEAL_LLC, /* task taken from the own LLC */
	EVENT_STEAL_NODE, /* task taken from another LLC of the node */
	EVENT_STEAL_REMOTE, /* task taken from another node */
	EVENT_STEAL_GATED, /* search not made: shorter idle than its cost */
	EVENT_STEAL_LOOK, /* queue of another CPU tried */
	EVENT_STEAL_NS, /* time spent in searches, ns */
	EVENT_STEAL_FOUND_NS, /* ... of which in those that found something */
	EVENT_ROTATE, /* task pulled by a busy CPU to even out service */
	EVENT_TURN, /* busy CPU looked at other LLCs for its own */
	EVENT_KICK_IDLE, /* idle CPU woken to take a waiting task */
	EVENT_PUSH, /* ... at once, since a task had to wait again */
	EVENT_BACKOFF, /* task sent away from a CPU that is not preferred */
	EVENT_RESCUE, /* CPU found work in its queue while going idle */
	EVENT_SHARE_UPDATE, /* shares of all cgroups calculated */
	EVENT_SHARE_NS, /* time spent on that, ns */
	EVENT_CGROUP_LUMPED, /* cgroup beyond MAX_CGROUPS, taken for the root */
	EVENT_THROTTLE, /* cgroup used up its budget (cpu.max) */
	EVENT_THROTTLE_NS, /* time for which cgroups were throttled, ns */
	EVENT_PARK, /* task of a throttled cgroup parked */
	NR_EVENTS,
};

/* Preferred CPUs: what user space sets, at any time. */
enum preferred_mode {
	PREFERRED_AUTO, /* as the governor says */
	PREFERRED_SET, /* as requested_bits say */
	PREFERRED_OFF, /* all CPUs */
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
	u32 high, low; /* thresholds of steal, 1/100 of a percent */
	u64 period_ns;
};

/* ... and what it reads. Ratios in 1/100 of a percent, cores in 1/100. */
struct preferred_status {
	u32 cores; /* preferred now; 0 if they were set by the user */
	u32 total; /* online cores */
	u32 withheld; /* online CPUs that are not preferred */
	u32 steal; /* share of the counted time that the host took */
	u32 wanted, given; /* cores busy, with and without that time */
	u32 source; /* enum steal_source in use: kernel or estimate */
	s32 direction; /* of the last period: -1, 0, 1 */
	u64 changes; /* of the number of cores, since the start */
	u64 last_period; /* time stamp, ns */
	u64 applied; /* how often the settings were acted on */
	u64 kernel_steal_ns; /* non-zero if the kernel ever counted steal time */
};

/*
 * Where a CPU is. Filled by user space for every possible CPU; CPUs that are
 * offline at start carry user space's best guess.
 *
 * A *place* is a CPU's index in an order in which SMT siblings are adjacent,
 * then the CPUs of an LLC, then the LLCs of a node. Each LLC starts at a
 * multiple of CPUS_PER_LINE, so no two LLCs share a line of a sparsemask.
 */
struct cpu_topology {
	u16 place;
	u16 llc;
	u16 node;
	u16 core_first; /* place of the first sibling of the core */
	u16 core_size; /* siblings in the core, 1 without SMT */
	u16 capacity; /* 1..1024, the fastest CPU has 1024 */
};

struct llc_topology {
	u16 first; /* place of its first CPU */
	u16 size; /* places it has, used or not */
	u16 node;
	u16 node_first; /* first LLC of its node: they are numbered node by node */
	u16 node_llcs; /* how many LLCs the node has */
};

#endif /* __MAGPIE_INTF_H */
