/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * queue.bpf.h - mechanism "queue": each CPU runs the queued task with the earliest deadline.
 *
 * Idea (EEVDF, Linux kernel/sched/fair.c): a task's *deadline* is its vruntime plus its request. A
 * CPU-bound or SCHED_IDLE task asks for two slices, any other task for one. So a task that wakes is
 * due before the CPU-bound ones, and still gets no more than its share. If a user asked for a slice
 * for the task (sched_runtime of sched_setattr(2)), the request is that slice. Each CPU has one
 * queue: the DSQ whose id is the CPU's number.
 *
 *   wakeup, fork                           slice used up, preempted
 *        |                                      |
 *   join with lag (fair.bpf.h)             charge the CPU time
 *        |                                      |
 *   CPU idle, or task alone there?
 *     --yes--> its local queue             earlier deadline queued? --no--> keep it
 *        | no                                   | yes
 *   before the running deadline,
 *   or much shorter, and alone? --yes--> preempt
 *        | no                                   |
 *   queue by deadline <-------------------------+
 *
 * A woken task preempts the running one if the woken task's deadline is earlier. The running task's
 * deadline counts from when it began to run. Once it has run for a slice, its next deadline counts,
 * one request later (EEVDF: a request that is fulfilled is followed by a new one). So a CPU-bound
 * or SCHED_IDLE task, which asked for two slices, is preempted at any time, and any other task of
 * the same weight only after a slice: until then it will probably sleep soon by itself. The kernel
 * looks at slices at ticks only, and would see the end of a slice of 3 ms up to 4 ms late. A waker
 * compares times.
 *
 * Where no other task waits, the shorter task runs first (shortest remaining time first, Schrage,
 * Operations Research 1968, as far as it can be guessed): a woken task whose vruntime is behind
 * that of the running one also preempts a task that will probably run for more than MUCH_SHORTER of
 * the woken one's average bursts: until twice its own average burst, or, if it is past that, for as
 * long again as it is past it.
 *
 * Otherwise a thread that must run on one CPU waits there for up to a slice each time, while a task
 * is in the first 64 ms of a long burst. Beside 16 hogs that had just slept, on 16 CPUs, such a
 * thread was 2.5 times as late as under EEVDF on average, and with this rule 0.8 times. Where
 * others wait, deadlines decide, because a preempted task would wait behind all of them.
 *
 * Among tasks that sleep, the request depends neither on how a task is woken nor on how short its
 * bursts are, and sleep earns no lag. With requests as short as bursts, or with lag for sleep, the
 * receivers of hackbench run before the senders that wait, take one or two messages each and sleep
 * again: two CPUs switch twice as often as under EEVDF. With equal requests and no lag for sleep,
 * messages pile up before a receiver runs. To queue sync wakeups behind all other tasks has the
 * same effect, but delays servers beside CPU hogs: every write to a socket is a sync wakeup.
 *
 * This file is the only one that inserts into a CPU's queue. A task is queued on the CPU of its
 * runqueue. If that CPU idles, the kernel then reschedules it under the runqueue lock, so no kick
 * is needed and none can be lost. queue_elsewhere() and move_to_queue() are the exceptions: they
 * kick.
 *
 * What it does not do: order real-time tasks. The kernel places and orders them.
 */
#ifndef __MAGPIE_QUEUE_BPF_H
#define __MAGPIE_QUEUE_BPF_H

const volatile bool preempt_enabled = true;

/* A much shorter woken task runs first if no other waits. */
const volatile bool shorter_first_enabled = true;

/*
 * A woken task is much shorter than the running one if that may run for this many of the woken
 * one's average bursts. Not 1: to preempt one of many equal tasks, a database's workers for
 * example, delays it and gains nothing.
 */
#define MUCH_SHORTER 8

/* The switch of power/power.bpf.h, which asks since when tasks wait. */
const volatile bool power_enabled = true;

/* Note that a task may wait in the CPU's queue, so that has_queued() need not ask the kernel. */
static __always_inline void note_queued(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);

	if (READ_ONCE(state->queued))
		return;

	WRITE_ONCE(state->queued, 1);
	if (power_enabled)
		WRITE_ONCE(state->queued_since, scx_bpf_now());
}

/*
 * Note a task that this CPU's runqueue may not count, because another CPU queued it: then
 * is_queue_empty_now() asks the kernel.
 */
static __always_inline void note_foreign(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);

	note_queued(cpu);
	if (!READ_ONCE(state->has_foreign))
		WRITE_ONCE(state->has_foreign, 1);
}

/*
 * Return whether tasks may wait in the CPU's own queue. To ask the kernel costs a look into a hash
 * table, and usually nobody was queued since the queue was last empty. A task that another CPU
 * queues without this runqueue's lock (queue_elsewhere()) may be missed, until the CPU goes idle or
 * has a tick: these ask the kernel.
 */
static __always_inline bool has_queued(const struct cpu_state *state)
{
	return READ_ONCE(state->queued) || READ_ONCE(state->has_foreign);
}

