/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * overloaded.bpf.h - mechanism "queue", part: which CPUs have queued tasks that may run elsewhere.
 *
 * A map with one bit per CPU, and a count of waiting tasks per LLC. Idle CPUs search the map
 * (balance/steal.bpf.h), busy CPUs compare the counts (balance/balance.bpf.h), and wakers both
 * (place/queue_choice.bpf.h).
 *
 *   task queued            -> the queue's bit is set, by the CPU that queues the task
 *   queue found empty      -> the queue's bit is cleared, by its CPU or by a thief
 *   tick                   -> the CPU sets or clears its bit, and updates the count
 *   pull, start of idle    -> the count is updated
 *
 * A CPU changes its own bit under its runqueue lock. Thieves, the monitor and the timers of
 * cgroups change a CPU's bit without that lock. A thief therefore asks the kernel whether a task may
 * be on its way before it clears a bit, and again after it (hide_empty_queue() in
 * balance/steal.bpf.h). What is wrong all the same the CPU's next tick repairs, if it has one: a CPU
 * that idles, is offline or runs a real-time task has none.
 *
 * What it does not do: say how long a queue is. Read that from the queue itself.
 */
#ifndef __MAGPIE_OVERLOADED_BPF_H
#define __MAGPIE_OVERLOADED_BPF_H

/* The bits of all CPUs, by place. */
struct sparsemask_line overloaded[MAX_LINES];

/* Only queue.bpf.h calls this: it owns what is queued, and so what is advertised. */
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

static __always_inline bool is_overloaded(s32 cpu)
{
	u32 place = topology_of(cpu)->place;
	u32 line = place / SPARSEMASK_BITS;

	return line < MAX_LINES && sparsemask_line_test(&overloaded[line], place);
}

/*
 * Return whether tasks that may move wait on all CPUs that share a line of the map with this one:
 * up to eight of its LLC, because each LLC begins with a new line. One load.
 */
static __always_inline bool are_near_overloaded(s32 cpu)
{
	const volatile struct llc_topology *llc = llc_of(topology_of(cpu)->llc);
	u32 line = topology_of(cpu)->place / SPARSEMASK_BITS;
	u32 next = (line + 1) * SPARSEMASK_BITS;
	u32 end = llc->first + llc->size;
	u64 mask = (1ULL << SPARSEMASK_BITS) - 1;

	if (line >= MAX_LINES)
		return false;
	if (next > end)
		mask >>= next - end;

	return (READ_ONCE(overloaded[line].bits) & mask) == mask;
}

/* The first overloaded place in [from, end), or end. Global: the verifier proves it once. */
__noinline u32 next_overloaded(u32 from, u32 end)
{
	return sparsemask_next(overloaded, MAX_LINES, from, end);
}

/*
 * Return whether any CPU of the LLC is overloaded. It reads all lines of the LLC if none is, which
 * is cheap: nobody writes a line whose bits do not change, so the CPU's cache keeps it.
 */
static __always_inline bool has_overloaded(u32 llc)
{
	u32 end = llc_of(llc)->first + llc_of(llc)->size;

	return next_overloaded(llc_of(llc)->first, end) != end;
}

/*
 * Return whether any CPU of the machine is overloaded, before a search visits other LLCs: on an idle
 * machine of 256 CPUs those visits cost a wakeup that came meanwhile 4 us. A plain loop, because an
 * iterator's calls would cost more than the reads. Global: the verifier proves it once.
 */
__noinline bool is_any_overloaded(void)
{
	const volatile struct llc_topology *last = llc_of(nr_llcs - 1);
	u32 lines = (last->first + last->size + SPARSEMASK_BITS - 1) / SPARSEMASK_BITS;

	for (u32 line = 0; line < MAX_LINES && line < lines; line++) {
		if (READ_ONCE(overloaded[line].bits))
			return true;
	}

	return false;
}

/*
 * Return the place that a visit of the map reaches next, or NO_PLACE when the visit is over. A
 * visit goes once around its range from where it starts: thieves that start at different places do
 * not all compete for the first one.
 */
__noinline u32 visit_overloaded(struct sparsemask_visit *visit)
{
	u32 place;

	if (!visit || !sparsemask_visit_next(visit, overloaded, MAX_LINES, &place))
		return NO_PLACE;

	return place;
}

/*
 * Note how many tasks wait in a CPU's queue, 0 if none of them may run elsewhere. Writes only a
 * count that has changed. The CPU and a thief may call this at once: the exchange gives each of the
 * two its own difference, so the LLC's sum stays the sum of its CPUs' counts.
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
