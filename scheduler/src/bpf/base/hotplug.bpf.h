/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * hotplug.bpf.h - which CPUs may have tasks sent to them.
 *
 *   coming online:  kernel's target = online -> dispatches -> ops.cpu_online()
 *   going offline:  kernel's target = offline -> waits for RCU -> ops.cpu_offline()
 *                   ^ unusable from here on
 */
#ifndef __MAGPIE_HOTPLUG_BPF_H
#define __MAGPIE_HOTPLUG_BPF_H

extern struct cpuhp_cpu_state cpuhp_state __ksym;

/*
 * Return true if the CPU is online, and not on its way offline. The kernel calls ops.cpu_offline()
 * only in the middle of that way. Before the call the CPU no longer dispatches, but waits for RCU,
 * whose thread must not wait in that CPU's queue.
 */
static __always_inline bool is_usable(s32 cpu)
{
	struct cpuhp_cpu_state *hotplug = bpf_per_cpu_ptr(&cpuhp_state, cpu);

	return state_of(cpu)->is_online && hotplug &&
	       hotplug->target >= bpf_core_enum_value(enum cpuhp_state, CPUHP_AP_ACTIVE);
}

#endif /* __MAGPIE_HOTPLUG_BPF_H */
