// SPDX-License-Identifier: GPL-2.0-only
/*
 * One cache: sets of ways, of which the least recently used is replaced.
 *
 * The entries of a set are kept in the order of their last use, so there is no
 * clock and no list: a used entry moves to the front, the last one is the victim.
 *
 *	set:	| used last | ... | victim |
 *
 * The number of sets need not be a power of two, because 38.5 MiB in 11 ways is a
 * size that exists. Nothing here is locked: directory.c says which lock a caller
 * holds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory.h"

/* Zeroed memory that the host allocates as it is touched. */
void *memory_zeroed(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED) {
		perror("magpie-vtime: cannot allocate the tables of the memory model");
		exit(1);
	}
	return p;
}

/* Make an empty cache of that size. */
void cache_init(struct cache *k, uint64_t bytes, uint32_t ways)
{
	k->ways = ways;
	k->sets = bytes / LINE_BYTES / ways;
	k->reciprocal = UINT64_MAX / k->sets + 1;
	k->entries = memory_zeroed((size_t)k->sets * ways * sizeof(*k->entries));
}

/*
 * Return the set of a line: its first entry. line % sets without a division: the product with the
 * reciprocal is the quotient's fraction (D. Lemire and others, "Faster remainder by direct
 * computation", 2019).
 */
static uint32_t *set_of(const struct cache *k, uint32_t line)
{
	const uint64_t fraction = k->reciprocal * line;
	const uint32_t set = (unsigned __int128)fraction * k->sets >> 64;

	return k->entries + (size_t)set * k->ways;
}

/* The entry of that line, or NULL. Does not count as a use. */
uint32_t *cache_find(struct cache *k, uint32_t line)
{
	uint32_t *set = set_of(k, line);

	for (uint32_t way = 0; way < k->ways; way++)
		if ((set[way] & ENTRY_LINE) == line + 1)
			return &set[way];
	return NULL;
}

/* The entry of that line, now the most recently used of its set, or NULL. */
uint32_t *cache_use(struct cache *k, uint32_t line)
{
	uint32_t *set = set_of(k, line), *entry = cache_find(k, line), used;

	if (!entry || entry == set)
		return entry;
	used = *entry;
	memmove(set + 1, set, (entry - set) * sizeof(*set));
	set[0] = used;
	return set;
}

/* The entry that an insertion of that line would replace, or 0 if a way is empty. */
uint32_t cache_victim(const struct cache *k, uint32_t line)
{
	return set_of(k, line)[k->ways - 1];
}

/* Put a line that is not in the cache there. Return the entry that it replaces, or 0. */
uint32_t cache_insert(struct cache *k, uint32_t line, uint32_t flags)
{
	uint32_t *set = set_of(k, line);
	const uint32_t victim = set[k->ways - 1];

	memmove(set + 1, set, (k->ways - 1) * sizeof(*set));
	set[0] = (line + 1) | flags;
	return victim;
}

/* Return true if the line was there. Empty ways are the last of a set. */
bool cache_remove(struct cache *k, uint32_t line)
{
	uint32_t *set = set_of(k, line), *entry = cache_find(k, line);

	if (!entry)
		return false;
	memmove(entry, entry + 1, (set + k->ways - 1 - entry) * sizeof(*set));
	set[k->ways - 1] = 0;
	return true;
}
