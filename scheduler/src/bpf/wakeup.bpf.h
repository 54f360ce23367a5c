/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * wakeup.bpf.h - mechanism 2: where a woken task runs.
 *
 * Idea ("Prefer the previous cpu for wakeup", v7, Linux kernel list): with half of
 * the CPUs busy or fewer, wakeups land on the idle sibling of a busy core, or hop
 * from core to core, while whole cores idle. The task's previous CPU comes first,
 * if its core is idle, and then the one before that.
 *
 *   previous CPU, core idle?                                 --yes--> there
 *   recent CPU (before the previous), near the waker,
 *   core idle?                                               --yes--> there
 *   synchronous, and the waker leaves an idle core behind?   --yes--> waker's queue
 *   idle core in the LLC?                                    --yes--> there
 *   idle core in another LLC, for one new or that runs long? --yes--> there
 *   idle CPU in the LLC?                                     --yes--> there
 *   idle CPU in another LLC, and worth the move?             --yes--> there
 *   otherwise: the previous CPU's queue, and steal.bpf.h advertises it
 *
 * (portable/placement.h). Only CPUs that the task may use, and preferred ones where
 * there are any. To one that runs long, a core is idle as well if only its waker runs
 * there and is believed to sleep next. Otherwise workers that a brief messenger wakes
 * from the only core that is free share another for good: it is never free when they
 * wake. A task that goes to an idle CPU does not pass the queue.
 *
 * A search looks at CPUs whose bit says that they idle or did so until their last
 * tick; how many, each waking CPU learns: twice as many after a success, half after
 * a failure. For an idle core it looks at all, but only if a core of the LLC has become
 * idle since the last search that found none, as in the kernel. So in a busy LLC a wakeup
 * wastes little time.
 *
 * A new task has no previous CPU: it looks from its parent's, or from one of another LLC
 * (fork.bpf.h).
 *
 * On hybrid CPUs a task that uses up its slices wants a fast core; of slow ones, it
 * takes an idle one before it waits.
 *
 * What it does not do: move a task of another LLC closer to its waker while its own
 * has an idle CPU, as the kernel's wake_affine() does.
 */
#ifndef __MAGPIE_WAKEUP_BPF_H
#define __MAGPIE_WAKEUP_BPF_H

/* Whole idle cores before idle CPUs. */
const volatile bool wakeup_idle_core = true;

/* CPUs of different speed: set by user space. */
const volatile bool is_hybrid = false;

#define FEWEST_LOOKS 8
#define MOST_LOOKS 64

/*
 * A task that runs for less is cheaper to keep waiting than to move to another LLC, if
 * who runs there sleeps soon. Behind a CPU hog it would wait for a tick.
 */
#define WORTH_MOVING_NS 30000

/*
 * One that runs for more loses less by a cold cache than by sharing a core: the kernel's
 * migration cost. Otherwise three tasks stay on the two cores of an LLC for ever, beside
 * an LLC with one. A new one may turn out to be such, and its cache is cold anyway.
 */
#define WORTH_A_CORE_NS 500000

/* Without SMT any idle CPU is an idle core. */
static __always_inline bool wants_idle_core(void)
{
	return wakeup_idle_core && has_smt;
}

bool may_place(const struct task_struct *task, u32 cpu)
{
	return cpu < nr_cpus && bpf_cpumask_test_cpu(cpu, task->cpus_ptr) &&
	       (is_preferred(cpu) || !has_preferred(task));
}

bool is_fast(u32 cpu)
{
	return topology_of(cpu)->capacity >= FAST_CAPACITY;
}

bool is_free(const struct placement *at, u32 cpu)
{
	u64 word = READ_ONCE(state_of(cpu)->idle);

	return is_word_free(word, at->now) || (at->may_preempt && word == IDLE_POLICY);
}

bool claim_cpu(struct placement *at, u32 cpu)
{
	u64 *word = &state_of(cpu)->idle;
	u64 old = READ_ONCE(*word);

	if (old != IDLE_POLICY && !is_word_free(old, at->now))
		return false;

	at->preempts = old == IDLE_POLICY;
	return claim_word(word, old, at->now);
}

/*
 * That a wakeup is called synchronous says little: every write to a pipe or a socket
 * is. So the waker must also be one that sleeps often. When all were believed, tasks
 * waited behind wakers that went on, beside idle CPUs, and hackbench took twice as
 * long.
 */
bool leaves_cpu(const struct placement *at)
{
	return READ_ONCE(state_of(at->waker)->sleeps_soon) &&
	       !scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | at->waker) &&
	       !scx_bpf_dsq_nr_queued(at->waker);
}

