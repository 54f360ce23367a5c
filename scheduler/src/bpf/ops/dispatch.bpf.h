/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * dispatch.bpf.h - operations: which task a CPU runs next.
 *
 *   a tick asked to look for an overdue task? --yes--> that task is due at once
 *        |
 *   running task still runnable, and may stay?
 *        | no      | yes: balancing is due, and another CPU gets less? --yes--> its task runs here
 *        |         |      still first?                                 --yes--> keep it
 *        |<--------+ no
 *   own queue (a withheld CPU first moves its tasks away)
 *        | empty
 *   keep the running task after all, or search elsewhere
 */
#ifndef __MAGPIE_DISPATCH_BPF_H
#define __MAGPIE_DISPATCH_BPF_H

/*
 * Charge the previous task, and return its state if it may go on here; NULL if it sleeps, must
 * leave this CPU, is about to migrate, or is throttled.
 */
static __always_inline struct task_state *find_stayer(struct task_struct *prev, s32 cpu)
{
	struct task_state *ts;

	if (!prev || !is_runnable(prev) || must_leave(prev, cpu))
		return NULL;

	ts = task_state(prev);
	if (!ts)
		return NULL;

	charge(prev, ts);
	return is_migrating(ts) || is_throttled(prev, ts) ? NULL : ts;
}

/*
 * A task begins to run, or goes on: end its migration, publish its deadline for wakers, set the
 * timer that ends its request, and no longer keep the CPU for a preempted task. @in_turn: see
 * start_running().
 */
static __always_inline void begin_slice(struct cpu_state *state, struct task_state *ts, s32 cpu,
					bool in_turn, u64 now)
{
	end_migration(ts);
	start_running(state, ts, in_turn, now);
	start_hrtick(state, cpu, now);
	forget_preemption(state);
}

/* Let the running task go on for another slice. */
static __always_inline void keep_running(struct task_struct *p, struct task_state *ts,
					 struct cpu_state *state, s32 cpu)
{
	begin_slice(state, ts, cpu, true, rq_now(cpu));
	scx_bpf_task_set_slice(p, slice_of(ts));
	count_event(state, EVENT_KEEP, 1);
}

/* Take the first task of the own queue; whether there was one. */
static __always_inline bool dispatch_own(struct cpu_state *state, s32 cpu,
					 const struct task_struct *prev,
					 const struct task_state *stayer)
{
	if (!is_preferred(cpu))
		drain_queue(cpu);

	/* A CPU that was kicked asks the kernel. */
	if (prev && !has_queued(state))
		return false;

	if (!scx_bpf_dsq_move_to_local(cpu, 0)) {
		note_queue_empty(state);
		hide_queue(cpu);
		return false;
	}

	count_event(state, EVENT_DISPATCH, 1);
	if (!is_queue_empty_now(state, cpu, prev))
		return true;

	note_queue_empty(state);
	/* Keep the bit if @prev will be requeued: the queue is then non-empty again. */
	if (!stayer || is_pinned(prev))
		hide_queue(cpu);
	return true;
}

/* The own queue is empty: search elsewhere; whether a task was found. @asked: see must_search. */
static __always_inline bool dispatch_others(struct cpu_state *state, s32 cpu, u32 asked)
{
	u64 looks = nr_looks(state);

	/* A CPU that was kicked for a task searches even without stealing. */
	if ((steal_enabled || asked) && steal_work(cpu, asked))
		return true;

	/* The search dropped the runqueue lock: a task may have been queued or sent here meanwhile. */
	return nr_looks(state) != looks &&
	       (scx_bpf_dsq_move_to_local(cpu, 0) || scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | cpu));
}

/*
 * The own queue is empty: search elsewhere, or idle. Do neither on a CPU that a task of a higher
 * class keeps, where the kernel's deadline server asks for a task of ours once a second: marked as
 * idle, the CPU would be sent tasks.
 */
static __always_inline void look_elsewhere(struct cpu_state *state, s32 cpu,
					   const struct task_struct *prev)
{
	u32 asked = READ_ONCE(state->must_search);
	bool found;

	if (is_outranked(cpu))
		return;

	found = dispatch_others(state, cpu, asked);
	/* The search dropped the runqueue lock: a real-time task may have woken meanwhile. */
	if (is_outranked(cpu)) {
		if (found)
			lose_idle_cpu(state, cpu, false);
	} else if (!found && !prev) {
		/* Who names the CPU where a task waits has claimed this one. */
		idle_goes_on(state, cpu, asked && asked < ANYWHERE, rq_now(cpu));
	}
}

#endif /* __MAGPIE_DISPATCH_BPF_H */
