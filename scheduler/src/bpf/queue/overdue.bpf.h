/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * overdue.bpf.h - mechanism "queue", part: no task waits for long, however light it is.
 *
 * A task's debt is virtual time, and how long virtual time takes depends on what else runs. A
 * SCHED_IDLE task that ran for a slice among 100 CPU hogs is due again after 102 s; the kernel's
 * watchdog ends a scheduler that keeps a task waiting for 30 s, and ended this one. cgroups of
 * weights 1 and 10000 on two levels make it days. So a task that has waited for LONGEST_WAIT_NS is
 * *overdue*: its debt is forgiven, and it is due at once.
 *
 *   tick, last look a second ago?   --yes--> the next dispatch looks for the task that waits for
 *                                            longest
 *   does it wait for too long?      --yes--> due at the clock; the next look comes soon
 *
 * Looks that find a task follow each other every few ticks, so that many light tasks together take
 * a part of the CPU only, and at every tick once a task has waited for three times as long.
 *
 * What it does not do: look at more than the last TASKS_SEARCHED tasks of a queue; hurry more than
 * one task a tick, so that of thousands of light tasks on one CPU some still wait for too long.
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

/* Return for how long a task has been ready, jiffies: the time at which the kernel's watchdog looks. */
static __always_inline s64 waited(const struct task_struct *p)
{
	return bpf_jiffies64() - p->scx.runnable_at;
}

/* Return how many jiffies LONGEST_WAIT_NS is. */
static __always_inline s64 longest_wait(void)
{
	return LONGEST_WAIT_NS * CONFIG_HZ / 1000000000ULL;
}

/* Move an overdue task of the CPU's queue, which a walk (@it) has reached, to the front. */
static __always_inline void hurry(struct bpf_iter_scx_dsq *it, struct task_struct *p, s32 cpu)
{
	struct task_state *ts = task_state(p);
	u64 due_now;

	if (!ts)
		return;

	due_now = clock_of(cpu) - request(ts);
	if (is_before(due_now, ts->vruntime))
		ts->vruntime = due_now;
	count_event(state_of(cpu), EVENT_OVERDUE, 1);
	move_to_queue(it, p, ts, cpu);
}

/* Return the longest wait of a task among the last of a CPU's queue, jiffies. */
__noinline u64 longest_waited(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	struct task_struct *p;
	s64 longest = 0;

	state->walked = 0;
	bpf_for_each(scx_dsq, p, cpu, SCX_DSQ_ITER_REV) {
		if (++state->walked > TASKS_SEARCHED)
			break;
		longest = waited(p) > longest ? waited(p) : longest;
	}

	return longest;
}

/* Move the last task of a CPU's queue that has waited for so long to the front. */
__noinline int hurry_oldest(s32 cpu, u64 longest)
{
	struct cpu_state *state = state_of(cpu);
	struct task_struct *p;

	state->walked = 0;
	bpf_for_each(scx_dsq, p, cpu, SCX_DSQ_ITER_REV) {
		if (++state->walked > TASKS_SEARCHED)
			break;
		if (waited(p) >= (s64)longest) {
			hurry(BPF_FOR_EACH_ITER, p, cpu);
			break;
		}
	}

	return 0;
}

/*
 * Look for the task in the CPU's queue that has waited for longest: if any other came first, those
 * that were hurried before would be overdue again before the rest had their turn. Global: the
 * verifier proves it once, and not again for each way on from it.
 */
__noinline int hurry_overdue(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	s64 longest = longest_waited(cpu);
	u64 pause = OVERDUE_LOOK_NS;

	if (longest > longest_wait()) {
		hurry_oldest(cpu, longest);
		/* Many wait, and the watchdog comes near: at each tick. */
		pause = longest > 3 * longest_wait() ? 0 : OVERDUE_AGAIN_NS;
	}

	state->looks_for_overdue = 0;
	state->next_overdue_look = rq_now(cpu) + pause;
	return 0;
}

/* A CPU is about to choose a task: look for an overdue one first if a tick has asked for that. */
static __always_inline void hurry_overdue_when_asked(const struct cpu_state *state, s32 cpu)
{
	if (state->looks_for_overdue)
		hurry_overdue(cpu);
}

#endif /* __MAGPIE_OVERDUE_BPF_H */
