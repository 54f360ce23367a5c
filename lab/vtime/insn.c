// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which x86 instructions the memory model must know.
 *
 * A look at prefixes and opcode is enough, because only these are told apart:
 *
 *	lock prefix, xchg with memory		INSN_LOCKED
 *	rep movs, rep stos			INSN_COPY
 *	rep cmps, scas, lods			INSN_SCAN
 *	syscall					INSN_SYSCALL
 *	iret					INSN_IRET
 *	mov %reg, %cr3				INSN_NEW_SPACE
 *	mov %reg, %cr0 or %cr4, invlpg		INSN_NEW_TRANSLATION
 *
 * invpcid and PCIDs are not in the CPU model, so that every change of a
 * translation passes through one of the last two. On other architectures all
 * instructions are plain.
 */
#include "memory.h"

struct decoded {
	uint8_t bytes[16];
	size_t size, at; /* where the opcode is */
	bool has_lock, has_rep;
};

/* Advance to the opcode, and note the prefixes that matter. */
static void skip_prefixes(struct decoded *d)
{
	for (; d->at < d->size; d->at++) {
		const uint8_t b = d->bytes[d->at];

		if (b == 0xf0)
			d->has_lock = true;
		else if (b == 0xf2 || b == 0xf3)
			d->has_rep = true;
		else if (b != 0x66 && b != 0x67 && b != 0x2e && b != 0x36 && b != 0x3e &&
			 b != 0x26 && b != 0x64 && b != 0x65 && (b & 0xf0) != 0x40)
			return;
	}
}

/* 0x0f 0x22: a write of a control register. 0x0f 0x01 with 7 in the reg field: invlpg. */
static enum insn_kind kind_of_system(const struct decoded *d)
{
	const uint8_t modrm = d->bytes[d->at + 2], reg = modrm >> 3 & 7;

	if (d->bytes[d->at + 1] == 0x22 && reg == 3)
		return INSN_NEW_SPACE;
	if (d->bytes[d->at + 1] == 0x22 && (reg == 0 || reg == 4))
		return INSN_NEW_TRANSLATION;
	if (d->bytes[d->at + 1] == 0x01 && reg == 7 && modrm < 0xc0)
		return INSN_NEW_TRANSLATION;
	return INSN_PLAIN;
}

/* Return the kind of an instruction: the table above. */
enum insn_kind insn_kind(const struct qemu_plugin_insn *insn)
{
	struct decoded d = { 0 };
	uint8_t op;

	d.size = qemu_plugin_insn_data(insn, d.bytes, sizeof(d.bytes) - 1);
	skip_prefixes(&d);
	if (d.at >= d.size)
		return INSN_PLAIN;
	op = d.bytes[d.at];
	if (op == 0xcf)
		return INSN_IRET;
	if (op == 0x0f && d.at + 1 < d.size && d.bytes[d.at + 1] == 0x05)
		return INSN_SYSCALL;
	if (op == 0x0f && d.at + 2 < d.size && !d.has_lock)
		return kind_of_system(&d);
	if (d.has_lock || op == 0x86 || op == 0x87)
		return INSN_LOCKED;
	if (d.has_rep && (op == 0xa4 || op == 0xa5 || op == 0xaa || op == 0xab))
		return INSN_COPY;
	if (d.has_rep && ((op & 0xfe) == 0xa6 || (op & 0xfe) == 0xac || (op & 0xfe) == 0xae))
		return INSN_SCAN;
	return INSN_PLAIN;
}
