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

struct options options;
bool is_active;

/* The options as they are read. set_options() gives them their types. */
static struct {
	double mips, window_ns, quantum, smt_factor, threads, turns, deterministic, tsc_mhz, hang_s;
	double min_mhz, max_mhz, slow_mhz, slow_from, transition_ns;
	double physical_cpus, host_slice_ns, guests, guest, first_vcpu, host_vcpus, background;
	double host_weight, host_cgroups;
} numbers = {
	.mips = 500,
	.window_ns = 5000,
	.quantum = 1000,
	.smt_factor = 0.6,
	.threads = 1,
	.tsc_mhz = 2000,
	.hang_s = 60,
	.host_slice_ns = 3e6,
	.guests = 1,
	.host_weight = 100,
	.host_cgroups = 1,
};

static const struct number_option number_options[] = {
	{ "mips", 1, 100000, &numbers.mips },
	{ "window", 100, 1e9, &numbers.window_ns },
	{ "quantum", 10, 1e9, &numbers.quantum },
	{ "smt_factor", 0.05, 1, &numbers.smt_factor },
	{ "threads", 1, 8, &numbers.threads },
	{ "turns", 0, MAX_VCPUS, &numbers.turns },
	{ "deterministic", 0, 1, &numbers.deterministic },
	{ "tsc_mhz", 100, 10000, &numbers.tsc_mhz },
	{ "min_mhz", 0, 10000, &numbers.min_mhz },
	{ "max_mhz", 0, 10000, &numbers.max_mhz },
	{ "slow_mhz", 0, 10000, &numbers.slow_mhz },
	{ "slow_from", 0, MAX_VCPUS, &numbers.slow_from },
	{ "transition", 0, 1e9, &numbers.transition_ns },
	{ "hang", 1, 86400, &numbers.hang_s },
	{ "physical_cpus", 0, MAX_VCPUS, &numbers.physical_cpus },
	{ "host_slice", 1e4, 1e9, &numbers.host_slice_ns },
	{ "guests", 1, MAX_GUESTS, &numbers.guests },
	{ "guest", 0, MAX_GUESTS - 1, &numbers.guest },
	{ "first_vcpu", 0, MAX_VCPUS - 1, &numbers.first_vcpu },
	{ "background", 0, 1, &numbers.background },
	{ "host_vcpus", 1, MAX_VCPUS, &numbers.host_vcpus },
	{ "host_weight", 1, 10000, &numbers.host_weight },
	{ "host_cgroups", 0, 1, &numbers.host_cgroups },
	{ 0 },
};

/* Return the option of a table whose name is the first `length` characters of @name, or NULL. */
static const struct number_option *find_number(const struct number_option *o, const char *name,
					       size_t length)
{
	for (; o->name; o++)
		if (!strncmp(name, o->name, length) && strlen(o->name) == length)
			return o;
	return NULL;
}

/* Set an option from the text NAME=NUMBER. Return false, with a message, if the number is wrong. */
static bool set_number(const struct number_option *o, const char *text)
{
	const char *number = strchr(text, '=') + 1;
	char *end;

	errno = 0;
	*o->value = strtod(number, &end);
	if (!errno && end != number && !*end && *o->value >= o->least && *o->value <= o->most)
		return true;
	fprintf(stderr, "magpie-vtime: %s: a number from %g to %g is needed\n", text, o->least,
		o->most);
	return false;
}

