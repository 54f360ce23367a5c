/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * uclamp.bpf.h - the bounds that a user sets for a task's performance (uclampset(1), cpu.uclamp.*).
 *
 * The bounds are of PERF_ONE. power/frequency.bpf.h keeps a CPU's target within them, and on hybrid
 * machines place/wakeup.bpf.h asks them whether a slow CPU will do.
 *
 * What it does not do: aggregate the bounds of all tasks of a CPU, as the kernel does for its own
 * classes. Those of the running task count.
 */
#ifndef __MAGPIE_UCLAMP_BPF_H
#define __MAGPIE_UCLAMP_BPF_H

/* The kernel's types, which not every vmlinux.h has: a kernel may lack CONFIG_UCLAMP_TASK. */
struct uclamp_se___perf {
	unsigned int value : 11;
	unsigned int bucket_id : 3;
	unsigned int active : 1;
} __attribute__((preserve_access_index));

struct task_struct___perf {
	struct uclamp_se___perf uclamp_req[2];
	struct uclamp_se___perf uclamp[2];
} __attribute__((preserve_access_index));

/*
 * One of a task's clamps, 0 the minimum and 1 the maximum. The effective value contains those of
 * the cgroup and of the system, but the kernel sets it only once any clamp is in use.
 */
#define uclamp_of(p, id)                                              \
	(BPF_CORE_READ_BITFIELD((p), uclamp[id].active)               \
		 ? (u32)BPF_CORE_READ_BITFIELD((p), uclamp[id].value) \
		 : (u32)BPF_CORE_READ_BITFIELD((p), uclamp_req[id].value))

/* Return the least performance that the task should have. */
static __always_inline u32 uclamp_min(const struct task_struct *p)
{
	const struct task_struct___perf *clamped = (const void *)p;

	return bpf_core_field_exists(clamped->uclamp_req) ? uclamp_of(clamped, 0) : 0;
}

/* Return the most performance that the task may have. */
static __always_inline u32 uclamp_max(const struct task_struct *p)
{
	const struct task_struct___perf *clamped = (const void *)p;

	return bpf_core_field_exists(clamped->uclamp_req) ? uclamp_of(clamped, 1) : PERF_ONE;
}

#endif /* __MAGPIE_UCLAMP_BPF_H */
