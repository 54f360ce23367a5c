/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * power.bpf.h - mechanism "power": with little load, work stays on few cores.
 *
 * Idea: preferred CPUs (guest/preferred.bpf.h) keep tasks on a part of the cores. In a guest the
 * host says how many; here it is the load, so that the other cores stay in deep idle.
 *
 *   the monitor looks, 8 times a period:
 *   busy time of the preferred CPUs, as
 *   if at their highest frequency   -> portable/power.h -> the first so many cores of
 *                                                          frugal_core_at_rank[] are preferred
 *
 *   a tick: tasks wait here, some have for long without
 *   a gap, and the first may use all CPUs?                ------ yes ------>   all CPUs are preferred, at once
 *
 * How long the CPU has been busy does not count: it may work through a frame for 10 ms, with nobody
 * waiting, and wake the task that shows the frame at the very end.
 *
 * In that order come whole cores LLC by LLC, and on a hybrid machine the slow ones first.
 *
 * To open all CPUs is one write, because is_restricted() asks for the number of withheld CPUs. The
 * monitor adjusts the rest at its next look. If it was just about to write that number, too, the
 * next tick opens the CPUs again.
 *
 * The mechanism rests while the steal governor uses fewer cores than there are, or user space or
 * the kernel says which CPUs are preferred: one set of CPUs has one reason. The governor in turn
 * rests while this mechanism withholds CPUs.
 *
 * What it does not do: move interrupts, see ticks of a CPU that a real-time task has taken, open
 * all CPUs for tasks whose affinity is bounded: such tasks may wait for ever whatever else idles.
 */
#ifndef __MAGPIE_POWER_BPF_H
#define __MAGPIE_POWER_BPF_H

/* Place of the first CPU of each core, in the order in which a machine that saves power uses them. */
const volatile u16 frugal_core_at_rank[MAX_CPUS];

/* For how long any tasks may wait in a CPU's queue without a gap before all CPUs are preferred. */
#define SAVER_WAIT_NS 10000000ULL
#define BALANCED_WAIT_NS 6000000ULL

/* User space changes it while the scheduler runs: enum power_level. */
u32 power_level = POWER_PERFORMANCE;

/* The monitor's, but for @waited, which ticks set. */
struct {
	struct power_state state;
	u32 waited;
} power;

/* The switch of frequency.bpf.h: without it the frequency says nothing about the load. */
const volatile bool frequency_enabled = true;

/*
 * Return for how long the CPU would have been busy at its highest frequency. Otherwise a machine
 * that runs slowly because it has little to do would seem to need more cores: balanced used all. A
 * CPU that asks for all and is slow all the same (heat, a limit of power) has no time to spare.
 */
static __always_inline u64 at_full_speed(s32 cpu, u64 busy_ns)
{
	const struct cpu_state *state = state_of(cpu);

	if (!power_enabled || !frequency_enabled ||
	    READ_ONCE(state->perf_target) >= READ_ONCE(state->capacity))
		return busy_ns;

	return busy_ns * scx_bpf_cpuperf_cur(cpu) / PERF_ONE;
}

/* Return whether CPUs are withheld to save power, now. */
static __always_inline bool withholds_to_save(void)
{
	return power_enabled && READ_ONCE(preferred_status.power) &&
	       READ_ONCE(preferred_status.withheld);
}

/* Return whether the first task of a CPU's queue may use all CPUs, so that to open them helps it. */
__noinline bool is_first_unbound(s32 cpu)
{
	struct task_struct *p;
	bool unbound = false;

	bpf_for_each(scx_dsq, p, cpu, 0) {
		unbound = p->nr_cpus_allowed >= nr_cpus;
		break;
	}

	return unbound;
}

/* A tick, before the queue is offered to idle CPUs: open all CPUs if tasks have waited for long. */
static __always_inline void open_if_tasks_wait(struct cpu_state *state, s32 cpu, u64 now)
{
	u64 since, wait;

	if (!withholds_to_save())
		return;

	if (!scx_bpf_dsq_nr_queued(cpu)) {
		/* A thief may have emptied the queue: nobody has waited since before now. */
		WRITE_ONCE(state->queued_since, now);
		return;
	}

	since = READ_ONCE(state->queued_since);
	wait = power_level == POWER_SAVER ? SAVER_WAIT_NS : BALANCED_WAIT_NS;
	if (is_before(now, since + wait) || !is_first_unbound(cpu))
		return;

	WRITE_ONCE(power.waited, 1);
	WRITE_ONCE(preferred_status.withheld, 0);
	count_event(state, EVENT_POWER_OPEN, 1);
}

/*
 * The monitor looks: return how many of @total cores are preferred to save power. @busy_ns: of the
 * preferred CPUs since the last look, @span ago; @threads: online CPUs.
 */
static __always_inline u32 power_cores(u64 busy_ns, u32 threads, u32 total, u64 span)
{
	u64 core_ns = span * threads / (total ?: 1) ?: 1;
	u32 before = power.state.cores;
	bool waited = READ_ONCE(power.waited);
	u32 cores;

	WRITE_ONCE(power.waited, 0);
	cores = power_next(&power.state, power_level, total, busy_ns * 100 / core_ns, waited);
	if (before && cores != before)
		count_event(state_here(), EVENT_POWER_CHANGE, 1);
	return cores;
}

#endif /* __MAGPIE_POWER_BPF_H */
