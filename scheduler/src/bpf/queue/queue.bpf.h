/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * queue.bpf.h - mechanism "queue": each CPU runs the queued task with the earliest deadline.
 *
 * Idea (EEVDF, Linux kernel/sched/fair.c): a task's *deadline* is its vruntime plus its request:
 * its usual burst, but at least one slice and at most two. So a task that wakes is due before CPU
 * hogs, and still gets no more than its share. Each CPU has one queue: the DSQ whose id is the CPU's
 * number.
 *
 *   wakeup, fork                           slice used up, preempted
 *        |                                      |
 *   join with lag (fair.bpf.h)             charge the CPU time
 *        |                                      |
 *   CPU idle? --yes--> its local queue     earlier deadline queued? --no--> keep it
 *        | no                                   | yes
 *   before the running deadline? --yes--> preempt
 *        | no                                   |
 *   queue by deadline <-------------------------+
 *
 * A wakeup preempts a running task that is due later, if that is known for bursts of a slice or
 * more, or has used up a slice since it last slept. Any other will probably sleep soon by itself.
 *
 * The request does not depend on how a task is woken, nor on how much shorter than a slice its
 * bursts are. With requests as short as bursts, or with credit for sleep, receivers of hackbench run
 * before the other senders, take one or two messages each and sleep again, and two CPUs switch twice
 * as often as under EEVDF. A rule that queued sync wakeups behind all other tasks repaired that, at
 * the price of servers beside CPU hogs: every write to a socket is a sync wakeup. With equal
 * requests and no credit, messages pile up without such a rule.
 *
 * This file is the only one that inserts into a CPU's queue. A task is queued on the CPU of its
 * runqueue. The kernel then reschedules that CPU, if it idles, under the runqueue lock, and no kick
 * is lost. queue_elsewhere() and requeue() are the exceptions: they kick.
 *
 * What it does not do: real-time tasks, which the kernel places.
 */
#ifndef __MAGPIE_QUEUE_BPF_H
#define __MAGPIE_QUEUE_BPF_H

const volatile bool preempt_enabled = true;

/*
 * Queue a task on the CPU of its runqueue. advertise_queue() is a call of its own, because pushing
 * comes between.
 */
static __always_inline void queue_here(struct task_struct *p, struct task_state *ts, s32 cpu,
				       u64 enq_flags)
{
	count_event(state_here(), EVENT_ENQUEUE, 1);
	scx_bpf_dsq_insert_vtime(p, cpu, slice_ns, deadline_of(ts), enq_flags);
}

/* Let thieves find what is queued on a CPU. */
static __always_inline void advertise_queue(s32 cpu)
{
	set_overloaded(cpu, true);
}

/* No task of a CPU's queue may run elsewhere. */
static __always_inline void hide_queue(s32 cpu)
{
	set_overloaded(cpu, false);
}

/*
 * Wake a CPU for what is in its queue. Kick it whether its state says that it idles or not: the
 * state may lag behind, and the kernel ignores the kick of a busy CPU.
 */
static __always_inline void kick_queue(const struct task_struct *p, s32 cpu)
{
	if (!is_pinned(p))
		advertise_queue(cpu);
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

/* Queue a task on another CPU than that of its runqueue. */
static __always_inline void queue_elsewhere(struct task_struct *p, struct task_state *ts, s32 cpu,
					    u64 enq_flags)
{
	scx_bpf_dsq_insert_vtime(p, cpu, slice_ns, deadline_of(ts), enq_flags);
	kick_queue(p, cpu);
}

/* Move the task that a walk along a DSQ (@it) has reached to a CPU's queue; whether it moved. */
static __always_inline bool requeue(struct bpf_iter_scx_dsq *it, struct task_struct *p,
				    const struct task_state *ts, s32 cpu)
{
	scx_bpf_dsq_move_set_vtime(it, deadline_of(ts));
	if (!scx_bpf_dsq_move_vtime(it, p, cpu, 0))
		return false;

	kick_queue(p, cpu);
	return true;
}

/*
 * Move that task to the local queue of a CPU that goes offline. From there the kernel pushes it
 * away, as it does with its own tasks; nobody asks the CPU for queued tasks any more.
 */
static __always_inline void leave_to_kernel(struct bpf_iter_scx_dsq *it, struct task_struct *p,
					    s32 cpu)
{
	scx_bpf_dsq_move(it, p, SCX_DSQ_LOCAL_ON | cpu, 0);
}

/* Run a task on an idle CPU next, without a queue. */
static __always_inline void run_next_on(struct task_struct *p, s32 cpu, u64 enq_flags)
{
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, slice_ns, enq_flags);
}

