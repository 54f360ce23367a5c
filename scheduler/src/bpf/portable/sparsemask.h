/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * sparsemask.h - a bitmap that spreads its bits over cache lines.
 *
 * CPUs announce their state (overloaded, idle) in maps that other CPUs visit at the same time. In a
 * plain bitmap 512 CPUs share one cache line, and every announcement takes that line from every
 * reader. Here a line has only SPARSEMASK_BITS bits, so that a writer disturbs few others.
 *
 * Source of the idea: the sparsemask of the series "steal tasks to improve CPU
 * utilization" (RFC v5) on the Linux kernel list.
 *
 *   place    0 1 2 3 4 5 6 7   8 9 ...
 *           +-----------------+-----------------+
 *           | line 0, 64 byte | line 1, 64 byte | ...
 *           +-----------------+-----------------+
 *
 * To set a set bit, or to clear a clear one, writes nothing. Set and clear are atomic against each
 * other. A visit sees each bit as it was at some moment during the visit, which is enough for a
 * search.
 *
 * What it does not do: keep a summary of its lines. A visit reads every line of its range once. A
 * range is one LLC, which is a handful of lines, and a summary would be the shared line that this
 * structure avoids.
 */
#ifndef __MAGPIE_SPARSEMASK_H
#define __MAGPIE_SPARSEMASK_H

#include "portable.h"

/*
 * The benchmark compiles other layouts to compare; docs/sparsemask.md says why there are 8 bits.
 * Lines of 8 bytes with 64 bits each are a plain bitmap.
 */
#ifndef SPARSEMASK_BITS
#define SPARSEMASK_BITS 8 /* bits a line, at most 64 */
#endif
#ifndef SPARSEMASK_LINE
#define SPARSEMASK_LINE 64 /* bytes of a cache line */
#endif

struct sparsemask_line {
	u64 bits;
} __attribute__((aligned(SPARSEMASK_LINE)));

static inline u64 sparsemask_bit(u32 place)
{
	return 1ULL << (place % SPARSEMASK_BITS);
}

static inline bool sparsemask_line_test(const struct sparsemask_line *line, u32 place)
{
	return READ_ONCE(((struct sparsemask_line *)line)->bits) & sparsemask_bit(place);
}

/* Return whether this call changed the bit. */
static inline bool sparsemask_line_set(struct sparsemask_line *line, u32 place)
{
	u64 bit = sparsemask_bit(place);

	if (READ_ONCE(line->bits) & bit)
		return false;

	return !(__sync_fetch_and_or(&line->bits, bit) & bit);
}

/* Return whether this call changed the bit. */
static inline bool sparsemask_line_clear(struct sparsemask_line *line, u32 place)
{
	u64 bit = sparsemask_bit(place);

	if (!(READ_ONCE(line->bits) & bit))
		return false;

	return __sync_fetch_and_and(&line->bits, ~bit) & bit;
}

/*
 * The position of the lowest set bit of a non-zero word, which is the number of ones in the bits
 * below it. BPF has no instruction for either. Without branches, because the verifier would follow
 * each of them both ways at every use.
 */
static inline u32 sparsemask_lowest(u64 bits)
{
	u64 ones = (bits & -bits) - 1;

	ones -= ones >> 1 & 0x5555555555555555ULL;
	ones = (ones & 0x3333333333333333ULL) + (ones >> 2 & 0x3333333333333333ULL);
	ones = (ones + (ones >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return ones * 0x0101010101010101ULL >> 56;
}

/*
 * The first set place in [from, end), or end. @nr_lines: the size of the array, so that the
 * verifier sees that no access is beyond it.
 */
static inline u32 sparsemask_next(struct sparsemask_line *lines, u32 nr_lines, u32 from, u32 end)
{
	u32 line = from / SPARSEMASK_BITS;
	u32 last = (end + SPARSEMASK_BITS - 1) / SPARSEMASK_BITS;
	u64 bits = 0;
	u32 place;

	/* Otherwise the compiler compares @from, which tells the verifier nothing of @line. */
	barrier_var(line);
	if (line < nr_lines)
		bits = READ_ONCE(lines[line].bits) & ~0ULL << (from % SPARSEMASK_BITS);

	/* A core, and a small LLC, is within one line: a search there needs no loop. */
	if (!bits && line + 1 < last) {
		u32 next;

		for_bounded(next, line + 1, last) {
			if (next >= nr_lines)
				break;

			bits = READ_ONCE(lines[next].bits);
			if (bits) {
				line = next;
				break;
			}
		}
	}

	if (!bits)
		return end;

	place = line * SPARSEMASK_BITS + sparsemask_lowest(bits);
	return place < end ? place : end;
}

/*
 * A visit of the set places of [first, end) that begins at @start and goes once around: [start,
 * end) and then [first, start). Searchers that begin at their own positions do not all compete for
 * the first set place.
 */
struct sparsemask_visit {
	u32 from, end; /* left to search now */
	u32 first, start; /* to search after that */
};

/* A @start outside of the range means the first place. */
static inline struct sparsemask_visit sparsemask_visit_begin(u32 first, u32 end, u32 start)
{
	struct sparsemask_visit visit = { start, end, first, start };

	if (start < first || start >= end)
		visit.from = visit.start = first;

	return visit;
}

/* Find the next set place; false if there is none and the visit is over. */
static inline bool sparsemask_visit_next(struct sparsemask_visit *visit,
					 struct sparsemask_line *lines, u32 nr_lines, u32 *place)
{
	u32 found = sparsemask_next(lines, nr_lines, visit->from, visit->end);

	if (found >= visit->end) {
		visit->end = visit->start;
		found = sparsemask_next(lines, nr_lines, visit->first, visit->end);
		visit->first = visit->end;
		if (found >= visit->end) {
			visit->from = visit->end;
			return false;
		}
	}

	visit->from = found + 1;
	*place = found;
	return true;
}

#endif /* __MAGPIE_SPARSEMASK_H */
