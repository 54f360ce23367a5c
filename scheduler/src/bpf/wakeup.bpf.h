/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * wakeup.bpf.h - mechanism 2: where a woken task runs.
 *
 *   previous CPU's core idle? -> previous CPU -> idle core in the LLC
 *   -> idle CPU in the LLC -> idle CPU anywhere -> previous CPU's queue
 *
 * This is the kernel's default idle selection, which also handles synchronous
 * wakeups and affinity. A task placed on an idle CPU goes straight to it, without
 * passing the queue.
 */
#ifndef __MAGPIE_WAKEUP_BPF_H
#define __MAGPIE_WAKEUP_BPF_H

static __always_inline s32 place_wakeup(struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_state *ts;
	bool is_idle = false;
	s32 cpu;

	if (is_restricted() && has_preferred(p)) {
		cpu = pick_idle_preferred(p, prev_cpu, wake_flags);
		is_idle = cpu >= 0;
		if (!is_idle) {
			cpu = is_preferred(prev_cpu) ? prev_cpu : any_preferred(p);
			if (cpu < 0)
				cpu = prev_cpu;
		}
	} else {
		cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
	}

	if (!is_idle)
		return cpu;

	ts = task_state(p);
	if (!ts)
		return cpu;

	join_after_sleep(ts, cpu);
	count_event(state_of(bpf_get_smp_processor_id()), EVENT_WAKE_IDLE, 1);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, 0);
	return cpu;
}

/* An idle CPU that a waiting task may use, or a negative number. */
static __always_inline s32 pick_idle_for(const struct task_struct *p)
{
	struct bpf_cpumask *mask = preferred_mask;
	s32 cpu;

	if (!is_restricted() || !mask || !has_preferred(p))
		return scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

	cpu = scx_bpf_pick_idle_cpu((const struct cpumask *)mask, 0);
	if (cpu >= 0 && !bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
		/* Picking took it out of the idle mask; the kick puts it back. */
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return -EBUSY;
	}

	return cpu;
}

/* Have an idle CPU look for the waiting task; whether there was one. */
static __always_inline bool kick_idle_for(const struct task_struct *p)
{
	s32 idle = pick_idle_for(p);

	if (idle < 0)
		return false;

	WRITE_ONCE(state_of(idle)->must_search, 1);
	scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
	count_event(state_of(bpf_get_smp_processor_id()), EVENT_KICK_IDLE, 1);
	return true;
}

#endif /* __MAGPIE_WAKEUP_BPF_H */
