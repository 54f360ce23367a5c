/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * late_ticks.bpf.h - mechanism "preferred", part: steal time where no hypervisor exposes it.
 *
 * Idea: a busy CPU has a tick every 1/CONFIG_HZ. If a tick comes late, the vCPU did not run.
 *
 *   tick, late by more than a quarter? --no--> nothing
 *        | yes
 *   a wakeup from here meanwhile?      --yes--> late since that wakeup, at most
 *        |
 *   all delays of about a second together at least three times the longest one?
 *        | yes                         --no--> chance, the host took nothing
 *   steal time of a period := sum of its delays
 *
 * The last question is needed because a long section with interrupts off delays a tick, too. Such a
 * section is rare, while a host that is short of CPUs withholds them again and again. Without the
 * question a guest of two CPUs went down to one, because 2,400 tasks that waited for one pipe were
 * woken under the pipe's lock for 35 ms, while the other CPU spun on that lock.
 *
 * What it does not do: see host slices that are shorter than a tick. So the estimate is low in the
 * middle of the range and right at its ends. The governors only need it to be monotone.
 */
#ifndef __MAGPIE_LATE_TICKS_BPF_H
#define __MAGPIE_LATE_TICKS_BPF_H

/*
 * For how long delays are collected before their sum is compared with the longest one. A governor's
 * period may be too short for that: a host with quotas withholds a vCPU once in 100 ms.
 */
#define LATE_WINDOW_NS 950000000ULL

u64 late_window_end; /* written by the monitor's timer */

/* A task on this CPU wakes another one, so the CPU runs. */
static __always_inline void note_wakeup(struct cpu_state *state, u64 now)
{
	if (preferred_enabled)
		state->woke_at = now;
}

/* A tick on a busy CPU: add its delay. */
static __always_inline void note_tick(struct cpu_state *state, u64 now)
{
	s64 tick = 1000000000ULL / CONFIG_HZ;
	u64 before = state->last_tick;
	u64 late, unseen;

	state->last_tick = now;
	if (!before || (s64)(now - before) <= tick + tick / 4)
		return;

	late = now - before - tick;
	unseen = now - state->woke_at;
	if (late > unseen)
		late = unseen;
	state->late_ns += late;
	if (late > state->longest_late_ns)
		state->longest_late_ns = late;
}

/* A higher scheduling class takes the CPU: the next tick's delay is not the host's doing. */
static __always_inline void forget_tick(struct cpu_state *state)
{
	if (preferred_enabled)
		state->last_tick = 0;
}

/*
 * A task of ours runs. If it is the first since idle or since a higher class had the CPU, the next
 * tick's delay counts from here. From the end of idle would be too early: a real-time task that
 * wakes the CPU has no tick of ours, and would look like a host that withholds the CPU.
 */
static __always_inline void note_running(struct cpu_state *state, u64 now)
{
	if (preferred_enabled && !state->last_tick)
		state->last_tick = now;
}

/* The CPU leaves idle: a busy period begins. */
static __always_inline void note_busy(struct cpu_state *state, u64 now)
{
	if (preferred_enabled)
		state->busy_since = now;
}

/* The CPU goes idle: add the busy period that ends. */
static __always_inline void note_idle(struct cpu_state *state, u64 now)
{
	if (!preferred_enabled)
		return;

	if (state->busy_since)
		state->busy_ns += now - state->busy_since;
	state->busy_since = 0;
	state->last_tick = 0;
}

/* The time that the host took since the governor's period began. */
static __always_inline u64 late_in_period(const struct cpu_state *state)
{
	if (!is_repeated(state->late_ns - state->window_late_ns, state->longest_late_ns))
		return 0;

	return state->late_ns - state->seen_late_ns;
}

/*
 * Begin to collect delays anew. A tick at this moment may be counted in neither collection, or in
 * both.
 */
static __always_inline void begin_late_window(struct cpu_state *state)
{
	state->window_late_ns = state->late_ns;
	WRITE_ONCE(state->longest_late_ns, 0);
}

#endif /* __MAGPIE_LATE_TICKS_BPF_H */
