/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * steal.bpf.h - mechanism 1: an idle CPU takes waiting work at once.
 *
 * Idea ("steal tasks to improve CPU utilization", RFC v5, Linux kernel list):
 * the kernel's newidle balance walks the domains and adds up statistics of all
 * CPUs, so it must be rationed, and CPUs idle beside waiting tasks. A map of
 * overloaded CPUs makes the search so cheap that it can always be made. The
 * maintainers' objection was that newidle should be fixed rather than doubled:
 * here this *is* newidle.
 *
 *   own queue empty
 *        |
 *   siblings -> LLC
 *        | nothing
 *   shorter idle than a search costs? --yes--> idle; a busy CPU's tick kicks
 *        | no                                  us if work still waits then
 *   LLCs of the node -> other nodes, each starting at its own position
 *        |
 *   first overloaded CPU: first task in queue order that may run here
 *        |
 *   own queue once more, if another was looked into (that drops the runqueue lock)
 *
 * A thief that finds a queue empty clears its bit, or every other thief would look
 * into it too, the more the larger the machine. It may race with an insert that is
 * carried out only after ops.enqueue() returned, and hide the task. So it looks once more,
 * when it begins to run or to idle, and a CPU that was kicked for a task sets the bit
 * itself. What is hidden even so is the owner's to take at its next dispatch, or to tell
 * of at its next tick. While a real-time task has that CPU it has neither, and its bit is
 * left alone.
 *
 * The gate is for the outer levels. The own LLC is always searched: it is cheap,
 * and a task behind a real-time one has no tick that would tell of it.
 *
 * What it does not do: pick the busiest queue. Any work beats none.
 */
#ifndef __MAGPIE_STEAL_BPF_H
#define __MAGPIE_STEAL_BPF_H

const volatile bool steal_enabled = true;
const volatile bool steal_gate_enabled = true;

/* Global function: the verifier proves it once, not at every use. */
__noinline u32 next_overloaded(u32 from, u32 end)
{
	return sparsemask_next(overloaded, MAX_LINES, from, end);
}

/* A CPU that is not preferred only helps its like: see preferred.bpf.h. */
static __always_inline bool may_steal_from(s32 thief, u32 victim)
{
	if (victim == NO_PLACE || victim == thief)
		return false;

	return is_preferred(thief) || !is_preferred(victim);
}

/* The place that a visit of the map comes to next, or NO_PLACE when it is over. */
__noinline u32 visit_overloaded(struct sparsemask_visit *visit)
{
	u32 place;

	if (!visit || !sparsemask_visit_next(visit, overloaded, MAX_LINES, &place))
		return NO_PLACE;

	return place;
}

/* Queues that this CPU has tried to take from: each time, the runqueue lock was dropped. */
static __always_inline u64 nr_looks(const struct cpu_state *state)
{
	return state->events[EVENT_STEAL_LOOK];
}

/* 1 + the CPU whose queue was found empty and is not: the insert came after the look. Or 0. */
static __always_inline u32 look_again(struct cpu_state *thief)
{
	u32 found = thief->found_empty;

	if (!found)
		return 0;

	thief->found_empty = 0;
	if (!scx_bpf_dsq_nr_queued(found - 1))
		return 0;

	set_overloaded(found - 1, true);
	return found;
}

static __always_inline bool steal_from(s32 cpu, u32 victim)
{
	struct cpu_state *thief = state_of(cpu);

	count_event(thief, EVENT_STEAL_LOOK, 1);
	if (scx_bpf_dsq_move_to_local(victim, 0))
		return true;

	if (!scx_bpf_dsq_nr_queued(victim) && !READ_ONCE(state_of(victim)->has_no_tick)) {
		look_again(thief);
		set_overloaded(victim, false);
		thief->found_empty = 1 + victim;
	}
	return false;
}

