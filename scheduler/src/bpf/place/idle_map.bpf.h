/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * idle_map.bpf.h - mechanism "wakeup", part: which CPUs are idle, in a map for each LLC.
 *
 * Idea ("Push-based load balancing", RFC v2, Linux kernel list): the kernel writes its mask of idle
 * CPUs at every entry to and exit from idle, and the mask's lines travel between all CPUs. Here
 * each LLC has its own map, a CPU stays in the map until its first tick after it left idle, and a
 * count says which LLCs are worth a search. portable/idle_map.h is the structure.
 *
 *   update_idle(true)  -> word: free, bit: set          (idle_begins)
 *   update_idle(false) -> word: busy, bit: stays        (idle_ends)
 *   tick               ->             bit: cleared      (idle_is_over)
 *   hotplug            -> word: offline, bit: cleared   (idle_goes_offline)
 *
 * A CPU that runs a SCHED_IDLE task counts as idle, but only for wakeups, which can preempt. It is
 * never kicked to search for work.
 *
 * What it does not do: find a CPU (search.bpf.h). With --no-wakeup the kernel's masks are in use
 * instead, and this file costs nothing.
 */
#ifndef __MAGPIE_IDLE_MAP_BPF_H
#define __MAGPIE_IDLE_MAP_BPF_H

const volatile bool idle_map_enabled = true;

/* The bits of all CPUs, by place. A CPU seldom writes its own bit; all CPUs read all bits. */
struct sparsemask_line idle_places[MAX_LINES];
struct idle_count idle_counts[MAX_LLCS];
struct {
	u32 llcs; /* with any bit set */
} __attribute__((aligned(64))) idle_sum;

static __always_inline struct idle_count *idle_count_of(u32 llc)
{
	return &idle_counts[llc & (MAX_LLCS - 1)];
}

/* Set or clear a CPU's bit, and keep the counts of idle CPUs and LLCs. */
static __always_inline void set_idle_bit(s32 cpu, bool is_set)
{
	const volatile struct cpu_topology *topology = topology_of(cpu);
	struct idle_count *count = idle_count_of(topology->llc);
	u32 place = topology->place;
	u32 line = place / SPARSEMASK_BITS;
	u32 writes;

	if (line >= MAX_LINES)
		return;

	if (is_set)
		writes = idle_map_set(&idle_places[line], place, count, &idle_sum.llcs);
	else
		writes = idle_map_clear(&idle_places[line], place, count, &idle_sum.llcs);
	if (writes)
		count_event(state_here(), EVENT_IDLE_WRITE, writes);
}

/*
 * Return whether the other CPUs of the core run nothing, or only SCHED_IDLE tasks, @now. Global:
 * the verifier proves the loop once.
 */
__noinline bool is_alone_on_core(u32 cpu, u64 now)
{
	u32 sibling = topology_of(cpu)->sibling;

	/* A plain loop: the iterator's calls would cost more than the questions. */
	for (u32 i = 1; i < MAX_CORE_SIZE && sibling != cpu; i++) {
		if (!is_word_quiet(READ_ONCE(state_of(sibling)->idle), now))
			return false;
		sibling = topology_of(sibling)->sibling;
	}

	return true;
}

/*
 * If the CPU's core is idle, let searches in its LLC look for an idle core again, see search_llc().
 * Siblings that go idle at the same moment may each see the other busy; the core is then not noted
 * until one of them goes idle again.
 */
static __always_inline void note_idle_core(struct cpu_state *state, s32 cpu)
{
	u32 *may_have = &idle_count_of(topology_of(cpu)->llc)->may_have_core;

	if (!has_smt || READ_ONCE(*may_have) || !is_alone_on_core(cpu, rq_now(cpu)))
		return;

	WRITE_ONCE(*may_have, 1);
	count_event(state, EVENT_IDLE_WRITE, 1);
}

/* Register a CPU as free, which ends a claim. */
static __always_inline void register_idle(struct cpu_state *state, s32 cpu)
{
	if (!idle_map_enabled || !state->is_online || state->idle == IDLE_FREE)
		return;

	WRITE_ONCE(state->idle, IDLE_FREE);
	set_idle_bit(cpu, true);
	note_idle_core(state, cpu);
}

