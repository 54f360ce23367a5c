// SPDX-License-Identifier: GPL-2.0-only
/*
 * Instruction fetch: which lines of code a core's L1I has, and what a line costs that it
 * lacks.
 *
 * QEMU knows a block by its physical address, so the lines of a block are known when it is
 * translated. For each of them the translated code compares a word of the vCPU's front
 * with the line, and calls fetch() if it is another one:
 *
 *	block begins -- front, inline -- hit: free
 *	                 | miss
 *	               L1I (core's lock) -- hit: free
 *	                 | miss
 *	               directory.c: L2, another core, the LLC, a node's memory
 *	                 |
 *	               all of the latency; `streamed` of it from the third line on of
 *	               code that goes straight on, because it is prefetched
 *
 * The front has one line of each remainder. A line in the front is in L1I too. So a loop
 * in code that was executed before calls nothing.
 *
 * L1I holds copies only: a line that another core writes is dropped, one that the core
 * itself writes stays. Translations of code are free.
 */
#include "memory.h"

#define CODE_FRONT 512 /* lines */
#define PAGE_BYTES (1ULL << PAGE_SHIFT)

/* The last line that L1I lacked, and how many in a row each followed the one before. */
static struct walk {
	uint32_t line;
	unsigned int length;
} __attribute__((aligned(128))) walks[MAX_VCPUS];

bool fetch_is_on(void)
{
	return memory_options.l1i_kib > 0;
}

/* Return the size of a vCPU's front: a word for each line, 0 or the line plus one. */
size_t fetch_front_bytes(void)
{
	return fetch_is_on() ? CODE_FRONT * sizeof(uint64_t) : 0;
}

/* The fronts of the core forget the line. Return true if one had it. The caller holds its lock. */
bool code_front_forget(struct core *core, uint32_t line)
{
	bool had = false;

	for (unsigned int t = 0; t < core->nr_threads; t++) {
		uint64_t *word = core->code_fronts[t];

		/* A vCPU that has not started has none. */
		if (!word || READ_ONCE(word[line % CODE_FRONT]) != line + 1ULL)
			continue;
		WRITE_ONCE(word[line % CODE_FRONT], 0);
		had = true;
	}
	return had;
}

/* Return true if the line follows others that L1I lacked. */
static bool is_straight_on(struct walk *w, uint32_t line)
{
	w->length = line == w->line + 1 ? w->length + 1 : 1;
	w->line = line;
	return w->length > STREAM_TRAINED;
}

/* Translated code calls this before a block with a line that the front lacks. */
static void fetch(unsigned int index, void *userdata)
{
	const uint32_t line = (uintptr_t)userdata - 1;
	struct core *core = memory_core(index);
	uint64_t *word = &core->code_fronts[memory_thread(index)][line % CODE_FRONT];
	enum source source;
	bool writable;

	core_lock(core);
	if (cache_use(&core->l1i, line)) {
		WRITE_ONCE(*word, line + 1ULL);
		core_unlock(core);
		return;
	}
	core_unlock(core);

	line_lock(line);
	source = directory_fetch(core, line, false, &writable);
	core_lock(core);
	directory_fill_code(core, line, writable);
	WRITE_ONCE(*word, line + 1ULL);
	core_unlock(core);
	line_unlock(line);
	memory_charge_code(index, line, source,
			   is_straight_on(&walks[index], line) ? memory_options.streamed : 1);
}

/* Have translated code look for a line. @front: of the scoreboard. */
static void watch_line(struct qemu_plugin_tb *tb, qemu_plugin_u64 front, uint32_t line)
{
	front.offset += line % CODE_FRONT * sizeof(uint64_t);
	qemu_plugin_register_vcpu_tb_exec_cond_cb(tb, fetch, QEMU_PLUGIN_CB_NO_REGS,
						  QEMU_PLUGIN_COND_NE, front, line + 1ULL,
						  (void *)(uintptr_t)(line + 1ULL));
}

/* Watch the lines of a block: from its first byte to its last one, in at most two pages. */
void fetch_watch(struct qemu_plugin_tb *tb, qemu_plugin_u64 front)
{
	const struct qemu_plugin_insn *last =
		qemu_plugin_tb_get_insn(tb, qemu_plugin_tb_n_insns(tb) - 1);
	const uint64_t begin = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
	const uint64_t end = qemu_plugin_insn_vaddr(last) + qemu_plugin_insn_size(last);
	uint64_t page = 0;

	for (uint64_t vaddr = begin & -LINE_BYTES; vaddr < end; vaddr += LINE_BYTES) {
		if (vaddr <= begin || vaddr % PAGE_BYTES == 0)
			page = cpu_get_phys_page_debug(self->cpu, vaddr & -PAGE_BYTES);
		/* Else it is no memory, or not mapped any more. */
		if (page < home_top())
			watch_line(tb, front, (page + vaddr % PAGE_BYTES) >> LINE_SHIFT);
	}
}
