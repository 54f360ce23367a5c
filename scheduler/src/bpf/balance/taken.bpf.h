/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * taken.bpf.h - mechanism "push", part: tasks leave a CPU that a task of a higher class has taken.
 *
 * Idea: a real-time task may keep its CPU for ever, and has no tick of ours that would offer the
 * tasks behind it. If it takes the CPU from a task of ours, the kernel calls ops.cpu_release(). If
 * it takes an idle CPU, the kernel calls only ops.update_idle(), and a task that a waker has just
 * sent there waits in the local queue, out of the reach of other CPUs:
 *
 *   from a task of ours     --> the tasks of the local queue are enqueued again, and offered
 *
 *   from idle
 *        |
 *   a waker has claimed this CPU, or a task of ours is runnable here? --no--> nothing
 *        | yes
 *   timer of this CPU, in PATIENCE_NS
 *        |
 *   still taken?                                                      --no--> nothing
 *        | yes
 *   the tasks of the local queue are enqueued again, and offered
 *
 * The timer, rather than update_idle() itself, because the waker may insert its task only after the
 * real-time task has come.
 *
 * What it does not do: wait on a kernel with PREEMPT_RT, whose timers are real-time tasks
 * themselves, or before 6.19, where only ops.cpu_release() may enqueue the tasks of a local queue
 * again. A task whose waker is late waits there for the real-time task. Nor does it keep a CPU hog
 * from migrating each time the thread of an interrupt takes its CPU.
 */
#ifndef __MAGPIE_TAKEN_BPF_H
#define __MAGPIE_TAKEN_BPF_H

extern bool CONFIG_PREEMPT_RT __kconfig __weak;

/* How long after the claim its task comes, at most. */
#define PATIENCE_NS 500000LL

struct taken_timer {
	struct bpf_timer timer;
};

/* User space sets the number of entries to that of CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct taken_timer);
} taken_timers SEC(".maps");

/* Return whether a timer may enqueue the tasks of a local queue again, and is not held up itself. */
static __always_inline bool can_wait(void)
{
	bool can = __COMPAT_has_generic_reenq();

	/* Otherwise the compiler joins two addresses by OR, which the verifier forbids. */
	barrier_var(can);
	if (__COMPAT_scx_bpf_reenqueue_local_from_anywhere())
		can = true;

	return can && !CONFIG_PREEMPT_RT;
}

/* Look in a moment whether a task of a higher class still has this CPU. Only for the own CPU. */
static __always_inline void wait_for_return(struct cpu_state *state, s32 cpu)
{
	struct taken_timer *timer;
	u32 key = cpu;

	if (state->is_waiting)
		return;

	timer = bpf_map_lookup_elem(&taken_timers, &key);
	if (!timer)
		return;

	state->is_waiting = !bpf_timer_start(&timer->timer, PATIENCE_NS, BPF_F_TIMER_CPU_PIN);
}

/* The timer: have the tasks of this CPU's local queue enqueued again if it is still taken. */
static int end_wait(void *map, u32 *key, struct taken_timer *timer)
{
	struct cpu_state *state = state_of(*key);
	s64 left = READ_ONCE(state->taken_at) + PATIENCE_NS - scx_bpf_now();

	state->is_waiting = 0;
	if (!READ_ONCE(state->has_no_tick))
		return 0;

	if (left > 0) {
		state->is_waiting = !bpf_timer_start(&timer->timer, left, BPF_F_TIMER_CPU_PIN);
		return 0;
	}

	count_event(state_here(), EVENT_TAKEN, 1);
	scx_bpf_reenqueue_local_from_anywhere();
	return 0;
}

/* Prepare the timer of each possible CPU. */
static __always_inline s32 create_taken_timers(void)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		struct taken_timer *timer = bpf_map_lookup_elem(&taken_timers, &cpu);
		s32 err;

		if (!timer)
			return -ENOENT;

		err = bpf_timer_init(&timer->timer, &taken_timers, CLOCK_MONOTONIC);
		err = err ?: bpf_timer_set_callback(&timer->timer, end_wait);
		if (err)
			return err;
	}

	return 0;
}

/*
 * A task of a higher class has the CPU: its ticks do not reach us, so no tick advertises the queued
 * tasks, and the time until our next tick is not the host's doing.
 */
static __always_inline void lose_ticks(struct cpu_state *state, u64 now)
{
	if (!state->has_no_tick)
		state->taken_at = now;
	WRITE_ONCE(state->has_no_tick, 1);
	forget_tick(state);
}

/* The CPU runs a task of ours, or idles. */
static __always_inline void regain_cpu(struct cpu_state *state)
{
	if (state->has_no_tick)
		WRITE_ONCE(state->has_no_tick, 0);
}

/* A task of a higher class takes the CPU from a task of ours: others may take what waits here. */
static __always_inline void lose_cpu(struct cpu_state *state, s32 cpu)
{
	lose_ticks(state, rq_now(cpu));
	scx_bpf_reenqueue_local();
	offer_queue(cpu);
}

/* A task of a higher class takes the idle CPU. @was_claimed: a waker may be sending a task here. */
static __always_inline void lose_idle_cpu(struct cpu_state *state, s32 cpu, bool was_claimed)
{
	lose_ticks(state, rq_now(cpu));
	if (!was_claimed && !nr_runnable(cpu))
		return;

	if (can_wait())
		wait_for_return(state, cpu);
	else
		scx_bpf_reenqueue_local_from_anywhere();
}

#endif /* __MAGPIE_TAKEN_BPF_H */
