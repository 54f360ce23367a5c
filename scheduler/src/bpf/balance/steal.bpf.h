/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * steal.bpf.h - mechanism "steal": an idle CPU takes a waiting task of another CPU.
 *
 * Idea ("steal tasks to improve CPU utilization", RFC v5, Linux kernel list): the kernel's newidle
 * balance walks the domains and adds up statistics of all CPUs. It is too slow to run always, so
 * CPUs idle beside waiting tasks. A map of overloaded CPUs (queue/overloaded.bpf.h) makes the
 * search cheap enough. The maintainers objected that newidle should be fixed rather than doubled;
 * here this search *is* newidle.
 *
 *   own queue empty
 *        |
 *   siblings -> LLC
 *        | nothing
 *   avg_idle shorter than a search costs? --yes--> idle; a busy CPU's tick kicks
 *        | no                                      us if a task still waits then
 *   any CPU of the machine overloaded?    --no---> idle
 *        | yes
 *   LLCs of the node -> other nodes, each beginning at its own position
 *        |
 *   first overloaded CPU: first task in queue order that may run here; one of another LLC only if
 *        |                it has waited for as long as the move costs it (place/move_cost.bpf.h)
 *        |
 *   own queue once more, if another was tried (that drops the runqueue lock)
 *
 * A thief that finds a queue empty clears the queue's bit, or every other thief would try that
 * queue, too. But a task may be on its way: the kernel counts it as runnable, then calls
 * ops.enqueue(), which advertises it, and inserts it after that. So a thief clears the bit only if
 * the kernel counts no task behind the running one, asks again, and sets the bit if it now does. A
 * bit that is left because of a parked task stays until a tick or a dispatch of that CPU.
 *
 * A search that met no task in its LLC may have come too early: a waker that found no idle CPU was
 * about to advertise a task, or the task was on its way. So the CPU announces that it idles, looks
 * once more, and searches again if a task waits there (ops/run.bpf.h). Two cases are left to the
 * next tick, which offers what is queued: a waker that looked for an idle CPU before that
 * announcement and advertises its task after that look; and a waker that stands still between
 * advertisement and insert, as a vCPU may, until the CPU idles.
 *
 * The gate is for searches beyond the LLC. A thief always searches its own LLC: that is cheap, and
 * no tick kicks a thief for a task that waits behind a real-time one.
 *
 * What it does not do: pick the longest queue. Within the LLC any work is better than
 * none.
 */
#ifndef __MAGPIE_STEAL_BPF_H
#define __MAGPIE_STEAL_BPF_H

const volatile bool steal_enabled = true;
const volatile bool steal_gate_enabled = true;

/* A withheld CPU takes tasks only from withheld CPUs, see guest/preferred.bpf.h. */
static __always_inline bool may_steal_from(s32 thief, u32 victim)
{
	if (victim == NO_PLACE || victim == thief)
		return false;

	return is_preferred(thief) || !is_preferred(victim);
}

/* How many queues this CPU has tried so far. Each attempt drops the runqueue lock. */
static __always_inline u64 nr_looks(const struct cpu_state *state)
{
	return state->events[EVENT_STEAL_LOOK];
}

/*
 * Return whether a task may be on its way to a CPU's queue. An offline CPU has no dispatch that would
 * find a task of another runqueue and forget it, see note_queue_empty().
 */
static __always_inline bool may_get_task(s32 cpu)
{
	const struct cpu_state *state = state_of(cpu);

	return has_waiting(cpu) || (READ_ONCE(state->has_foreign) && READ_ONCE(state->is_online));
}

/* Clear the bit of a queue that was found empty, unless a task may be on its way there. */
static __always_inline void hide_empty_queue(s32 cpu)
{
	if (may_get_task(cpu))
		return;

	hide_queue(cpu);
	if (may_get_task(cpu))
		advertise_queue(cpu);
}

/* A search has met a task that it leaves: in the own LLC a second search would leave it, too. */
static __always_inline void note_met(struct cpu_state *thief, s32 cpu, u32 victim)
{
	if (!is_in_other_llc(cpu, victim))
		thief->met_none = 0;
}

/*
 * Return whether a task waits in the LLC that this CPU might take. It looks in the order of the map,
 * as all CPUs do here: it takes nothing, so nobody competes for the first queue. Global: the verifier
 * proves it once.
 */
__noinline bool is_work_near(s32 cpu)
{
	const volatile struct llc_topology *llc = llc_of(topology_of(cpu)->llc);
	u32 place = llc->first;
	u32 end = place + llc->size;
	bool found = false;
	u32 i;

	bpf_for(i, 0, MAX_PLACES) {
		u32 victim;

		place = next_overloaded(place, end);
		if (place >= end)
			break;

		victim = place_to_cpu(place++);
		found = may_steal_from(cpu, victim) && scx_bpf_dsq_nr_queued(victim);
		if (found)
			break;
	}

	return found;
}

/*
 * Take the first task of a queue that may run here; whether there was one. Clears the bit of an
 * empty queue if it may.
 */
static __always_inline bool steal_from(s32 cpu, u32 victim)
{
	struct cpu_state *thief = state_of(cpu);
	u64 began = scx_bpf_now();
	bool found;

	if (refuses_far_move(thief, cpu, victim)) {
		count_event(thief, EVENT_STEAL_NS, scx_bpf_now() - began);
		return false;
	}

	count_event(thief, EVENT_STEAL_LOOK, 1);
	found = scx_bpf_dsq_move_to_local(victim, 0);
	count_event(thief, EVENT_STEAL_NS, scx_bpf_now() - began);
	if (found)
		return true;

	if (scx_bpf_dsq_nr_queued(victim))
		note_met(thief, cpu, victim);
	else
		hide_empty_queue(victim);
	return false;
}

