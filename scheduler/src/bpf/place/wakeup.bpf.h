/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * wakeup.bpf.h - mechanism "wakeup": where a woken task runs.
 *
 * Idea ("Prefer the previous cpu for wakeup", v7, Linux kernel list): with half of the CPUs busy or
 * fewer, the kernel wakes tasks on the idle sibling of a busy core, or moves them from core to
 * core, while whole cores idle. The task's previous CPU comes first, if its core is idle, and then
 * the CPU before that.
 *
 *   previous CPU, core idle?                                 --yes--> there
 *   recent CPU, in the waker's LLC, core idle?               --yes--> there
 *   sync wakeup, and the waker leaves an idle core behind?   --yes--> next on the waker's CPU
 *   idle core in the LLC?                                    --yes--> there
 *   idle core in another LLC, for a new task or long bursts,
 *   and worth the move?                                      --yes--> there
 *   idle CPU in the LLC?                                     --yes--> there
 *   idle CPU in another LLC, and worth the move?             --yes--> there
 *   otherwise: the previous CPU's queue, or a shorter one in the LLC (queue_choice.bpf.h)
 *
 * Whether another LLC is worth the move is also what the task has learned (move_cost.bpf.h).
 *
 * portable/placement.h has this order. Only CPUs that the task may use count, and only preferred
 * ones if it may use any. For a task with long bursts, a core also counts as idle if only the waker
 * runs there and is expected to sleep soon. Otherwise workers that a messenger wakes from the only
 * free core share another core for good, because the messenger's core is never idle when they wake.
 * A task that is sent to an idle CPU does not pass the queue, nor does one that takes its waker's
 * place: a round trip of two processes over a pipe then took 66 us on vt8, through the queue 83. A
 * waker that does not sleep after all gives way at its next tick (ops/run.bpf.h).
 *
 * Each waking CPU learns how many CPUs a search looks at: twice as many after a success, half as
 * many after a failure. A search for an idle core looks at all CPUs of the LLC, but only if a core
 * there has become idle since the last search that found none, as in the kernel. So a wakeup in a
 * busy LLC wastes little time.
 *
 * A new task has no previous CPU: the search begins at its parent's, or in another LLC
 * (fork.bpf.h). On a hybrid machine a task with bursts of half a slice or more prefers a fast CPU,
 * also of another LLC if it is worth the move, but takes an idle slow one rather than wait. So does
 * a task whose uclamp minimum is more than the slowest CPU has, whatever the move costs. A task
 * whose uclamp maximum a slow CPU can give prefers none.
 *
 * What it does not do: move a task to its waker's LLC, as the kernel's wake_affine() does, while
 * the task's own LLC has an idle CPU.
 */
#ifndef __MAGPIE_WAKEUP_BPF_H
#define __MAGPIE_WAKEUP_BPF_H

/*
 * Tasks with shorter bursts stay in the LLC if the task on their previous CPU is expected to sleep
 * soon. Behind a CPU hog they would wait for a tick.
 */
#define WORTH_MOVING_NS 30000

/*
 * A task with longer bursts loses less by a cold cache than by sharing a core: the kernel's
 * migration cost. Otherwise three tasks stay on the two cores of an LLC for ever, beside an LLC
 * with one task. A new task may turn out to be such a task, and its cache is cold anyway.
 */
#define WORTH_A_CORE_NS 500000

/* Return whether the task's user asks for more than a slow CPU has. */
static __always_inline bool needs_fast(const struct task_struct *p)
{
	return is_hybrid && uclamp_min(p) > slowest_capacity;
}

/* Return whether the task should run on a fast CPU rather than on a slow one. */
static __always_inline bool prefers_fast(const struct task_struct *p, const struct task_state *ts)
{
	return is_hybrid && (needs_fast(p) ||
			     (ts->avg_burst >= slice_ns / 2 && uclamp_max(p) > slowest_capacity));
}

/* With --no-wakeup, let the kernel choose the CPU, from its own masks of idle CPUs. */
static __always_inline s32 place_plainly(struct task_struct *p, s32 prev_cpu, u64 wake_flags,
					 bool *runs_next)
{
	struct cpu_state *state = state_here();
	s32 cpu;

	note_wakeup(state, scx_bpf_now());
	if (is_restricted() && has_preferred(p)) {
		cpu = pick_idle_preferred(p, prev_cpu, wake_flags);
		*runs_next = cpu >= 0;
	} else {
		cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, runs_next);
	}

	if (*runs_next)
		count_event(state, EVENT_WAKE_IDLE, 1);
	return cpu >= 0 ? cpu : queue_for(p, prev_cpu);
}

