// SPDX-License-Identifier: GPL-2.0-only
/*
 * Frequencies: the guest's kernel makes a CPU slower and faster.
 *
 * The kernel's own driver for Intel CPUs without hardware-managed states (intel_pstate in its passive
 * mode, under the governor schedutil) asks for a ratio, which is a multiple of 100 MHz, and counts
 * cycles to know at which frequency a CPU ran. It does both by model-specific registers that QEMU
 * does not have. So their instructions are found when a block is translated:
 *
 *	wrmsr IA32_PERF_CTL	the CPU's request; it holds transition_ns later
 *	rdmsr of one of these	the plugin answers, and QEMU goes on behind the instruction:
 *		IA32_MPERF		cycles of the TSC while the CPU was not halted
 *		IA32_APERF		its own cycles
 *		IA32_PERF_CTL, _STATUS	its request, and the ratio at which it runs
 *		MSR_PLATFORM_INFO	the ratio of the TSC, and the least one
 *		MSR_TURBO_RATIO_LIMIT	the highest ratio
 *		MSR_ATOM_CORE_RATIOS, MSR_ATOM_CORE_TURBO_RATIOS  the same once more: the
 *					kernel takes its ratios from the first registers
 *					that exist, and in QEMU all do
 *
 * A core has one frequency: the highest request of its threads that are not halted. A thread looks
 * at its sibling at each quantum end, as for SMT (smt.c). `mips` is the speed at the highest
 * frequency, and an instruction costs more in proportion at a lower one; memory does not.
 *
 * The kernel takes the counters for real only if CPUID names them, which QEMU's models cannot: the
 * kernel's command line needs setcpuid=aperfmperf,constant_tsc,nonstop_tsc.
 *
 * What it does not do: take power or heat into account, lower the highest frequency when many cores
 * are busy, or tell the guest of a change. A CPU that keeps busy by work.c takes a change at its next
 * interrupt. The rest of the block in which a register is read counts twice.
 */
#include <inttypes.h>
#include <stdio.h>

#include "vtime.h"

#define KERNEL_BEGINS (1ULL << 63)
#define MHZ_PER_RATIO 100
#define MAX_RATIO 60 /* MSR_ATOM_CORE_TURBO_RATIOS has six bits */

enum {
	MSR_PLATFORM_INFO = 0xce,
	MSR_MPERF = 0xe7,
	MSR_APERF = 0xe8,
	MSR_PERF_STATUS = 0x198,
	MSR_PERF_CTL = 0x199,
	MSR_TURBO_RATIO_LIMIT = 0x1ad,
	MSR_ATOM_CORE_RATIOS = 0x66a,
	MSR_ATOM_CORE_TURBO_RATIOS = 0x66c,
};

/* Numbers of registers of QEMU's gdb stub for x86-64. */
enum { GDB_RAX = 0, GDB_RCX = 2, GDB_RDX = 3, GDB_RIP = 16 };

/* A vCPU's frequency, as a ratio. Its own thread writes it. */
struct frequency {
	unsigned int asked; /* its request */
	unsigned int holds; /* its last request that holds; siblings read it */
	int64_t holds_from_ns; /* when the request does */
	unsigned int runs; /* at which it runs: the highest of the core */
	int64_t counted_ns; /* its busy time until the last count */
	int64_t busy_ns[MAX_RATIO + 1]; /* by ratio */
	uint64_t requests, changes;
};

static struct frequency frequencies[MAX_VCPUS];

bool frequency_is_on(void)
{
	return options.max_mhz;
}

static unsigned int least_ratio(void)
{
	return options.min_mhz / MHZ_PER_RATIO;
}

static unsigned int most_ratio(void)
{
	return options.max_mhz / MHZ_PER_RATIO;
}

/* Return for how long the vCPU has not been halted. */
static int64_t busy_ns(const struct vcpu *v)
{
	return vcpu_local_now(v) - EPOCH_NS - v->idle_ns;
}

/* Count the busy time since the last count for the ratio at which the vCPU runs. */
static void count_time(const struct vcpu *v)
{
	struct frequency *f = &frequencies[v - vcpus];
	const int64_t now = busy_ns(v);

	f->busy_ns[f->runs] += now - f->counted_ns;
	f->counted_ns = now;
}

