// SPDX-License-Identifier: GPL-2.0-only
/*
 * Breakpoints that the kernel has removed.
 *
 * Before a block that ends in a breakpoint runs, look whether the breakpoint is
 * still in memory, because QEMU may keep a stale one. The kernel patches its
 * running code (as when a scheduler is loaded): it puts a breakpoint over an
 * instruction and removes it later. For a store to a page with translated code,
 * QEMU first drops the page's blocks and then stores. A vCPU that translates in
 * between, or before QEMU watches the page again, keeps a block with the old
 * byte, and the kernel panics at a breakpoint that it no longer knows ("Oops:
 * int3").
 *
 *	block is translated
 *	  its last instruction has one byte?	--no---> nothing to watch
 *	        | yes
 *	  that byte in memory is a breakpoint,	--no---> nothing to watch
 *	  or begins a longer instruction?
 *	        | yes
 *	block is about to run
 *	  breakpoint in memory?			--yes--> run
 *	        | no
 *	  forget all blocks, and begin this one again
 *
 * QEMU tells the plugin how long each translated instruction was, but takes its
 * bytes from memory when the plugin asks. So the kernel may have removed the
 * breakpoint before the plugin could see it; then the length is right and the
 * byte is not.
 *
 * Other instructions need no such look, because the kernel patches them only
 * under a breakpoint, and no vCPU leaves a translation before the kernel stores
 * the next byte: the kernel waits for an interrupt on each CPU.
 *
 * Not seen: a breakpoint over an instruction of one byte, gone before the plugin
 * asks. The kernel patches none in normal operation (a kprobe may).
 */
#include "vtime.h"

#define BREAKPOINT 0xcc

/* Return the first byte of an instruction's code, as memory has it now. */
static uint8_t first_byte(const struct qemu_plugin_insn *insn)
{
	uint8_t byte = 0;

	qemu_plugin_insn_data(insn, &byte, sizeof(byte));
	return byte;
}

/*
 * Return true if an x86 instruction that begins with this byte, in any mode of the
 * CPU, has more bytes: calls, jumps, and the no-operations that the kernel puts
 * in their place.
 */
static bool is_of_several_bytes(uint8_t byte)
{
	switch (byte) {
	case 0x0f: /* nopl, and jumps under a condition */
	case 0x2e: /* prefixes of longer no-operations */
	case 0x3e:
	case 0x66:
	case 0xe8: /* call */
	case 0xe9: /* jmp */
	case 0xeb:
		return true;
	default:
		return false;
	}
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
	CPUState *cpu = qemu_get_cpu(index);

	if (!cpu || !is_gone((uintptr_t)userdata))
		return;

	COUNT(stale_breakpoints);
	tb_flush(cpu);
	/* QEMU finds the guest's state by the address in the block that called this. */
	cpu_loop_exit_restore(cpu, (uintptr_t)__builtin_return_address(0));
}

/* Check the breakpoint at the end of this block, if there is one, before the block runs. */
void breakpoint_watch(struct qemu_plugin_tb *tb)
{
	/* A breakpoint ends a block. */
	const struct qemu_plugin_insn *last =
		qemu_plugin_tb_get_insn(tb, qemu_plugin_tb_n_insns(tb) - 1);
	uint8_t byte;

	if (qemu_plugin_insn_size(last) != 1)
		return;
	byte = first_byte(last);
	if (byte == BREAKPOINT || is_of_several_bytes(byte))
		qemu_plugin_register_vcpu_tb_exec_cb(
			tb, breakpoint_is_next, QEMU_PLUGIN_CB_RW_REGS,
			(void *)(uintptr_t)qemu_plugin_insn_vaddr(last));
}
