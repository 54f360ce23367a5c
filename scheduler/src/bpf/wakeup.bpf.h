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

	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
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

#endif /* __MAGPIE_WAKEUP_BPF_H */
