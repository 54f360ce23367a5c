// SPDX-License-Identifier: GPL-2.0-only
/*
 * Replaces a function of QEMU by one of the plugin: its first bytes become a
 * jump.
 *
 * Interposing would not do, because calls within QEMU do not go through a symbol
 * table. A function is replaced as a whole and never called again, so no
 * instruction has to be moved. QEMU exports its symbols with their sizes, so the
 * room for the jump is known. QEMU has one thread at that time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vtime.h"

#ifndef __x86_64__
#error "patch.c knows the jump of x86-64 hosts only"
#endif

/* movabs $address, %rax; jmp *%rax */
static const unsigned char jump[] = { 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0 };

/* Return false, with the reason in @why, if the function is missing or too short. */
bool patch_function(const char *name, void *replacement, char *why, size_t size)
{
	unsigned char *function = dlsym(RTLD_DEFAULT, name);
	const ElfW(Sym) *symbol = NULL;
	uintptr_t page, end;
	Dl_info info;

	if (!function) {
		snprintf(why, size, "this QEMU does not export %s()", name);
		return false;
	}
	if (!dladdr1(function, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol ||
	    symbol->st_size < sizeof(jump)) {
		snprintf(why, size, "%s() is too short to be replaced", name);
		return false;
	}
	page = (uintptr_t)function & -(uintptr_t)getpagesize();
	end = (uintptr_t)function + sizeof(jump);
	if (mprotect((void *)page, end - page, PROT_READ | PROT_WRITE | PROT_EXEC)) {
		snprintf(why, size, "%s(): mprotect: %s", name, strerror(errno));
		return false;
	}
	memcpy(function, jump, sizeof(jump));
	memcpy(function + 2, &replacement, sizeof(replacement));
	mprotect((void *)page, end - page, PROT_READ | PROT_EXEC);
	return true;
}
