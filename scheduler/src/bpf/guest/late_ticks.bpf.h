/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * late_ticks.bpf.h - mechanism "preferred", part: steal time where no hypervisor exposes it.
 *
 * Idea: a busy CPU has a tick every 1/CONFIG_HZ, at times that the kernel sets beforehand. A tick
 * that comes later than it was due came at a moment at which the host withheld the vCPU. How many of
 * a vCPU's ticks come late says for what part of the time the host withholds it, however long it
 * does so at a time. How late they come does not: half of the time in slices of a quarter of a tick
 * is a tick in two, each late by an eighth.
 *
 *   tick, late_after() of what was due? --no--> nothing
 *        | yes
 *   a wakeup from here meanwhile?      --yes--> late since that wakeup, at most
 *        |
 *   time withheld := that between two ticks, for this one and for each that was due meanwhile
 *                    (late_time() in portable/steal.h)
 *        |
 *   that of about a second at least three times the most of one delay?
 *        | yes                         --no--> chance, the host took nothing
 *   steal time of a period := the sum of them
 *
 * The last question is needed because a long section with interrupts off delays a tick, too. Such a
 * section is rare, while a host that is short of CPUs withholds them again and again. Without the
 * question a guest of two CPUs went down to one, because 2,400 tasks that waited for one pipe were
 * woken under the pipe's lock for 35 ms, while the other CPU spun on that lock.
 *
 * What it does not do: see a vCPU that the host withholds for less than LATE_NS at a time, or one
 * that was woken and waits for the host to run it. Where the vCPU's timer is late now and then while
 * the vCPU has a CPU, as in an emulator on a busy host, the estimate is too high.
 */
#ifndef __MAGPIE_LATE_TICKS_BPF_H
#define __MAGPIE_LATE_TICKS_BPF_H

extern struct tick_sched tick_cpu_sched __ksym;

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

/* Return how long ago the tick that calls this was due, ns, or 0 if this is not the tick's timer. */
static __always_inline u64 tick_delay(void)
{
	const struct tick_sched *tick = bpf_this_cpu_ptr(&tick_cpu_sched);
	s64 delay = bpf_ktime_get_ns() - tick->sched_timer._softexpires;

	return delay > 0 ? delay : 0;
}

/* A tick on a busy CPU at @now: if it is late, add the ticks that were due since. */
static __always_inline void note_tick(struct cpu_state *state, u64 now)
{
	u64 interval = 1000000000ULL / CONFIG_HZ;
	u64 delay = tick_delay();
	u64 unseen = now - state->woke_at;
	u64 after, late;

	state->punctual = punctual_after(state->punctual, delay, interval);
	after = late_after(state->punctual);
	if (delay > unseen)
		delay = unseen;
	if (delay < after)
		return;

	if (delay < interval)
		state->avg_delay = average_add(state->avg_delay ?: delay, delay);
	late = late_time(delay, state->avg_delay, after, interval);
	state->late_ns += late;
	if (late > state->longest_late_ns)
		state->longest_late_ns = late;
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
