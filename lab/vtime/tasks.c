// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whose time it is: instructions and stalls by the task that a vCPU runs, as a part of the
 * profile.
 *
 * The kernel switches tasks in one place, __switch_to_asm():
 *
 *	mov %rsp, OFFSET(%rdi)		of the task that stops
 *	mov OFFSET(%rsi), %rsp		of the task that goes on
 *
 * So the address of the second one's load, less its displacement, is the task_struct
 * of the task that goes on from there. No symbols are needed, because no other code of the
 * kernel loads %rsp in that form.
 *
 * Where a task_struct has the name follows from the first task of all: it is switched
 * from first, and its name is "swapper".
 *
 *	first switch	-> look for "swapper" in the task that stops
 *	each switch	-> count for the last task; read the name of the one that goes on
 *	stall		-> count for the present task
 *
 * Tasks of one name are one. A name is that of the last switch: a program that a task begins
 * counts from the next switch on. Interrupts count for the task that they interrupt. On
 * other architectures, and before the first switch, all is one task without a name.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vtime.h"

#define NAME_BYTES 16 /* the kernel's TASK_COMM_LEN */
#define FIRST_NAME "swapper" /* then the number of the CPU */
#define TASK_BYTES 8192 /* a task_struct has its name in so many */
#define TASKS 1024 /* names of a vCPU's table; the first has all that find no place */
#define KERNEL_BEGINS (1ULL << 63)

struct task {
	char name[NAME_BYTES];
	uint64_t insns, stall_ps;
	bool is_used;
};

/* The vCPU's own thread writes its entries, the watchdog's reads the tables. */
static struct task *tables[MAX_VCPUS];
static struct task *present[MAX_VCPUS];
static uint64_t counted[MAX_VCPUS]; /* the vCPU's instructions when its present task began */
static int64_t name_offset = -1; /* in a task_struct; -2: not found */

/* Return the table of a vCPU. Its first task is the present one until there is a switch. */
static struct task *table_of(unsigned int index)
{
	struct task *table = tables[index];

	if (table)
		return table;
	table = calloc(TASKS, sizeof(*table));
	if (!table)
		abort();
	table[0].is_used = true;
	present[index] = table;
	__atomic_store_n(&tables[index], table, __ATOMIC_RELEASE);
	return table;
}

/* Return the entry of a name. */
static struct task *task_of(unsigned int index, const char *name)
{
	struct task *table = table_of(index);
	uint64_t hash = 0;

	for (int i = 0; i < NAME_BYTES; i++)
		hash = (hash ^ (unsigned char)name[i]) * 0x100000001b3ULL;
	for (unsigned int i = 0; i < TASKS - 1; i++) {
		struct task *t = &table[1 + (hash + i) % (TASKS - 1)];

		if (!t->is_used) {
			memcpy(t->name, name, NAME_BYTES);
			__atomic_store_n(&t->is_used, true, __ATOMIC_RELEASE);
		}
		if (!memcmp(t->name, name, NAME_BYTES))
			return t;
	}
	return &table[0];
}

/* The first task stops for the first time: look where it has its name. */
static void find_name(uint64_t task)
{
	GByteArray *bytes = g_byte_array_new();
	int64_t offset = -2;

	if (qemu_plugin_read_memory_vaddr(task, bytes, TASK_BYTES)) {
		const uint8_t *name =
			memmem(bytes->data, bytes->size, FIRST_NAME, strlen(FIRST_NAME));

		if (name)
			offset = name - bytes->data;
	}
	g_byte_array_free(bytes, true);
	WRITE_ONCE(name_offset, offset);
}

/* A task stops: @vaddr is where it keeps its stack pointer, @displacement where in it that is. */
static void task_stops(unsigned int index, uint32_t info, uint64_t vaddr, void *displacement)
{
	(void)index;
	(void)info;
	if (READ_ONCE(name_offset) == -1)
		find_name(vaddr - (uintptr_t)displacement);
}

/* Count the instructions since the last call for the present task. */
void tasks_sample(const struct vcpu *v)
{
	const unsigned int index = v - vcpus;
	uint64_t insns;

	if (!profile_is_on())
		return;
	insns = v->insns + (*v->score - v->counted) - v->stalled;
	table_of(index);
	add_once(&present[index]->insns, insns - counted[index]);
	counted[index] = insns;
}

/* The present task waits for memory. */
void tasks_stall(const struct vcpu *v, uint64_t ps)
{
	const unsigned int index = v - vcpus;

	table_of(index);
	add_once(&present[index]->stall_ps, ps);
}

/* Another task goes on: see task_stops(). */
static void task_goes_on(unsigned int index, uint32_t info, uint64_t vaddr, void *displacement)
{
	const uint64_t task = vaddr - (uintptr_t)displacement;
	GByteArray *bytes;

	(void)info;
	if (READ_ONCE(name_offset) < 0)
		return;
	tasks_sample(&vcpus[index]);
	bytes = g_byte_array_new();
	if (qemu_plugin_read_memory_vaddr(task + name_offset, bytes, NAME_BYTES))
		present[index] = task_of(index, (const char *)bytes->data);
	g_byte_array_free(bytes, true);
}

/* Have translated code call the two functions above where the kernel switches tasks. */
void tasks_watch(struct qemu_plugin_tb *tb)
{
	static const uint8_t stops[] = { 0x48, 0x89, 0xa7 }, goes_on[] = { 0x48, 0x8b, 0xa6 };
	const size_t nr = profile_is_on() ? qemu_plugin_tb_n_insns(tb) : 0;

	for (size_t i = 0; i < nr; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		int32_t displacement;
		uint8_t bytes[7];
		void *at;

		if (qemu_plugin_insn_size(insn) != sizeof(bytes) ||
		    qemu_plugin_insn_vaddr(insn) < KERNEL_BEGINS ||
		    qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) != sizeof(bytes))
			continue;
		memcpy(&displacement, bytes + 3, sizeof(displacement));
		at = (void *)(intptr_t)displacement;
		if (!memcmp(bytes, stops, sizeof(stops)))
			qemu_plugin_register_vcpu_mem_cb(insn, task_stops, QEMU_PLUGIN_CB_NO_REGS,
							 QEMU_PLUGIN_MEM_W, at);
		if (!memcmp(bytes, goes_on, sizeof(goes_on)))
			qemu_plugin_register_vcpu_mem_cb(insn, task_goes_on, QEMU_PLUGIN_CB_NO_REGS,
							 QEMU_PLUGIN_MEM_R, at);
	}
}

/* Write all tasks, a line for each CPU and name. */
void tasks_write(FILE *f)
{
	for (unsigned int i = 0; i < nr_vcpus; i++) {
		const struct task *table = __atomic_load_n(&tables[i], __ATOMIC_ACQUIRE);

		for (unsigned int slot = 0; table && slot < TASKS; slot++) {
			const struct task *t = &table[slot];
			char name[NAME_BYTES];

			if (!__atomic_load_n(&t->is_used, __ATOMIC_ACQUIRE))
				continue;
			memcpy(name, t->name, sizeof(name));
			name[NAME_BYTES - 1] = 0;
			for (char *c = name; *c; c++)
				if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
					*c = '?';
			fprintf(f, "task %u %" PRIu64 " %" PRIu64 " %s\n", i, READ_ONCE(t->insns),
				READ_ONCE(t->stall_ps), name);
		}
	}
}