/*
 * The CPU was kicked while idle and found no work. In bypass mode, at the start and around suspend,
 * the kernel does not call update_idle(). It kicks every CPU afterwards, and this call registers
 * those that are idle. (A CPU runs the idle task on its way offline, too, and must not be found
 * then.)
 */
static __always_inline void idle_goes_on(struct cpu_state *state, s32 cpu, bool claimed_to_search,
					 u64 now)
{
	if (is_free_again(READ_ONCE(state->idle), claimed_to_search, now))
		register_idle(state, cpu);
}

/*
 * The CPU goes idle. After a task of another class, a dispatch that found no work has registered it
 * already, and a waker may have claimed it since.
 */
static __always_inline void idle_begins(struct cpu_state *state, s32 cpu, u64 now)
{
	if (idle_map_enabled)
		count_event(state, EVENT_IDLE_ENTER, 1);
	idle_goes_on(state, cpu, false, now);
}

/* The CPU leaves idle. Its bit stays until its next tick: it may idle again before that. */
static __always_inline void idle_ends(struct cpu_state *state)
{
	if (idle_map_enabled)
		WRITE_ONCE(state->idle, IDLE_NOT);
}

/* As idle_ends(); whether a waker has claimed the CPU, and may not yet have sent its task here. */
static __always_inline bool idle_ends_with_claim(struct cpu_state *state)
{
	/* An exchange, because a waker may claim the CPU at this moment. */
	return idle_map_enabled && __sync_lock_test_and_set(&state->idle, IDLE_NOT) > IDLE_LAST;
}

/*
 * A task wakes on this CPU, where it would be alone: claim the CPU for it if it idles. Returns
 * false if a waker has claimed it for another task.
 */
static __always_inline bool take_own_cpu(struct cpu_state *state, u64 now)
{
	u64 word = READ_ONCE(state->idle);

	return word == IDLE_NOT || (is_word_free(word, now) && claim_word(&state->idle, word, now));
}

/* A tick on a busy CPU: clear its bit, so that searches no longer look at it. */
static __always_inline void idle_is_over(struct cpu_state *state, s32 cpu)
{
	if (!idle_map_enabled || state->idle == IDLE_POLICY)
		return;

	set_idle_bit(cpu, false);
	if (state->idle)
		WRITE_ONCE(state->idle, IDLE_NOT);
}

/* The CPU goes offline: no search may find it, and its siblings have the core for themselves. */
static __always_inline void idle_goes_offline(struct cpu_state *state, s32 cpu)
{
	if (!idle_map_enabled)
		return;

	WRITE_ONCE(state->idle, IDLE_OFFLINE);
	set_idle_bit(cpu, false);
}

/* A task begins to run: if it is a SCHED_IDLE task, its CPU counts as idle until it stops. */
static __always_inline void idle_policy_begins(struct cpu_state *state, s32 cpu,
					       const struct task_struct *p)
{
	if (!idle_map_enabled || p->policy != SCHED_IDLE)
		return;

	WRITE_ONCE(state->idle, IDLE_POLICY);
	set_idle_bit(cpu, true);
	note_idle_core(state, cpu);
}

/* The running task stops: if it was a SCHED_IDLE task, its CPU no longer counts as idle. */
static __always_inline void idle_policy_ends(struct cpu_state *state)
{
	if (idle_map_enabled && (state->idle == IDLE_POLICY || state->idle > IDLE_LAST))
		WRITE_ONCE(state->idle, IDLE_NOT);
}

/* The CPU that a visit of an LLC's idle places reaches next, or NO_CPU. */
__noinline u32 visit_idle(struct sparsemask_visit *visit)
{
	u32 place;

	if (!visit || !sparsemask_visit_next(visit, idle_places, MAX_LINES, &place))
		return NO_CPU;

	place = place_to_cpu(place);
	return place == NO_PLACE ? NO_CPU : place;
}

#endif /* __MAGPIE_IDLE_MAP_BPF_H */
