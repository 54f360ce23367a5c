/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * queue_choice.bpf.h - mechanism "wakeup", part: which queue a woken task joins if no CPU is idle.
 *
 * Idea (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001): the
 * longest wait shrinks most when a task sees a second queue, and little more when it sees all. So
 * a wakeup looks at its previous CPU and at two others of the LLC, drawn anew each time: wakers do
 * not converge, and need nothing but what CPUs publish of themselves. Where tasks wait on all CPUs,
 * the count that balancing keeps comes first (queue/overloaded.bpf.h).
 *
 *   previous CPU: was it called from idle, and does not come?   --yes--> another allowed CPU in
 *        |                                                                  its place, below
 *        | no
 *   nobody waits for it, and the running task is expected to sleep soon?         --yes--> there
 *        | no
 *   tasks wait on all CPUs near it, and on it no more than on those of the LLC
 *   on average, and it does not run a task of a higher class?                    --yes--> there
 *        | no
 *   does the task preempt there?                                                 --yes--> there
 *        | no
 *   two drawn CPUs of the LLC: does the task preempt there, does nobody wait,
 *   or do at least two fewer tasks?                    (if it comes)             --yes--> there
 *        | no
 *   previous CPU
 *
 * Without this part a task waits behind all that wait for its previous CPU, until another CPU has
 * nothing at all to do and steals it. Beside a build on 8 CPUs, a thread that wakes every 2.7 ms
 * was then 3.2 ms late in the 99th percentile; with this part it is 0.3 ms (medians of four runs).
 *
 * With one drawn queue a wakeup cost 160 instructions less, but four clients beside a build waited
 * for 0.96 of EEVDF's 99th percentile, with two for 0.77 (three runs).
 *
 * The average comes before the draw because on a busy machine most draws end where they began. It
 * says nothing of a CPU on which nobody waits: asked there too, the thread beside a build was 0.95
 * times as late as under EEVDF, otherwise 0.05 to 0.08 times (2 and 3 rounds, vt8).
 *
 * A vCPU that its host has taken while it was idle has the shortest queue of all. Without the first
 * question, of six threads on three CPUs up to three waited for one that the host had taken.
 *
 * The kernel counts the runnable tasks of each runqueue, so a length is one load. When only the
 * bits of the overloaded map were compared, a task stayed wherever all CPUs had waiting tasks,
 * behind however many.
 *
 * What it does not do: leave the LLC but for a CPU that does not come, tell tasks that a cgroup's
 * quota parks from those that wait (where some wait), or move for one task fewer. With moves for one
 * task fewer, requests of 16 clients on 8 CPUs took longer in the 99th percentile (1.21 of EEVDF;
 * for two 1.12, for none 1.26; three runs each).
 */
#ifndef __MAGPIE_QUEUE_CHOICE_BPF_H
#define __MAGPIE_QUEUE_CHOICE_BPF_H

const volatile bool queue_choice_enabled = true;

#define QUEUES_DRAWN 2
_Static_assert(QUEUES_DRAWN <= 2, "a random number has two halves");

/* 2^64 over the golden ratio: products spread over all upper bits (Knuth, TAOCP 3, 6.4). */
#define GOLDEN_RATIO_64 0x9e3779b97f4a7c15ULL

/* By how many tasks a queue with waiting tasks must be shorter. */
#define FEWER_TO_JOIN 2

/* How many CPUs are tried in place of one that does not come. */
#define LOOKS_FOR_ANOTHER 8

/*
 * How many tasks a woken one finds on a CPU: the running one, those that wait, and one of a higher
 * class. Reads, calls nothing.
 */
static __always_inline u32 nr_tasks_on(s32 cpu)
{
	const struct cpu_state *state = state_of(cpu);

	return (has_queued(state) ? nr_runnable(cpu) : 1) + READ_ONCE(state->has_no_tick);
}

/*
 * Return whether a CPU's queue is as good as others will be: nobody waits, and the running task
 * will sleep soon; or tasks wait everywhere, and here no more than on average. A queue behind a
 * task of a higher class is not.
 *
 * The average alone would not do: tasks that a cpuset holds on two CPUs of an LLC raise it for all
 * others, where queues may be empty.
 */
static __always_inline bool is_good_queue(u32 tasks, s32 cpu)
{
	const struct cpu_state *state = state_of(cpu);

	if (tasks <= 1)
		return READ_ONCE(state->sleeps_soon);

	return !READ_ONCE(state->has_no_tick) && are_near_overloaded(cpu) &&
	       (s32)((tasks - 1) * llc_of(topology_of(cpu)->llc)->size) <=
		       (s32)READ_ONCE(llc_state_of(cpu)->waiting);
}

/* Return whether a woken task that joins with @lag and asks for @wanted would preempt on a CPU. */
static __always_inline bool preempts_on(const struct task_struct *p, const struct task_state *ts,
					s64 lag, u64 wanted, u64 now, s32 cpu)
{
	u64 start = clock_of(cpu) - lag;

	return should_preempt(p, ts, start, start + wanted, now, state_of(cpu));
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

/* Return whether the CPU was called from idle and does not come. */
static __always_inline bool is_late(s32 cpu, u64 now)
{
	return is_word_late(READ_ONCE(state_of(cpu)->idle), now);
}

/* A CPU that the task may use in place of one that does not come; that one if none is found. */
__proved_once s32 leave_late(struct task_struct *p __arg_trusted, s32 late, u64 now)
{
	bool restricted = is_restricted() && has_preferred(p);

	for (u32 i = 0; i < LOOKS_FOR_ANOTHER; i++) {
		s32 cpu = restricted ? any_preferred(p)
				     : (s32)bpf_cpumask_any_distribute(p->cpus_ptr);

		if ((u32)cpu < nr_cpus && is_usable(cpu) && !is_late(cpu, now) &&
		    !READ_ONCE(state_of(cpu)->has_no_tick)) {
			count_event(state_here(), EVENT_WAKE_OTHER_QUEUE, 1);
			return cpu;
		}
	}

	return late;
}

/* The CPU in whose queue a woken task waits the least, as far as it looks. */
__noinline s32 choose_queue(struct task_struct *p __arg_trusted,
			    const struct task_state *ts __arg_nonnull, s32 previous, u64 now)
{
	u64 wanted, random;
	u32 there, fewest;
	s32 chosen;
	s64 lag;

	if (is_pinned(p))
		return previous;
	if (is_late(previous, now))
		previous = leave_late(p, previous, now);

	there = nr_tasks_on(previous);
	if (is_good_queue(there, previous))
		return previous;

	lag = lag_when_woken(ts);
	wanted = request(ts);
	if (preempts_on(p, ts, lag, wanted, now, previous))
		return previous;

	fewest = there;
	chosen = previous;
	/* The upper bits of a hash: the kernel's random numbers cost a call. */
	random = (now ^ p->pid) * GOLDEN_RATIO_64 >> 32;
	for (u32 i = 0; i < QUEUES_DRAWN; i++, random >>= 16) {
		u32 drawn = draw_other(previous, random & 0xffff);
		u32 tasks = preempts_on(p, ts, lag, wanted, now, drawn) ? 0 : nr_tasks_on(drawn);

		if (tasks < fewest && is_worth_joining(tasks, there) && may_place(p, drawn) &&
		    is_usable(drawn) && !is_late(drawn, now)) {
			fewest = tasks;
			chosen = drawn;
		}
	}

	if (chosen != previous)
		count_event(state_here(), EVENT_WAKE_OTHER_QUEUE, 1);
	return chosen;
}

#endif /* __MAGPIE_QUEUE_CHOICE_BPF_H */
