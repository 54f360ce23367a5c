/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * search.bpf.h - mechanism "wakeup", part: searches for an idle CPU or core.
 *
 * portable/placement.h has the order of a search and calls functions of its includer to ask about
 * CPUs. This file defines them, from the idle map and the kernel's tasks, and makes the searches
 * that several mechanisms share:
 *
 *   wakeup.bpf.h        choose_cpu()       any idle CPU, in the order of its page
 *   spread.bpf.h        pick_idle_core()   only an idle core
 *   balance/push.bpf.h  pick_idle_for()    an idle CPU for a task that already waits
 *
 * A search looks at CPUs whose bit says that they idle or did so until their last tick.
 *
 * What it does not do: send a task anywhere. The found CPU is claimed, the caller uses it.
 */
#ifndef __MAGPIE_SEARCH_BPF_H
#define __MAGPIE_SEARCH_BPF_H

/* Look for an idle core before any idle CPU. */
const volatile bool wakeup_idle_core = true;

/* The switch of spread.bpf.h: pick_idle_for() asks it, too. */
const volatile bool spread_enabled = true;

/* How many CPUs a search for any idle CPU looks at in an LLC; each waking CPU learns its number. */
#define FEWEST_LOOKS 8
#define MOST_LOOKS 64

/* Return whether idle cores come before idle CPUs. Without SMT any idle CPU is an idle core. */
static __always_inline bool wants_idle_core(void)
{
	return wakeup_idle_core && has_smt;
}

/* The questions of portable/placement.h, which has the comments of those without one here. */

bool may_place(const struct task_struct *task, u32 cpu)
{
	return cpu < nr_cpus && bpf_cpumask_test_cpu(cpu, task->cpus_ptr) &&
	       (is_preferred(cpu) || !has_preferred(task));
}

bool is_free(const struct placement *at, u32 cpu)
{
	u64 word = READ_ONCE(state_of(cpu)->idle);

	return is_word_free(word, at->now) || (at->may_preempt && word == IDLE_POLICY);
}

bool claim_cpu(struct placement *at, u32 cpu)
{
	return claim_by_word(at, cpu, &state_of(cpu)->idle);
}

void call_idle(u32 cpu)
{
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

/*
 * Return whether the waker is expected to sleep soon, and no other task waits for its CPU. The sync
 * flag alone says little, because every write to a pipe or a socket sets it; the waker must also
 * have short bursts. When the flag alone decided, tasks waited beside idle CPUs behind wakers that
 * ran on, and hackbench took twice as long.
 */
bool leaves_cpu(const struct placement *at)
{
	const struct cpu_state *waker = state_of(at->waker);

	return READ_ONCE(waker->sleeps_soon) && !READ_ONCE(waker->has_no_tick) &&
	       nr_runnable(at->waker) <= 1 &&
	       !(READ_ONCE(waker->has_foreign) && scx_bpf_dsq_nr_queued(at->waker));
}

bool has_llc_idle(u32 llc)
{
	return READ_ONCE(idle_count_of(llc)->cpus);
}

bool has_any_idle(void)
{
	return READ_ONCE(idle_sum.llcs);
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
	count_event(state_here(), EVENT_IDLE_WRITE, 1);
}

void begin_visit(struct sparsemask_visit *visit, u32 llc, u32 near_cpu)
{
	u32 first = llc_of(llc)->first;
	u32 size = llc_of(llc)->size;
	u32 own_first = llc_of(topology_of(near_cpu)->llc)->first;
	u32 core_first = topology_of(near_cpu)->core_first;

	/*
	 * Begin at the first CPU of @near_cpu's core. A visit from @near_cpu itself would come last
	 * to siblings before it: a task whose waker runs on its previous CPU would miss the idle
	 * sibling there.
	 */
	*visit = sparsemask_visit_begin(first, first + size,
					visit_start(first, size, core_first, own_first));
}

/*
 * Claim a CPU of an idle core, or of a core that @waker is about to leave; a negative number if
 * there is none.
 */
__noinline s32 pick_idle_core(struct task_struct *p __arg_trusted, s32 waker)
{
	struct placement at = {
		.now = scx_bpf_now(),
		.previous = scx_bpf_task_cpu(p),
		.waker = waker,
		.looks = FEWEST_LOOKS,
		.wants_core = true,
		.outlasts_waker = true,
		.only_perfect = true,
	};
	u32 llc = cpu_to_llc(at.previous);

	if (has_llc_idle(llc) && search_llc(&at, p, llc, at.previous) != STEP_QUEUE)
		return at.cpu;

	return search_beyond(&at, p, llc) != STEP_QUEUE ? (s32)at.cpu : -EBUSY;
}

/* Return whether tasks on this CPU may leave its core for an idle one: it has siblings. */
static __always_inline bool may_spread_from(s32 cpu)
{
	return spread_enabled && topology_of(cpu)->core_size > 1;
}

/*
 * Return whether the task is a CPU hog that spreading would move to an idle core sooner or later.
 */
static __always_inline bool wants_core_for_itself(struct task_struct *p)
{
	const struct task_state *ts;

	if (!may_spread_from(scx_bpf_task_cpu(p)))
		return false;

	ts = task_state(p);
	return ts && is_hog(ts);
}

/* Claim an idle CPU for a waiting task; a negative number if there is none. */
static __always_inline s32 pick_idle_for(struct task_struct *p)
{
	struct placement at = {
		.now = scx_bpf_now(),
		.previous = scx_bpf_task_cpu(p),
		.waker = bpf_get_smp_processor_id(),
		.looks = MOST_LOOKS,
		.wants_core = wants_idle_core(),
		.may_go_far = true,
	};

	if (!idle_map_enabled)
		return pick_idle_plainly(p);

	/*
	 * A CPU hog will stay where it runs next: an idle core far away is better than a shared
	 * one.
	 */
	if (wants_core_for_itself(p)) {
		s32 idle = pick_idle_core(p, at.waker);

		if (idle >= 0)
			return idle;
	}

	return search_idle(&at, p) == STEP_QUEUE ? -EBUSY : (s32)at.cpu;
}

#endif /* __MAGPIE_SEARCH_BPF_H */
