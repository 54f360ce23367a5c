/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * overdue.bpf.h - mechanism "queue", part: no task waits for long, however light it is.
 *
 * A task's debt is virtual time, and how long virtual time takes depends on what else runs. A
 * SCHED_IDLE task that ran for a slice among 100 CPU hogs is due again after 102 s; the kernel's
 * watchdog ends a scheduler that keeps a task waiting for 30 s, and ended this one. cgroups of weights
 * 1 and 10000 on two levels make it days. So a task that has waited for LONGEST_WAIT_NS is *overdue*:
 * its debt is forgiven, and it is due at once.
 *
 *   tick, last look a second ago?   --yes--> the next dispatch looks, from the queue's end
 *   a task there waits for too long? --yes--> due at the clock; the next look comes soon
 *
 * Looks that find a task follow each other every few ticks, so that thousands of light tasks
 * together take a part of the CPU only.
 *
 * What it does not do: look at more than TASKS_SEARCHED tasks. A round of a queue that is longer takes
 * three seconds or more anyway.
 */
#ifndef __MAGPIE_OVERDUE_BPF_H
#define __MAGPIE_OVERDUE_BPF_H

#define LONGEST_WAIT_NS 4000000000ULL
#define OVERDUE_LOOK_NS 1000000000ULL
#define OVERDUE_AGAIN_NS 16000000ULL
#define TASKS_SEARCHED 1024

/* A tick: let the next dispatch look for an overdue task if it is time. */
static __always_inline void look_for_overdue_when_due(struct cpu_state *state, u64 now)
{
	if (!is_before(now, state->next_overdue_look))
		state->looks_for_overdue = 1;
}

/* Return whether the task has waited for too long: the time at which the kernel's watchdog looks. */
static __always_inline bool is_overdue(const struct task_struct *p)
{
	s64 waited = bpf_jiffies64() - p->scx.runnable_at;

	return waited > (s64)(LONGEST_WAIT_NS * CONFIG_HZ / 1000000000ULL);
}

/* Move an overdue task of the CPU's queue, which a walk (@it) has reached, to the front. */
static __always_inline bool hurry(struct bpf_iter_scx_dsq *it, struct task_struct *p, s32 cpu)
{
	struct task_state *ts = task_state(p);
	u64 due_now;

	if (!ts)
		return false;

	due_now = clock_of(cpu) - request(ts);
	if (is_before(due_now, ts->vruntime))
		ts->vruntime = due_now;
	count_event(state_of(cpu), EVENT_OVERDUE, 1);
	return move_to_queue(it, p, ts, cpu);
}

/*
 * Look for an overdue task in the CPU's queue, latest deadline first. Global: the verifier proves it
 * once, and not again for each way on from it.
 */
__noinline bool hurry_overdue(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	struct task_struct *p;
	bool found = false;

	state->walked = 0;
	bpf_for_each(scx_dsq, p, cpu, SCX_DSQ_ITER_REV) {
		if (++state->walked > TASKS_SEARCHED)
			break;
		if (is_overdue(p)) {
			found = hurry(BPF_FOR_EACH_ITER, p, cpu);
			break;
		}
	}

	state->looks_for_overdue = 0;
	state->next_overdue_look = rq_now(cpu) + (found ? OVERDUE_AGAIN_NS : OVERDUE_LOOK_NS);
	return found;
}

/* A CPU is about to choose a task: look for an overdue one first if a tick has asked for that. */
static __always_inline void hurry_overdue_when_asked(const struct cpu_state *state, s32 cpu)
{
	if (state->looks_for_overdue)
		hurry_overdue(cpu);
}

#endif /* __MAGPIE_OVERDUE_BPF_H */
