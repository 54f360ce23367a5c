/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * state.bpf.h - what is known of each CPU, LLC and task, and who writes it.
 *
 * cpu_state is laid out by writer. A CPU writes its first line on every context switch, and wakers
 * on other CPUs read that line. The events have lines of their own, because only their CPU and,
 * seldom, the statistics read them.
 */
#ifndef __MAGPIE_STATE_BPF_H
#define __MAGPIE_STATE_BPF_H

/* From the kernel's headers: vmlinux.h has no macros. */
#define SCHED_BATCH 3
#define SCHED_IDLE 5
#define PF_KTHREAD 0x00200000
#define TASK_RUNNING 0

#define UNKNOWN_PERF 2048 /* more than any: the task's first run has a look at it */
#define ANYWHERE (MAX_CPUS + 1) /* must_search: the CPU where a task waits is not known */

struct cpu_state {
	/*
	 * Line 0. Its CPU writes it and wakers read it. Wakers write only what they change for this
	 * CPU: they claim it while it idles, preempt, queue a task, and set its timer.
	 */
	u64 clock; /* see queue/fair.bpf.h */
	u64 clock_base; /* its clock where its LLC's is 0 */
	u64 deadline; /* of the running task, 0: it must not be preempted */
	u64 slice_ends; /* when the running task will have used up a slice here */
	u64 began; /* when the running task began to run, or was let go on */
	u64 sleeps_by; /* when the running task sleeps at the latest, if it does as usual */
	u64 idle; /* enum idle_word, or the time at which a waker claimed the CPU */
	u8 has_no_tick; /* a task of a higher class runs: no tick advertises waiting tasks */
	u8 soon_free; /* a preempted task will have this CPU back soon, see balance/patience.bpf.h */
	u8 sleeps_soon; /* the running task is expected to, see place/search.bpf.h */
	u8 idles; /* its clock stands still */
	u8 queued; /* a task was queued since the queue was last empty, see has_queued() */
	u8 has_foreign; /* likewise a task of another runqueue */
	u16 hrtick; /* its timer is set, see queue/hrtick.bpf.h */

	/*
	 * Its CPU writes these. Exceptions: must_search (any CPU that kicks this one), waiting (a
	 * CPU that pulls a task from here), queued_since (one that queues a task here), is_online
	 * (hotplug), and for the monitor's timer seen_*, now_*, window_late_ns and longest_late_ns.
	 */
	u64 idle_since __attribute__((aligned(64))); /* 0 while busy */
	u64 next_push; /* when a requeued task may kick an idle CPU again */
	u64 next_overdue_look; /* see queue/overdue.bpf.h */
	u8 looks_for_overdue; /* its next dispatch does */
	u64 search_began; /* time of the last search for work */
	u64 avg_idle; /* moving average of idle periods, ns */
	u64 steal_cost[NR_DISTANCES]; /* moving average of searches, ns */
	u64 next_balance; /* when this CPU, if busy, looks at its LLC again */
	u64 paced_at; /* when the pace was last measured, and the clock then */
	u64 paced_clock;
	u64 pace; /* of the clock, moving average, or 0; see balance/balance.bpf.h */
	u64 queued_since; /* since when tasks wait, if any do; see power/power.bpf.h */
	u32 waiting; /* queued tasks at the last tick, 0 if none may run elsewhere */
	u32 walked; /* tasks of a queue that a loop has visited; in memory for the verifier */
	u64 next_tick; /* when it is due; see guest/late_ticks.bpf.h */
	u64 woke_at; /* when a task here first woke another one since a tick was due */
	u64 punctual; /* least delay of recent ticks, ns; see portable/steal.h */
	u64 avg_excess; /* by how much late ticks are later than counts as late, moving average, ns */
	u64 late_ns; /* time that the host withheld, by late ticks */
	u64 window_late_ns; /* that sum when the current collection began */
	u64 longest_late_ns; /* what the longest delay since then added */
	u64 busy_since; /* 0 while idle */
	u64 busy_ns; /* sum of complete busy periods */
	u64 seen_late_ns, seen_busy_ns, seen_steal_ns; /* when the governor's period began */
	u64 now_late_ns, now_busy_ns, now_steal_ns; /* when the monitor last ran */
	u32 is_online;
	u32 must_search; /* kicked to search: 1 + the CPU where a task waits, or ANYWHERE */
	u32 refused; /* queues that the search of now has left, see place/move_cost.bpf.h */
	u32 met_none; /* the last search took no task, and met none in its LLC */
	u32 looks; /* how many CPUs a wakeup from here may look at */
	u64 taken_at; /* when another task took the CPU, see balance/patience.bpf.h */
	u32 is_waiting; /* the timer that looks whether tasks still wait for it is set */

	/* Its CPU, and the timer that lowers its target while it idles; see power/frequency.bpf.h. */
	u64 idled __attribute__((aligned(64))); /* sum of complete idle periods, ns */
	u64 looked_at, idled_when_looked; /* when it last measured, and @idled then */
	u64 no_idle_since; /* when it last left idle */
	u64 target_due; /* rate limit, see may_set_target() */
	u32 perf_target; /* as the kernel had it at the last look */
	u32 utilisation; /* see portable/perf.h */
	u32 capacity; /* as the kernel had it when the timer last looked */
	u32 untold; /* the governor may not know the target */
	s32 enough; /* a task that needs more looks when it begins to run: the target, or NOT_ENOUGH */

