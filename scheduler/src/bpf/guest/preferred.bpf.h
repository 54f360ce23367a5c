/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * preferred.bpf.h - mechanism "preferred": a guest uses only as many CPUs as its host gives.
 *
 * Idea ("cpu_preferred_mask and steal-driven vCPU backoff", v2, Linux kernel list): the guests of
 * an overcommitted host together ask for more CPUs than it has. The host preempts vCPUs, often
 * while they hold locks. A guest that asks for fewer CPUs when the host withholds time runs faster.
 * monitor.bpf.h decides which CPUs are preferred; this file keeps tasks there:
 *
 *   wakeup   -> only preferred CPUs, if the task's affinity allows any
 *   running  -> on another CPU: migrates at the next tick
 *   queued   -> on another CPU: migrates when that CPU next looks for work
 *   steal    -> a withheld CPU takes tasks only from withheld CPUs: a task that is still there may
 *               run nowhere else
 *
 * The scheduler never changes an affinity: a task that may use no preferred CPU runs where it may.
 *
 * What it does not do: place real-time tasks (the kernel does), or move interrupts and unbound
 * workqueues (user space does, host_state.rs).
 */
#ifndef __MAGPIE_PREFERRED_BPF_H
#define __MAGPIE_PREFERRED_BPF_H

const volatile bool preferred_enabled = false;

/* Written by the monitor, read by user space. */
struct preferred_status preferred_status;

/* One bit per CPU: read on every wakeup, written when the number of cores changes. */
u64 preferred_bits[MAX_CPUS / 64];

/* The same as a mask for the kernel's functions. */
private(PREFERRED) struct bpf_cpumask __kptr *preferred_mask;

/* Return whether any CPU is withheld. One read decides the common case. */
static __always_inline bool is_restricted(void)
{
	return preferred_enabled && READ_ONCE(preferred_status.withheld);
}

/* Return whether tasks may be sent to the CPU. The mask: as in topology_of(). */
static __always_inline bool is_preferred(s32 cpu)
{
	u32 index = cpu & (MAX_CPUS - 1);

	return !is_restricted() || preferred_bits[index / 64] & (1ULL << (index % 64));
}

/* Return whether the task may use any preferred CPU. */
static __always_inline bool has_preferred(const struct task_struct *p)
{
	struct bpf_cpumask *mask = preferred_mask;

	return mask && bpf_cpumask_intersects(p->cpus_ptr, (const struct cpumask *)mask);
}

/* Return true if the task is on a withheld CPU and may run on a preferred one instead. */
static __always_inline bool must_leave(const struct task_struct *p, s32 cpu)
{
	return is_restricted() && !is_preferred(cpu) && !is_pinned(p) && has_preferred(p);
}

/*
 * With --no-wakeup, the idle preferred CPU that the kernel chooses for a woken task, or a negative
 * number.
 */
static __always_inline s32 pick_idle_preferred(struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct bpf_cpumask *mask = preferred_mask;

	if (!mask)
		return -ENOENT;

	return scx_bpf_select_cpu_and(p, prev_cpu, wake_flags, (const struct cpumask *)mask, 0);
}

/* A preferred CPU that the task may use, another one each time; -1 if there is none. */
static __always_inline s32 any_preferred(const struct task_struct *p)
{
	struct bpf_cpumask *mask = preferred_mask;
	u32 cpu;

	if (!mask)
		return -1;

	/* A CPU that has just gone offline may be in the mask until the next period. */
	cpu = bpf_cpumask_any_and_distribute(p->cpus_ptr, (const struct cpumask *)mask);
	return cpu < nr_cpus && is_usable(cpu) ? (s32)cpu : -1;
}

/* The CPU in whose queue a woken task waits if no idle CPU was found for it. */
static __always_inline s32 queue_for(const struct task_struct *p, s32 prev_cpu)
{
	s32 cpu = is_preferred(prev_cpu) || !has_preferred(p) ? prev_cpu : any_preferred(p);

	return cpu < 0 ? prev_cpu : cpu;
}

/*
 * With --no-wakeup, an idle CPU that a waiting task may use, from the kernel's masks of idle CPUs;
 * a negative number if there is none.
 */
static __always_inline s32 pick_idle_plainly(const struct task_struct *p)
{
	struct bpf_cpumask *mask = preferred_mask;
	s32 cpu;

	if (!is_restricted() || !mask || !has_preferred(p))
		return scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

	cpu = scx_bpf_pick_idle_cpu((const struct cpumask *)mask, 0);
	if (cpu >= 0 && !bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
		/*
		 * The kernel took the CPU out of its idle mask; the kick makes the CPU enter it
		 * again.
		 */
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return -EBUSY;
	}

	return cpu;
}

/* The CPU in whose queue a task should wait: a preferred one if the task must leave @cpu. */
static __always_inline s32 redirect(const struct task_struct *p, s32 cpu)
{
	s32 other;

	if (!must_leave(p, cpu))
		return cpu;

	other = any_preferred(p);
	if (other < 0 || other == cpu)
		return cpu;

	count_event(state_here(), EVENT_BACKOFF, 1);
	return other;
}

/* Queue the task on a preferred CPU if it must leave @cpu; whether it was queued. */
static __always_inline bool queue_on_preferred(struct task_struct *p, struct task_state *ts,
					       s32 cpu, u64 enq_flags)
{
	s32 other;

	if (!is_restricted())
		return false;

	other = redirect(p, cpu);
	if (other == cpu)
		return false;

	join_clock(ts, other);
	queue_elsewhere(p, ts, other, enq_flags);
	return true;
}

#define DRAIN_AT_ONCE 16 /* each takes a runqueue lock and a kick */

/*
 * Move the tasks that must leave a CPU from its queue to preferred CPUs. A global function: inlined
 * in ops.dispatch(), its branches multiplied with the others there, and loading took a quarter
 * longer.
 */
__noinline int drain_queue(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	struct task_struct *p;

	state->walked = 0;
	bpf_for_each(scx_dsq, p, cpu, 0) {
		s32 other = redirect(p, cpu);
		struct task_state *ts;

		if (other == cpu)
			continue;

		ts = task_state(p);
		if (!ts)
			continue;

		join_after_move(ts, other);
		move_to_queue(BPF_FOR_EACH_ITER, p, ts, other);
		if (++state->walked >= DRAIN_AT_ONCE)
			break;
	}

	return 0;
}

#endif /* __MAGPIE_PREFERRED_BPF_H */
