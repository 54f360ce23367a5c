// SPDX-License-Identifier: GPL-2.0-only
/*
 * The plugin of machines in real time, magpie-breakpoint.so: breakpoint.c and
 * nothing else. The emulator stays as it is but for blocks that end in a
 * breakpoint.
 */
#include <inttypes.h>
#include <stdio.h>

#include "vtime.h"

/* QEMU 9.2 and later have version 4. */
EXPORT int qemu_plugin_version = 4;

static struct counters all;
struct counters *counters = &all;

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	breakpoint_watch(tb);
}

static void at_exit(qemu_plugin_id_t id, void *userdata)
{
	(void)id;
	(void)userdata;
	fprintf(stderr, "magpie-breakpoint: %" PRIu64 " stale breakpoints were not executed\n",
		counters->stale_breakpoints);
}

/* QEMU calls this before it makes the machine. Return 0, because a guest also boots without. */
EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	(void)info;
	(void)argc;
	(void)argv;
	if (!qemu_get_cpu || !tb_flush || !cpu_loop_exit_restore) {
		fprintf(stderr,
			"magpie-breakpoint: this QEMU lacks functions to forget blocks, so a "
			"guest may die of \"Oops: int3\"; QEMU 10.0 has them\n");
		return 0;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	qemu_plugin_register_atexit_cb(id, at_exit, NULL);
	return 0;
}
