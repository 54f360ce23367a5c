/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * overloaded.bpf.h - mechanism "queue", part: which CPUs have queued tasks that may run elsewhere.
 *
 * A map with one bit per CPU, and a count of waiting tasks per LLC. Idle CPUs search the map
 * (balance/steal.bpf.h), busy CPUs compare the counts (balance/balance.bpf.h).
 *
 *   task queued            -> its bit is set, by whoever queues it
 *   queue found empty      -> its bit is cleared, by its CPU or by a thief
 *   tick                   -> the CPU sets or clears its bit, and updates the count
 *
 * A CPU changes its own bit under its runqueue lock. Thieves, the monitor and the timers of
 * cgroups change it without the lock, so a bit may be wrong for a moment: the next tick repairs it.
 *
 * What it does not do: say how long a queue is. Read that from the queue itself.
 */
#ifndef __MAGPIE_OVERLOADED_BPF_H
#define __MAGPIE_OVERLOADED_BPF_H

/* Bits by place. */
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

/* The first overloaded place in [from, end), or end. Global: the verifier proves it once. */
__noinline u32 next_overloaded(u32 from, u32 end)
{
	return sparsemask_next(overloaded, MAX_LINES, from, end);
}

/* The place that a visit of the map reaches next, or NO_PLACE when the visit is over. */
__noinline u32 visit_overloaded(struct sparsemask_visit *visit)
{
	u32 place;

	if (!visit || !sparsemask_visit_next(visit, overloaded, MAX_LINES, &place))
		return NO_PLACE;

	return place;
}

/*
 * Note how many queued tasks of a CPU may run elsewhere. Writes only what has changed. Its tick and
 * a thief may call this at once; the LLC's sum stays the sum of its CPUs' counts all the same.
 */
static __always_inline void note_waiting(s32 cpu, u32 waiting)
{
	struct cpu_state *state = state_of(cpu);
	u32 before;

	if (READ_ONCE(state->waiting) == waiting)
		return;

	before = __sync_lock_test_and_set(&state->waiting, waiting);
	__sync_fetch_and_add(&llc_state_of(cpu)->waiting, waiting - before);
}

#endif /* __MAGPIE_OVERLOADED_BPF_H */