bool are_siblings(u32 cpu, u32 other)
{
	return topology_of(cpu)->core_first == topology_of(other)->core_first;
}

u32 cpu_to_llc(u32 cpu)
{
	return topology_of(cpu)->llc;
}

u32 count_llcs(void)
{
	return nr_llcs;
}

bool has_llc_idle(u32 llc)
{
	return READ_ONCE(idle_count_of(llc)->cpus);
}

bool have_others_idle(u32 llc)
{
	return READ_ONCE(idle_sum.llcs) > (u32)has_llc_idle(llc);
}

bool may_have_idle_core(u32 llc)
{
	return READ_ONCE(idle_count_of(llc)->may_have_core);
}

void note_no_idle_core(u32 llc)
{
	WRITE_ONCE(idle_count_of(llc)->may_have_core, 0);
	count_event(state_of(bpf_get_smp_processor_id()), EVENT_IDLE_WRITE, 1);
}

u32 size_of_llc(u32 llc)
{
	return llc_of(llc)->size;
}

void begin_visit(struct sparsemask_visit *visit, u32 llc, u32 near_cpu)
{
	u32 first = llc_of(llc)->first;

	/*
	 * From the core's first CPU: the siblings of one that is not would come last, and a
	 * task whose waker has its CPU would go to a busy core beside its own idle sibling.
	 */
	*visit = sparsemask_visit_begin(first, first + llc_of(llc)->size,
					topology_of(near_cpu)->core_first);
}

/* The kernel's own choice, on its own masks. */
static __always_inline s32 place_plainly(struct task_struct *p, s32 prev_cpu, u64 wake_flags,
					 bool *is_idle)
{
	s32 cpu;

	if (preferred_enabled)
		note_wakeup(state_of(bpf_get_smp_processor_id()), scx_bpf_now());
	if (!is_restricted() || !has_preferred(p))
		return scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, is_idle);

	cpu = pick_idle_preferred(p, prev_cpu, wake_flags);
	*is_idle = cpu >= 0;
	return *is_idle ? cpu : queue_for(p, prev_cpu);
}

static __always_inline s32 place_on_idle(struct task_struct *p, struct task_state *ts, s32 prev_cpu,
					 u64 wake_flags, bool *is_idle, u64 *enq_flags)
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
		.wants_fast = is_hybrid && ts->avg_burst >= slice_ns / 2,
		.may_go_far = ts->cpu < 0 || ts->avg_burst >= WORTH_MOVING_NS ||
			      !READ_ONCE(state_of(prev_cpu)->sleeps_soon),
		.core_is_worth_it = wants_idle_core() &&
				    (ts->cpu < 0 || ts->avg_burst >= WORTH_A_CORE_NS),
		.outlasts_waker = ts->avg_burst >= WORTH_A_CORE_NS,
		.may_preempt = p->policy != SCHED_IDLE,
	};
	u32 step = choose_cpu(&at, p);

	if (preferred_enabled)
		note_wakeup(state, at.now);
	ts->recent = prev_cpu;
	ts->woken_from = here;
	/* Or the compiler bounds one copy of it and uses another. */
	barrier_var(step);
	if (step >= STEP_QUEUE) {
		if (state->looks > FEWEST_LOOKS)
			state->looks /= 2;
		return queue_for(p, prev_cpu);
	}

	if (step >= STEP_IDLE_CORE && state->looks < MOST_LOOKS)
		state->looks *= 2;
	count_event(state, EVENT_WAKE_PREVIOUS + step, 1);
	*is_idle = step != STEP_WAKER;
	if (at.preempts)
		*enq_flags = SCX_ENQ_PREEMPT;
	return at.cpu;
}

static __always_inline s32 place_wakeup(struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_state *ts = task_state(p);
	bool is_idle = false;
	u64 enq_flags = 0;
	s32 cpu;

	if (!ts)
		return prev_cpu;

	ts->woken_by_writer = wake_flags & SCX_WAKE_SYNC;
	/* Before an idle CPU is taken for it. */
	if (is_throttled(p, ts))
		return prev_cpu;

	if (idle_map_enabled)
		cpu = place_on_idle(p, ts, prev_cpu, wake_flags, &is_idle, &enq_flags);
	else
		cpu = place_plainly(p, prev_cpu, wake_flags, &is_idle);

	if (!is_idle)
		return cpu;

	join_after_sleep(ts, cpu);
	count_event(state_of(bpf_get_smp_processor_id()), EVENT_WAKE_IDLE, 1);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
	return cpu;
}

#endif /* __MAGPIE_WAKEUP_BPF_H */
