/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * push.bpf.h - mechanism "push": a requeued task wakes an idle CPU at once.
 *
 * Idea ("Push-based load balancing", RFC v2, Linux kernel list): a task that was preempted or used
 * up its slice migrates to an idle CPU at once, rather than when that CPU happens to search.
 * Published, it made microbenchmarks slower by up to 18 %, because the busy CPU moved the task.
 * Here the busy CPU only claims an idle CPU and kicks it, and that CPU searches (steal.bpf.h).
 *
 *   a real-time task has the CPU?       --yes-> an idle CPU is called, for a woken task, too
 *        | no
 *   requeued, not woken?                --no--> nothing: a wakeup has searched already
 *        | yes
 *   preempted by a task that is done
 *   soon?                               --yes-> wait a moment (patience.bpf.h)
 *        | no
 *   burst shorter than a move costs, or
 *   a task was pushed from here just
 *   now?                                --yes-> wait for the tick
 *        | no
 *   idle CPU that the task may use?     --yes-> claimed, told to search, kicked
 *
 * With and without this mechanism, each tick offers the queued tasks to idle CPUs, which repairs a
 * push that was not made. A CPU that a real-time task has taken has no tick of ours: a timer offers
 * the tasks there (patience.bpf.h).
 *
 * What it does not do: choose the task. The idle CPU takes the first task of the nearest overloaded
 * CPU, which may be a better one.
 */
#ifndef __MAGPIE_PUSH_BPF_H
#define __MAGPIE_PUSH_BPF_H

const volatile bool push_enabled = true;

/* A CPU pushes at most once in this time. */
const volatile u64 push_interval_ns = 100000;

/* The assumed cost of a migration. */
#define MOVE_COST_NS 50000ULL

/* Have an idle CPU search for the task that waits on @cpu; whether there was an idle CPU. */
__noinline bool kick_idle_for(struct task_struct *p __arg_trusted, s32 cpu)
{
	s32 idle = pick_idle_for(p);

	if (idle < 0)
		return false;

	kick_searcher(idle, 1 + cpu);
	count_event(state_here(), EVENT_KICK_IDLE, 1);
	return true;
}

#define TASKS_OFFERED 32 /* queued tasks that are offered at once */
#define TASKS_WALKED 1024 /* queued tasks that are looked at to find one that may move */

/* A task's mask of allowed CPUs, in short. Two masks with the same three numbers count as equal. */
struct affinity {
	u32 weight, first, first_zero;
};

static __always_inline struct affinity affinity_of(const struct task_struct *p)
{
	return (struct affinity){
		.weight = p->nr_cpus_allowed,
		.first = bpf_cpumask_first(p->cpus_ptr),
		.first_zero = bpf_cpumask_first_zero(p->cpus_ptr),
	};
}

static __always_inline bool is_same_affinity(const struct affinity *one,
					     const struct affinity *other)
{
	return one->weight == other->weight && one->first == other->first &&
	       one->first_zero == other->first_zero;
}

/*
 * For each of the first tasks in a queue, kick an idle CPU that may run it. The affinity is tested
 * before the kick; otherwise thousands of kicked CPUs would find no task that they may run. Returns
 * whether any task may run elsewhere.
 *
 * A search that finds no idle CPU looks at all idle CPUs that the task may not use. So the next
 * task with the same affinity makes none: with 40 tasks in a cpuset of 2 CPUs, each tick searched
 * 32 times.
 *
 * Pinned tasks are not offered. If the queue begins with more of them, and the map says that one of
 * its tasks may move, the walk goes on until it finds that task: otherwise the pinned tasks would
 * keep the queue advertised, and every idle CPU would walk along it.
 *
 * A global function, which the verifier proves by itself. Inlined, its branches multiplied with
 * those of both callers, and slow guests took two thirds longer to load the scheduler.
 */
__noinline bool offer_waiting(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	u32 most = is_overloaded(cpu) ? TASKS_WALKED : TASKS_OFFERED;
	struct affinity failed = {};
	struct task_struct *waiting;
	bool may_move = false;

	state->walked = 0;
	bpf_for_each(scx_dsq, waiting, cpu, 0) {
		struct affinity affinity;

		if (++state->walked > (may_move ? TASKS_OFFERED : most))
			break;
		if (is_pinned(waiting))
			continue;

		may_move = true;
		affinity = affinity_of(waiting);
		if (is_same_affinity(&affinity, &failed))
			continue;
		if (kick_idle_for(waiting, cpu))
			continue;
		if (waiting->nr_cpus_allowed >= nr_cpus)
			break; /* nothing idles */
		failed = affinity;
	}

	return may_move || state->walked > TASKS_WALKED;
}

/*
 * A tick, or the CPU was taken and its tasks have waited for long enough: offer the queued tasks,
 * and update map and count.
 *
 * Leave the bit of a taken CPU alone: the timer holds no runqueue lock, so the clear may come between
 * a waker's advertisement and its insert, and no tick here would repair that. The task would wait
 * until the real-time task sleeps, whatever idles meanwhile.
 */
static __always_inline void offer_queue(s32 cpu)
{
	bool may_move = offer_waiting(cpu);
	bool is_noted = has_queued(state_of(cpu));
	u32 length = may_move || !is_noted ? scx_bpf_dsq_nr_queued(cpu) : 0;

	/* A task that another CPU queued may have been missed, see has_queued(). */
	if (length && (!is_noted || length >= nr_runnable(cpu)))
		note_foreign(cpu);
	if (may_move)
		advertise_queue(cpu);
	else if (!READ_ONCE(state_of(cpu)->has_no_tick))
		hide_queue(cpu);
	note_waiting(cpu, may_move ? length : 0);
}

/*
 * A task was requeued on this CPU: have an idle CPU search for it at once, unless the task's burst
 * is not worth a migration or the last push was just now.
 */
static __always_inline void push(struct task_struct *p, const struct task_state *ts, s32 cpu,
				 u64 enq_flags)
{
	struct cpu_state *state = state_of(cpu);
	u64 now = scx_bpf_now();

	/* A task of a higher class has the CPU, and no tick here will offer the task. */
	if (enq_flags & SCX_ENQ_REENQ || state->has_no_tick) {
		kick_idle_for(p, cpu);
		return;
	}

	if (!push_enabled || expected_burst(ts) <= MOVE_COST_NS || is_before(now, state->next_push))
		return;

	state->next_push = now + push_interval_ns;
	if (kick_idle_for(p, cpu))
		count_event(state_here(), EVENT_PUSH, 1);
}

#endif /* __MAGPIE_PUSH_BPF_H */
