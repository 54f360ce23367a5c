// SPDX-License-Identifier: GPL-2.0-only
/*
 * The plugin's entry: it reads its options, replaces functions of QEMU, and
 * writes the report at exit.
 *
 *	LD_PRELOAD=./magpie-vtime.so qemu-system-x86_64 -accel tcg,thread=multi \
 *		-plugin ./magpie-vtime.so,mips=500,window=5000 ...
 *
 * LD_PRELOAD loads the object, so that its clock_gettime() and the others come
 * before the C library's. -plugin then finds it loaded.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vtime.h"

/* QEMU 9.2 and later have version 4. The functions used here exist since version 3. */
EXPORT int qemu_plugin_version = 4;

struct options options = {
	.mips = 500,
	.window_ns = 5000,
	.quantum = 1000,
	.smt_factor = 0.6,
	.threads = 1,
	.tsc_mhz = 2000,
	.hang_s = 60,
};
struct counters counters;
bool is_active;

static bool parse_number(const char *text, double least, double most, double *value)
{
	char *end;

	errno = 0;
	*value = strtod(text, &end);
	return !errno && end != text && !*end && *value >= least && *value <= most;
}

static const struct number_option number_options[] = {
	{ "mips", 1, 100000, NULL },	 { "window", 100, 1e9, NULL },
	{ "quantum", 10, 1e9, NULL },	 { "smt_factor", 0.05, 1, NULL },
	{ "threads", 1, 8, NULL },	 { "turns", 0, MAX_VCPUS, NULL },
	{ "deterministic", 0, 1, NULL }, { "tsc_mhz", 100, 10000, NULL },
	{ "hang", 1, 86400, NULL },	 { 0 },
};

/* Set an option that has a type of its own and so no `value`. */
static void set_number(const char *name, double value)
{
	if (!strcmp(name, "mips"))
		options.mips = value;
	else if (!strcmp(name, "window"))
		options.window_ns = value;
	else if (!strcmp(name, "quantum"))
		options.quantum = value;
	else if (!strcmp(name, "smt_factor"))
		options.smt_factor = value;
	else if (!strcmp(name, "threads"))
		options.threads = value;
	else if (!strcmp(name, "turns"))
		options.turns = value;
	else if (!strcmp(name, "deterministic"))
		options.deterministic = value != 0;
	else if (!strcmp(name, "tsc_mhz"))
		options.tsc_mhz = value;
	else if (!strcmp(name, "hang"))
		options.hang_s = value;
}

/* Return the option whose name is the first `length` characters of @name, or NULL. */
static const struct number_option *find_number(const struct number_option *o, const char *name,
					       size_t length)
{
	for (; o->name; o++)
		if (!strncmp(name, o->name, length) && strlen(o->name) == length)
			return o;
	return NULL;
}

/* Set the option NAME=NUMBER of that text; @value is at the '='. Return false if there is none. */
static bool parse_number_option(const char *text, const char *value)
{
	const struct number_option *o = find_number(number_options, text, value - text);
	double number;

	if (!o)
		o = find_number(memory_number_options, text, value - text);
	if (!o)
		return false;
	if (!parse_number(value + 1, o->least, o->most, &number)) {
		fprintf(stderr, "magpie-vtime: %s: a number from %g to %g is needed\n", text,
			o->least, o->most);
		return false;
	}
	if (o->value)
		*o->value = number;
	else
		set_number(o->name, number);
	return true;
}

static bool parse_option(const char *text)
{
	const char *value = strchr(text, '=');

	if (value && !strncmp(text, "report=", 7)) {
		options.report = strdup(value + 1);
		return true;
	}
	if (value && !strncmp(text, "llc_nodes=", 10) && memory_set_nodes(value + 1))
		return true;
	if (value && parse_number_option(text, value))
		return true;
	fprintf(stderr,
		"magpie-vtime: unknown option %s; there are: report=FILE, llc_nodes=N-N-...", text);
	for (const struct number_option *o = number_options; o->name; o++)
		fprintf(stderr, ", %s=NUMBER", o->name);
	for (const struct number_option *o = memory_number_options; o->name; o++)
		fprintf(stderr, ", %s=NUMBER", o->name);
	fprintf(stderr, "\n");
	return false;
}

/* Return how many CPUs QEMU may use: more vCPUs at once would wait for each other. */
static unsigned int host_cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

/* Fill in the number of turns. Return false, with a message, if options contradict each other. */
static bool check_options(void)
{
	const double slowest_ns = options.quantum * 1000.0 / options.mips / options.smt_factor;

	if (slowest_ns > options.window_ns) {
		fprintf(stderr,
			"magpie-vtime: a quantum of %llu instructions lasts up to %.0f ns, longer "
			"than the window of %lld ns: lower quantum= or raise window=\n",
			(unsigned long long)options.quantum, slowest_ns,
			(long long)options.window_ns);
		return false;
	}
	if (memory_fault()) {
		fprintf(stderr, "magpie-vtime: %s\n", memory_fault());
		return false;
	}
	if (!options.turns || options.deterministic)
		options.turns = options.deterministic ? 1 : host_cpus();
	return true;
}

/*
 * Make QEMU call the plugin where a vCPU executes, which then waits for a turn, and
 * where an x86 guest reads the time stamp counter. Return false, with a message, if
 * this QEMU does not allow that.
 */
static bool patch_qemu(const char *target)
{
	char why[128];

	if (!patch_function("tcg_cpu_exec", vcpu_exec, why, sizeof(why)) ||
	    (!strcmp(target, "x86_64") &&
	     !patch_function("cpu_get_ticks", clock_ticks, why, sizeof(why)))) {
		fprintf(stderr,
			"magpie-vtime: %s; QEMU 10.0 as packaged by Debian is known to work\n",
			why);
		return false;
	}
	return true;
}

static void at_exit(qemu_plugin_id_t id, void *userdata)
{
	(void)id;
	(void)userdata;
	report_write("exit");
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	const char *preload = getenv("LD_PRELOAD");

	for (int i = 0; i < argc; i++)
		if (!parse_option(argv[i]))
			return -1;
	if (!check_options())
		return -1;
	if (!info->system_emulation || info->system.max_vcpus > MAX_VCPUS) {
		fprintf(stderr, "magpie-vtime: a system emulator with at most %d CPUs is needed\n",
			MAX_VCPUS);
		return -1;
	}
	if (!preload || !strstr(preload, "vtime")) {
		fprintf(stderr, "magpie-vtime: load it with LD_PRELOAD as well as -plugin, or the "
				"guest's clock stays the host's\n");
		return -1;
	}
	nr_vcpus = info->system.max_vcpus;
	smt_init();
	memory_init();
	turn_init();
	mainloop_init();
	if (!patch_qemu(info->target_name))
		return -1;
	report_start(info->target_name);
	vcpu_register(id);
	qemu_plugin_register_atexit_cb(id, at_exit, NULL);
	is_active = true;
	watchdog_start();
	return 0;
}
