/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * push.bpf.h - mechanism 4c: a task that must wait again finds an idle CPU.
 *
 * Idea ("Push-based load balancing", RFC v2, Linux kernel list): a task that was
 * preempted or used up its slice is moved to an idle CPU at once, rather than when
 * that one happens to look. Published, it made microbenchmarks slower by up to 18 %,
 * because the busy CPU did the moving. Here the busy CPU only nominates: it claims
 * an idle CPU and kicks it, and that one searches (steal.bpf.h).
 *
 *   queued, and not by a wakeup?        --no--> nothing: wakeups look by themselves
 *        | yes
 *   preempted by a kernel thread that
 *   is bound here and soon over?        --yes-> the tick will see; not told to thieves
 *        | no
 *   runs for less than a move costs, or
 *   was preempted by one that does, or
 *   one was pushed from here just now?  --yes-> the tick will see
 *        | no
 *   idle CPU that it may use?           --yes-> claimed, told to search, kicked
 *
 * The net under it, with and without push: a tick offers whatever waits, and so does
 * the moment at which a real-time task takes the CPU, which will have no tick of ours.
 *
 * What it does not do: say which task to take. The idle CPU takes the first one of
 * the nearest overloaded CPU, which on its way there may be a better one.
 */
#ifndef __MAGPIE_PUSH_BPF_H
#define __MAGPIE_PUSH_BPF_H

const volatile bool push_enabled = true;

/* What a move is taken to cost. */
#define MOVE_COST_NS 50000ULL

/* An idle CPU that a waiting task may use, claimed, or a negative number. */
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

	/* A CPU hog will stay where it goes now: rather far away than on a shared core. */
	if (wants_core_for_itself(p)) {
		s32 idle = pick_idle_core(p, at.waker);

		if (idle >= 0)
			return idle;
	}

	return search_idle(&at, p) == STEP_QUEUE ? -EBUSY : (s32)at.cpu;
}

/* Have an idle CPU look for the task that waits on @cpu; whether there was one. */
__noinline bool kick_idle_for(struct task_struct *p __arg_trusted, s32 cpu)
{
	s32 idle = pick_idle_for(p);

	if (idle < 0)
		return false;

	WRITE_ONCE(state_of(idle)->must_search, 1 + cpu);
	scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
	count_event(state_of(bpf_get_smp_processor_id()), EVENT_KICK_IDLE, 1);
	return true;
}

#define TICK_LOOKS 32 /* waiting tasks that are offered at once */

/*
 * For each of the first tasks that wait here, an idle CPU that may run it is woken to
 * look for it. The task's affinity is tested before the kick; without that, thousands
 * of kicks find nothing they may run. Returns whether any may leave.
 *
 * A global function, which the verifier proves by itself. Inlined, it multiplied the ways
 * through both of its callers, and slow guests took two thirds longer to load the scheduler.
 */
__noinline bool offer_waiting(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	struct task_struct *waiting;
	bool may_move = false;

	state->walked = 0;
	bpf_for_each(scx_dsq, waiting, cpu, 0) {
		if (++state->walked > TICK_LOOKS)
			break;
		if (is_pinned(waiting))
			continue;

		may_move = true;
		if (!kick_idle_for(waiting, cpu) && waiting->nr_cpus_allowed >= nr_cpus)
			break; /* nothing idles */
	}

	return may_move || state->walked > TICK_LOOKS;
}

/* Offer what waits here, and tell of what does. */
static __always_inline void tell_waiting(s32 cpu)
{
	bool may_move = offer_waiting(cpu);

	set_overloaded(cpu, may_move);
	note_waiting(cpu, may_move ? scx_bpf_dsq_nr_queued(cpu) : 0);
}

/* The task has been queued on this CPU's runqueue, and not by a wakeup. */
static __always_inline void push(struct task_struct *p, const struct task_state *ts, s32 cpu,
				 u64 enq_flags)
{
	struct cpu_state *state = state_of(cpu);
	u64 now = scx_bpf_now();

	/* Thrown out of the local queue: a real-time task runs, and no tick will see. */
	if (enq_flags & SCX_ENQ_REENQ) {
		kick_idle_for(p, cpu);
		return;
	}

	if (!push_enabled || expected_burst(ts) <= MOVE_COST_NS ||
	    time_before(now, state->next_push))
		return;

	state->next_push = now + push_interval_ns;
	if (kick_idle_for(p, cpu))
		count_event(state_of(bpf_get_smp_processor_id()), EVENT_PUSH, 1);
}

#endif /* __MAGPIE_PUSH_BPF_H */
