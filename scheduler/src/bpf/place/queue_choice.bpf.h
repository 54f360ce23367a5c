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
 *   two drawn CPUs of the LLC: does the task preempt there, or nobody wait? --yes--> there
 *        | no
 *   previous CPU
 *
 * Without this part a task waits behind all that wait for its previous CPU, until another CPU has
 * nothing at all to do and steals it. Beside a build on 8 CPUs, a thread that wakes every 2.7 ms was
 * then 3.2 ms late in the 99th percentile; with this part it is 0.3 ms (medians of four runs).
 *
 * What it does not do: leave the LLC, or count the tasks that wait. The length of a queue is a call of
 * the kernel that looks the queue up in a hash table: with six such calls select_cpu() took 3798 ns
 * on average at 500 MIPS (hackbench -g 2), with the bits of the overloaded map 2096.
 */
#ifndef __MAGPIE_QUEUE_CHOICE_BPF_H
#define __MAGPIE_QUEUE_CHOICE_BPF_H

const volatile bool queue_choice_enabled = true;

#define QUEUES_DRAWN 2

/* How long a woken task waits on a CPU: the tasks that run before it. */
enum queue_rank {
	RANK_PREEMPTS, /* nothing: the task preempts the running one */
	RANK_NEXT, /* the running task */
	RANK_LATER, /* also tasks that wait */
};

/* Return the rank of a CPU for a task that would be due @after the clock. Reads, calls nothing. */
static __always_inline enum queue_rank
rank_queue(const struct task_struct *p, const struct task_state *ts, u64 after, u64 now, s32 cpu)
{
	if (should_preempt(p, ts, clock_of(cpu) + after, now, state_of(cpu)))
		return RANK_PREEMPTS;

	return is_overloaded(cpu) ? RANK_LATER : RANK_NEXT;
}

/* Another CPU of the LLC, drawn at random; the CPU itself if it is the only one. */
static __always_inline u32 draw_other(s32 cpu)
{
	const volatile struct llc_topology *llc = llc_of(topology_of(cpu)->llc);
	u32 others = llc->size - 1;

	if (!others)
		return cpu;

	return place_to_cpu(llc->first +
			    (offset_of(cpu) + 1 + bpf_get_prandom_u32() % others) % llc->size);
}

/*
 * The CPU in whose queue a woken task waits the least, as far as it looks. Global: the verifier
 * proves the loop once.
 */
__noinline s32 choose_queue(struct task_struct *p __arg_trusted,
			    const struct task_state *ts __arg_nonnull, s32 previous, u64 now)
{
	u64 after = request(ts) - lag_when_woken(ts);
	enum queue_rank best = rank_queue(p, ts, after, now, previous);
	s32 chosen = previous;
	u32 i;

	if (best == RANK_PREEMPTS || is_pinned(p) ||
	    (best == RANK_NEXT && READ_ONCE(state_of(previous)->sleeps_soon)))
		return previous;

	for_bounded(i, 0, QUEUES_DRAWN) {
		u32 drawn = draw_other(previous);
		enum queue_rank rank = rank_queue(p, ts, after, now, drawn);

		if (rank < best && may_place(p, drawn) && is_usable(drawn)) {
			best = rank;
			chosen = drawn;
		}
	}

	if (chosen != previous)
		count_event(state_here(), EVENT_WAKE_OTHER_QUEUE, 1);
	return chosen;
}

#endif /* __MAGPIE_QUEUE_CHOICE_BPF_H */
