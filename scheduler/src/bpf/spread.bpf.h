/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * spread.bpf.h - mechanism 2, continued: a task that nobody places finds an idle core.
 *
 * Idea (the kernel's SMT balancing, Linux kernel/sched/fair.c): two CPU hogs that share a
 * core beside an idle one run at 0.6 of their speed. wakeup.bpf.h places tasks when they
 * wake, which hogs never do: where one was forked, or was left when its neighbours ended,
 * it stays. And an idle CPU takes only what waits. Nor is a task placed that is woken
 * while it still leaves its CPU: the kernel wakes it there. A messenger that answers its
 * workers at once finds them so each time, and two of them shared a core for 17 ms.
 *
 *   tick of a task that may move
 *        |
 *   core shared, now and at the last tick?      --no--> stay
 *        | yes
 *   idle core in the LLC, or in another?        --no--> stay
 *        | yes, claimed
 *   slice ended --> ops.dispatch lets it go --> ops.enqueue sends it there
 *
 *   woken, and nobody was asked where?
 *        | yes
 *   runs long, core shared?                     --no--> there
 *        | yes
 *   idle core, or the last waker's (see wakeup.bpf.h), in the LLC, or in another?
 *        | yes, claimed                         --no--> there
 *   sent there
 *
 * Twice, because what a tick sees beside it is often what timers woke at that tick.
 *
 * What it does not do: take a running task from another CPU; each looks for itself. Or
 * spare a task the way to another node, if the idle core is there: the nearest is taken.
 */
#ifndef __MAGPIE_SPREAD_BPF_H
#define __MAGPIE_SPREAD_BPF_H

const volatile bool spread_enabled = true;

/* An idle core, or one that @waker will leave, one CPU of it claimed; or a negative number. */
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

static __always_inline bool is_core_worth_a_search(s32 cpu)
{
	return spread_enabled && wants_idle_core() && idle_map_enabled &&
	       topology_of(cpu)->core_size > 1;
}

static __always_inline bool wants_core_for_itself(struct task_struct *p)
{
	const struct task_state *ts;

	if (!is_core_worth_a_search(scx_bpf_task_cpu(p)))
		return false;

	ts = task_state(p);
	return ts && is_hog(ts);
}

/* At a tick, counted already. */
static __always_inline void leave_shared_core(struct task_struct *p, struct task_state *ts, s32 cpu)
{
	s32 idle;

	if (!is_core_worth_a_search(cpu) || is_pinned(p))
		return;

	if (is_alone_on_core(cpu)) {
		ts->shares_core = false;
		return;
	}

	if (!ts->shares_core) {
		ts->shares_core = true;
		return;
	}

	idle = pick_idle_core(p, cpu);
	if (idle < 0)
		return;

	ts->shares_core = false;
	ts->goes_to = idle + 1;
	scx_bpf_task_set_slice(p, 0);
}

/* In ops.enqueue: whether it was sent to the core that was found for it. */
static __always_inline bool go_to_idle_core(struct task_struct *p, struct task_state *ts,
					    u64 enq_flags)
{
	s32 cpu = ts->goes_to - 1;

	if (!wakeup_idle_core || cpu < 0)
		return false;

	/* It slept meanwhile, or its affinity changed: the claim lapses by itself. */
	if (enq_flags & SCX_ENQ_WAKEUP || !is_usable(cpu) || is_pinned(p) || !may_place(p, cpu))
		return false;

	join_after_move(ts, cpu);
	count_event(state_of(bpf_get_smp_processor_id()), EVENT_SPREAD, 1);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, slice_ns, enq_flags);
	return true;
}

/* In ops.enqueue: whether it was sent to another core than the one on which it slept. */
static __always_inline bool wake_on_idle_core(struct task_struct *p, struct task_state *ts, s32 cpu,
					      u64 enq_flags)
{
	struct cpu_state *here = state_of(bpf_get_smp_processor_id());
	s32 idle;

	if (!(enq_flags & SCX_ENQ_WAKEUP) || __COMPAT_is_enq_cpu_selected(enq_flags) ||
	    ts->avg_burst < WORTH_A_CORE_NS || !is_core_worth_a_search(cpu) || is_pinned(p) ||
	    is_alone_on_core(cpu))
		return false;

	idle = pick_idle_core(p, ts->woken_from);
	if (idle < 0)
		return false;

	join_after_sleep(ts, idle);
	count_event(here, EVENT_WAKE_IDLE, 1);
	count_event(here, cpu_to_llc(idle) == cpu_to_llc(cpu) ? EVENT_WAKE_CORE : EVENT_WAKE_BEYOND,
		    1);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | idle, slice_ns, enq_flags);
	return true;
}

#endif /* __MAGPIE_SPREAD_BPF_H */
