/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * state.bpf.h - what is known of each CPU and each task, and who writes it.
 *
 * cpu_state is laid out by writer: the first line is written by its own CPU on
 * every context switch and read by wakers elsewhere; the events have lines of
 * their own because only their CPU and, seldom, the statistics read them.
 */
#ifndef __MAGPIE_STATE_BPF_H
#define __MAGPIE_STATE_BPF_H

/* From the kernel's headers: vmlinux.h has no macros. */
#define SCHED_BATCH 3
#define SCHED_IDLE 5
#define PF_KTHREAD 0x00200000

/* Topology and limits: written by user space before load, constant after. */
const volatile u32 nr_cpus = 1;
const volatile u32 nr_llcs = 1;
const volatile u32 nr_places = 1;
const volatile struct cpu_topology cpu_topology[MAX_CPUS];
const volatile struct llc_topology llc_topology[MAX_LLCS];
const volatile u16 cpu_at_place[MAX_PLACES];

#define ANYWHERE (MAX_CPUS + 1) /* nobody said where it waits */

struct cpu_state {
	/*
	 * Line 0: own CPU writes, wakers read, and write what they change for it: they
	 * claim it while it idles, and they preempt.
	 */
	u64 clock; /* virtual time of this runqueue: where new tasks join */
	u64 preempt_key; /* key of the running task, 0: not to be preempted */
	u64 running_since; /* valid while preempt_key is set */
	u64 next_push; /* when a waiting task may have an idle CPU woken again */
	u64 idle; /* enum idle_word, or the time at which a waker claimed it */
	u64 has_no_tick; /* a real-time task has it: its ticks tell of nothing that waits */
	u64 soon_free; /* who is preempted now will have it back in no time */
	u64 sleeps_soon; /* who runs here is believed to, see wakeup.bpf.h */

	/*
	 * Own CPU, but for must_search (whoever kicks it), seen_* and now_* (the
	 * monitor's timer) and is_online (hotplug).
	 */
	u64 idle_since __attribute__((aligned(64))); /* 0 while busy */
	u64 search_began; /* stamp of the last search for work */
	u64 avg_idle; /* moving average of idle periods, ns */
	u64 steal_cost[NR_DISTANCES]; /* moving average of searches, ns */
	u64 next_balance; /* when a busy CPU looks around again */
	u64 paced_at; /* the last time it did, and its clock then */
	u64 paced_clock;
	u64 pace; /* how fast its clock goes, moving average; see balance.bpf.h */
	u32 waiting; /* tasks that may leave, at the last tick */
	u32 walked; /* of its queue, by who walks along it; in memory for the verifier */
	u64 last_tick; /* 0 while idle; for late ticks */
	u64 woke_at; /* when a wakeup was last made from here */
	u64 late_ns; /* sum of what ticks came late by */
	u64 window_late_ns; /* that sum when the window for repetition began */
	u64 longest_late_ns; /* since then */
	u64 busy_since; /* 0 while idle */
	u64 busy_ns; /* sum of complete busy periods */
	u64 seen_late_ns, seen_busy_ns, seen_steal_ns; /* when the period began */
	u64 now_late_ns, now_busy_ns, now_steal_ns; /* when the monitor last looked */
	u32 is_online;
	u32 must_search; /* kicked for work: 1 + the CPU where it waits, or ANYWHERE */
	u32 found_empty; /* 1 + the CPU whose bit this one has cleared last, or 0 */
	u32 looks; /* how many CPUs a wakeup from here looks at */

	/* Lines of their own: own CPU only, summed by user space. */
	u64 events[NR_EVENTS] __attribute__((aligned(64)));
} __attribute__((aligned(64)));

struct cpu_state cpu_states[MAX_CPUS];

/*
 * The clock is the furthest of the LLC's CPUs: written from ticks when it is a
 * millisecond behind, read by CPUs that leave idle. So is the number of waiting tasks,
 * when it changed. The rest is written by busy CPUs when they look around; if two do so
 * at once, one sample is lost.
 */
struct llc_state {
	u64 clock;
	u64 pace; /* moving average of its CPUs' */
	u64 next_rotation; /* when one of them may take a task of a slower LLC */
	u64 next_turn; /* when one of them looks at other LLCs again */
	u32 turn; /* which one, counted from the LLC's first */
	u32 waiting; /* sum of its CPUs' */
} __attribute__((aligned(64)));

