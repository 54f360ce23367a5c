// SPDX-License-Identifier: GPL-2.0-only
/*
 * Breakpoints that are no longer there.
 *
 * The kernel patches its running code, as when a scheduler is loaded: it puts a
 * breakpoint over an instruction, and takes it away again. QEMU translates code
 * first and watches its page for writes only then. A CPU that translates while
 * another takes the breakpoint away is left with a block that contains it, and
 * the kernel dies of a breakpoint that nobody set ("Oops: int3").
 *
 *	block with a breakpoint is about to run
 *	  is it still in memory? --yes--> run
 *	        | no
 *	  forget all blocks, and begin this one again
 *
 * What it does not do: find other instructions that were patched meanwhile. The
 * kernel changes them only under a breakpoint.
 */
#include "vtime.h"

#define BREAKPOINT 0xcc

static uint8_t first_byte(const struct qemu_plugin_insn *insn)
{
	uint8_t byte = 0;

	qemu_plugin_insn_data(insn, &byte, sizeof(byte));
	return byte;
}

/* Whether memory holds something else at that address. Unreadable: let the guest find out. */
static bool is_gone(uint64_t address)
{
	GByteArray *bytes = g_byte_array_new();
	const bool gone = qemu_plugin_read_memory_vaddr(address, bytes, 1) &&
			  bytes->data[0] != BREAKPOINT;

	g_byte_array_free(bytes, true);
	return gone;
}

static void breakpoint_is_next(unsigned int index, void *userdata)
{
	struct vcpu *v = &vcpus[index];

	if (!v->cpu || !is_gone((uintptr_t)userdata))
		return;

	COUNT(stale_breakpoints);
	tb_flush(v->cpu);
	/* Called from the translated block: QEMU finds the guest's state by that address. */
	cpu_loop_exit_restore(v->cpu, (uintptr_t)__builtin_return_address(0));
}

void breakpoint_watch(struct qemu_plugin_tb *tb)
{
	const size_t nr = qemu_plugin_tb_n_insns(tb);

	for (size_t i = 0; i < nr; i++) {
		const struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		if (qemu_plugin_insn_size(insn) == 1 && first_byte(insn) == BREAKPOINT)
			qemu_plugin_register_vcpu_tb_exec_cb(
				tb, breakpoint_is_next, QEMU_PLUGIN_CB_RW_REGS,
				(void *)(uintptr_t)qemu_plugin_insn_vaddr(insn));
	}
}
