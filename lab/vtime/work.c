// SPDX-License-Identifier: GPL-2.0-only
/*
 * Work: the instruction of programs that only keep a CPU busy.
 *
 * A CPU hog executes an endless loop that nobody ever sees the result of.
 * Emulated, that loop is most of what a test with hogs costs its host: so a
 * program may say that it has nothing else to do until it is interrupted.
 *
 *	1:	nopl 0x4d41574b(%rax)
 *		jmp 1b
 *
 * Its vCPU is busy, for the guest and for its SMT sibling, but is not executed:
 * like a halted one it goes on at the time of the next interrupt (the kernel's
 * tick comes to a busy CPU, so that is soon). Nothing is approximated: an
 * interrupt finds it in the loop at any time. What such a loop may not do is
 * count, or end by itself.
 *
 * On real hardware, and to any other emulator, this is a no-op. Only on x86-64:
 * no arm64 guest has a load generator so far.
 */
#include <string.h>

#include "vtime.h"

/* nopl with a displacement of 32 bits that no compiler would pad code with. */
static const unsigned char work[] = { 0x0f, 0x1f, 0x80, 0x4b, 0x57, 0x41, 0x4d };

bool work_is_in(const struct qemu_plugin_tb *tb)
{
	const size_t nr = qemu_plugin_tb_n_insns(tb);

	for (size_t i = 0; i < nr; i++) {
		const struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		unsigned char bytes[sizeof(work)];

		if (qemu_plugin_insn_size(insn) == sizeof(work) &&
		    qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) == sizeof(bytes) &&
		    !memcmp(bytes, work, sizeof(work)))
			return true;
	}
	return false;
}