	/* Lines of their own: only this CPU writes them, user space adds them up. */
	u64 events[NR_EVENTS] __attribute__((aligned(64)));
} __attribute__((aligned(64)));

_Static_assert(__builtin_offsetof(struct cpu_state, idle_since) == 64,
	       "what wakers read fits one line");

_Static_assert(__builtin_offsetof(struct cpu_state, events) -
			       __builtin_offsetof(struct cpu_state, idled) ==
		       64,
	       "what the mechanism frequency notes fits one line");

struct cpu_state cpu_states[MAX_CPUS];

/*
 * The clock is the furthest of the LLC's CPUs, but for those of light tasks. A tick writes it if it
 * is a millisecond behind; ticks, CPUs that leave idle, and wakers that queue a task on an idle CPU
 * read it. Ticks, pulls and the start of idle periods change @waiting, which busy CPUs read when
 * they balance, and wakers where all CPUs have waiting tasks. It may be below 0 for a moment. Busy
 * CPUs write the rest when they balance, and their part of @paces when they go idle.
 */
struct llc_state {
	u64 clock;
	u64 paces; /* sum of its CPUs' */
	u64 next_rotation; /* when one of its CPUs may pull from an LLC with a slower pace again */
	u64 next_duty; /* when one of its CPUs scans other LLCs again */
	u32 on_duty; /* that CPU, counted from the LLC's first */
	u32 waiting; /* sum of its CPUs' */
	u32 nr_paced; /* how many CPUs @paces is the sum of */
} __attribute__((aligned(64)));

struct llc_state llc_states[MAX_LLCS];

/*
 * A task's state is two lines, which travel with the task. From 6.19 on the kernel puts a pointer
 * before it in the same line, so line 0 has 56 bytes.
 */
struct task_state {
	/*
	 * Line 0 changes whenever the task runs. Wakers read it, and seldom write it: only if they
	 * queue the task, or send it to another LLC. A line that both write travels twice.
	 */
	u64 vruntime; /* on the clock of @cpu */
	u64 charged; /* se.sum_exec_runtime up to which vruntime counts */
	u64 burst; /* CPU time since the last sleep, ns */
	u64 avg_burst; /* its moving average */
	u64 queued_at; /* when it last began to wait in a CPU's queue */
	struct move_history moves; /* what moves to another LLC cost it */
	s16 cpu; /* whose clock vruntime is on, -1 before the first run */
	u8 slept : 1; /* and has joined no clock since, see queue/fair.bpf.h */
	u8 yielded : 1; /* do not keep it running */
	u8 counted : 1; /* its cgroup counts it as active */
	u8 ticks; /* seen while it ran, since its last sleep; at most 255 */

	/* Line 1 changes seldom, and is not written if it does not. */
	u64 catch_up; /* lag that a migration did not give at once, see queue/fair.bpf.h */
	u64 parked_at; /* when it was first parked since it last ran, or 0 */
	u64 rate; /* virtual ns per ns, see portable/weight.h */
	u64 nice_rate; /* the same without cgroups */
	u64 slice; /* how long it runs at a time, ns */
	u32 weight; /* of its nice value */
	u32 cgroup; /* its slot in cgroup_states[] */
	u32 recent; /* the CPU before its previous CPU, or NO_CPU */
	u16 woken_from; /* the waker's CPU, if that is of use: see place/wakeup.bpf.h */
	u16 migrates_to; /* 1 + the CPU that was claimed for it, or 0; see place/spread.bpf.h */
	u16 forked_in; /* 1 + the LLC that counts it, or 0; see place/fork.bpf.h */
	s16 least_perf; /* with which it should run, at the last look; or UNKNOWN_PERF */
	u8 tick_bursts; /* how many bursts saw a tick, at most 5; see power/frequency.bpf.h */
	bool shares_core; /* its core was shared at its last tick */
	bool has_custom_slice; /* asked for with sched_setattr(2) */
	bool parked; /* and has joined no clock since; no bit, as a timer writes it */
};

_Static_assert(__builtin_offsetof(struct task_state, catch_up) == 64 - 8,
	       "what changes whenever a task runs fits one line");
_Static_assert(sizeof(struct task_state) == 2 * 64 - 8, "all fits two lines");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} task_states SEC(".maps");

/* The masks: as in topology_of(). */
static __always_inline struct cpu_state *state_of(s32 cpu)
{
	return &cpu_states[cpu & (MAX_CPUS - 1)];
}

static __always_inline struct cpu_state *state_here(void)
{
	return state_of(bpf_get_smp_processor_id());
}

static __always_inline struct llc_state *llc_state_at(u32 llc)
{
	return &llc_states[llc & (MAX_LLCS - 1)];
}

static __always_inline struct llc_state *llc_state_of(s32 cpu)
{
	return llc_state_at(topology_of(cpu)->llc);
}

static __always_inline struct task_state *task_state(struct task_struct *p)
{
	return bpf_task_storage_get(&task_states, p, NULL, 0);
}

static __always_inline void count_event(struct cpu_state *state, enum magpie_event event, u64 n)
{
	state->events[event] += n;
}

static __always_inline bool is_runnable(const struct task_struct *p)
{
	return p->scx.flags & SCX_TASK_QUEUED;
}

/* Return whether the task may run on one CPU only, now. */
static __always_inline bool is_pinned(const struct task_struct *p)
{
	return p->nr_cpus_allowed == 1 || is_migration_disabled(p);
}

#endif /* __MAGPIE_STATE_BPF_H */