/* A question of portable/placement.h, as those of search.bpf.h. */
void weigh_moves(struct placement *at, const struct task_struct *p, const struct task_state *ts)
{
	bool must_be_fast = needs_fast(p);

	at->may_go_far = must_be_fast || ((ts->cpu < 0 || ts->avg_burst >= WORTH_MOVING_NS ||
					   !READ_ONCE(state_of(at->previous)->sleeps_soon)) &&
					  would_wait_for_longer(ts, at->previous, at->now));
	at->core_is_worth_it = must_be_fast || ((wants_idle_core() || at->wants_fast) &&
						(ts->cpu < 0 || ts->avg_burst >= WORTH_A_CORE_NS) &&
						is_worth_a_far_core(ts));
}

/*
 * Note the waker's CPU for wake_on_idle_core(), which places tasks with long bursts only: of others
 * the line is not written. The burst that has just ended is not in the average yet.
 */
static __always_inline void note_waker(struct task_state *ts, u32 waker)
{
	bool is_of_use = ts->cpu < 0 || expected_burst(ts) >= WORTH_A_CORE_NS;

	if (has_smt && is_of_use)
		WRITE_CHANGED(ts->woken_from, waker);
}

/*
 * Choose a CPU in the order above. @runs_next is set if the task need not pass the queue: the CPU
 * is idle and claimed for it, or the waker leaves the CPU.
 */
static __always_inline s32 place_on_idle(struct task_struct *p, struct task_state *ts, s32 prev_cpu,
					 u64 wake_flags, bool *runs_next, u64 *enq_flags)
{
	s32 here = bpf_get_smp_processor_id();
	struct cpu_state *state = state_of(here);
	u64 now = scx_bpf_now();
	struct placement at = {
		.now = now,
		.previous = wake_flags & SCX_WAKE_FORK ? cpu_for_fork(p, ts, prev_cpu, now)
						       : prev_cpu,
		.recent = ts->recent,
		.waker = here,
		.looks = state->looks,
		.is_sync = wake_flags & SCX_WAKE_SYNC,
		.wants_core = wants_idle_core(),
		.wants_fast = prefers_fast(p, ts),
		.outlasts_waker = ts->avg_burst >= WORTH_A_CORE_NS,
		.may_preempt = p->policy != SCHED_IDLE,
	};
	u32 step = choose_cpu(&at, p, ts);

	note_wakeup(state, at.now);
	if (move_cost_enabled && ts->cpu >= 0 && step != STEP_QUEUE)
		note_next_burst(&ts->moves, is_in_other_llc(at.previous, at.cpu));
	WRITE_CHANGED(ts->recent, (u32)prev_cpu);
	note_waker(ts, here);
	/* Otherwise the compiler bounds one copy of @step and uses another. */
	barrier_var(step);
	if (step >= STEP_QUEUE) {
		if (state->looks > FEWEST_LOOKS)
			state->looks /= 2;
		prev_cpu = queue_for(p, prev_cpu);
		return queue_choice_enabled ? choose_queue(p, ts, prev_cpu, now) : prev_cpu;
	}

	if (step >= STEP_IDLE_CORE && state->looks < MOST_LOOKS)
		state->looks *= 2;
	count_event(state, EVENT_WAKE_PREVIOUS + step, 1);
	if (step != STEP_WAKER)
		count_event(state, EVENT_WAKE_IDLE, 1);
	*runs_next = true;
	if (at.preempts)
		*enq_flags = SCX_ENQ_PREEMPT;
	return at.cpu;
}

/* ops.select_cpu(): the CPU for a woken or new task. */
static __always_inline s32 place_wakeup(struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_state *ts = task_state(p);
	bool runs_next = false;
	u64 enq_flags = 0;
	s32 cpu;

	if (!ts)
		return prev_cpu;

	/* Do not claim an idle CPU for a task that will be parked. */
	if (is_throttled(p, ts))
		return prev_cpu;

	if (idle_map_enabled)
		cpu = place_on_idle(p, ts, prev_cpu, wake_flags, &runs_next, &enq_flags);
	else
		cpu = place_plainly(p, prev_cpu, wake_flags, &runs_next);

	if (!runs_next)
		return cpu;

	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_of(ts), enq_flags);
	return cpu;
}

#endif /* __MAGPIE_WAKEUP_BPF_H */
