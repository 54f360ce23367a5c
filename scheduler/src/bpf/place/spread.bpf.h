/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * spread.bpf.h - mechanism "spread": a task that no wakeup places finds an idle core.
 *
 * Idea (the kernel's SMT balancing, Linux kernel/sched/fair.c): two CPU hogs that share a core
 * beside an idle one run at 0.6 of their speed. wakeup.bpf.h places tasks when they wake, which
 * hogs never do, and an idle CPU takes only queued tasks. So a hog would stay where it was forked.
 * The kernel does not call ops.select_cpu() either for a task that is woken while it is still
 * leaving its CPU, but wakes the task there. A messenger that answers its workers at once wakes
 * them at that moment each time, and two workers shared a core for 17 ms.
 *
 *   tick of a task that may migrate
 *        |
 *   core shared, now and at the last tick?      --no--> stay
 *        | yes
 *   idle core in the LLC, or in another?        --no--> stay
 *        | yes, claimed
 *   slice ended --> ops.dispatch() requeues it --> ops.enqueue() sends it there
 *
 *   woken, without ops.select_cpu()?
 *        | yes
 *   long bursts, core shared?                   --no--> there
 *        | yes
 *   idle core, or the last waker's, in the LLC, or in another?
 *        | yes, claimed                         --no--> there
 *   sent there
 *
 * The core must be shared at two ticks, because timers wake tasks on siblings at the very moment of
 * a tick.
 *
 * What it does not do: move a running task of another CPU (each task looks for a core at its own
 * tick), or stay within the node (the nearest idle core is taken, however far it is).
 */
#ifndef __MAGPIE_SPREAD_BPF_H
#define __MAGPIE_SPREAD_BPF_H

/* A tick: let the running task leave a core that it shares for an idle one. */
static __always_inline void leave_shared_core(struct task_struct *p, struct task_state *ts, s32 cpu)
{
	s32 idle;

	if (!may_spread_from(cpu) || is_pinned(p))
		return;

	if (is_alone_on_core(cpu, rq_now(cpu))) {
		WRITE_CHANGED(ts->shares_core, false);
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
	ts->migrates_to = idle + 1;
	scx_bpf_task_set_slice(p, 0);
}

/*
 * Send a task, whose slice leave_shared_core() has ended, to the core that was claimed for it;
 * whether it was sent.
 */
static __always_inline bool migrate_to_idle_core(struct task_struct *p, struct task_state *ts,
						 u64 enq_flags)
{
	s32 cpu = ts->migrates_to - 1;

	if (!spread_enabled || cpu < 0)
		return false;

	/* The task slept meanwhile, or its affinity changed: the claim lapses by itself. */
	if (ts->slept || !is_usable(cpu) || is_pinned(p) || !may_place(p, cpu))
		return false;

	join_after_move(ts, cpu);
	count_event(state_here(), EVENT_SPREAD, 1);
	run_next_on(p, ts, cpu, enq_flags);
	return true;
}

/*
 * Send a woken task, for which the kernel did not call ops.select_cpu(), to an idle core; whether
 * it was sent.
 */
static __always_inline bool wake_on_idle_core(struct task_struct *p, struct task_state *ts, s32 cpu,
					      u64 enq_flags)
{
	struct cpu_state *here = state_here();
	s32 idle;

	if (!(enq_flags & SCX_ENQ_WAKEUP) || __COMPAT_is_enq_cpu_selected(enq_flags) ||
	    ts->avg_burst < WORTH_A_CORE_NS || !may_spread_from(cpu) || is_pinned(p) ||
	    is_alone_on_core(cpu, rq_now(cpu)))
		return false;

	idle = pick_idle_core(p, ts->woken_from);
	if (idle < 0)
		return false;

	count_event(here, EVENT_WAKE_IDLE, 1);
	count_event(here, is_in_other_llc(idle, cpu) ? EVENT_WAKE_BEYOND : EVENT_WAKE_CORE, 1);
	run_next_on(p, ts, idle, enq_flags);
	return true;
}

/* The task runs: it has arrived at the core that was claimed for it, or the claim has lapsed. */
static __always_inline void end_migration(struct task_state *ts)
{
	WRITE_CHANGED(ts->migrates_to, 0);
}

/* Return whether a core was claimed for the task, which must then be requeued. */
static __always_inline bool is_migrating(const struct task_state *ts)
{
	return ts->migrates_to;
}

#endif /* __MAGPIE_SPREAD_BPF_H */