/* Visit the overloaded CPUs of [first, end), once around from @start, until a task is taken. */
__noinline bool steal_from_range(s32 thief, u32 first, u32 end, u32 start)
{
	struct sparsemask_visit visit = sparsemask_visit_begin(first, end, start);
	bool found = false;
	u32 i;

	bpf_for(i, 0, MAX_PLACES) {
		u32 place = visit_overloaded(&visit);
		u32 victim;

		if (place == NO_PLACE)
			break;

		victim = place_to_cpu(place);
		if (!may_steal_from(thief, victim))
			continue;

		found = steal_from(thief, victim);
		if (found || gives_up(state_of(thief)))
			break;
	}

	return found;
}

/* Visit the overloaded CPUs of an LLC, once around from @start, so that thieves do not converge. */
static __always_inline bool steal_from_llc(s32 thief, u32 llc, u32 start)
{
	u32 first = llc_of(llc)->first;

	return steal_from_range(thief, first, first + llc_of(llc)->size, start);
}

/* The place at which a thief begins in another LLC; its neighbours begin at other places. */
static __always_inline u32 spread_start(s32 thief, u32 llc)
{
	u32 size = llc_of(llc)->size;

	return llc_of(llc)->first + (size ? (u32)thief % size : 0);
}

/*
 * Visit the other LLCs number [from, end) by distance, until a task is taken: [1, node_llcs) are in
 * the thief's node, the rest in other nodes.
 */
__noinline bool steal_from_llcs(s32 thief, u32 from, u32 end)
{
	u32 own = topology_of(thief)->llc;
	bool found = false;
	u32 i;

	bpf_for(i, from, end) {
		u32 llc = nth_llc(own, i);

		found = has_overloaded(llc) && steal_from_llc(thief, llc, spread_start(thief, llc));
		if (found || gives_up(state_of(thief)))
			break;
	}

	return found;
}

/* Search at one distance; whether a task was taken. */
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
		return is_any_overloaded() &&
		       steal_from_llcs(thief, 1, llc_of(topology->llc)->node_llcs);
	default:
		return is_any_overloaded() &&
		       steal_from_llcs(thief, llc_of(topology->llc)->node_llcs, nr_llcs);
	}
}

/* Return whether a search at this distance pays; counts those that do not. */
static __always_inline bool is_worth_it(struct cpu_state *state, enum magpie_distance distance,
					bool must_search)
{
	if (must_search || state->avg_idle >= state->steal_cost[distance])
		return true;

	count_event(state, EVENT_STEAL_GATED, 1);
	return false;
}

/* The time that this CPU has spent in tries so far, ns. To visit an empty map counts as free. */
static __always_inline u64 looked_for(const struct cpu_state *state)
{
	return state->events[EVENT_STEAL_NS];
}

/* Search at one distance and learn what that costs; whether a task was taken. */
static __always_inline bool steal_and_learn(struct cpu_state *state, s32 cpu,
					    enum magpie_distance distance)
{
	u64 before = looked_for(state);
	bool found = steal_at(cpu, distance);

	state->steal_cost[distance] =
		average_add(state->steal_cost[distance], looked_for(state) - before);
	if (found)
		count_event(state, EVENT_STEAL_SIBLING + distance, 1);

	return found;
}

/* Search the own LLC, siblings first; whether a task was taken. */
static __always_inline bool steal_near(struct cpu_state *state, s32 cpu)
{
	if (!has_overloaded(topology_of(cpu)->llc))
		return false;

	return steal_and_learn(state, cpu, DISTANCE_SIBLING) ||
	       steal_and_learn(state, cpu, DISTANCE_LLC);
}

/*
 * Search beyond the LLC, as far as this CPU's idle periods are longer than searches at that
 * distance take; whether a task was taken.
 */
static __always_inline bool steal_far(struct cpu_state *state, s32 cpu, bool must_search)
{
	u32 node_llcs = llc_of(topology_of(cpu)->llc)->node_llcs;

	if (node_llcs > 1) {
		if (!is_worth_it(state, DISTANCE_NODE, must_search))
			return false;
		if (steal_and_learn(state, cpu, DISTANCE_NODE))
			return true;
	}

	return nr_llcs > node_llcs && is_worth_it(state, DISTANCE_REMOTE, must_search) &&
	       steal_and_learn(state, cpu, DISTANCE_REMOTE);
}

/*
 * Search for work near, then further away; whether a task was taken. A CPU that was kicked to
 * search does so at every distance. @asked: see must_search.
 */
static __always_inline bool steal_work(s32 cpu, u32 asked)
{
	struct cpu_state *state = state_of(cpu);
	u64 before = looked_for(state);
	bool found;

	if (asked) {
		state->must_search = 0;
		if (asked < ANYWHERE)
			advertise_queue(asked - 1);
	}
	state->refused = asked ? NEVER_REFUSES : 0;
	state->met_none = 1;
	state->search_began = rq_now(cpu);
	count_event(state, EVENT_STEAL_ATTEMPT, 1);

	found = steal_near(state, cpu) || steal_far(state, cpu, asked || !steal_gate_enabled);
	if (found) {
		state->met_none = 0;
		count_event(state, EVENT_STEAL_FOUND_NS, looked_for(state) - before);
	}
	return found;
}

#endif /* __MAGPIE_STEAL_BPF_H */
