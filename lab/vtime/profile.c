// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where virtual time goes: a profile by address of the guest's kernel.
 *
 * Each block notes its address as it begins. At a quantum's end the instructions
 * of the whole quantum count for the block that ended it: a sample once in so
 * many instructions, which costs nothing between samples. A stall of memory.c
 * counts in full, for the block that waits. All of user space is one address,
 * because several processes share its addresses.
 *
 *	block begins  -> pc := its address
 *	quantum ends  -> place(pc).insns += instructions since the last sample
 *	stall         -> place(pc).stall_ps += its time
 *
 * The file has one line for each CPU and address: address, instructions, and the
 * stalls in picoseconds. lab/src/vtime/profile.rs adds the symbols. Instructions
 * that found no free place count for address 0. The lines of tasks.c follow.
 *
 * What it does not do: say who called.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vtime.h"

#define PLACES (1u << 15) /* of a vCPU's table */
#define PROBES 64 /* places that are tried for one address */
#define GRAIN 16 /* bytes that share a place: x86 functions begin at multiples of it */
#define KERNEL_BEGINS (1ULL << 63)
#define USER_SPACE 1 /* stands for every address of user space */

struct place {
	uint64_t pc, insns, stall_ps;
};

/* The vCPU's own thread writes its table, the watchdog's reads it. */
static struct place *tables[MAX_VCPUS];
static uint64_t sampled[MAX_VCPUS]; /* the vCPU's instructions at its last sample */

bool profile_is_on(void)
{
	return options.profile;
}

/* Have each block note its address in the scoreboard's @entry. */
void profile_watch(struct qemu_plugin_tb *tb, qemu_plugin_u64 entry)
{
	const uint64_t pc = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));

	if (profile_is_on())
		qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
			tb, QEMU_PLUGIN_INLINE_STORE_U64, entry,
			pc < KERNEL_BEGINS ? USER_SPACE : pc & ~(GRAIN - 1ULL));
}

/* Return the place of an address, or that of 0 if the table has none left. */
static struct place *place_of(unsigned int index, uint64_t pc)
{
	struct place *table = tables[index];
	const uint64_t slot = pc * 0x9e3779b97f4a7c15ULL >> 32;

	if (!table) {
		table = calloc(PLACES, sizeof(*table));
		if (!table)
			abort();
		__atomic_store_n(&tables[index], table, __ATOMIC_RELEASE);
	}
	for (unsigned int i = 0; i < PROBES; i++) {
		struct place *place = &table[1 + (slot + i) % (PLACES - 1)];

		if (!place->pc)
			WRITE_ONCE(place->pc, pc);
		if (place->pc == pc)
			return place;
	}
	return &table[0];
}

static void add(uint64_t *sum, uint64_t n)
{
	WRITE_ONCE(*sum, *sum + n);
}

/* A quantum of a vCPU ends. The vCPU's own thread, after vcpu_count(). */
void profile_sample(const struct vcpu *v)
{
	const unsigned int index = v - vcpus;

	if (!profile_is_on())
		return;
	add(&place_of(index, *v->pc)->insns, v->insns - sampled[index]);
	sampled[index] = v->insns;
	tasks_sample(v);
}

/* A vCPU waits for memory. The vCPU's own thread. */
void profile_stall(const struct vcpu *v, uint64_t ps)
{
	if (!profile_is_on())
		return;
	add(&place_of(v - vcpus, *v->pc)->stall_ps, ps);
	tasks_stall(v, ps);
}

/* Write all places to the file of the option. */
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
	for (unsigned int i = 0; i < nr_vcpus; i++) {
		const struct place *table = __atomic_load_n(&tables[i], __ATOMIC_ACQUIRE);

		for (unsigned int slot = 0; table && slot < PLACES; slot++) {
			const struct place *place = &table[slot];

			if (READ_ONCE(place->insns) || READ_ONCE(place->stall_ps))
				fprintf(f, "%u %" PRIx64 " %" PRIu64 " %" PRIu64 "\n", i,
					READ_ONCE(place->pc), READ_ONCE(place->insns),
					READ_ONCE(place->stall_ps));
		}
	}
	tasks_write(f);
	if (fclose(f))
		fprintf(stderr, "magpie-vtime: cannot write the profile to %s: %s\n",
			options.profile, strerror(errno));
}