/* Have an idle CPU search for work. @hint: 1 + the CPU where a task waits, or ANYWHERE. */
static __always_inline void kick_searcher(s32 idle, u32 hint)
{
	WRITE_ONCE(state_of(idle)->must_search, hint);
	scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
}

static __always_inline bool should_preempt(const struct task_struct *p, const struct task_state *ts,
					   const struct cpu_state *state)
{
	u64 deadline = READ_ONCE(state->deadline);

	if (!preempt_enabled || !deadline || p->policy == SCHED_BATCH || p->policy == SCHED_IDLE)
		return false;

	return is_before(deadline_of(ts), deadline);
}

static __always_inline void forbid_preemption(struct cpu_state *state)
{
	if (state->deadline)
		WRITE_ONCE(state->deadline, 0);
}

/* Preempt the running task for a woken one if that is due before it; whether it is. */
static __always_inline bool preempt_for(struct task_struct *p, const struct task_state *ts,
					struct cpu_state *state, u64 enq_flags)
{
	if (!should_preempt(p, ts, state))
		return false;

	/* Only once: the next wakeup must not wait behind this one in the local queue. */
	forbid_preemption(state);
	count_event(state_here(), EVENT_PREEMPT, 1);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags | SCX_ENQ_PREEMPT);
	return true;
}

/* The earliest deadline in a CPU's queue; false if the queue is empty. */
static __always_inline bool peek_deadline(s32 cpu, u64 *deadline)
{
	struct task_struct *p;
	bool found = false;

	bpf_for_each(scx_dsq, p, cpu, 0) {
		*deadline = p->scx.dsq_vtime;
		found = true;
		break;
	}

	return found;
}

/* Return whether a task whose slice is used up is still the one to run. */
static __always_inline bool is_still_first(const struct task_state *ts, s32 cpu)
{
	u64 deadline;

	if (!peek_deadline(cpu, &deadline))
		return true;

	return !ts->yielded && is_before(deadline_of(ts), deadline);
}

/*
 * Publish the running task's deadline to wakers: at once if it is known for bursts of a slice or
 * more, else after its first slice since it slept. It counts from the clock. A task that was pulled here may be
 * far behind the clock; if its own vruntime counted, no sleeper could preempt it until it caught up.
 */
static __always_inline void publish_deadline(struct cpu_state *state, const struct task_state *ts)
{
	u64 deadline = 0;

	if (usual_burst(ts) >= slice_ns || ts->burst >= slice_ns)
		deadline = state->clock + request(ts);
	if (state->deadline != deadline)
		WRITE_ONCE(state->deadline, deadline);
}

/*
 * A task begins to run, or goes on. @in_turn: it was not pulled here past tasks that wait. The
 * clock follows only such a task: one that owed 47 ms pushed the clock, slept and woke relative to
 * it, and kept the others waiting for that long.
 */
static __always_inline void start_running(struct cpu_state *state, struct task_state *ts,
					  bool in_turn)
{
	bool sleeps_soon = expected_burst(ts) < SLEEPS_SOON_NS;

	ts->yielded = false;
	if (in_turn)
		advance_clock(state, ts);

	publish_deadline(state, ts);
	if (state->sleeps_soon != sleeps_soon)
		WRITE_ONCE(state->sleeps_soon, sleeps_soon);
}

#endif /* __MAGPIE_QUEUE_BPF_H */