/* Return the highest ratio among this vCPU and the threads of its core that are not halted. */
static unsigned int core_ratio(const struct vcpu *v)
{
	const unsigned int index = v - vcpus;
	const unsigned int first = index - index % options.threads;
	unsigned int most = frequencies[index].holds;

	for (unsigned int i = first; i < first + options.threads && i < nr_vcpus; i++) {
		const unsigned int ratio = READ_ONCE(frequencies[i].holds);

		if (i != index && ratio > most && smt_is_busy(&vcpus[i]))
			most = ratio;
	}
	return most;
}

/* The vCPU's own thread begins a quantum: return how much slower than at its highest frequency it is. */
double frequency_slowdown(const struct vcpu *v)
{
	struct frequency *f = &frequencies[v - vcpus];
	unsigned int ratio;

	if (!frequency_is_on())
		return 1;
	if (f->holds != f->asked && v->local_ns >= f->holds_from_ns)
		WRITE_ONCE(f->holds, f->asked);
	ratio = core_ratio(v);
	if (ratio != f->runs) {
		count_time(v);
		f->runs = ratio;
		f->changes++;
	}
	return (double)most_ratio() / ratio;
}

static uint64_t read_register(CPUState *cpu, int number)
{
	GByteArray *bytes = g_byte_array_new();
	uint64_t value = 0;

	if (x86_cpu_gdb_read_register(cpu, bytes, number) == sizeof(value))
		value = *(const uint64_t *)bytes->data;
	g_byte_array_free(bytes, true);
	return value;
}

static void write_register(CPUState *cpu, int number, uint64_t value)
{
	x86_cpu_gdb_write_register(cpu, (uint8_t *)&value, number);
}

/* Return the vCPU's own cycles while it was not halted. */
static uint64_t own_cycles(const struct frequency *f)
{
	uint64_t cycles = 0;

	for (unsigned int ratio = least_ratio(); ratio <= most_ratio(); ratio++)
		cycles += (uint64_t)f->busy_ns[ratio] * ratio;
	return cycles * MHZ_PER_RATIO / 1000;
}

/* Read a register into @value. Return false if it is none of ours. */
static bool read_msr(struct vcpu *v, uint32_t msr, uint64_t *value)
{
	const struct frequency *f = &frequencies[v - vcpus];

	switch (msr) {
	case MSR_PLATFORM_INFO:
		*value = (uint64_t)least_ratio() << 40 | options.tsc_mhz / MHZ_PER_RATIO << 8;
		return true;
	case MSR_TURBO_RATIO_LIMIT:
		/* A byte for each number of busy cores. */
		*value = most_ratio() * 0x0101010101010101ULL;
		return true;
	case MSR_ATOM_CORE_RATIOS:
		*value = options.tsc_mhz / MHZ_PER_RATIO << 16;
		return true;
	case MSR_ATOM_CORE_TURBO_RATIOS:
		*value = most_ratio();
		return true;
	case MSR_PERF_STATUS:
		*value = f->runs << 8;
		return true;
	case MSR_PERF_CTL:
		*value = f->asked << 8;
		return true;
	case MSR_MPERF:
		*value = (uint64_t)busy_ns(v) * options.tsc_mhz / 1000;
		return true;
	case MSR_APERF:
		count_time(v);
		*value = own_cycles(f);
		return true;
	default:
		return false;
	}
}

/* Translated code calls this before rdmsr. If the register is ours, go on behind the instruction. */
static void rdmsr_is_next(unsigned int index, void *userdata)
{
	CPUState *cpu = qemu_get_cpu(index);
	uint64_t value;

	if (!cpu || !read_msr(&vcpus[index], read_register(cpu, GDB_RCX), &value))
		return;

	/* QEMU finds the guest's state by the address in the block that called this. */
	cpu_restore_state(cpu, (uintptr_t)__builtin_return_address(0));
	write_register(cpu, GDB_RAX, (uint32_t)value);
	write_register(cpu, GDB_RDX, value >> 32);
	write_register(cpu, GDB_RIP, (uintptr_t)userdata);
	cpu_loop_exit(cpu);
}

