/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * late_ticks.bpf.h - mechanism "preferred", part: steal time where no hypervisor exposes it.
 *
 * Idea: a busy CPU has a tick every 1/CONFIG_HZ, at times that the kernel sets beforehand. A tick
 * that comes later than it was due came at a moment at which the host withheld the vCPU. How many
 * of a vCPU's ticks come late says for what part of the time the host withholds it, however long it
 * does so at a time. How late they come does not: half of the time in slices of a quarter of a tick
 * is a tick in two, each late by an eighth.
 *
 *   tick, late by late_after()?        --no--> nothing
 *        | yes
 *   a wakeup from here meanwhile?      --yes--> late until the first one only
 *        |
 *   time withheld := that between two ticks, for this one and for each that was due meanwhile
 *                    and as much more as short delays hide (late_time() in portable/steal.h)
 *        |
 *   that of about a second at least three times the most of one delay?
 *        | yes                         --no--> chance: the host took nothing of this CPU
 *   sum of all preferred CPUs; were they busy for LEAST_TICKS together?
 *        | yes                         --no--> chance, too
 *   steal time of a period := that sum
 *
 * The last but one question is needed because a long section with interrupts off delays a tick,
 * too. Such a section is rare, while a host that is short of CPUs withholds them again and again.
 * Without the question a guest of two CPUs went down to one, because 2,400 tasks that waited for
 * one pipe were woken under the pipe's lock for 35 ms, while the other CPU spun on that lock.
 * Without the last question a guest of two CPUs lost one of them while both were idle for 95 % of
 * the time.
 *
 * What it does not do: see a vCPU that the host withholds for less than late_after() at a time, or
 * one that was woken and waits for the host to run it. Where the vCPU's timer is late now and then
 * while the vCPU has a CPU, as in an emulator on a busy host, the estimate is too high. CPUs
 * without ticks (nohz_full) say next to nothing.
 */
#ifndef __MAGPIE_LATE_TICKS_BPF_H
#define __MAGPIE_LATE_TICKS_BPF_H

extern struct tick_sched tick_cpu_sched __ksym __weak;

/*
 * For how long delays are collected before their sum is compared with the longest one. A governor's
 * period may be too short for that: a host with quotas withholds a vCPU once in 100 ms.
 */
#define LATE_WINDOW_NS 950000000ULL

u64 late_window_end; /* written by the monitor's timer */

/*
 * A task on this CPU wakes another one: if the next tick is due and has not come, the CPU runs with
 * interrupts off, and the host withholds nothing. The first such wakeup counts. The last would hide
 * what the host withholds, because timers that wake sleepers expire in the tick's own interrupt.
 */
static __always_inline void note_wakeup(struct cpu_state *state, u64 now)
{
	if (preferred_enabled && is_before(state->woke_at, state->next_tick) &&
	    !is_before(now, state->next_tick))
		state->woke_at = now;
}

/*
 * Return how long ago the tick that calls this was due, ns. 0 if that is not known: the caller is
 * another timer, or the kernel's ticks have no timer of their own.
 */
static __always_inline u64 tick_delay(void)
{
	const struct tick_sched *tick;
	s64 due, delay;

	if (!bpf_ksym_exists(&tick_cpu_sched))
		return 0;

	tick = bpf_this_cpu_ptr(&tick_cpu_sched);
	due = tick->sched_timer._softexpires;
	delay = bpf_ktime_get_ns() - due;

	return due && delay > 0 ? delay : 0;
}

/* A tick on a busy CPU at @now: if it is late, add the time for which it stands. */
static __always_inline void note_tick(struct cpu_state *state, u64 now)
{
	u64 interval = tick_interval();
	u64 delay = tick_delay();
	u64 due = now - delay;
	u64 after, late;

	if (!delay)
		return;

	state->next_tick = due + (delay / interval + 1) * interval;
	state->punctual = punctual_after(state->punctual, delay, interval);
	after = late_after(state->punctual);
	if (!is_before(state->woke_at, due))
		delay = state->woke_at - due;
	if (delay < after)
		return;

	if (delay < interval)
		state->avg_excess = average_add(state->avg_excess ?: delay - after, delay - after);
	late = late_time(delay, state->avg_excess, after, interval);
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

/* Return whether the host withholds the CPU again and again. */
static __always_inline bool is_late_repeatedly(const struct cpu_state *state)
{
	return is_repeated(state->late_ns - state->window_late_ns, state->longest_late_ns);
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