/* The kernel was asked: the CPU's queue is empty. */
static __always_inline void note_queue_empty(struct cpu_state *state)
{
	if (state->queued)
		WRITE_ONCE(state->queued, 0);
	if (state->has_foreign)
		WRITE_ONCE(state->has_foreign, 0);
}

/*
 * A task was taken out of the CPU's queue: return whether none is left. The caller holds the
 * runqueue's lock, so its count says so, unless tasks of other runqueues wait: it has the taken
 * task, and @prev as long as that is runnable. It also has tasks that are parked, or in the CPU's
 * local queue: these are taken for some that wait, until is_still_first() or a dispatch asks the
 * kernel.
 */
static __always_inline bool is_queue_empty_now(const struct cpu_state *state, s32 cpu,
					       const struct task_struct *prev)
{
	if (READ_ONCE(state->has_foreign))
		return !scx_bpf_dsq_nr_queued(cpu);

	return nr_runnable(cpu) <= 1 + (prev && is_runnable(prev));
}

/*
 * Queue a task on the CPU of its runqueue. This does not advertise the task: the caller first kicks
 * an idle CPU for it (offer_task() in ops/enqueue.bpf.h), and then calls advertise_queue().
 */
static __always_inline void queue_here(struct task_struct *p, struct task_state *ts, s32 cpu,
				       u64 enq_flags)
{
	count_event(state_here(), EVENT_ENQUEUE, 1);
	note_queued(cpu);
	scx_bpf_dsq_insert_vtime(p, cpu, slice_of(ts), deadline_of(ts), enq_flags);
}

/* Set a CPU's overloaded bit, so that thieves find its queue. */
static __always_inline void advertise_queue(s32 cpu)
{
	set_overloaded(cpu, true);
}

/*
 * Clear a CPU's overloaded bit, so that thieves pass it by: its queue is empty, or has only tasks
 * that may not run elsewhere.
 */
static __always_inline void hide_queue(s32 cpu)
{
	set_overloaded(cpu, false);
}

/*
 * Let a CPU and thieves know of task @p in the CPU's queue. Kick the CPU whether its state says
 * that it idles or not: the state may be out of date, and the kernel ignores such a kick of a busy
 * CPU.
 */
static __always_inline void kick_queue(const struct task_struct *p, s32 cpu)
{
	note_foreign(cpu);
	if (!is_pinned(p))
		advertise_queue(cpu);
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

/*
 * Queue a task on another CPU than that of its runqueue, because its own is withheld or offline.
 * The kernel reschedules only the runqueue's CPU, so kick this one.
 */
static __always_inline void queue_elsewhere(struct task_struct *p, struct task_state *ts, s32 cpu,
					    u64 enq_flags)
{
	if (move_cost_enabled)
		ts->queued_at = scx_bpf_now();
	scx_bpf_dsq_insert_vtime(p, cpu, slice_of(ts), deadline_of(ts), enq_flags);
	kick_queue(p, cpu);
}

/*
 * Move task @p, which a walk along a DSQ (@it) of parked tasks or of a withheld CPU has reached, to
 * a CPU's queue; whether it moved. It does not move if another CPU has taken it out of the DSQ
 * meanwhile.
 */
static __always_inline bool move_to_queue(struct bpf_iter_scx_dsq *it, struct task_struct *p,
					  const struct task_state *ts, s32 cpu)
{
	scx_bpf_dsq_move_set_vtime(it, deadline_of(ts));
	if (!scx_bpf_dsq_move_vtime(it, p, cpu, 0))
		return false;

	kick_queue(p, cpu);
	return true;
}

/*
 * Move task @p, which a walk along a DSQ (@it) has reached, to the local queue of a CPU that goes
 * offline. The kernel moves tasks away from there, as it does with those of its own classes, but no
 * longer asks the CPU for the tasks of its queue.
 */
static __always_inline void leave_to_kernel(struct bpf_iter_scx_dsq *it, struct task_struct *p,
					    s32 cpu)
{
	scx_bpf_dsq_move(it, p, SCX_DSQ_LOCAL_ON | cpu, 0);
}

/*
 * Run a task next on an idle CPU that was claimed for it: the task does not pass the CPU's queue.
 */
static __always_inline void run_next_on(struct task_struct *p, const struct task_state *ts, s32 cpu,
					u64 enq_flags)
{
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, slice_of(ts), enq_flags);
}

/* Run a task, on whose CPU nothing else is runnable, without passing the CPU's queue. */
static __always_inline void run_here(struct task_struct *p, const struct task_state *ts,
				     u64 enq_flags)
{
	count_event(state_here(), EVENT_WAKE_IDLE, 1);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_of(ts), enq_flags);
}

/* Have an idle CPU search for work. @hint: 1 + the CPU where a task waits, or ANYWHERE. */
static __always_inline void kick_searcher(s32 idle, u32 hint)
{
	WRITE_ONCE(state_of(idle)->must_search, hint);
	scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
}