/* Visit the overloaded CPUs of [first, end), once around from @start, until one gives a task. */
__noinline bool steal_from_range(s32 thief, u32 first, u32 end, u32 start)
{
	struct sparsemask_visit visit = sparsemask_visit_begin(first, end, start);
	bool found = false;
	u32 i;

	/* Most searches are of a machine where nothing waits, and should cost next to nothing. */
	if (next_overloaded(first, end) == end)
		return false;

	bpf_for(i, 0, MAX_PLACES) {
		u32 place = visit_overloaded(&visit);
		u32 victim;

		if (place == NO_PLACE)
			break;

		victim = place_to_cpu(place);
		if (!may_steal_from(thief, victim))
			continue;

		found = steal_from(thief, victim);
		if (found)
			break;
	}

	return found;
}

/* All of an LLC, beginning at @start so that thieves do not converge. */
static __always_inline bool steal_from_llc(s32 thief, u32 llc, u32 start)
{
	u32 first = llc_of(llc)->first;

	return steal_from_range(thief, first, first + llc_of(llc)->size, start);
}

/* Where in another LLC a thief begins: not where its neighbours begin. */
static __always_inline u32 spread_start(s32 thief, u32 llc)
{
	u32 size = llc_of(llc)->size;

	return llc_of(llc)->first + (size ? (u32)thief % size : 0);
}

/* LLCs by distance: [1, node_llcs) are of the own node, the rest of others. */
__noinline bool steal_from_llcs(s32 thief, u32 from, u32 end)
{
	u32 own = topology_of(thief)->llc;
	bool found = false;
	u32 i;

	bpf_for(i, from, end) {
		u32 llc = nth_llc(own, i);

		found = steal_from_llc(thief, llc, spread_start(thief, llc));
		if (found)
			break;
	}

	return found;
}

static __always_inline bool steal_at(s32 thief, enum magpie_distance distance)
{
	const volatile struct cpu_topology *topology = topology_of(thief);

	switch (distance) {
	case DISTANCE_SIBLING:
		return topology->core_size > 1 &&
		       steal_from_range(thief, topology->core_first,
					topology->core_first + topology->core_size,
					topology->place);
	case DISTANCE_LLC:
		return steal_from_llc(thief, topology->llc, topology->place + 1);
	case DISTANCE_NODE:
		return steal_from_llcs(thief, 1, llc_of(topology->llc)->node_llcs);
	default:
		return steal_from_llcs(thief, llc_of(topology->llc)->node_llcs, nr_llcs);
	}
}

/*
 * Look for work near, then further away, as long as this CPU's idle periods are
 * longer than the search has cost so far at that distance.
 */
static __always_inline bool steal_work(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	u32 asked = state->must_search;
	bool must_search = asked || !steal_gate_enabled;
	u64 looks = nr_looks(state);
	u64 began = scx_bpf_now();
	u64 before = began;
	bool found = false;
	int distance;

	state->must_search = 0;
	if (asked && asked < ANYWHERE)
		set_overloaded(asked - 1, true);
	state->search_began = began;
	count_event(state, EVENT_STEAL_ATTEMPT, 1);

	bpf_for(distance, DISTANCE_SIBLING, NR_DISTANCES) {
		u64 now = before;

		if (distance < 0 || distance >= NR_DISTANCES)
			break;

		if (distance > DISTANCE_LLC && !must_search &&
		    state->avg_idle < state->steal_cost[distance]) {
			count_event(state, EVENT_STEAL_GATED, 1);
			break;
		}

		found = steal_at(cpu, distance);
		/* Empty maps cost less to visit than the clock to read: they count as free. */
		if (nr_looks(state) != looks) {
			looks = nr_looks(state);
			now = scx_bpf_now();
		}
		state->steal_cost[distance] =
			average_add(state->steal_cost[distance], now - before);
		before = now;
		if (found) {
			count_event(state, EVENT_STEAL_SIBLING + distance, 1);
			break;
		}
	}

	count_event(state, EVENT_STEAL_NS, before - began);
	if (found)
		count_event(state, EVENT_STEAL_FOUND_NS, before - began);
	return found;
}

#endif /* __MAGPIE_STEAL_BPF_H */
