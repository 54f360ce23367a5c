/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * placement.h - in which order a search for a woken task's CPU asks the CPUs.
 *
 * This file has the order and the searches, but not how to ask a CPU: the includer defines the
 * functions below. The BPF side answers from the idle map and the kernel's tasks
 * (place/search.bpf.h), the native tests from machines that they make up.
 *
 * Why this order: see place/wakeup.bpf.h.
 */
#ifndef __MAGPIE_PLACEMENT_H
#define __MAGPIE_PLACEMENT_H

#include "idle_map.h"
#include "sparsemask.h"

enum wakeup_step {
	STEP_PREVIOUS,
	STEP_RECENT,
	STEP_WAKER,
	STEP_IDLE_CORE,
	STEP_IDLE_CPU,
	STEP_BEYOND,
	STEP_QUEUE, /* no CPU idles: wait at the previous CPU */
};

#define NO_CPU (~0U)

struct task_struct;
struct task_state;

struct placement {
	u64 now;
	u32 previous; /* CPU, as are the next two */
	u32 recent; /* the CPU before the previous one, or NO_CPU */
	u32 waker;
	u32 looks; /* how many CPUs a search of one LLC asks, unless for an idle core */
	bool is_sync; /* a sync wakeup: the waker says that it will sleep soon */
	bool wants_core; /* idle cores before idle CPUs */
	bool wants_fast; /* a slow CPU only if no fast one is idle */
	/* Which moves are worth their cost: weigh_moves() says so once the previous CPU is taken. */
	bool may_go_far; /* to another LLC */
	bool core_is_worth_it; /* ... if it would share a core in its LLC, or prefers a fast one */
	bool outlasts_waker; /* long bursts: may share the core of a waker that will sleep soon */
	bool may_preempt; /* a CPU that runs a SCHED_IDLE task counts as idle */

	/* State and result of the search. */
	bool only_perfect; /* do not take the second best, see is_perfect() */
	u32 cpu; /* found */
	u32 second_best; /* idle, but not perfect; or NO_CPU */
	bool preempts; /* a SCHED_IDLE task runs on the found CPU */
};

#define __by_includer __attribute__((visibility("hidden")))

/* Return whether the task may run on the CPU; only on a preferred CPU, if it may use any. */
__by_includer bool may_place(const struct task_struct *task, u32 cpu);
/* Return whether the CPU is a fast one. */
__by_includer bool is_fast(u32 cpu);
/* Return whether the CPU is idle now and no other waker has claimed it. */
__by_includer bool is_free(const struct placement *at, u32 cpu);
/* Claim the CPU if it is free; set at->preempts; return whether it is claimed. */
__by_includer bool claim_cpu(struct placement *at, u32 cpu);
/* Have the CPU look for work; if it idles and finds none, its word says that it is free. */
__by_includer void call_idle(u32 cpu);
/* Return whether no other CPU of the core runs anything. */
__by_includer bool is_alone_on_core(u32 cpu, u64 now);
/* Return whether both CPUs are of one core. */
__by_includer bool are_siblings(u32 cpu, u32 other);
/* Return whether the waker is expected to sleep soon, and no other task waits for its CPU. */
__by_includer bool leaves_cpu(const struct placement *at);
/* Set at->may_go_far and at->core_is_worth_it for the task. */
__by_includer void weigh_moves(struct placement *at, const struct task_struct *task,
			       const struct task_state *ts);
__by_includer u32 cpu_to_llc(u32 cpu);
/* Return the i-th other LLC, nearest first, from 1. */
__by_includer u32 nth_llc(u32 llc, u32 i);
__by_includer u32 count_llcs(void);
/* Return whether the map has an idle CPU; one in this LLC; one in any other LLC. */
__by_includer bool has_any_idle(void);
__by_includer bool has_llc_idle(u32 llc);
__by_includer bool have_others_idle(u32 llc);
/* Return whether a core of the LLC has become idle since the last search that found none. */
__by_includer bool may_have_idle_core(u32 llc);
/* A search found no idle core: may_have_idle_core() is false until a core becomes idle. */
__by_includer void note_no_idle_core(u32 llc);
__by_includer u32 size_of_llc(u32 llc);
/* Begin a visit of an LLC's CPUs that may be idle; return the next of them, or NO_CPU. */
__by_includer void begin_visit(struct sparsemask_visit *visit, u32 llc, u32 near_cpu);
__by_includer u32 visit_idle(struct sparsemask_visit *visit);

