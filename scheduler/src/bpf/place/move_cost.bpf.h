/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * move_cost.bpf.h - mechanisms "wakeup" and "steal", part: what a move costs a task.
 *
 * Idea (the kernel's migration cost and wake_affine(), Linux kernel/sched/fair.c): a task moves if
 * that saves it more than its caches are worth. The kernel takes one constant for all tasks and
 * distances. Here portable/move_cost.h learns it from each task's own bursts.
 *
 *   wakeup, no idle CPU in the LLC, one in another                       --> would wait longer than
 *   idle CPU of another LLC, first task of a queue that may run there    --> has waited longer than
 *                                                                            a far move costs?
 *
 * A task that a thief leaves is offered to idle CPUs at the next tick of its CPU, whatever the move
 * costs.
 *
 * Without this part 24 threads of 512 KiB on 16 CPUs in two LLCs changed LLCs all the time, and
 * each time fetched their lines from the other one.
 *
 * What it does not do: know nodes, which it takes for other LLCs; learn anything of a task that
 * does not sleep.
 */
#ifndef __MAGPIE_MOVE_COST_BPF_H
#define __MAGPIE_MOVE_COST_BPF_H

/* How many tasks a thief passes that may not run on it, to find the one that it would take. */
#define TASKS_PASSED 8

/*
 * How long a woken task would wait in its LLC, where no CPU idles, ns. The first CPU of the LLC
 * that has nothing else to do steals it: if tasks sleep there all the time, so many times sooner as
 * the LLC has CPUs, after those tasks that wait already. If not, its own CPU runs it after a slice.
 */
static __always_inline u64 expected_wait(s32 cpu, u64 now)
{
	u64 burst = READ_ONCE(state_of(cpu)->sleeps_by) - now;
	u32 llc = topology_of(cpu)->llc;

	if ((s64)burst <= 0 || burst > slice_ns)
		return slice_ns;

	return burst * (1 + READ_ONCE(llc_state_at(llc)->waiting)) / (llc_of(llc)->size ?: 1);
}

/*
 * Return whether an idle core of another LLC is worth the move to a task that would share a core in
 * its own, or have a slow one: two hogs on a core run at 0.6 of their speed, one on a slow core of
 * the lab's hybrid machine at 0.49.
 */
static __always_inline bool is_worth_a_far_core(const struct task_state *ts)
{
	return !move_cost_enabled || ts->avg_burst / 4 >= far_move_cost(&ts->moves);
}

/* Return whether a woken task would wait in its LLC for longer than a move to another one costs. */
static __always_inline bool would_wait_for_longer(const struct task_state *ts, s32 cpu, u64 now)
{
	u64 cost = move_cost_enabled ? far_move_cost(&ts->moves) : 0;

	return !cost || expected_wait(cpu, now) >= cost;
}

/* Return whether the task has waited for as long as a move to another LLC costs it. */
static __always_inline bool has_waited_for_move(const struct task_state *ts, u64 now)
{
	u64 cost = far_move_cost(&ts->moves);

	return !cost || !is_before(now, ts->queued_at + cost);
}

/* Return whether the task that a thief would take out of a queue has waited for its move. */
__noinline bool may_take_far(s32 thief, s32 victim)
{
	struct cpu_state *state = state_of(thief);
	u64 now = scx_bpf_now();
	struct task_struct *p;
	bool may = true;

	state->walked = 0;
	bpf_for_each(scx_dsq, p, victim, 0) {
		const struct task_state *ts;

		if (++state->walked > TASKS_PASSED)
			break;
		if (!bpf_cpumask_test_cpu(thief, p->cpus_ptr))
			continue;

		ts = task_state(p);
		may = !ts || has_waited_for_move(ts, now);
		break;
	}

	return may;
}

/* How many queues of other LLCs a search leaves before it ends: most others will be like them. */
#define MOST_REFUSED 2
#define NEVER_REFUSES (~0U)

/* Return whether the search of now has left so many queues that it ends. */
static __always_inline bool gives_up(const struct cpu_state *thief)
{
	return thief->refused >= MOST_REFUSED && thief->refused != NEVER_REFUSES;
}

/*
 * Return whether a thief leaves a queue of another LLC, because the move would cost its task more.
 * A CPU without ticks would not offer the task again.
 */
static __always_inline bool refuses_far_move(struct cpu_state *thief, s32 cpu, u32 victim)
{
	if (!move_cost_enabled || thief->refused == NEVER_REFUSES ||
	    !is_in_other_llc(cpu, victim) || READ_ONCE(state_of(victim)->has_no_tick) ||
	    may_take_far(cpu, victim))
		return false;

	thief->refused++;
	return true;
}

/* A task was taken from another CPU's queue. */
static __always_inline void note_taken(struct task_state *ts, s32 cpu)
{
	if (move_cost_enabled && ts->cpu >= 0 && is_in_other_llc(ts->cpu, cpu))
		note_far_move(&ts->moves, ts->burst);
}

#endif /* __MAGPIE_MOVE_COST_BPF_H */
