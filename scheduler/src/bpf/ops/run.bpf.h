/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * run.bpf.h - operations: a task begins to run, ticks, and stops; a CPU goes idle.
 *
 *   running -> tick, tick, ... -> stopping       another class takes the CPU: lose_cpu()
 *                                 |
 *                        no task: update_idle(true) ... update_idle(false)
 */
#ifndef __MAGPIE_RUN_BPF_H
#define __MAGPIE_RUN_BPF_H

/*
 * Let a task that was sent here as it woke, or was taken from another CPU's queue, join this CPU's
 * clock. Returns whether the task runs in turn, rather than past tasks that wait here.
 */
static __always_inline bool arrive(struct task_state *ts, s32 cpu)
{
	if (ts->slept)
		join_after_sleep(ts, cpu);
	if (ts->cpu == cpu)
		return true;

	note_taken(ts, cpu);
	join_after_move(ts, cpu);
	return !has_queued(state_of(cpu)) || !scx_bpf_dsq_nr_queued(cpu);
}

/*
 * A tick of a task of ours: count it, adapt the CPU's frequency, let the LLC's clock follow, and
 * end the slice if the task's cgroup has used up its quota.
 */
static __always_inline void tick_task(struct task_struct *p, struct task_state *ts,
				      struct cpu_state *state, s32 cpu, u64 now)
{
	if (ts->ticks < 255)
		ts->ticks++;
	perf_tick(state, p, ts, now);
	publish_clock(state, ts, cpu);
	end_if_throttled(p, ts);
}

/*
 * A tick: end the slice of a task that must leave this CPU, or whose place a woken task was to take
 * (place/wakeup.bpf.h); whether it ended. The woken task is in the local queue, out of the reach of
 * thieves.
 */
static __always_inline bool evict_at_tick(struct task_struct *p, struct cpu_state *state, s32 cpu,
					  u64 now)
{
	if (preferred_enabled)
		note_tick(state, now);
	if (!must_leave(p, cpu) && !scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | cpu))
		return false;

	scx_bpf_task_set_slice(p, 0);
	return true;
}

/* Return whether the CPU's search came too early: it met no task in its LLC, and one waits now. */
static __always_inline bool came_too_early(struct cpu_state *state, s32 cpu)
{
	if (!state->met_none)
		return false;

	state->met_none = 0;
	return is_work_near(cpu);
}

/*
 * A CPU has announced that it idles: kick it at once if a task was queued unseen, here or elsewhere
 * in its LLC. A search for work drops the runqueue lock, and a waker that queues a task here
 * meanwhile does not yet see an idle CPU. From here on, a wakeup on this runqueue finds the idle
 * task running and reschedules the CPU.
 *
 * Only once in an idle period: a kicked CPU that finds nothing idles on, which the kernel does not
 * announce.
 */
static __always_inline void rescue_at_idle(struct cpu_state *state, s32 cpu)
{
	if (came_too_early(state, cpu) || scx_bpf_dsq_nr_queued(cpu)) {
		count_event(state, EVENT_RESCUE, 1);
		scx_bpf_kick_cpu(cpu, 0);
	}
}

/* The kernel begins to run the idle task. */
static __always_inline void enter_idle(struct cpu_state *state, s32 cpu)
{
	u64 now = rq_now(cpu);

	regain_cpu(state);
	begin_idle(state, now);
	note_waiting(cpu, 0);
	forget_pace(state, cpu);
	idle_begins(state, cpu, now);
	note_idle(state, now);
	perf_idle_begins(state);
	rescue_at_idle(state, cpu);
}

/* The kernel runs another task than the idle task, of any class. */
static __always_inline void leave_idle(struct cpu_state *state, s32 cpu)
{
	u64 now = rq_now(cpu);

	perf_idle_ends(state, now);
	end_idle(state, now);
	catch_up_clock(state, cpu);
	begin_pace(state, now);
	if (is_outranked(cpu)) {
		perf_outranked(state);
		lose_idle_cpu(state, cpu, idle_ends_with_claim(state));
	} else {
		idle_ends(state);
	}
	note_busy(state, now);
}

#endif /* __MAGPIE_RUN_BPF_H */
