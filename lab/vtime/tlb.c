// SPDX-License-Identifier: GPL-2.0-only
/*
 * Translations: which pages a CPU's TLB has, and what a walk through the page tables
 * costs.
 *
 * Each CPU has one TLB, in sets of ways. Only accesses that the front lacks are looked
 * up here, because the front has no line of a page that was not used recently:
 *
 *	access -- front -- hit: free
 *	            | miss
 *	          TLB -- hit: free
 *	            | miss
 *	          walk_ns, whatever the latency of the line
 *
 * A walk has one price. A real one reads up to four entries, most of which are in caches
 * of their own.
 *
 * A plugin is not told how large a page is. So a virtual and a physical address that are
 * the same modulo 2 MiB are taken for one huge page: of small pages, one in 512 is.
 *
 * The address space is a part of what is looked up, so a load of CR3 makes the user's
 * translations useless, as on a processor without PCIDs. An invlpg leaves its page here.
 */
#include <string.h>

#include "memory.h"

#define HUGE_SHIFT 21
#define HUGE (1ULL << 63) /* in a key: of a huge page */

/* Of one CPU: the ways of each set, the most recently used first; 0 is none. */
static uint64_t *tlbs;
static uint32_t sets, ways;
static uint64_t walk_ps;

/* Return whether the entries of a set have that key, which is now the most recently used. */
static bool use(uint64_t *set, uint64_t key)
{
	uint32_t way = 0;
	bool has;

	while (way < ways - 1 && set[way] != key)
		way++;
	has = set[way] == key;
	memmove(set + 1, set, way * sizeof(*set));
	set[0] = key;
	return has;
}

/*
 * A CPU accesses a page in an address space, a number in the upper bits of @space. Return
 * how long the walk takes if the TLB does not have its translation.
 */
uint64_t tlb_walk_ps(unsigned int cpu, uint64_t vaddr, uint64_t paddr, uint64_t space)
{
	const bool is_huge = !((vaddr ^ paddr) & ((1ULL << HUGE_SHIFT) - 1));
	const uint64_t page = (vaddr << 16 >> 16) >> (is_huge ? HUGE_SHIFT : PAGE_SHIFT);
	uint64_t *set;

	if (!sets)
		return 0;
	set = tlbs + ((size_t)cpu * sets + page % sets) * ways;
	/* 36 bits of a page, 12 of an address space. */
	return use(set, space >> 8 | page | (is_huge ? HUGE : 0)) ? 0 : walk_ps;
}

void tlb_init(void)
{
	const struct memory_options *o = &memory_options;

	if (!o->tlb_entries)
		return;
	ways = o->tlb_ways;
	sets = o->tlb_entries / ways;
	walk_ps = o->walk_ns * 1000;
	tlbs = memory_zeroed((size_t)nr_vcpus * sets * ways * sizeof(*tlbs));
}