/*
 * Estimate the running task's vruntime @now, as if its weight were that of nice 0 and it had begun
 * at the clock, so that a waker reads this line only. Of a task that was pulled here the estimate
 * is too large, by what the task is behind the clock.
 */
static __always_inline u64 estimate_vruntime(const struct cpu_state *state, u64 now)
{
	return READ_ONCE(state->clock) + (now - READ_ONCE(state->began));
}

/*
 * Return whether a task woken @now that joins at vruntime @start goes first because it is much
 * shorter than the running one, which has had more than the woken one. A task that is past its
 * usual burst is expected to run for as long again as it is past it: the longer, the longer still.
 */
static __always_inline bool is_shorter(const struct task_state *ts, u64 start, u64 now,
				       const struct cpu_state *state)
{
	s64 rest = READ_ONCE(state->sleeps_by) - now;
	u64 left = rest < 0 ? -rest : rest;

	if (!shorter_first_enabled || !ts->avg_burst || has_queued(state) ||
	    is_before(estimate_vruntime(state, now), start))
		return false;

	return left > MUCH_SHORTER * ts->avg_burst;
}

/*
 * Return true if a task woken @now that joins at vruntime @start and is due at @due should run
 * before the running task, and that may be preempted (@state->deadline is not 0). Woken SCHED_BATCH
 * and SCHED_IDLE tasks preempt no task, as in the kernel.
 */
static __always_inline bool should_preempt(const struct task_struct *p, const struct task_state *ts,
					   u64 start, u64 due, u64 now,
					   const struct cpu_state *state)
{
	u64 deadline = READ_ONCE(state->deadline);
	u64 request = deadline - READ_ONCE(state->clock);

	if (!preempt_enabled || !deadline || p->policy == SCHED_BATCH || p->policy == SCHED_IDLE)
		return false;
	if (is_before(due, deadline))
		return true;

	/* The next request is as long as this one. */
	if (is_before(due, deadline + request) && is_before(READ_ONCE(state->slice_ends), now))
		return true;

	return is_shorter(ts, start, now, state);
}

/* Keep wakeups from preempting the task that runs on a CPU. */
static __always_inline void forbid_preemption(struct cpu_state *state)
{
	if (state->deadline)
		WRITE_ONCE(state->deadline, 0);
}

/* Preempt the running task if should_preempt() says so; whether the woken task will run next. */
static __always_inline bool preempt_for(struct task_struct *p, const struct task_state *ts,
					struct cpu_state *state, u64 now, u64 enq_flags)
{
	if (!should_preempt(p, ts, ts->vruntime, deadline_of(ts), now, state))
		return false;

	/* Only once: the next woken task would wait behind this one in the local queue. */
	forbid_preemption(state);
	count_event(state_here(), EVENT_PREEMPT, 1);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_of(ts), enq_flags | SCX_ENQ_PREEMPT);
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

/*
 * Return whether the running task, whose slice is used up, has the earliest deadline still. A task
 * that yields does not, if any other task waits.
 */
static __always_inline bool is_still_first(const struct task_state *ts, s32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	u64 deadline;

	if (!has_queued(state))
		return true;

	if (!peek_deadline(cpu, &deadline)) {
		note_queue_empty(state);
		return true;
	}

	return !ts->yielded && is_before(deadline_of(ts), deadline);
}

/*
 * Publish the running task's deadline, when its slice ends, and when it will probably sleep:
 * wakers compare them with what a woken task has. The published deadline counts from the clock, not
 * from the task's vruntime. A task that was pulled here may be far behind the clock; by its own
 * vruntime, no woken task would preempt it until it caught up.
 */
static __always_inline void publish_deadline(struct cpu_state *state, const struct task_state *ts,
					     u64 now)
{
	WRITE_ONCE(state->deadline, state->clock + request(ts));
	WRITE_ONCE(state->slice_ends, now + slice_of(ts));
	if (!shorter_first_enabled)
		return;

	WRITE_ONCE(state->began, now);
	WRITE_ONCE(state->sleeps_by, now + usual_rest(ts));
}

/*
 * Publish what wakers must know of a task that begins to run or goes on, and let the clock follow
 * it. @in_turn: the task was not pulled here past tasks that wait. The clock does not follow a task
 * that was: a pulled task that owed 47 ms took the clock along, slept, woke at that clock without
 * a debt, and kept the tasks of the queue waiting for as long.
 */
static __always_inline void start_running(struct cpu_state *state, struct task_state *ts,
					  bool in_turn, u64 now)
{
	bool sleeps_soon = expected_burst(ts) < SLEEPS_SOON_NS;

	ts->yielded = false;
	if (in_turn)
		advance_clock(state, ts);

	publish_deadline(state, ts, now);
	if (state->sleeps_soon != sleeps_soon)
		WRITE_ONCE(state->sleeps_soon, sleeps_soon);
}

#endif /* __MAGPIE_QUEUE_BPF_H */
