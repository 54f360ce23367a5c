// SPDX-License-Identifier: GPL-2.0-only
/*
 * Coherence: which core, cache or memory serves a line that a core's L1 lacks, or
 * may not write.
 *
 * A directory has a word for each line of guest memory, so every line is
 * modelled; sharing sits on few lines, and a sample of lines would miss them:
 *
 *	63      48 47                  0
 *	| owner+1 | cores, modulo 48    |
 *
 * An owner alone has the line and may write it. The other bits say which cores,
 * or their LLCs, may have a copy. A bit is not cleared when a cache replaces the
 * line, so before an answer depends on a bit, the caches of its cores are asked.
 *
 *	read		owned elsewhere: from the owner, which keeps a copy
 *			copies elsewhere: from the own LLC or memory; a copy
 *			no copy elsewhere: from the own LLC or memory; the core owns it
 *	write		owned elsewhere: from the owner, which loses it
 *			copies elsewhere: they are dropped; the furthest says the cost
 *			else as a read
 *
 * L2 includes L1 and L1I. An LLC gets every line that one of its cores fetches. When the LLC
 * replaces a line, its cores keep theirs. An LLC keeps its copy when one of its cores
 * replaces the line or gives it up, and loses the copy when a core of another LLC
 * writes the line.
 *
 * Locks. The lock of a line is held from the look at the directory until the line
 * is in L1, so no core keeps a line that another one was given meanwhile. The LLCs
 * have none of their own, because all lines of a set of an LLC have the same line
 * lock. A core's lock is for its L1, L2 and fronts, and is the inner one. No thread
 * holds two locks of a kind.
 */
#include <sched.h>

#include "memory.h"

#define OWNER_SHIFT 48
#define CORES_MASK ((1ULL << OWNER_SHIFT) - 1)

struct padded_lock {
	uint32_t word;
} __attribute__((aligned(64)));

struct core *cores;
unsigned int nr_cores;
static struct cache llcs[MAX_LLCS];
static uint64_t *directory;
static struct padded_lock line_locks[LINE_LOCKS];

/* Take a spinlock. */
void memory_lock(uint32_t *word)
{
	unsigned int tries = 0;

	while (__atomic_exchange_n(word, 1, __ATOMIC_ACQUIRE)) {
		/* A busy host may have put the holder's thread off its CPU. */
		if (++tries % 64 == 0)
			sched_yield();
	}
}

void memory_unlock(uint32_t *word)
{
	__atomic_store_n(word, 0, __ATOMIC_RELEASE);
}

void line_lock(uint32_t line)
{
	memory_lock(&line_locks[line % LINE_LOCKS].word);
}

void line_unlock(uint32_t line)
{
	memory_unlock(&line_locks[line % LINE_LOCKS].word);
}

void core_lock(struct core *core)
{
	memory_lock(&core->lock);
}

void core_unlock(struct core *core)
{
	memory_unlock(&core->lock);
}

/* Return the core's bit in a word of the directory. */
static uint64_t core_bit(const struct core *core)
{
	return 1ULL << core->index % OWNER_SHIFT;
}

/* Return the directory's word for a line that only this core has. */
static uint64_t owned_by(const struct core *core)
{
	return (uint64_t)(core->index + 1) << OWNER_SHIFT | core_bit(core);
}

/*
 * The fronts of the core forget the line. Return true if one had it. The page
 * offset is the same in virtual and physical addresses, so one set of each front
 * is enough.
 */
bool front_forget(struct core *core, uint32_t line)
{
	const uint32_t set = line % FRONT_SETS;
	bool had = false;

	for (unsigned int t = 0; t < core->nr_threads; t++) {
		struct front *f = core->fronts[t];

		for (int way = 0; way < FRONT_WAYS; way++) {
			if (f->line[set][way] != line + 1)
				continue;
			f->line[set][way] = 0;
			WRITE_ONCE(f->tag[set][way], 0);
			had = true;
		}
	}
	return had;
}

/* L2 has lost the line, so L1 and L1I lose it. The caller holds the core's lock. */
static void drop_l1(struct core *core, uint32_t line)
{
	cache_remove(&core->l1, line);
	front_forget(core, line);
	if (cache_remove(&core->l1i, line))
		code_front_forget(core, line);
}