/* Translated code calls this before wrmsr. */
static void wrmsr_is_next(unsigned int index, void *userdata)
{
	struct frequency *f = &frequencies[index];
	CPUState *cpu = qemu_get_cpu(index);
	unsigned int ratio;

	(void)userdata;
	if (!cpu || (uint32_t)read_register(cpu, GDB_RCX) != MSR_PERF_CTL)
		return;

	ratio = read_register(cpu, GDB_RAX) >> 8 & 0xff;
	if (ratio < least_ratio())
		ratio = least_ratio();
	if (ratio > most_ratio())
		ratio = most_ratio();
	f->requests++;
	/* A request during a transition changes where it ends, not when. */
	if (f->holds == f->asked || vcpu_local_now(&vcpus[index]) >= f->holds_from_ns) {
		WRITE_ONCE(f->holds, f->asked);
		f->holds_from_ns = vcpu_local_now(&vcpus[index]) + options.transition_ns;
	}
	f->asked = ratio;
}

/* Have QEMU call this file where the kernel reads and writes model-specific registers. */
void frequency_watch(struct qemu_plugin_tb *tb)
{
	const size_t nr = qemu_plugin_tb_n_insns(tb);

	if (!frequency_is_on() ||
	    qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0)) < KERNEL_BEGINS)
		return;
	for (size_t i = 0; i < nr; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint8_t bytes[2];

		if (qemu_plugin_insn_size(insn) != sizeof(bytes) ||
		    qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) != sizeof(bytes) ||
		    bytes[0] != 0x0f)
			continue;
		if (bytes[1] == 0x32)
			qemu_plugin_register_vcpu_insn_exec_cb(
				insn, rdmsr_is_next, QEMU_PLUGIN_CB_RW_REGS,
				(void *)(uintptr_t)(qemu_plugin_insn_vaddr(insn) + sizeof(bytes)));
		if (bytes[1] == 0x30)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, wrmsr_is_next,
							       QEMU_PLUGIN_CB_RW_REGS, NULL);
	}
}

/* Write a vCPU's busy time at each frequency that it had. */
void frequency_write(FILE *f, unsigned int index)
{
	const struct frequency *frequency = &frequencies[index];
	const char *comma = "";

	fprintf(f, "{\"requests\": %" PRIu64 ", \"changes\": %" PRIu64 ", \"busy_ns\": {",
		frequency->requests, frequency->changes);
	for (unsigned int ratio = least_ratio(); ratio <= most_ratio(); ratio++) {
		int64_t ns = frequency->busy_ns[ratio];
		const int64_t uncounted = vcpus[index].local_ns - EPOCH_NS - vcpus[index].idle_ns -
					  frequency->counted_ns;

		/* The vCPU has counted its time until its last change or the guest's last look. */
		if (ratio == frequency->runs && uncounted > 0)
			ns += uncounted;
		if (ns <= 0)
			continue;
		fprintf(f, "%s\"%u\": %" PRId64, comma, ratio * MHZ_PER_RATIO, ns);
		comma = ", ";
	}
	fprintf(f, "}}");
}

/* Every vCPU begins with its highest frequency. Return what is wrong with the options, or NULL. */
const char *frequency_init(void)
{
	if (!frequency_is_on())
		return NULL;
	if (options.min_mhz < MHZ_PER_RATIO || options.min_mhz > options.max_mhz ||
	    options.max_mhz < options.tsc_mhz || options.max_mhz > MAX_RATIO * MHZ_PER_RATIO ||
	    options.min_mhz % MHZ_PER_RATIO || options.max_mhz % MHZ_PER_RATIO)
		return "max_mhz= needs min_mhz=, both multiples of 100, and the frequency of the TSC "
		       "between them";
	if (host_is_short())
		return "max_mhz= takes no physical_cpus=: a frequency does not follow a vCPU to "
		       "another physical CPU";
	if (!x86_cpu_gdb_read_register || !x86_cpu_gdb_write_register || !cpu_restore_state ||
	    !cpu_loop_exit)
		return "max_mhz=: this QEMU does not export the registers of an x86 vCPU";
	for (unsigned int i = 0; i < nr_vcpus; i++) {
		frequencies[i].asked = most_ratio();
		frequencies[i].holds = most_ratio();
		frequencies[i].runs = most_ratio();
	}
	return NULL;
}
