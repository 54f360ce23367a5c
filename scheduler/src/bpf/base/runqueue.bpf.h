/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * runqueue.bpf.h - what the kernel's runqueue of a CPU says.
 *
 * If the caller holds the runqueue's lock (dispatch, running, update_idle, ...), the fields agree
 * with each other. nr_runnable() and has_waiting() read one field, so anybody may call them, and then
 * reads the past.
 */
#ifndef __MAGPIE_RUNQUEUE_BPF_H
#define __MAGPIE_RUNQUEUE_BPF_H

extern struct rq runqueues __ksym;

/* How many tasks of ours are runnable on the CPU: the running one, and those that wait there. */
static __always_inline u32 nr_runnable(s32 cpu)
{
	const struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);

	return rq ? READ_ONCE(rq->scx.nr_running) : 0;
}

/*
 * Return whether a task of a higher class (stop, deadline, real-time) is runnable on the CPU: it
 * runs before any task of ours. While scx_magpie is loaded no task is of the fair class, and the
 * kernel counts neither the idle task nor deadline servers.
 */
static __always_inline bool is_outranked(s32 cpu)
{
	const struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);

	return rq && rq->nr_running > rq->scx.nr_running;
}

/*
 * Return whether a task waits for the CPU behind another one, of whatever classes. The kernel counts
 * a task before it calls ops.enqueue(). A task that is parked or in the CPU's local queue waits, too.
 */
static __always_inline bool has_waiting(s32 cpu)
{
	const struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);

	return rq && READ_ONCE(rq->nr_running) > 1;
}

/*
 * Return whether the one runnable task of ours on the CPU, which is being queued, is the only task
 * of any class there.
 */
static __always_inline bool is_alone(s32 cpu)
{
	const struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);

	return rq && rq->nr_running == 1 && rq->scx.nr_running == 1;
}

#endif /* __MAGPIE_RUNQUEUE_BPF_H */