/* The core loses the line. Return true if it had it. */
static bool core_drop(struct core *core, uint32_t line)
{
	bool had;

	core_lock(core);
	had = cache_remove(&core->l2, line);
	if (had)
		drop_l1(core, line);
	core_unlock(core);
	return had;
}

/* The core may no longer write the line. Return true if it has it. */
static bool core_share(struct core *core, uint32_t line)
{
	uint32_t *in_l1, *in_l2;

	core_lock(core);
	in_l2 = cache_find(&core->l2, line);
	if (in_l2) {
		*in_l2 &= ~ENTRY_WRITABLE;
		in_l1 = cache_find(&core->l1, line);
		if (in_l1)
			*in_l1 &= ~(ENTRY_WRITABLE | ENTRY_WRITER);
		front_forget(core, line);
	}
	core_unlock(core);
	return in_l2;
}

/* Return true if the core's L2, and so perhaps its L1, has the line. */
static bool core_has(struct core *core, uint32_t line)
{
	bool has;

	core_lock(core);
	has = cache_find(&core->l2, line);
	core_unlock(core);
	return has;
}

/* Return the source of a line that core b has, seen from core a. */
enum source core_distance(const struct core *a, const struct core *b)
{
	if (a->llc == b->llc)
		return FROM_SAME_LLC;
	return a->node == b->node ? FROM_OTHER_LLC : FROM_OTHER_NODE;
}

/* Return the source with the longer latency. */
static enum source dearer(enum source a, enum source b)
{
	return memory_options.ns[a] >= memory_options.ns[b] ? a : b;
}

/* Return the source of a line that no other core has to give up. */
static enum source from_llc_or_memory(const struct core *core, uint32_t line)
{
	return cache_use(&llcs[core->llc], line) ? FROM_LLC : home_source(core, line);
}

/* Return true if another core, or another LLC, has a copy. @bits: the cores to ask. */
static bool is_elsewhere(const struct core *core, uint32_t line, uint64_t bits)
{
	for (; bits; bits &= bits - 1) {
		for (unsigned int i = __builtin_ctzll(bits); i < nr_cores; i += OWNER_SHIFT) {
			struct core *other = &cores[i];

			if (other != core &&
			    (core_has(other, line) ||
			     (other->llc != core->llc && cache_find(&llcs[other->llc], line))))
				return true;
		}
	}
	return false;
}

/* Take the line from all others. Return the dearest of @least and the distances to them. */
static enum source drop_elsewhere(const struct core *core, uint32_t line, uint64_t bits,
				  enum source least)
{
	for (; bits; bits &= bits - 1) {
		for (unsigned int i = __builtin_ctzll(bits); i < nr_cores; i += OWNER_SHIFT) {
			struct core *other = &cores[i];
			bool had;

			if (other == core)
				continue;
			had = core_drop(other, line);
			if (other->llc != core->llc)
				had |= cache_remove(&llcs[other->llc], line);
			if (had)
				least = dearer(least, core_distance(core, other));
		}
	}
	return least;
}

/* Another core owns the line: take the line to write it, a copy to read it. */
static enum source fetch_from_owner(struct core *core, struct core *owner, uint32_t line,
				    bool write, bool *writable, uint64_t *word)
{
	const bool has = write ? core_drop(owner, line) : core_share(owner, line);
	const bool in_its_llc = cache_find(&llcs[owner->llc], line);
	enum source source;

	if (has)
		source = core_distance(core, owner);
	else if (in_its_llc)
		source = owner->llc == core->llc ? FROM_LLC : core_distance(core, owner);
	else
		source = home_source(core, line);
	if (write && owner->llc != core->llc)
		cache_remove(&llcs[owner->llc], line);

	*writable = write || !(has || (in_its_llc && owner->llc != core->llc));
	*word = *writable ? owned_by(core) : core_bit(core) | core_bit(owner);
	return source;
}

/* No core owns the line: take it from the nearest cache or memory. */
static enum source fetch_shared(struct core *core, uint32_t line, bool write, bool in_l2,
				bool *writable, uint64_t *word)
{
	const uint64_t bits = *word & CORES_MASK;
	enum source source = in_l2 ? FROM_L2 : from_llc_or_memory(core, line);

	if (write)
		source = drop_elsewhere(core, line, bits, source);
	*writable = write || !is_elsewhere(core, line, bits);
	*word = *writable ? owned_by(core) : bits | core_bit(core);
	return source;
}

