// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where virtual time goes: a profile by address of the guest's kernel.
 *
 * Each block of translated code has a place in a table, found when the block is
 * translated. As it begins, it adds its instructions and one entry to its place,
 * inline. So counts are exact, but for blocks that a page fault ends. A sample at each
 * quantum's end is not: a vCPU's quantum begins as it is woken, so the same function
 * ends it each time.
 *
 *	block translated -> its place, by its address
 *	block begins     -> place.insns += its length, place.entries += 1
 *	stall            -> waits[place of the present block].stall_ps += its time
 *	line of another  -> waits[place of the present block].taken or .shared += 1
 *
 * All of user space is one place, because several processes share its addresses.
 * A block that finds no free place counts at the place of address 0.
 *
 * The file has one line for each CPU and place: address, instructions, entries, the
 * stalls in picoseconds, and the lines that were taken from other CPUs or shared with
 * them. lab/src/vtime/profile.rs adds the symbols. The lines of tasks.c follow.
 *
 * What it does not do: say who called.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vtime.h"

#define PLACES (1u << 17) /* 2 MiB of a vCPU; of 1,024 vCPUs an offset that QEMU can add */
#define PROBES 64 /* places that are tried for one address */
#define KERNEL_BEGINS (1ULL << 63)
#define USER_SPACE 1 /* stands for every address of user space */

/* What the blocks of one place have done on a vCPU. Translated code writes it. */
struct place {
	uint64_t insns, entries;
};

/* What memory did to them. The vCPU's own thread writes it. */
struct waits {
	uint64_t stall_ps;
	uint64_t taken, shared; /* see profile_transfer() */
};

static uint64_t addresses[PLACES]; /* place 0 is that of blocks without a place */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the addresses */

static struct qemu_plugin_scoreboard *places; /* PLACES of each vCPU */
static struct waits *waits[MAX_VCPUS]; /* by place */
static unsigned int nr_started;

bool profile_is_on(void)
{
	return options.profile;
}

/* Return the place of an address, a new one if it has none, or 0 if the table has none left. */
static unsigned int place_of(uint64_t pc)
{
	const uint64_t slot = pc * 0x9e3779b97f4a7c15ULL >> 32;
	unsigned int found = 0;

	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < PROBES && !found; i++) {
		const unsigned int place = 1 + (slot + i) % (PLACES - 1);

		if (!addresses[place])
			WRITE_ONCE(addresses[place], pc);
		if (addresses[place] == pc)
			found = place;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

/* Have each block count at its place, and note the place in the scoreboard's @entry. */
void profile_watch(struct qemu_plugin_tb *tb, qemu_plugin_u64 entry)
{
	uint64_t pc, place;
	qemu_plugin_u64 count;

	if (!profile_is_on())
		return;
	pc = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
	place = place_of(pc < KERNEL_BEGINS ? USER_SPACE : pc);
	count = (qemu_plugin_u64){ places, place * sizeof(struct place) };
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_STORE_U64, entry,
							  place);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, count,
							  qemu_plugin_tb_n_insns(tb));
	count.offset += offsetof(struct place, entries);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, count, 1);
}

/* A vCPU waits for memory. The vCPU's own thread. */
void profile_stall(const struct vcpu *v, uint64_t ps)
{
	if (!profile_is_on())
		return;
	add_once(&waits[v - vcpus][*v->place].stall_ps, ps);
	tasks_stall(v, ps);
}

/*
 * A line that another CPU has: a write takes it from there, after a read both have it. The vCPU's
 * own thread.
 */
void profile_transfer(const struct vcpu *v, bool is_write)
{
	struct waits *w;

	if (!profile_is_on())
		return;
	w = &waits[v - vcpus][*v->place];
	add_once(is_write ? &w->taken : &w->shared, 1);
}

/* A vCPU's own thread, before it executes. */
void profile_start(unsigned int index)
{
	if (!profile_is_on())
		return;
	waits[index] = calloc(PLACES, sizeof(struct waits));
	if (!waits[index])
		abort();
	__atomic_fetch_add(&nr_started, 1, __ATOMIC_RELEASE);
}

static void write_vcpu(FILE *f, unsigned int index)
{
	const struct place *of_vcpu = qemu_plugin_scoreboard_find(places, index);

	for (unsigned int i = 0; i < PLACES; i++) {
		const uint64_t insns = READ_ONCE(of_vcpu[i].insns);
		const struct waits *w = &waits[index][i];
		const uint64_t stall_ps = READ_ONCE(w->stall_ps);

		if (insns || stall_ps)
			fprintf(f,
				"%u %" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
				" %" PRIu64 "\n",
				index, READ_ONCE(addresses[i]), insns,
				READ_ONCE(of_vcpu[i].entries), stall_ps, READ_ONCE(w->taken),
				READ_ONCE(w->shared));
	}
}

/*
 * Write all places to the file of the option. It stays empty until all vCPUs have started: with
 * each new one QEMU may move the counts.
 */
void profile_write(void)
{
	FILE *f;

	if (!profile_is_on())
		return;
	f = fopen(options.profile, "w");
	if (!f) {
		fprintf(stderr, "magpie-vtime: cannot write the profile to %s: %s\n",
			options.profile, strerror(errno));
		return;
	}
	if (__atomic_load_n(&nr_started, __ATOMIC_ACQUIRE) == nr_vcpus) {
		for (unsigned int i = 0; i < nr_vcpus; i++)
			write_vcpu(f, i);
		tasks_write(f);
	}
	if (fclose(f))
		fprintf(stderr, "magpie-vtime: cannot write the profile to %s: %s\n",
			options.profile, strerror(errno));
}

/* Make the counts, before any block is translated. */
void profile_register(void)
{
	if (profile_is_on())
		places = qemu_plugin_scoreboard_new(PLACES * sizeof(struct place));
}