/* Set an option from its text. Return false, with a message, if there is no such option. */
static bool parse_option(const char *text)
{
	const char *value = strchr(text, '=');
	const struct number_option *number = NULL;

	if (value)
		number = find_number(number_options, text, value - text);
	if (value && !number)
		number = find_number(memory_number_options, text, value - text);
	if (number)
		return set_number(number, text);
	if (value && !strncmp(text, "report=", 7)) {
		options.report = strdup(value + 1);
		return true;
	}
	if (value && !strncmp(text, "profile=", 8)) {
		options.profile = strdup(value + 1);
		return true;
	}
	if (value && !strncmp(text, "snapshot=", 9)) {
		options.snapshot = strdup(value + 1);
		return true;
	}
	if (value && !strncmp(text, "host=", 5)) {
		options.host = strdup(value + 1);
		return true;
	}
	if (value && !strncmp(text, "llc_nodes=", 10) && memory_set_nodes(value + 1))
		return true;
	fprintf(stderr,
		"magpie-vtime: unknown option %s; there are: report=FILE, profile=FILE, "
		"snapshot=SOCKET, host=FILE, "
		"llc_nodes=N-N-...",
		text);
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

/* Give the numbers that were read their types, and the number of turns its default. */
static void set_options(void)
{
	options.mips = numbers.mips;
	options.window_ns = numbers.window_ns;
	options.quantum = numbers.quantum;
	options.smt_factor = numbers.smt_factor;
	options.threads = numbers.threads;
	options.tsc_mhz = numbers.tsc_mhz;
	options.hang_s = numbers.hang_s;
	options.min_mhz = numbers.min_mhz;
	options.max_mhz = numbers.max_mhz;
	options.slow_mhz = numbers.slow_mhz;
	options.slow_from = numbers.slow_from;
	options.transition_ns = numbers.transition_ns;
	options.physical_cpus = numbers.physical_cpus;
	options.host_slice_ns = numbers.host_slice_ns;
	options.guests = numbers.guests;
	options.guest = numbers.guest;
	options.first_vcpu = numbers.first_vcpu;
	options.host_vcpus = numbers.host_vcpus;
	options.background = numbers.background != 0;
	options.host_weight = numbers.host_weight;
	options.host_cgroups = numbers.host_cgroups != 0;
	options.deterministic = numbers.deterministic != 0;
	options.turns = options.deterministic ? 1 : numbers.turns;
	if (!options.turns)
		options.turns = host_cpus();
}

/* Return false, with a message, unless the guest fits among the others of its host. */
static bool check_seat(void)
{
	if (options.guests > 1 && !options.host) {
		fprintf(stderr, "magpie-vtime: guests=%u needs host=FILE, which they share\n",
			options.guests);
		return false;
	}
	if (options.guest >= options.guests) {
		fprintf(stderr, "magpie-vtime: guest=%u is not below guests=%u\n", options.guest,
			options.guests);
		return false;
	}
	if (options.host && options.first_vcpu + nr_vcpus > options.host_vcpus) {
		fprintf(stderr,
			"magpie-vtime: %u CPUs from first_vcpu=%u on are more than host_vcpus=%u\n",
			nr_vcpus, options.first_vcpu, options.host_vcpus);
		return false;
	}
	return true;
}

/* Return false, with a message, if options contradict each other. */
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
	if (options.snapshot && !options.deterministic) {
		fprintf(stderr, "magpie-vtime: snapshot= needs deterministic=1: only then do all "
				"threads rest at a mark\n");
		return false;
	}
	if (options.host && (!options.deterministic || options.snapshot)) {
		fprintf(stderr,
			"magpie-vtime: host= needs deterministic=1 and no snapshot=: guests "
			"take turns by virtual time alone, and a copy of one guest would "
			"not have copies of the others\n");
		return false;
	}
	if (options.physical_cpus && (options.threads > 1 || memory_is_on())) {
		fprintf(stderr, "magpie-vtime: physical_cpus= needs threads=1 and no memory=1: "
				"neither cores nor caches follow a vCPU to another physical CPU\n");
		return false;
	}
	if (memory_fault()) {
		fprintf(stderr, "magpie-vtime: %s\n", memory_fault());
		return false;
	}
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
	wakeup_lock();
	turn_leave(own);
	wakeup_unlock();
}

/* QEMU calls this before it makes the machine. Return 0, or -1 after a message. */
EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	const char *fault, *preload = getenv("LD_PRELOAD");

	for (int i = 0; i < argc; i++)
		if (!parse_option(argv[i]))
			return -1;
	set_options();
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
	if (!check_seat())
		return -1;
	guests_init();
	smt_init();
	fault = frequency_init();
	if (fault) {
		fprintf(stderr, "magpie-vtime: %s\n", fault);
		return -1;
	}
	memory_init();
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
