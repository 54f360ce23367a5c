// SPDX-License-Identifier: GPL-2.0-only
/*
 * Breakpoints that the kernel has removed.
 *
 * Before a block with a breakpoint runs, look whether the breakpoint is still in
 * memory, because QEMU may keep a stale one. The kernel patches its running code
 * (as when a scheduler is loaded): it puts a breakpoint over an instruction and
 * removes it later. QEMU translates code first, and only then watches its page
 * for writes. A vCPU that translates while another one removes the breakpoint
 * keeps a block that contains it, and the kernel panics at a breakpoint that the
 * kernel no longer knows ("Oops: int3").
 *
 *	block with a breakpoint is about to run
 *	  is it still in memory? --yes--> run
 *	        | no
 *	  forget all blocks, and begin this one again
 *
 * Other instructions need no such look, because the kernel patches them only
 * under a breakpoint.
 */
#include "vtime.h"

#define BREAKPOINT 0xcc

/* Return the first byte of an instruction's code. */
static uint8_t first_byte(const struct qemu_plugin_insn *insn)
{
	uint8_t byte = 0;

	qemu_plugin_insn_data(insn, &byte, sizeof(byte));
	return byte;
}

/*
 * Return true if there is no breakpoint in memory at that address. False if the
 * address cannot be read: the guest then faults as usual.
 */
static bool is_gone(uint64_t address)
{
	GByteArray *bytes = g_byte_array_new();
	const bool gone = qemu_plugin_read_memory_vaddr(address, bytes, 1) &&
			  bytes->data[0] != BREAKPOINT;

	g_byte_array_free(bytes, true);
	return gone;
}

/* Translated code calls this before a block with a breakpoint. */
static void breakpoint_is_next(unsigned int index, void *userdata)
{
	struct vcpu *v = &vcpus[index];

	if (!v->cpu || !is_gone((uintptr_t)userdata))
		return;

	COUNT(stale_breakpoints);
	tb_flush(v->cpu);
	/* QEMU finds the guest's state by the address in the block that called this. */
	cpu_loop_exit_restore(v->cpu, (uintptr_t)__builtin_return_address(0));
}

/* Check each breakpoint of this block before the block runs. */
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
