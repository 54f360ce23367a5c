/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * start.bpf.h - operations: the scheduler starts, CPUs come and go.
 */
#ifndef __MAGPIE_START_BPF_H
#define __MAGPIE_START_BPF_H

/*
 * Register which CPUs are online, and register all of these as idle. A CPU that idles now would
 * register itself only at its next idle period; a busy one corrects its entry at its next tick or
 * context switch.
 */
static void find_online_cpus(void)
{
	const struct cpumask *online = scx_bpf_get_online_cpumask();
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		struct cpu_state *state = state_of(cpu);

		state->looks = MOST_LOOKS;
		state->is_online = bpf_cpumask_test_cpu(cpu, online);
		if (state->is_online)
			register_idle(state, cpu);
		else
			idle_goes_offline(state, cpu);
	}

	scx_bpf_put_cpumask(online);
}

/* Create the queue of each possible CPU, in the memory of the CPU's node. */
static __always_inline s32 create_queues(void)
{
	s32 cpu, err;

	bpf_for(cpu, 0, nr_cpus) {
		err = scx_bpf_create_dsq(cpu, topology_of(cpu)->node);
		if (err) {
			scx_bpf_error("cannot create the queue of CPU %d: %d", cpu, err);
			return err;
		}
	}

	return 0;
}

/*
 * A CPU goes offline: hand the tasks of its queue to the kernel. The kernel no longer calls
 * ops.dispatch() on that CPU, so they would wait for ever.
 */
static __always_inline void empty_queue(s32 cpu)
{
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, cpu, 0)
		leave_to_kernel(BPF_FOR_EACH_ITER, p, cpu);

	note_queue_empty(state_of(cpu));
	hide_queue(cpu);
	note_waiting(cpu, 0);
}

#endif /* __MAGPIE_START_BPF_H */