/*
 * Claim a CPU by its word in the idle map (idle_map.h); whether the caller may send its task there.
 * A claim lapses after a while, because its task may never come. Or the task is there, and the host
 * has taken the vCPU: a second task would wait behind it, and no CPU can take it from there,
 * because the kernel keeps a task that wakes on an idle CPU in a list of that CPU until the CPU
 * runs. Only the CPU itself knows which of the two it is, so this function renews the claim, asks
 * the CPU, and returns false.
 */
static inline bool claim_by_word(struct placement *at, u32 cpu, u64 *word)
{
	u64 old = READ_ONCE(*word);

	if (old != IDLE_POLICY && !is_word_free(old, at->now))
		return false;

	at->preempts = old == IDLE_POLICY;
	if (!claim_word(word, old, at->now))
		return false;
	if (old <= IDLE_LAST)
		return true;

	call_idle(cpu);
	return false;
}

/*
 * Return whether the task may share the CPU's core with the waker: only the waker runs there, and
 * it is expected to sleep soon.
 */
static inline bool is_left_alone(const struct placement *at, u32 cpu)
{
	return at->outlasts_waker && cpu != at->waker && are_siblings(cpu, at->waker) &&
	       is_alone_on_core(at->waker, at->now) && leaves_cpu(at);
}

/* Return whether the CPU is alone on its core and fast, each only if the task wants that. */
static inline bool is_perfect(const struct placement *at, u32 cpu)
{
	return (!at->wants_core || is_alone_on_core(cpu, at->now) || is_left_alone(at, cpu)) &&
	       (!at->wants_fast || is_fast(cpu));
}

/* Claim one given CPU if it is idle, allowed and perfect; whether it is claimed. */
__proved_once bool take(struct placement *at __arg_nonnull, struct task_struct *task __arg_trusted,
			u32 cpu)
{
	/* The cheapest question comes first: on a busy machine it is also the last. */
	if (!is_free(at, cpu) || !may_place(task, cpu) || !is_perfect(at, cpu) ||
	    !claim_cpu(at, cpu))
		return false;

	at->cpu = cpu;
	return true;
}

/* Claim the second best CPU, if there is one. Returns the step. */
static inline int take_second_best(struct placement *at)
{
	if (at->second_best == NO_CPU || !claim_cpu(at, at->second_best))
		return STEP_QUEUE;

	at->cpu = at->second_best;
	return STEP_IDLE_CPU;
}

/*
 * Search an LLC: claim the first perfect CPU, else the second best: the previous CPU if that idles,
 * or the first idle one. Returns the step. The search begins near @near_cpu and goes once around,
 * so that wakers do not converge.
 *
 * A search for an idle core asks all CPUs, but only if there may be one: a search that finds none
 * notes that, and saves others the same search. Without the note, each wakeup on a machine whose
 * cores were all in use asked up to 64 CPUs for their siblings, and hackbench spent a quarter of
 * its CPU time in wakeups. A search for any idle CPU asks at->looks CPUs.
 */
__proved_once int search_llc(struct placement *at __arg_nonnull,
			     struct task_struct *task __arg_trusted, u32 llc, u32 near_cpu)
{
	bool for_core = at->wants_core && may_have_idle_core(llc);
	/* No core to be found: the first idle CPU will do, or the previous one beside it. */
	bool settles = at->wants_core && !for_core && !at->wants_fast && !at->outlasts_waker;
	u32 most = for_core ? size_of_llc(llc) + 1 : at->looks;
	/* Only an unrestricted search may record that there is no idle core. */
	bool none_there = for_core && !at->wants_fast && at->may_preempt;
	bool found = false;
	struct sparsemask_visit visit;
	u32 i;

	at->second_best = NO_CPU;
	begin_visit(&visit, llc, near_cpu);
	for_bounded(i, 0, most) {
		u32 cpu = visit_idle(&visit);

		if (cpu == NO_CPU)
			break;
		if (!is_free(at, cpu))
			continue;
		if (!may_place(task, cpu)) {
			none_there = false;
			continue;
		}
		if (settles || !is_perfect(at, cpu)) {
			if (at->second_best == NO_CPU || cpu == at->previous)
				at->second_best = cpu;
			if (settles && !are_siblings(cpu, at->previous))
				break;
			continue;
		}
		if (claim_cpu(at, cpu)) {
			at->cpu = cpu;
			found = true;
			break;
		}
	}

