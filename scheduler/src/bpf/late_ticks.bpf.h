/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * late_ticks.bpf.h - mechanism 5, continued: steal time where none is exposed.
 *
 * Idea: the tick of a busy CPU comes every 1/CONFIG_HZ. When it is late, the vCPU was
 * not running.
 *
 *   tick, late by more than a quarter? --no--> nothing
 *        | yes
 *   a wakeup was made from here meanwhile? --yes--> late since that, at most
 *        |
 *   three times the longest in a second, in all? --no--> chance, nothing was taken
 *        | yes
 *   time taken in a period := sum
 *
 * For a tick is also late after a long time with interrupts off. 2,400 tasks that
 * waited for one pipe were woken under its lock, for 35 ms; the CPU that woke them was
 * seen to make wakeups, the other one spun on the lock, and a guest of two CPUs went
 * down to one. Such a thing happens now and then, a host that is short of CPUs takes
 * them again and again.
 *
 * What it does not do: see host slices shorter than a tick. So the estimate is low in
 * the middle, and right at the ends; the governors only need it to be monotone.
 */
#ifndef __MAGPIE_LATE_TICKS_BPF_H
#define __MAGPIE_LATE_TICKS_BPF_H

const volatile bool preferred_enabled = false;

extern unsigned long CONFIG_HZ __kconfig;

/*
 * How long to look for repetition. A period may be too short for that: a host with
 * quotas takes a vCPU once in 100 ms. As good as a period of a second.
 */
#define LATE_WINDOW_NS 950000000ULL

u64 late_window_end; /* written by the monitor's timer */

/* A wakeup is made from this CPU, so it runs. */
static __always_inline void note_wakeup(struct cpu_state *state, u64 now)
{
	state->woke_at = now;
}

/* A tick on a busy CPU: how late is it? */
static __always_inline void note_tick(struct cpu_state *state)
{
	s64 tick = 1000000000ULL / CONFIG_HZ;
	u64 now = scx_bpf_now();
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

/* A higher class took the CPU: its time is not the host's. */
static __always_inline void forget_tick(struct cpu_state *state)
{
	state->last_tick = 0;
}

/*
 * The first task of ours after that, or after idle: the next tick is measured from
 * here. From the end of idle it was too early: a real-time task that woke the CPU, and
 * had no tick of ours, looked like a host that took it.
 */
static __always_inline void note_running(struct cpu_state *state)
{
	if (!state->last_tick)
		state->last_tick = scx_bpf_now();
}

static __always_inline void note_busy(struct cpu_state *state)
{
	state->busy_since = scx_bpf_now();
}

static __always_inline void note_idle(struct cpu_state *state)
{
	u64 now = scx_bpf_now();

	if (state->busy_since)
		state->busy_ns += now - state->busy_since;
	state->busy_since = 0;
	state->last_tick = 0;
}

/* What the host took since the period began. */
static __always_inline u64 late_in_period(const struct cpu_state *state)
{
	if (!is_repeated(state->late_ns - state->window_late_ns, state->longest_late_ns))
		return 0;

	return state->late_ns - state->seen_late_ns;
}

/* The next window begins. A tick that comes just now may be missed, or be in both. */
static __always_inline void begin_late_window(struct cpu_state *state)
{
	state->window_late_ns = state->late_ns;
	WRITE_ONCE(state->longest_late_ns, 0);
}

#endif /* __MAGPIE_LATE_TICKS_BPF_H */
