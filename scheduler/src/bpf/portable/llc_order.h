/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * llc_order.h - the LLCs of a machine, nearest first, and where a visit of each begins.
 *
 * LLCs are numbered node by node. Seen from one LLC, the others of its node come first, then those
 * of other nodes. Both parts begin behind the LLC's own position, so that CPUs of different LLCs do
 * not all search the same LLC first.
 *
 *   node 0: 0 1 2   node 1: 3 4 5   from 1:  2 0 | 4 5 3
 */
#ifndef __MAGPIE_LLC_ORDER_H
#define __MAGPIE_LLC_ORDER_H

#include "portable.h"

/* The i-th position after @position in a ring; @i and @position are below @size. */
static inline u32 ring_add(u32 position, u32 i, u32 size)
{
	u32 sum = position + i;

	return sum < size ? sum : sum - size;
}

/*
 * The i-th other LLC, from 1. The LLC's node has @nr LLCs, which begin at @first; the machine has
 * @all. The first @nr - 1 results are in the node.
 */
static inline u32 llc_by_distance(u32 llc, u32 i, u32 first, u32 nr, u32 all)
{
	u32 position = llc - first;

	if (i < nr)
		return first + ring_add(position, i, nr);

	/* LLCs of other nodes in a row: those after the node, then those before it. */
	i -= nr;
	i = ring_add(i, position < all - nr ? position : 0, all - nr);
	return ring_add(first, nr + i, all);
}

/*
 * The place at which a visit of an LLC begins, which has @size places from @first on. @core_first:
 * the first place of the visitor's core, in an LLC that begins at @own_first. In the own LLC that
 * is the core itself; in any other, the core with the same position there. If all began at the
 * LLC's first place, the wakers of an LLC would ask the same CPUs, and claim the same one.
 */
static inline u32 visit_start(u32 first, u32 size, u32 core_first, u32 own_first)
{
	return first + (core_first - own_first) % (size ?: 1);
}

#endif /* __MAGPIE_LLC_ORDER_H */