struct llc_state llc_states[MAX_LLCS];

/*
 * The mask tells the verifier the bound without a branch or a NULL check at
 * every use; CPU numbers from the kernel are always below MAX_CPUS.
 */
static __always_inline struct cpu_state *state_of(s32 cpu)
{
	return &cpu_states[cpu & (MAX_CPUS - 1)];
}

static __always_inline const volatile struct cpu_topology *topology_of(s32 cpu)
{
	return &cpu_topology[cpu & (MAX_CPUS - 1)];
}

static __always_inline const volatile struct llc_topology *llc_of(u32 llc)
{
	return &llc_topology[llc & (MAX_LLCS - 1)];
}

/* The i-th other LLC, nearest first, from 1. */
u32 nth_llc(u32 llc, u32 i)
{
	const volatile struct llc_topology *own = llc_of(llc);

	return llc_by_distance(llc, i, own->node_first, own->node_llcs, nr_llcs);
}

/* The CPU at a place, or NO_PLACE. */
static __always_inline u32 place_to_cpu(u32 place)
{
	if (place >= MAX_PLACES)
		return NO_PLACE;

	return cpu_at_place[place];
}

static __always_inline void count_event(struct cpu_state *state, enum magpie_event event, u64 n)
{
	state->events[event] += n;
}

/*
 * CPUs with a task waiting that may run elsewhere. Set by whoever queues such a
 * task and cleared by the CPU itself, both under its runqueue lock, but for tasks
 * that preferred.bpf.h sends here. Thieves do both without it, see steal.bpf.h. A
 * tick repairs what these races leave.
 */
struct sparsemask_line overloaded[MAX_LINES];

static __always_inline void set_overloaded(s32 cpu, bool is_overloaded)
{
	u32 place = topology_of(cpu)->place;
	u32 line = place / SPARSEMASK_BITS;

	if (line >= MAX_LINES)
		return;

	if (is_overloaded)
		sparsemask_line_set(&overloaded[line], place);
	else
		sparsemask_line_clear(&overloaded[line], place);
}

struct task_state {
	u64 vruntime; /* on the clock of @cpu */
	u64 lead; /* virtual time that it may still catch up, at twice its share */
	u64 charged; /* se.sum_exec_runtime up to where vruntime counts */
	u64 burst; /* CPU time since the last sleep, ns */
	u64 avg_burst; /* its moving average */
	u64 rate; /* virtual ns per ns, see portable/weight.h */
	u64 nice_rate; /* the same before cgroups, see cgroup.bpf.h */
	u32 weight; /* of its nice value */
	u32 counted; /* weight with which its cgroup counts it as active, or 0 */
	u32 cgroup; /* its slot in cgroup_states[] */
	u64 parked_at; /* first time since it last ran, or 0: see bandwidth.bpf.h */
	s32 cpu; /* whose clock vruntime is on, -1 before the first run */
	u32 recent; /* where it ran before its previous CPU, or NO_CPU */
	u32 woken_from; /* the CPU from which it was woken when one was chosen for it */
	u32 ticks; /* seen while it ran, since its last sleep */
	u32 forked_in; /* 1 + LLC that counts it, or 0: see fork.bpf.h */
	s32 goes_to; /* 1 + the CPU that was claimed for it, or 0: see spread.bpf.h */
	bool shares_core; /* seen at a tick */
	bool woken_by_writer; /* to a pipe or a socket: more may come */
	bool yielded; /* gave up its turn: do not keep it running */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} task_states SEC(".maps");

static __always_inline struct task_state *task_state(struct task_struct *p)
{
	return bpf_task_storage_get(&task_states, p, NULL, 0);
}

static __always_inline bool is_runnable(const struct task_struct *p)
{
	return p->scx.flags & SCX_TASK_QUEUED;
}

static __always_inline bool is_pinned(const struct task_struct *p)
{
	return p->nr_cpus_allowed == 1 || is_migration_disabled(p);
}

static __always_inline bool is_bound_kernel_thread(const struct task_struct *p)
{
	return p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1;
}

#endif /* __MAGPIE_STATE_BPF_H */
