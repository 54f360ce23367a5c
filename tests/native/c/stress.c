// SPDX-License-Identifier: GPL-2.0-only
/*
 * stress.c - many threads on one sparsemask, for the sanitizers.
 *
 * usage: stress PLACES ROUNDS
 *
 * Three kinds of threads, all at once:
 *
 *   owners    each has every OWNERS-th place and alone sets and clears it, as a
 *             CPU does with its own: after each operation it must read what it
 *             wrote, whatever its neighbours on the line do
 *   rivals    set and clear the same few places against each other: of all
 *             calls for a place, those that said "changed" must alternate, so
 *             that sets minus clears is what the place is in the end
 *   visitors  go around the map: in ring order, each place at most once, none
 *             that is never set, and none missed that always is
 *
 * Places by number modulo KINDS: owned, rivals', always set, never set. So all
 * kinds share every line. Says what was wrong and exits with 1.
 *
 * With BREAK_ATOMICS set and clear are a load and a store. The sanitizer must
 * report that: a test that never sees a race may be one that cannot. With
 * MISSING_LINES the map has that many lines less than it is said to have.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef BREAK_ATOMICS
static uint64_t broken_or(uint64_t *word, uint64_t bits)
{
	uint64_t old = *word;

	*word = old | bits;
	return old;
}

static uint64_t broken_and(uint64_t *word, uint64_t bits)
{
	uint64_t old = *word;

	*word = old & bits;
	return old;
}

#define __sync_fetch_and_or(word, bits) broken_or(word, bits)
#define __sync_fetch_and_and(word, bits) broken_and(word, bits)
#endif

#include "sparsemask.h"

#ifndef MISSING_LINES
#define MISSING_LINES 0
#endif

enum kind { OWNED, RIVALS, ALWAYS, NEVER, KINDS };

enum { OWNERS = 3, RIVAL_THREADS = 3, VISITORS = 2, THREADS = OWNERS + RIVAL_THREADS + VISITORS };

static struct sparsemask_line *lines;
static u32 nr_lines;
static u32 nr_places;
static unsigned long rounds;
static bool *owned; /* what the owner of each place last wrote */
static long *balance; /* of each rivals' place: sets that changed it, less clears */
static pthread_barrier_t start;

#define FAIL(...)                                        \
	do {                                             \
		fprintf(stderr, "stress: " __VA_ARGS__); \
		exit(1);                                 \
	} while (0)

static struct sparsemask_line *line_of(u32 place)
{
	return &lines[place / SPARSEMASK_BITS];
}

/* A small generator of its own: rand() would make the threads take turns. */
static u32 random_below(u64 *seed, u32 bound)
{
	*seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (u32)(*seed >> 33) % bound;
}

/* Some place of a kind: there are nr_places of all kinds together. */
static u32 random_place(u64 *seed, enum kind kind)
{
	return random_below(seed, nr_places / KINDS) * KINDS + kind;
}

/* An owner: set and clear places that no other thread writes, and read back each write. */
static void own(u32 id, u64 seed)
{
	for (unsigned long i = 0; i < rounds; i++) {
		u32 place = random_place(&seed, OWNED);
		bool set = random_below(&seed, 2);
		bool changed;

		if (place / KINDS % OWNERS != id)
			continue;

		changed = set ? sparsemask_line_set(line_of(place), place)
			      : sparsemask_line_clear(line_of(place), place);
		if (changed != (owned[place] != set))
			FAIL("place %u of %u changed behind its owner\n", place, nr_places);
		if (sparsemask_line_test(line_of(place), place) != set)
			FAIL("place %u of %u lost its owner's write\n", place, nr_places);
		owned[place] = set;
	}
}

