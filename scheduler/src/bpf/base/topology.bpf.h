/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * topology.bpf.h - which CPUs share a core, an LLC or a node.
 *
 * User space writes these tables before the load, for every possible CPU; they are constant
 * afterwards. intf.h describes their fields.
 */
#ifndef __MAGPIE_TOPOLOGY_BPF_H
#define __MAGPIE_TOPOLOGY_BPF_H

const volatile u32 nr_cpus = 1;
const volatile u32 nr_llcs = 1;
const volatile bool has_smt = false; /* some core has several CPUs */
const volatile bool is_hybrid = false; /* some CPU is slower than FAST_CAPACITY */
const volatile u32 slowest_capacity = 1024; /* of the slowest CPU */
const volatile struct cpu_topology cpu_topology[MAX_CPUS];
const volatile struct llc_topology llc_topology[MAX_LLCS];
const volatile u16 cpu_at_place[MAX_PLACES];

/*
 * The mask tells the verifier the bound, without a branch or a NULL check at every use. CPU numbers
 * are always below MAX_CPUS: user space loads nothing on a machine that may have more.
 */
static __always_inline const volatile struct cpu_topology *topology_of(s32 cpu)
{
	return &cpu_topology[cpu & (MAX_CPUS - 1)];
}

static __always_inline const volatile struct llc_topology *llc_of(u32 llc)
{
	return &llc_topology[llc & (MAX_LLCS - 1)];
}

/* A CPU's index in its LLC. */
static __always_inline u32 offset_of(s32 cpu)
{
	return topology_of(cpu)->place - llc_of(topology_of(cpu)->llc)->first;
}

/* The CPU at a place, or NO_PLACE. */
static __always_inline u32 place_to_cpu(u32 place)
{
	if (place >= MAX_PLACES)
		return NO_PLACE;

	return cpu_at_place[place];
}

/* The functions below are those that portable/placement.h asks its includer for. */

u32 cpu_to_llc(u32 cpu)
{
	return topology_of(cpu)->llc;
}

u32 count_llcs(void)
{
	return nr_llcs;
}

u32 size_of_llc(u32 llc)
{
	return llc_of(llc)->size;
}

/* The i-th other LLC, nearest first, from 1. */
u32 nth_llc(u32 llc, u32 i)
{
	const volatile struct llc_topology *own = llc_of(llc);

	return llc_by_distance(llc, i, own->node_first, own->node_llcs, nr_llcs);
}

bool are_siblings(u32 cpu, u32 other)
{
	return topology_of(cpu)->core_first == topology_of(other)->core_first;
}

bool is_fast(u32 cpu)
{
	return topology_of(cpu)->capacity >= FAST_CAPACITY;
}

/* Return whether the CPUs are of two LLCs. */
static __always_inline bool is_in_other_llc(s32 cpu, s32 other)
{
	return topology_of(cpu)->llc != topology_of(other)->llc;
}

#endif /* __MAGPIE_TOPOLOGY_BPF_H */
