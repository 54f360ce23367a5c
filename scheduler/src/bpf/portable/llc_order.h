/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * llc_order.h - the LLCs of a machine, nearest first.
 *
 * LLCs are numbered node by node. Seen from one of them the others of its node come
 * first, then those of other nodes; in both the turn starts behind its own position,
 * so that CPUs of different LLCs do not converge on one.
 *
 *   node 0: 0 1 2   node 1: 3 4 5   from 1:  2 0 | 4 5 3
 */
#ifndef __MAGPIE_LLC_ORDER_H
#define __MAGPIE_LLC_ORDER_H

#include "portable.h"

/* The i-th after @position in a ring of @size, both below it. */
static inline u32 ring_add(u32 position, u32 i, u32 size)
{
	u32 sum = position + i;

	return sum < size ? sum : sum - size;
}

/*
 * The i-th other LLC, from 1, of @all; the node's own are @nr from @first. Those of
 * the node are the first @nr - 1.
 */
static inline u32 llc_by_distance(u32 llc, u32 i, u32 first, u32 nr, u32 all)
{
	u32 position = llc - first;

	if (i < nr)
		return first + ring_add(position, i, nr);

	/* All others in a row: those after the node, then those before. */
	i -= nr;
	i = ring_add(i, position < all - nr ? position : 0, all - nr);
	return ring_add(first, nr + i, all);
}

#endif /* __MAGPIE_LLC_ORDER_H */
