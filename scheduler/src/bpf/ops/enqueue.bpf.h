/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * enqueue.bpf.h - operations: where a runnable task waits if no idle CPU was found for it.
 *
 *   cgroup throttled?                       --yes--> parking place
 *   an idle core is claimed for it?         --yes--> local queue there
 *   its CPU is not preferred?               --yes--> queue of a preferred CPU
 *   woken, and alone on its CPU?            --yes--> local queue there
 *   woken, and to run before the running
 *   task (should_preempt())?                --yes--> preempts it
 *        | no
 *   queue of its CPU, unseen if the task is pinned or waits a moment for that CPU (patience.bpf.h);
 *   else an idle CPU is kicked if the task is requeued or a real-time task has the CPU, and the
 *   queue is advertised to thieves
 */
#ifndef __MAGPIE_ENQUEUE_BPF_H
#define __MAGPIE_ENQUEUE_BPF_H

/*
 * Let other CPUs find a task that was queued here. Advertise it last: the kernel inserts the task
 * only after ops.enqueue(), and a thief that comes before that finds the queue empty.
 */
static __always_inline void offer_task(struct task_struct *p, const struct task_state *ts, s32 cpu,
				       u64 enq_flags)
{
	if (is_pinned(p) || is_patient(state_of(cpu), cpu, enq_flags))
		return;

	if (!(enq_flags & SCX_ENQ_WAKEUP) || state_of(cpu)->has_no_tick)
		push(p, ts, cpu, enq_flags);
	advertise_queue(cpu);
}

/* Queue a task on its CPU and offer it to others, or let it preempt the running task. */
static __always_inline void wait_on(struct task_struct *p, struct task_state *ts, s32 cpu,
				    u64 enq_flags)
{
	struct cpu_state *state = state_of(cpu);
	u64 now = rq_now(cpu);

	join_cgroup(ts);
	join_clock(ts, cpu);
	if (enq_flags & SCX_ENQ_WAKEUP && !has_queued(state) && is_alone(cpu) &&
	    take_own_cpu(state, now)) {
		run_here(p, ts, enq_flags);
		return;
	}

	if (enq_flags & SCX_ENQ_WAKEUP && preempt_for(p, ts, state, now, enq_flags)) {
		note_preemption(state, ts);
		return;
	}

	if (move_cost_enabled)
		ts->queued_at = now;
	queue_here(p, ts, cpu, enq_flags);
	start_hrtick(state, cpu, now);
	offer_task(p, ts, cpu, enq_flags);
}

#endif /* __MAGPIE_ENQUEUE_BPF_H */
