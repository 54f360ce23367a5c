/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * idle_map.h - which CPUs are idle, without a line that every wakeup writes.
 *
 * Each CPU has a *word* on its own line that says what the CPU does now, and a bit in a sparsemask
 * that says whether a look at the word is worth while. The bit is set when the CPU goes idle and
 * stays until its first tick after it left idle: a CPU with short idle periods writes nothing
 * shared. Each LLC counts its bits, and one number counts the LLCs that have any; both change only
 * with bits.
 *
 *   goes idle:  word = free; bit set already? --yes--> done
 *                                 | no
 *                            set it; first of its LLC? --yes--> one LLC more
 *   waker:      bit set? -> word free? -> claimed by compare-and-swap
 *   busy again: word = busy, and the bit stays
 *   tick:       bit set? --yes--> clear it; last of its LLC? --yes--> one LLC less
 *
 * A claim is the time at which it was made, as an even number. It ends when the CPU leaves idle. From
 * CLAIM_HOLDS_NS on the next waker asks the CPU to end it: otherwise a waker whose task went
 * elsewhere would hide the CPU for as long as it idles. See claim_by_word() in placement.h.
 *
 * A CPU that was called and does not come may be a vCPU that its host has taken, so no further task
 * shall wait for it: see is_word_late(). The waker that asks makes the claim anew, as an odd number,
 * so that the CPU is not taken for one that was called just now.
 */
#ifndef __MAGPIE_IDLE_MAP_H
#define __MAGPIE_IDLE_MAP_H

#include "sparsemask.h"

enum idle_word {
	IDLE_NOT, /* runs a task */
	IDLE_FREE,
	IDLE_OFFLINE, /* its siblings have the core for themselves */
	IDLE_POLICY, /* runs a SCHED_IDLE task, which any other task may preempt */
	IDLE_LAST = IDLE_POLICY, /* above: the time of a claim */
};

#define CLAIM_HOLDS_NS 4000000LL

/* How many CPUs of an LLC have their bit set; on a line of its own. */
struct idle_count {
	u32 cpus;
	u32 may_have_core; /* a core has become idle since a search found none */
} __attribute__((aligned(64)));

/* Return whether a CPU with this word idles and is not claimed. */
static inline bool is_word_free(u64 word, u64 now)
{
	return word == IDLE_FREE || (word > IDLE_LAST && (s64)(now - word) > CLAIM_HOLDS_NS);
}

/* Return whether a CPU with this word leaves its core to its siblings. */
static inline bool is_word_quiet(u64 word, u64 now)
{
	return word == IDLE_OFFLINE || word == IDLE_POLICY || is_word_free(word, now);
}

/*
 * Return whether a CPU was claimed long ago and has not come. A task that wakes on it waits in a
 * list of the kernel until it comes, from where nobody can take it.
 */
static inline bool is_word_late(u64 word, u64 now)
{
	return word > IDLE_LAST && (word % 2 || (s64)(now - word) > CLAIM_HOLDS_NS);
}

/*
 * Claim a CPU for one task, so that no other waker sends a second one there. @old: the word that
 * the caller read and found free.
 */
static inline bool claim_word(u64 *word, u64 old, u64 now)
{
	u64 claim = old > IDLE_LAST ? now | 1 : now & ~1ULL;

	return __sync_val_compare_and_swap(word, old, claim) == old;
}

/*
 * Return whether a CPU with this word, which idles and has no work, is to register as free, which
 * ends a claim. It keeps a waker's claim, whose task is about to arrive: a second waker would send its
 * task to the same CPU. No task arrives if the CPU was @claimed_to_search, if it was claimed anew only
 * to ask whether it is there, or if the claim has lapsed.
 */
static inline bool is_free_again(u64 word, bool claimed_to_search, u64 now)
{
	return word != IDLE_FREE &&
	       (claimed_to_search || word <= IDLE_LAST || is_word_late(word, now));
}

/*
 * Set a CPU's bit, and count it in its LLC. This and idle_map_clear() return the number of writes
 * to shared lines: none if the bit did not change.
 */
static inline u32 idle_map_set(struct sparsemask_line *line, u32 place, struct idle_count *llc,
			       u32 *nr_llcs)
{
	if (!sparsemask_line_set(line, place))
		return 0;
	if (__sync_fetch_and_add(&llc->cpus, 1))
		return 2;

	__sync_fetch_and_add(nr_llcs, 1);
	return 3;
}

static inline u32 idle_map_clear(struct sparsemask_line *line, u32 place, struct idle_count *llc,
				 u32 *nr_llcs)
{
	if (!sparsemask_line_clear(line, place))
		return 0;
	if (__sync_fetch_and_add(&llc->cpus, -1) != 1)
		return 2;

	__sync_fetch_and_add(nr_llcs, -1);
	return 3;
}

#endif /* __MAGPIE_IDLE_MAP_H */