/*
 * The caller holds the line's lock, and L1 lacks the line or may not write it.
 * Return what serves the access, and in @writable whether the core now owns the
 * line.
 */
enum source directory_fetch(struct core *core, uint32_t line, bool write, bool *writable)
{
	uint64_t *word = &directory[line];
	unsigned int owner;
	uint32_t *entry;
	bool in_l2;

	core_lock(core);
	entry = cache_use(&core->l2, line);
	in_l2 = entry;
	*writable = entry && *entry & ENTRY_WRITABLE;
	core_unlock(core);
	if (in_l2 && (*writable || !write))
		return FROM_L2;

	owner = *word >> OWNER_SHIFT;
	if (owner == core->index + 1) {
		/* The core's L2 replaced the line, and no other core has asked for it since. */
		*writable = true;
		return from_llc_or_memory(core, line);
	}
	if (owner)
		return fetch_from_owner(core, &cores[owner - 1], line, write, writable, word);
	return fetch_shared(core, line, write, in_l2, writable, word);
}

/* Put a line into L2 and the LLC. The caller holds the locks of the line and of the core. */
static void fill_l2(struct core *core, uint32_t line, uint32_t flags)
{
	uint32_t *entry = cache_find(&core->l2, line);
	uint32_t victim;

	if (entry) {
		*entry = (line + 1) | flags;
		return;
	}
	victim = cache_insert(&core->l2, line, flags) & ENTRY_LINE;
	if (victim)
		drop_l1(core, victim - 1);
	if (!cache_find(&llcs[core->llc], line))
		cache_insert(&llcs[core->llc], line, 0);
}

/*
 * Put a line into L1 or L1I. A hit in a front does not reach the cache, so a line that a front
 * knows has a second chance: only if it is not used again, it is the next victim.
 */
static void fill_l1(struct core *core, struct cache *l1, uint32_t line, uint32_t flags,
		    bool (*forget)(struct core *, uint32_t))
{
	uint32_t *entry = cache_use(l1, line);

	if (entry) {
		*entry = (line + 1) | flags;
		return;
	}
	for (uint32_t way = 0; way < l1->ways; way++) {
		const uint32_t victim = cache_victim(l1, line) & ENTRY_LINE;

		if (!victim || !forget(core, victim - 1))
			break;
		cache_use(l1, victim - 1);
	}
	/* Nothing but an empty way, or a line that no front has. */
	if (cache_victim(l1, line))
		forget(core, (cache_victim(l1, line) & ENTRY_LINE) - 1);
	cache_insert(l1, line, flags);
}

/* Put a line into L1, L2 and the LLC. The caller holds the locks of the line and of the core. */
void directory_fill(struct core *core, uint32_t line, bool writable)
{
	const uint32_t flags = writable ? ENTRY_WRITABLE : 0;

	fill_l2(core, line, flags);
	fill_l1(core, &core->l1, line, flags, front_forget);
}

/* Put a line into L1I, L2 and the LLC, as directory_fill() does. */
void directory_fill_code(struct core *core, uint32_t line, bool writable)
{
	fill_l2(core, line, writable ? ENTRY_WRITABLE : 0);
	fill_l1(core, &core->l1i, line, 0, code_front_forget);
}

/* Make the cores, their caches, the LLCs and an empty directory, as the options say. */
void directory_init(void)
{
	const struct memory_options *o = &memory_options;
	const unsigned int llc_cores = o->llc_cores;

	nr_cores = o->nr_llcs * llc_cores;
	cores = memory_zeroed(nr_cores * sizeof(*cores));
	directory = memory_zeroed((home_top() >> LINE_SHIFT) * sizeof(*directory));
	for (unsigned int llc = 0; llc < o->nr_llcs; llc++)
		cache_init(&llcs[llc], o->llc_kib * 1024, o->llc_ways);
	for (unsigned int i = 0; i < nr_cores; i++) {
		cores[i].index = i;
		cores[i].llc = i / llc_cores;
		cores[i].node = o->llc_node[cores[i].llc];
		cache_init(&cores[i].l1, o->l1_kib * 1024, o->l1_ways);
		cache_init(&cores[i].l2, o->l2_kib * 1024, o->l2_ways);
		if (fetch_is_on())
			cache_init(&cores[i].l1i, o->l1i_kib * 1024, o->l1i_ways);
	}
}
