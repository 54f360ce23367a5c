/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * patience.bpf.h - mechanism "push", part: a task waits a moment for its CPU before it leaves.
 *
 * Idea (the kernel's migration cost, Linux kernel/sched/fair.c: a task that ran just now is cache
 * hot, and stays): a task that leaves its CPU runs with cold caches. So it leaves only when it has
 * waited for longer than these cost. Most tasks that take the CPU of a CPU hog keep it for
 * microseconds: kernel threads that are bound to it, threads of interrupts. When the hog left at
 * once, four hogs beside eight real-time threads that wake once a millisecond migrated some 2700
 * times in a second, and now 14 times. A hog that left often came to share a core, for two ticks.
 *
 *   a task with short bursts preempts       a real-time task takes the CPU from a task of ours, or
 *   a task of ours                          takes the idle CPU, and a waker has claimed that CPU or
 *        |                                  a task of ours is runnable there
 *        |                                       |
 *   our task waits in the CPU's queue,      our task waits there, too, if its slice is used up;
 *   neither advertised nor pushed           if not, in the local queue, out of other CPUs' reach
 *        |                                       |
 *        +---------------------+-----------------+
 *                              |
 *               timer of this CPU, in PATIENCE_NS
 *                              |
 *                    still waits?  --no--> nothing: the task ran on here
 *                              | yes
 *        the tasks of the CPU's queue are offered, as at a tick; behind a real-time task,
 *        those of its local queue, too
 *
 * A real-time task may keep its CPU for ever, and no tick of ours offers the tasks behind it. If it
 * takes the CPU from a task of ours, the kernel calls ops.cpu_release(). If it takes an idle CPU,
 * the kernel calls only ops.update_idle(), and the waker may insert its task after that. So the
 * second case needs the timer with and without patience.
 *
 * What it does not do: wait for a real-time task on a kernel with PREEMPT_RT, whose timers are
 * real-time tasks themselves, or before 6.19, where only ops.cpu_release() may enqueue the tasks of
 * a local queue again. There a task leaves at once. If its waker is late, the task waits for the
 * real-time task.
 */
#ifndef __MAGPIE_PATIENCE_BPF_H
#define __MAGPIE_PATIENCE_BPF_H

extern bool CONFIG_PREEMPT_RT __kconfig __weak;

const volatile bool patience_enabled = true;

/*
 * For how long a task waits for its CPU: the kernel's migration cost. The task for which a waker
 * has claimed an idle CPU arrives there sooner than that.
 */
#define PATIENCE_NS 500000LL

struct patience_timer {
	struct bpf_timer timer;
};

/* User space sets the number of entries to that of CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct patience_timer);
} patience_timers SEC(".maps");

/* The timers have their function. Written once. */
bool patience_is_ready;

/*
 * Return whether a timer may enqueue the tasks of a local queue again, and no real-time task holds
 * up the timer itself.
 */
static __always_inline bool can_reenqueue(void)
{
	bool can = __COMPAT_has_generic_reenq();

	/* Otherwise the compiler joins two addresses by OR, which the verifier forbids. */
	barrier_var(can);
	if (__COMPAT_scx_bpf_reenqueue_local_from_anywhere())
		can = true;

	return can && !CONFIG_PREEMPT_RT;
}

/* Start a CPU's timer, bound to the CPU that calls this, and note whether it is set. */
static __always_inline void start_patience(struct cpu_state *state, struct patience_timer *timer,
					   u64 wait)
{
	state->is_waiting = !bpf_timer_start(&timer->timer, wait, BPF_F_TIMER_CPU_PIN);
}

/*
 * Set the timer of this CPU, which was taken at @state->taken_at, unless it is set; whether it is.
 * Only for the own CPU.
 */
