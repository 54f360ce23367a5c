// SPDX-License-Identifier: GPL-2.0-only
/*
 * sparsemask_shim.c - portable/sparsemask.h as functions that Rust can call.
 *
 * Compiled once for each layout: LAYOUT names the table of functions, and
 * SPARSEMASK_BITS and SPARSEMASK_LINE make the layout. With COUNT_LOADS every
 * READ_ONCE() is counted, which is every word that a visit reads.
 */
#ifdef COUNT_LOADS
extern _Thread_local unsigned long magpie_loads;
#define READ_ONCE(x) (magpie_loads++, __atomic_load_n(&(x), __ATOMIC_RELAXED))
#endif

#include "sparsemask.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

struct sparsemask_functions {
	u32 bits;
	u32 line;
	bool (*set)(struct sparsemask_line *lines, u32 place);
	bool (*clear)(struct sparsemask_line *lines, u32 place);
	bool (*test)(const struct sparsemask_line *lines, u32 place);
	u32 (*next)(struct sparsemask_line *lines, u32 nr_lines, u32 from, u32 end);
	void (*begin)(struct sparsemask_visit *visit, u32 first, u32 end, u32 start);
	bool (*step)(struct sparsemask_visit *visit, struct sparsemask_line *lines, u32 nr_lines,
		     u32 *place);
	u32 (*lowest)(u64 bits);
	u64 (*loads)(void);
};

static bool set(struct sparsemask_line *lines, u32 place)
{
	return sparsemask_line_set(&lines[place / SPARSEMASK_BITS], place);
}

static bool clear(struct sparsemask_line *lines, u32 place)
{
	return sparsemask_line_clear(&lines[place / SPARSEMASK_BITS], place);
}

static bool test(const struct sparsemask_line *lines, u32 place)
{
	return sparsemask_line_test(&lines[place / SPARSEMASK_BITS], place);
}

static u32 next(struct sparsemask_line *lines, u32 nr_lines, u32 from, u32 end)
{
	return sparsemask_next(lines, nr_lines, from, end);
}

static void begin(struct sparsemask_visit *visit, u32 first, u32 end, u32 start)
{
	*visit = sparsemask_visit_begin(first, end, start);
}

static bool step(struct sparsemask_visit *visit, struct sparsemask_line *lines, u32 nr_lines,
		 u32 *place)
{
	return sparsemask_visit_next(visit, lines, nr_lines, place);
}

static u32 lowest(u64 bits)
{
	return sparsemask_lowest(bits);
}

/* Loads by this thread so far; always 0 where they are not counted. */
static u64 loads(void)
{
#ifdef COUNT_LOADS
	return magpie_loads;
#else
	return 0;
#endif
}

const struct sparsemask_functions PASTE(magpie_sparsemask_, LAYOUT) = {
	.bits = SPARSEMASK_BITS,
	.line = SPARSEMASK_LINE,
	.set = set,
	.clear = clear,
	.test = test,
	.next = next,
	.begin = begin,
	.step = step,
	.lowest = lowest,
	.loads = loads,
};