	if (found)
		return at->wants_core ? STEP_IDLE_CORE : STEP_IDLE_CPU;
	if (none_there)
		note_no_idle_core(llc);

	return at->only_perfect ? STEP_QUEUE : take_second_best(at);
}

/*
 * Search the other LLCs: first the waker's, whose cache has what it wrote; then all, nearest first.
 */
__proved_once int search_beyond(struct placement *at __arg_nonnull,
				struct task_struct *task __arg_trusted, u32 llc)
{
	u32 wakers = cpu_to_llc(at->waker);
	bool found = false;
	u32 i;

	if (!have_others_idle(llc))
		return STEP_QUEUE;
	if (wakers != llc && search_llc(at, task, wakers, at->waker) != STEP_QUEUE)
		return STEP_BEYOND;

	for_bounded(i, 1, count_llcs()) {
		u32 other = nth_llc(llc, i);

		if (other == wakers || !has_llc_idle(other))
			continue;
		if (search_llc(at, task, other, at->waker) != STEP_QUEUE) {
			found = true;
			break;
		}
	}

	return found ? STEP_BEYOND : STEP_QUEUE;
}

/*
 * Search for an idle CPU, near the previous one first. With at->core_is_worth_it the task takes an
 * idle core of its LLC, else one of another LLC, and only then an idle CPU of its LLC that shares a
 * core: there a busy sibling would slow the task for longer than a move costs. Returns the step.
 */
__proved_once int search_idle(struct placement *at __arg_nonnull,
			      struct task_struct *task __arg_trusted)
{
	u32 llc = cpu_to_llc(at->previous);
	u32 at_home;
	int step;

	at->only_perfect = at->core_is_worth_it;
	at->second_best = NO_CPU;
	step = has_llc_idle(llc) ? search_llc(at, task, llc, at->previous) : STEP_QUEUE;
	if (step != STEP_QUEUE)
		return step;

	if (at->only_perfect) {
		at_home = at->second_best;
		if (at_home != NO_CPU && search_beyond(at, task, llc) != STEP_QUEUE)
			return STEP_BEYOND;

		at->only_perfect = false;
		at->second_best = at_home;
		if (take_second_best(at) != STEP_QUEUE)
			return STEP_IDLE_CPU;
	}

	return at->may_go_far ? search_beyond(at, task, llc) : STEP_QUEUE;
}

/* Choose the waker's CPU if the task may run there once the waker sleeps; whether it is chosen. */
static inline bool takes_wakers_place(struct placement *at, const struct task_struct *task)
{
	if (!at->is_sync || !leaves_cpu(at) || !may_place(task, at->waker) ||
	    !is_perfect(at, at->waker))
		return false;

	at->cpu = at->waker;
	return true;
}

/*
 * Ask the CPUs in the order of enum wakeup_step, until one takes the task. Returns the step;
 * at->cpu is the CPU, which is claimed unless the step is STEP_WAKER or STEP_QUEUE.
 */
static inline int choose_cpu(struct placement *at, struct task_struct *task,
			     const struct task_state *ts)
{
	at->cpu = at->previous;

	/* Most wakeups end here, before anything is weighed. */
	if (take(at, task, at->previous))
		return STEP_PREVIOUS;

	/*
	 * On a busy machine one load answers for all CPUs. It misses a SCHED_IDLE task's CPU for as
	 * long as a tick has cleared its bit: until that task runs next.
	 */
	if (!has_any_idle())
		return takes_wakers_place(at, task) ? STEP_WAKER : STEP_QUEUE;

	weigh_moves(at, task, ts);
	if (at->recent != NO_CPU && at->recent != at->previous && at->recent != at->waker &&
	    cpu_to_llc(at->recent) == cpu_to_llc(at->waker) && take(at, task, at->recent))
		return STEP_RECENT;
	if (takes_wakers_place(at, task))
		return STEP_WAKER;

	return search_idle(at, task);
}

#endif /* __MAGPIE_PLACEMENT_H */