static __always_inline bool set_patience(struct cpu_state *state, s32 cpu)
{
	struct patience_timer *timer;
	u32 key = cpu;

	if (state->is_waiting)
		return true;

	timer = bpf_map_lookup_elem(&patience_timers, &key);
	if (!timer)
		return false;

	start_patience(state, timer, PATIENCE_NS);
	return state->is_waiting;
}

/* The timer: let the tasks that still wait for this CPU leave. */
static int end_patience(void *map, u32 *key, struct patience_timer *timer)
{
	struct cpu_state *state = state_of(*key);
	s64 left = READ_ONCE(state->taken_at) + PATIENCE_NS - scx_bpf_now();
	bool is_taken = READ_ONCE(state->has_no_tick);

	state->is_waiting = 0;
	if (!is_taken && !has_queued(state))
		return 0;

	/* The CPU had come back, and was taken again since. */
	if (left > 0) {
		start_patience(state, timer, left);
		return 0;
	}

	count_event(state_here(), EVENT_PATIENCE, 1);
	if (is_taken)
		scx_bpf_reenqueue_local_from_anywhere();
	offer_queue(*key);
	return 0;
}

/*
 * A tick: set the timers' function, the first time. Until then tasks leave at once. Not in
 * ops.init(), which may sleep: the verifier forbids such a program to search for CPUs.
 */
static __always_inline void prepare_patience(void)
{
	if (READ_ONCE(patience_is_ready))
		return;

	WRITE_ONCE(patience_is_ready, true);
	set_cpu_callbacks(&patience_timers, end_patience);
}

/*
 * A woken task has preempted the running one: note whether that one has its CPU back soon. A burst
 * is expected to last up to twice the average, as in usual_rest().
 */
static __always_inline void note_preemption(struct cpu_state *state, const struct task_state *woken)
{
	if (woken->avg_burst && woken->avg_burst < PATIENCE_NS / 2)
		WRITE_ONCE(state->soon_free, 1);
}

/*
 * Return whether a requeued task is to wait for its CPU, because a task that is done soon has just
 * preempted it there, or because a real-time task takes the CPU as the requeued task's slice ends.
 * If the CPU does not come back, for example because the preempting task is a shell that forks, the
 * timer lets the requeued task leave.
 */
static __always_inline bool is_patient(struct cpu_state *state, s32 cpu, u64 enq_flags)
{
	if (!patience_enabled || enq_flags & (SCX_ENQ_WAKEUP | SCX_ENQ_REENQ) ||
	    state != state_here() || !(READ_ONCE(state->soon_free) || is_outranked(cpu)))
		return false;

	WRITE_ONCE(state->soon_free, 0);
	state->taken_at = rq_now(cpu);
	return set_patience(state, cpu);
}

/*
 * A task begins to run: forget a preempted task that was to have this CPU back soon. If it is still
 * noted, that task slept before it was requeued.
 */
static __always_inline void forget_preemption(struct cpu_state *state)
{
	if (state->soon_free)
		WRITE_ONCE(state->soon_free, 0);
}

/*
 * A task of a higher class has the CPU: its ticks do not reach us, so no tick advertises the queued
 * tasks.
 */
static __always_inline void lose_ticks(struct cpu_state *state, u64 now)
{
	if (!state->has_no_tick)
		state->taken_at = now;
	WRITE_ONCE(state->has_no_tick, 1);
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
	if (patience_enabled && can_reenqueue() && set_patience(state, cpu))
		return;

	scx_bpf_reenqueue_local();
	offer_queue(cpu);
}

/* A task of a higher class takes the idle CPU. @was_claimed: a waker may be sending a task here. */
static __always_inline void lose_idle_cpu(struct cpu_state *state, s32 cpu, bool was_claimed)
{
	lose_ticks(state, rq_now(cpu));
	if (!was_claimed && !nr_runnable(cpu))
		return;

	if (!can_reenqueue() || !set_patience(state, cpu))
		scx_bpf_reenqueue_local_from_anywhere();
}

#endif /* __MAGPIE_PATIENCE_BPF_H */
