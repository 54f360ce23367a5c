// SPDX-License-Identifier: GPL-2.0-only
/*
 * placement_shim.c - a made-up machine of at most 64 CPUs, on which portable/placement.h
 * looks for CPUs, portable/idle_map.h keeps the idle ones, and portable/llc_order.h orders
 * LLCs.
 */
#include "idle_map.h"
#include "llc_order.h"
#include "placement.h"

#define MOST_CPUS 64
#define MOST_LINES 64

struct task_struct {
	u64 allowed; /* a bit each CPU */
};

struct magpie_machine {
	struct sparsemask_line lines[MOST_LINES];
	struct idle_count counts[MOST_CPUS];
	u64 words[MOST_CPUS];
	u64 slow; /* a bit each CPU */
	u64 called; /* a bit each CPU that was asked whether it idles */
	u32 nodes, llcs, cores, threads; /* llcs of a node, cores of an LLC, ... */
	u32 nr_llcs_idle;
	bool waker_leaves;
};

static _Thread_local struct magpie_machine *machine;

static u32 llc_cpus(void)
{
	return machine->cores * machine->threads;
}

/* Each LLC begins on a line of its own, as in the scheduler. */
static u32 llc_places(void)
{
	return (llc_cpus() + SPARSEMASK_BITS - 1) / SPARSEMASK_BITS * SPARSEMASK_BITS;
}

static u32 cpu_to_place(u32 cpu)
{
	return cpu / llc_cpus() * llc_places() + cpu % llc_cpus();
}

bool may_place(const struct task_struct *task, u32 cpu)
{
	return task->allowed >> cpu & 1;
}

bool is_fast(u32 cpu)
{
	return !(machine->slow >> cpu & 1);
}

bool is_free(const struct placement *at, u32 cpu)
{
	u64 word = machine->words[cpu];

	return is_word_free(word, at->now) || (at->may_preempt && word == IDLE_POLICY);
}

bool claim_cpu(struct placement *at, u32 cpu)
{
	return claim_by_word(at, cpu, &machine->words[cpu]);
}

void call_idle(u32 cpu)
{
	machine->called |= 1ULL << cpu;
}

bool is_alone_on_core(u32 cpu, u64 now)
{
	u32 first = cpu - cpu % machine->threads;
	u32 sibling;

	for (sibling = first; sibling < first + machine->threads; sibling++) {
		if (sibling != cpu && !is_word_quiet(machine->words[sibling], now))
			return false;
	}
	return true;
}

bool are_siblings(u32 cpu, u32 other)
{
	return cpu / machine->threads == other / machine->threads;
}

bool leaves_cpu(const struct placement *at)
{
	(void)at;
	return machine->waker_leaves;
}

u32 cpu_to_llc(u32 cpu)
{
	return cpu / llc_cpus();
}

u32 count_llcs(void)
{
	return machine->nodes * machine->llcs;
}

u32 nth_llc(u32 llc, u32 i)
{
	return llc_by_distance(llc, i, llc - llc % machine->llcs, machine->llcs, count_llcs());
}

bool has_llc_idle(u32 llc)
{
	return machine->counts[llc].cpus;
}

bool has_any_idle(void)
{
	return machine->nr_llcs_idle;
}

bool have_others_idle(u32 llc)
{
	return machine->nr_llcs_idle > (u32)has_llc_idle(llc);
}

bool may_have_idle_core(u32 llc)
{
	return machine->counts[llc].may_have_core;
}

void note_no_idle_core(u32 llc)
{
	machine->counts[llc].may_have_core = false;
}

u32 size_of_llc(u32 llc)
{
	(void)llc;
	return llc_cpus();
}

void begin_visit(struct sparsemask_visit *visit, u32 llc, u32 near_cpu)
{
	u32 first = llc * llc_places();
	u32 core_first = near_cpu - near_cpu % machine->threads;

	u32 own_first = cpu_to_llc(near_cpu) * llc_places();

	*visit = sparsemask_visit_begin(first, first + llc_cpus(),
					visit_start(first, llc_cpus(), cpu_to_place(core_first),
						    own_first));
}

u32 visit_idle(struct sparsemask_visit *visit)
{
	u32 place;

	if (!sparsemask_visit_next(visit, machine->lines, MOST_LINES, &place))
		return NO_CPU;

	return place / llc_places() * llc_cpus() + place % llc_places();
}

/* The functions that Rust calls. */
u32 magpie_set_bit(struct magpie_machine *of, u32 cpu, bool is_set);
int magpie_choose_cpu(struct magpie_machine *of, struct task_struct *task, struct placement *at);
bool magpie_is_late(const struct magpie_machine *of, u32 cpu, u64 now);
void magpie_idle_on(struct magpie_machine *of, u32 cpu, bool claimed_to_search, u64 now);
u32 magpie_llc_by_distance(u32 llc, u32 i, u32 first, u32 nr, u32 all);

u32 magpie_set_bit(struct magpie_machine *of, u32 cpu, bool is_set)
{
	u32 place, llc;

	machine = of;
	place = cpu_to_place(cpu);
	llc = cpu_to_llc(cpu);
	return (is_set ? idle_map_set : idle_map_clear)(&of->lines[place / SPARSEMASK_BITS], place,
							&of->counts[llc], &of->nr_llcs_idle);
}

/* The tests say which moves are worth it. */
void weigh_moves(struct placement *at, const struct task_struct *task, const struct task_state *ts)
{
	(void)at;
	(void)task;
	(void)ts;
}

int magpie_choose_cpu(struct magpie_machine *of, struct task_struct *task, struct placement *at)
{
	machine = of;
	return choose_cpu(at, task, (void *)0);
}

bool magpie_is_late(const struct magpie_machine *of, u32 cpu, u64 now)
{
	return is_word_late(of->words[cpu], now);
}

void magpie_idle_on(struct magpie_machine *of, u32 cpu, bool claimed_to_search, u64 now)
{
	if (is_free_again(of->words[cpu], claimed_to_search, now))
		of->words[cpu] = IDLE_FREE;
}

u32 magpie_llc_by_distance(u32 llc, u32 i, u32 first, u32 nr, u32 all)
{
	return llc_by_distance(llc, i, first, nr, all);
}