/* A rival: set and clear places that the other rivals write, too, and count the changes. */
static void rival(u64 seed)
{
	for (unsigned long i = 0; i < rounds; i++) {
		u32 place = random_place(&seed, RIVALS);

		if (random_below(&seed, 2)) {
			if (sparsemask_line_set(line_of(place), place))
				__atomic_fetch_add(&balance[place], 1, __ATOMIC_RELAXED);
		} else {
			if (sparsemask_line_clear(line_of(place), place))
				__atomic_fetch_sub(&balance[place], 1, __ATOMIC_RELAXED);
		}
	}
}

/* The position of a place in the ring that begins at @from. */
static u32 ring_position(u32 place, u32 from)
{
	return place >= from ? place - from : place + nr_places - from;
}

/* A visitor: go around the map from random places, and check the order and the places seen. */
static void visit(u64 seed)
{
	unsigned long visits = rounds / nr_places + 1;

	for (unsigned long i = 0; i < visits; i++) {
		u32 from = random_below(&seed, nr_places);
		struct sparsemask_visit visit = sparsemask_visit_begin(0, nr_places, from);
		u32 next = 0; /* the least position in the ring that may come now */
		u32 always = 0;
		u32 place;

		while (sparsemask_visit_next(&visit, lines, nr_lines, &place)) {
			u32 position = ring_position(place, from);

			if (place >= nr_places || position < next)
				FAIL("place %u came again, from %u\n", place, from);
			next = position + 1;
			if (place % KINDS == NEVER)
				FAIL("place %u is never set\n", place);
			always += place % KINDS == ALWAYS;
		}
		if (always != nr_places / KINDS)
			FAIL("saw %u of %u places that are set\n", always, nr_places / KINDS);
	}
}

/* A thread: begin together with all others, in the role of its number. */
static void *run(void *argument)
{
	u32 id = (u32)(uintptr_t)argument;

	pthread_barrier_wait(&start);
	if (id < OWNERS)
		own(id, id);
	else if (id < OWNERS + RIVAL_THREADS)
		rival(id);
	else
		visit(id);

	return NULL;
}

/* After all threads have ended: is each place as the last call that changed it left it? */
static void check_result(void)
{
	for (u32 place = 0; place < nr_places; place++) {
		bool set = sparsemask_line_test(line_of(place), place);
		bool expected = place % KINDS == ALWAYS;

		if (place % KINDS == OWNED)
			expected = owned[place];
		else if (place % KINDS == RIVALS)
			expected = balance[place] == 1;

		if (set != expected || (place % KINDS == RIVALS && balance[place] >> 1))
			FAIL("place %u is %d, balance %ld\n", place, set, balance[place]);
	}
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	if (argc != 3)
		FAIL("usage: stress PLACES ROUNDS\n");
	nr_places = (u32)strtoul(argv[1], NULL, 0) / KINDS * KINDS;
	rounds = strtoul(argv[2], NULL, 0);
	if (!nr_places || !rounds)
		FAIL("give at least %d places and a round\n", KINDS);

	nr_lines = (nr_places + SPARSEMASK_BITS - 1) / SPARSEMASK_BITS;
	lines = aligned_alloc(SPARSEMASK_LINE, (nr_lines - MISSING_LINES) * sizeof(*lines));
	owned = calloc(nr_places, sizeof(*owned));
	balance = calloc(nr_places, sizeof(*balance));
	if (!lines || !owned || !balance)
		FAIL("no memory\n");
	for (u32 i = 0; i < nr_lines - MISSING_LINES; i++)
		lines[i].bits = 0;
	for (u32 place = ALWAYS; place < nr_places; place += KINDS)
		sparsemask_line_set(line_of(place), place);

	pthread_barrier_init(&start, NULL, THREADS);
	for (uintptr_t id = 0; id < THREADS; id++)
		if (pthread_create(&threads[id], NULL, run, (void *)id))
			FAIL("no thread\n");
	for (u32 id = 0; id < THREADS; id++)
		pthread_join(threads[id], NULL);

	check_result();
	free(lines);
	free(owned);
	free(balance);
	return 0;
}
