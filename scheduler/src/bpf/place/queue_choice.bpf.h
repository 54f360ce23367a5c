/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * queue_choice.bpf.h - mechanism "wakeup", part: which queue a woken task joins if no CPU is idle.
 *
 * Idea (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001): the
 * longest wait shrinks most when a task sees a second queue, and little more when it sees all. So
 * a wakeup looks at its previous CPU and at two others of the LLC, drawn anew each time: nobody
 * maintains a sum that all CPUs would write, and wakers do not converge.
 *
 *   does the task preempt on its previous CPU? --yes--> there
 *        | no
 *   nobody waits there, and the running task is expected to sleep soon? --yes--> there
 *        | no
 *   two drawn CPUs of the LLC: does the task preempt there, does nobody wait,
 *   or do at least two fewer tasks? --yes--> there
 *        | no
 *   previous CPU
 *
 * Without this part a task waits behind all that wait for its previous CPU, until another CPU has
 * nothing at all to do and steals it. Beside a build on 8 CPUs, a thread that wakes every 2.7 ms was
 * then 3.2 ms late in the 99th percentile; with this part it is 0.3 ms (medians of four runs).
 *
 * With one drawn queue a wakeup cost 160 instructions less, but four clients beside a build waited
 * for 0.96 of EEVDF's 99th percentile, with two for 0.77 (three runs).
 *
 * The kernel counts the runnable tasks of each runqueue, so a length is one load. When only the bits
 * of the overloaded map were compared, a task stayed wherever all CPUs had waiting tasks, behind
 * however many.
 *
 * What it does not do: leave the LLC, tell tasks that a cgroup's quota parks from those that wait
 * (where some wait), or move for one task fewer. With moves for one task fewer, requests of 16
 * clients on 8 CPUs took longer in the 99th percentile (1.21 of EEVDF; for two 1.12, for none 1.26;
 * three runs each).
 */
#ifndef __MAGPIE_QUEUE_CHOICE_BPF_H
#define __MAGPIE_QUEUE_CHOICE_BPF_H

const volatile bool queue_choice_enabled = true;

#define QUEUES_DRAWN 2
_Static_assert(QUEUES_DRAWN <= 2, "a random number has two halves");

/* By how many tasks a queue with waiting tasks must be shorter. */
#define FEWER_TO_JOIN 2

/*
 * Return how many tasks run on a CPU before a woken one that would be due @after the clock, at most: 0
 * if it preempts, else the running one, those that wait, and one of a higher class. Reads, calls
 * nothing.
 */
static __always_inline u32 tasks_before(const struct task_struct *p, const struct task_state *ts,
					u64 after, u64 now, s32 cpu)
{
	const struct cpu_state *state = state_of(cpu);

	if (should_preempt(p, ts, clock_of(cpu) + after, now, state))
		return 0;

	return (has_queued(state) ? nr_runnable(cpu) : 1) + READ_ONCE(state->has_no_tick);
}

/* Return whether a queue is worth leaving another one for: nobody waits, or two tasks fewer. */
static __always_inline bool is_worth_joining(u32 tasks, u32 than)
{
	return tasks < than && (tasks <= 1 || than - tasks >= FEWER_TO_JOIN);
}

/* Another CPU of the LLC, by a random number; the CPU itself if it is the only one. */
static __always_inline u32 draw_other(s32 cpu, u32 random)
{
	const volatile struct llc_topology *llc = llc_of(topology_of(cpu)->llc);
	u32 others = llc->size - 1;

	if (!others)
		return cpu;

	return place_to_cpu(llc->first + (offset_of(cpu) + 1 + random % others) % llc->size);
}

/* The CPU in whose queue a woken task waits the least, as far as it looks. */
__noinline s32 choose_queue(struct task_struct *p __arg_trusted,
			    const struct task_state *ts __arg_nonnull, s32 previous, u64 now)
{
	u64 after = request(ts) - lag_when_woken(ts);
	u32 there = tasks_before(p, ts, after, now, previous);
	u32 fewest = there;
	s32 chosen = previous;
	u32 random;

	if (!there || is_pinned(p) || (there == 1 && READ_ONCE(state_of(previous)->sleeps_soon)))
		return previous;

	/* A plain loop over the halves of one number: iterators and numbers cost calls. */
	random = bpf_get_prandom_u32();
	for (u32 i = 0; i < QUEUES_DRAWN; i++, random >>= 16) {
		u32 drawn = draw_other(previous, random & 0xffff);
		u32 tasks = tasks_before(p, ts, after, now, drawn);

		if (tasks < fewest && is_worth_joining(tasks, there) && may_place(p, drawn) &&
		    is_usable(drawn)) {
			fewest = tasks;
			chosen = drawn;
		}
	}

	if (chosen != previous)
		count_event(state_here(), EVENT_WAKE_OTHER_QUEUE, 1);
	return chosen;
}

#endif /* __MAGPIE_QUEUE_CHOICE_BPF_H */
