/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fork.bpf.h - mechanism "fork": in which LLC the search for a new task's CPU begins.
 *
 * Idea (the kernel's SD_BALANCE_FORK, Linux kernel/sched/fair.c): a task wakes where its cache is
 * warm, so the LLC in which it is forked decides where it stays. Idle CPUs are no guide, because
 * children that wait for each other leave CPUs idle: of two sockets with 40 cores, one had all 80
 * tasks of two groups of hackbench, two on each core, which took 1.5 times as long as under EEVDF.
 * So each LLC counts the tasks that were forked there lately and have not ended.
 *
 *   another LLC has fewer per CPU, by an eighth of a fork at least?
 *        | yes                                --no--> begin at the parent's CPU
 *   begin at one of its cores, another each time, if the task may use it
 *
 * From there on the search is that of any wakeup (wakeup.bpf.h), and takes the nearest idle CPU.
 * "Lately": the count halves each second. An exit is subtracted at once, so a parent that forks one
 * child after the other and waits for each keeps them near.
 *
 * What it does not do: ask how busy an LLC is. Wakeups and spreading find an idle core later.
 */
#ifndef __MAGPIE_FORK_BPF_H
#define __MAGPIE_FORK_BPF_H

const volatile bool fork_enabled = true;

#define FORKS_HALVE_NS 1000000000ULL

/* A unit of forks per CPU: an LLC with as many forks as CPUs has WHOLE_LLC of it. */
#define WHOLE_LLC 1024
#define WORTH_LEAVING (WHOLE_LLC / 8)

/* Written at forks and exits only. If two CPUs write at once, a fork or a halving may be lost. */
struct llc_forks {
	u64 halved_at;
	s32 tasks;
} __attribute__((aligned(64)));

struct llc_forks llc_forks[MAX_LLCS];

static __always_inline struct llc_forks *forks_of(u32 llc)
{
	return &llc_forks[llc & (MAX_LLCS - 1)];
}

/*
 * How often an LLC's count is to be halved by now. The age is signed: another CPU, whose time is
 * ahead, may just have halved the count.
 */
static __always_inline u32 halvings_due(const struct llc_forks *forks, u64 now)
{
	s64 age = now - READ_ONCE(forks->halved_at);

	return age > 0 ? (u64)age / FORKS_HALVE_NS : 0;
}

/* Tasks that were forked in an LLC lately and have not ended. */
static __always_inline u32 count_forks(u32 llc, u64 now)
{
	const struct llc_forks *forks = forks_of(llc);
	u32 halvings = halvings_due(forks, now);
	s32 tasks = READ_ONCE(forks->tasks);

	return tasks > 0 && halvings < 32 ? (u32)tasks >> halvings : 0;
}

/* The forks in an LLC for its size, with WHOLE_LLC for one fork per CPU. */
static __always_inline u32 how_full(u32 llc, u64 now)
{
	return count_forks(llc, now) * WHOLE_LLC / (llc_of(llc)->size ?: 1);
}

/*
 * The LLC with the fewest forks for its size, the nearest of several; the parent's own unless that
 * has more by WORTH_LEAVING.
 */
__noinline u32 llc_for_fork(u32 parents, u64 now)
{
	u32 least = how_full(parents, now);
	u32 llc = parents;
	u32 i;

	if (least < WORTH_LEAVING)
		return parents;

	/* From here on another LLC counts only if it is below the parent's by WORTH_LEAVING. */
	least -= WORTH_LEAVING - 1;
	bpf_for(i, 1, nr_llcs) {
		u32 other = nth_llc(parents, i);
		u32 full = how_full(other, now);

		if (full < least) {
			least = full;
			llc = other;
		}
	}

	return llc;
}

/* Count a new task in an LLC, and note in the task where it is counted. */
static __always_inline void note_fork(struct task_state *ts, u32 llc, u64 now)
{
	struct llc_forks *forks = forks_of(llc);

	if (halvings_due(forks, now)) {
		WRITE_ONCE(forks->tasks, count_forks(llc, now));
		WRITE_ONCE(forks->halved_at, now);
	}
	__sync_fetch_and_add(&forks->tasks, 1);
	ts->forked_in = 1 + llc;
}

/* A task ends, or changes its class: it no longer counts as forked in its LLC. */
static __always_inline void forget_fork(struct task_state *ts)
{
	struct llc_forks *forks;

	if (nr_llcs == 1 || !ts->forked_in)
		return;

	/* Halvings may have brought the count to 0 before. */
	forks = forks_of(ts->forked_in - 1);
	if (READ_ONCE(forks->tasks) > 0)
		__sync_fetch_and_add(&forks->tasks, -1);
	ts->forked_in = 0;
}

/*
 * The first CPU of a core of the LLC. The core changes with the count, so tasks that are forked one
 * after the other begin at different cores.
 */
static __always_inline u32 next_core(u32 llc, u64 now)
{
	u32 first = llc_of(llc)->first;
	u32 threads = topology_of(place_to_cpu(first))->core_size;

	return place_to_cpu(first + count_forks(llc, now) * threads % (llc_of(llc)->size ?: 1));
}

/* The CPU at which the search for a new task's CPU begins. */
static __always_inline s32 cpu_for_fork(const struct task_struct *p, struct task_state *ts,
					s32 parents_cpu, u64 now)
{
	u32 parents = cpu_to_llc(parents_cpu);
	u32 llc, cpu;

	if (!fork_enabled || nr_llcs == 1)
		return parents_cpu;

	llc = llc_for_fork(parents, now);
	cpu = next_core(llc, now);
	if (llc != parents && may_place(p, cpu)) {
		count_event(state_here(), EVENT_FORK_AWAY, 1);
	} else {
		llc = parents;
		cpu = parents_cpu;
	}

	note_fork(ts, llc, now);
	return cpu;
}

#endif /* __MAGPIE_FORK_BPF_H */
