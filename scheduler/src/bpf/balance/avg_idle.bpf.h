/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * avg_idle.bpf.h - mechanism "steal", part: for how long this CPU idles, on average.
 *
 * Idea ("update the rq->avg_idle when a task is moved to an idle CPU", v6, Linux kernel list): a
 * search for work pays only if this CPU would idle for long enough. The kernel ended an idle period
 * only at wakeups. Work that arrived otherwise (fork, exec, balance) left the average wrong.
 *
 *   search for work begins: its time is noted   (search_began)
 *        |
 *   found work? --yes--> no idle period
 *        | no
 *   CPU goes idle: the period begins where the search began
 *        |
 *   CPU leaves idle, for whatever reason: sample := now - begin, capped
 *
 * The kernel calls ops.update_idle() on every entry to and exit from idle. So every kind of arrival
 * ends the period: wakeup, fork, exec, steal, push, balance, and real-time tasks.
 *
 * What it does not do: predict. The result is an average over about eight idle periods.
 */
#ifndef __MAGPIE_AVG_IDLE_BPF_H
#define __MAGPIE_AVG_IDLE_BPF_H

/* The least cost that a search is assumed to have: the kernel's migration cost. */
#define SEARCH_COST_FLOOR_NS 500000ULL

/* The longest idle period that counts: twice the cost of the widest search. */
static __always_inline u64 idle_cap(const struct cpu_state *state)
{
	u64 cost = state->steal_cost[DISTANCE_REMOTE];

	return 2 * (cost > SEARCH_COST_FLOOR_NS ? cost : SEARCH_COST_FLOOR_NS);
}

/*
 * The CPU goes idle. The idle period begins where its search for work began, because the gate asks
 * whether a search fits into the time in which the CPU has nothing to run.
 */
static __always_inline void begin_idle(struct cpu_state *state, u64 now)
{
	state->idle_since = state->search_began ?: now;
	WRITE_ONCE(state->idles, 1);
}

/* The CPU leaves idle: add the idle period to the average. */
static __always_inline void end_idle(struct cpu_state *state, u64 now)
{
	u64 cap = idle_cap(state);
	u64 since = state->idle_since;
	u64 period;

	if (!since)
		return;

	WRITE_ONCE(state->idles, 0);
	state->idle_since = 0;
	state->search_began = 0;
	period = now - since;

	/* Capped, as in the kernel: one long sleep must not pay for eight useless searches. */
	if (period > cap)
		period = cap;

	state->avg_idle = average_add(state->avg_idle, period);
}

#endif /* __MAGPIE_AVG_IDLE_BPF_H */
