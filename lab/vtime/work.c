// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instruction by which a program says that it only keeps its CPU busy.
 *
 *	1:	nopl 0x4d41574b(%rax)
 *		jmp 1b
 *
 * A vCPU in this loop is busy for the guest and for its SMT sibling, but is not
 * executed: its local time goes on at the next interrupt, which is the kernel's
 * next tick at the latest. Without the instruction, the endless loops of CPU hogs
 * would be most of what a test with hogs costs the host, and no program uses
 * their results. The simulation stays exact, because an interrupt finds the vCPU in
 * the loop at any time. Such a loop must neither count nor end by itself.
 *
 * To real hardware and to other emulators the instruction is a no-op. There is
 * one for x86-64 only, because no arm64 guest has a load generator.
 */
#include <string.h>

#include "vtime.h"

/* Return true if this block has the nopl with this displacement. */
bool work_has_nopl(const struct qemu_plugin_tb *tb, uint32_t displacement)
{
	const size_t nr = qemu_plugin_tb_n_insns(tb);
	unsigned char wanted[7] = { 0x0f, 0x1f, 0x80 };

	memcpy(wanted + 3, &displacement, sizeof(displacement));
	for (size_t i = 0; i < nr; i++) {
		const struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		unsigned char bytes[sizeof(wanted)];

		if (qemu_plugin_insn_size(insn) == sizeof(wanted) &&
		    qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) == sizeof(bytes) &&
		    !memcmp(bytes, wanted, sizeof(wanted)))
			return true;
	}
	return false;
}

/* Have QEMU call these functions where the block has a begin mark, and where it has an end mark. */
void work_watch_marks(struct qemu_plugin_tb *tb, exec_cb begin, exec_cb end)
{
	if (work_has_nopl(tb, NOPL_BEGIN))
		qemu_plugin_register_vcpu_tb_exec_cb(tb, begin, QEMU_PLUGIN_CB_NO_REGS, NULL);
	if (work_has_nopl(tb, NOPL_END))
		qemu_plugin_register_vcpu_tb_exec_cb(tb, end, QEMU_PLUGIN_CB_NO_REGS, NULL);
}
