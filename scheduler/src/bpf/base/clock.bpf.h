/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * clock.bpf.h - what time it is.
 *
 * scx_bpf_now() returns the time at which the kernel last updated the runqueue's clock, but only
 * while the kernel vouches for it. In nine of ten calls from a scheduler's operations the kernel
 * does not, and reads the time anew: some 70 instructions, and two processes that wake each other
 * over a pipe made five such calls for each wakeup.
 *
 *   the kernel holds the runqueue's lock     -> rq_now(): it updated this clock when it took the
 *   (dispatch, running, update_idle, ...)       lock, or when it woke the task that runs now
 *   nobody holds it (select_cpu, timers), or -> scx_bpf_now()
 *   the difference to an earlier time counts
 *
 * What it does not do: advance within an operation.
 */
#ifndef __MAGPIE_CLOCK_BPF_H
#define __MAGPIE_CLOCK_BPF_H

extern unsigned long CONFIG_HZ __kconfig;

/* How long after a tick the next one is due, ns. */
static __always_inline u64 tick_interval(void)
{
	return 1000000000ULL / CONFIG_HZ;
}

/* The time, ns, at which the kernel last updated the clock of a CPU's runqueue. */
static __always_inline u64 rq_now(s32 cpu)
{
	const struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);

	return rq ? rq->clock : scx_bpf_now();
}

#endif /* __MAGPIE_CLOCK_BPF_H */
