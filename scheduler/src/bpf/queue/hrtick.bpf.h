/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * hrtick.bpf.h - mechanism "queue", part: a request ends in time where a task waits for it.
 *
 * Idea (HRTICK, Linux kernel/sched/core.c): the kernel looks at a sched_ext task's slice at ticks
 * only, so a slice of 3 ms lasts 4 ms, and a task that waits for its end waits a third longer. The
 * kernel's own scheduler sets a timer to the end of the slice. So does this file, but only while a
 * task waits.
 *
 *   task queued behind a running one, or a task begins to run while others wait
 *        |
 *   timer of this CPU set already, or will
 *   the task probably sleep before?        --yes--> nothing
 *        | no
 *   timer := end of the running task's request
 *
 *   timer
 *        |
 *   no task of ours runs, or nobody waits? --yes--> nothing
 *        | no
 *   another task runs since?               --yes--> timer := end of its request
 *        | no
 *   CPU rescheduled: the earliest deadline runs
 *
 * Each CPU's timer fires at most once in a slice, however many tasks are woken.
 *
 * What it does not do: end the request of a task behind which nobody waits, or that of a task whose
 * burst just got longer than twice its average: the next tick sets the timer, or ends it.
 */
#ifndef __MAGPIE_HRTICK_BPF_H
#define __MAGPIE_HRTICK_BPF_H

const volatile bool hrtick_enabled = true;

struct hrtick_timer {
	struct bpf_timer timer;
};

/* User space sets the number of entries to that of CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct hrtick_timer);
} hrtick_timers SEC(".maps");

/*
 * Return whether the running task sleeps before its slice ends, if its burst is like its others: a
 * timer would come for nothing.
 */
static __always_inline bool will_sleep_in_slice(const struct cpu_state *state, u64 now)
{
	u64 sleeps_by = READ_ONCE(state->sleeps_by);

	return shorter_first_enabled && is_before(now, sleeps_by) &&
	       is_before(sleeps_by, READ_ONCE(state->slice_ends));
}

/*
 * If a task waits in the CPU's queue, set the CPU's timer to the end of the running task's request,
 * unless it is set.
 */
static __always_inline void start_hrtick(struct cpu_state *state, s32 cpu, u64 now)
{
	struct hrtick_timer *timer;
	u32 key = cpu;
	s64 left;

	if (!hrtick_enabled || !has_queued(state) || state->hrtick || !READ_ONCE(state->deadline))
		return;

	left = READ_ONCE(state->slice_ends) - now;
	if (left <= 0 || will_sleep_in_slice(state, now))
		return;

	timer = bpf_map_lookup_elem(&hrtick_timers, &key);
	if (!timer)
		return;

	WRITE_ONCE(state->hrtick, 1);
	bpf_timer_start(&timer->timer, left, 0);
}

/* The timer: have the CPU choose again if a task waits for the end of the running one's request. */
static int hrtick(void *map, u32 *key, struct hrtick_timer *timer)
{
	s32 cpu = *key;
	struct cpu_state *state = state_of(cpu);
	u64 now = scx_bpf_now();

	WRITE_ONCE(state->hrtick, 0);
	if (!READ_ONCE(state->deadline) || !has_queued(state))
		return 0;

	if (is_before(now, READ_ONCE(state->slice_ends))) {
		start_hrtick(state, cpu, now);
		return 0;
	}

	count_event(state_here(), EVENT_HRTICK, 1);
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	return 0;
}

#endif /* __MAGPIE_HRTICK_BPF_H */
