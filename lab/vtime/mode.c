// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mode switches: a system call, an interrupt, another address space.
 *
 * A processor drains its pipeline and executes microcode there. To QEMU each of them is
 * one instruction. So a price is added to the instruction that each of them has:
 *
 *	syscall			a system call, its return by sysret included
 *	iret			an interrupt or an exception, its entry included: the entry
 *				has no instruction, but each ends here. So do the few system
 *				calls that cannot return by sysret.
 *	mov %reg, %cr3		another address space
 *
 * The kernel's own instructions on the way cost what instructions cost, so a price is
 * only what the processor does. Nothing is executed for it elsewhere: the instruction is
 * found when its block is translated.
 */
#include "memory.h"

static uint64_t syscall_ps, interrupt_ps, space_ps;

/* Before a syscall. */
void mode_syscall(unsigned int index, void *userdata)
{
	(void)userdata;
	memory_wait(index, MODE_SYSCALL, syscall_ps);
}

/* Before an iret. */
void mode_interrupt(unsigned int index, void *userdata)
{
	(void)userdata;
	memory_wait(index, MODE_INTERRUPT, interrupt_ps);
}

/* Before a load of CR3. */
void mode_space(unsigned int index)
{
	memory_wait(index, MODE_SPACE, space_ps);
}

void mode_init(void)
{
	syscall_ps = memory_options.syscall_ns * 1000;
	interrupt_ps = memory_options.interrupt_ns * 1000;
	space_ps = memory_options.space_ns * 1000;
}
