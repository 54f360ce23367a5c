// SPDX-License-Identifier: GPL-2.0-only
/*
 * Frequencies: the guest's kernel makes a CPU slower and faster.
 *
 * The kernel's own driver for Intel CPUs without hardware-managed states (intel_pstate in its
 * passive mode, under the governor schedutil) asks for a ratio, which is a multiple of 100 MHz, and
 * counts cycles to know at which frequency a CPU ran. It does both by model-specific registers that
 * QEMU does not have. So their instructions are found when a block is translated:
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
 * On a hybrid machine the kernel asks for levels of performance instead, as of CPUs with
 * hardware-managed states, and these instructions are found, too:
 *
 *	cpuid 0x1a		the plugin answers with the kind of the core
 *	wrmsr IA32_HWP_REQUEST	the CPU's request, as levels; IA32_PERF_CTL has no effect
 *	rdmsr of one of these	the plugin answers:
 *		IA32_HWP_CAPABILITIES	the levels of the core
 *		IA32_HWP_REQUEST, IA32_PM_ENABLE  what the kernel wrote
 *
 * A level is the same performance on all cores. A slow core has fewer of them, and a higher
 * frequency at each, as the kernel knows of Alder Lake: by that the kernel takes the machine for a
 * hybrid one, and gives its CPUs capacities.
 *
 * A core has one frequency: the highest request of its threads that are not halted. A thread looks
 * at its sibling at each quantum end, as for SMT (smt.c). `mips` is the speed at the highest
 * frequency, and an instruction costs more in proportion at a lower one; memory does not.
 *
 * The kernel takes the counters for real only if CPUID names them, which QEMU's models cannot: the
 * kernel's command line needs setcpuid=aperfmperf,constant_tsc,nonstop_tsc, and more for a hybrid
 * machine (lab/src/vtime.rs).
 *
 * What it does not do: take power or heat into account, lower the highest frequency when many cores
 * are busy, or tell the guest of a change. A CPU that keeps busy by work.c takes a change at its
 * next interrupt. The rest of the block in which a register is read counts twice.
 */
#include <inttypes.h>
#include <stdio.h>

#include "vtime.h"

#define KERNEL_BEGINS (1ULL << 63)
#define MHZ_PER_RATIO 100
#define MAX_RATIO 60 /* MSR_ATOM_CORE_TURBO_RATIOS has six bits */

/*
 * Of a hybrid machine: the kernel's HYBRID_SCALING_FACTOR_ADL, the kHz of a level of a fast core.
 * One of a slow core is a ratio.
 */
#define FAST_LEVEL_KHZ 78741
#define SLOW_LEVEL_KHZ 100000

/* The leaf of CPUID that says of which kind a core is. */
#define CPUID_KIND 0x1a
#define KIND_SLOW 0x20000001
#define KIND_FAST 0x40000001

/* IA32_HWP_REQUEST: the levels 1 to 255, and an energy-performance preference of half. */
#define REQUEST_AT_RESET 0x8000ff01ULL

enum {
	MSR_PLATFORM_INFO = 0xce,
	MSR_MPERF = 0xe7,
	MSR_APERF = 0xe8,
	MSR_PERF_STATUS = 0x198,
	MSR_PERF_CTL = 0x199,
	MSR_TURBO_RATIO_LIMIT = 0x1ad,
	MSR_ATOM_CORE_RATIOS = 0x66a,
	MSR_ATOM_CORE_TURBO_RATIOS = 0x66c,
	MSR_PM_ENABLE = 0x770,
	MSR_HWP_CAPABILITIES = 0x771,
	MSR_HWP_REQUEST = 0x774,
};

/* Numbers of registers of QEMU's gdb stub for x86-64. */
enum { GDB_RAX = 0, GDB_RBX = 1, GDB_RCX = 2, GDB_RDX = 3, GDB_RIP = 16 };

/* A vCPU's frequency, as a ratio. Its own thread writes it. */
struct frequency {
	bool is_enabled; /* its requests are levels, see is_hybrid() */
	uint64_t request; /* as the kernel wrote it */
	unsigned int asked; /* its request, as a ratio */
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

/* Return whether the machine has cores of two kinds. */
static bool is_hybrid(void)
{
	return options.slow_mhz;
}

static bool is_slow(const struct vcpu *v)
{
	return is_hybrid() && v - vcpus >= options.slow_from;
}

static unsigned int most_ratio(const struct vcpu *v)
{
	return (is_slow(v) ? options.slow_mhz : options.max_mhz) / MHZ_PER_RATIO;
}

/* Return the least level of a core of a hybrid machine that has a ratio. */
static unsigned int level_of(const struct vcpu *v, unsigned int ratio)
{
	const unsigned int khz = is_slow(v) ? SLOW_LEVEL_KHZ : FAST_LEVEL_KHZ;

	return (ratio * MHZ_PER_RATIO * 1000 + khz - 1) / khz;
}

/* Return the ratio that a core of a hybrid machine has at a level. */
static unsigned int ratio_at(const struct vcpu *v, unsigned int level)
{
	return level * (is_slow(v) ? SLOW_LEVEL_KHZ : FAST_LEVEL_KHZ) / (MHZ_PER_RATIO * 1000);
}

/* Return how much slower than the fastest core of the machine a core is at a ratio. */
static double slowdown_at(const struct vcpu *v, unsigned int ratio)
{
	/* Of all kinds a level is as much performance. A hybrid machine's first vCPU is fast. */
	if (is_slow(v))
		return (double)level_of(vcpus, most_ratio(vcpus)) / ratio;
	return (double)most_ratio(v) / ratio;
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
	return slowdown_at(v, ratio);
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
static uint64_t own_cycles(const struct vcpu *v)
{
	const struct frequency *f = &frequencies[v - vcpus];
	uint64_t cycles = 0;

	for (unsigned int ratio = least_ratio(); ratio <= most_ratio(v); ratio++)
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
		*value = most_ratio(v) * 0x0101010101010101ULL;
		return true;
	case MSR_ATOM_CORE_RATIOS:
		*value = options.tsc_mhz / MHZ_PER_RATIO << 16;
		return true;
	case MSR_ATOM_CORE_TURBO_RATIOS:
		*value = most_ratio(v);
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
		*value = own_cycles(v);
		return true;
	case MSR_PM_ENABLE:
		*value = f->is_enabled;
		return is_hybrid();
	case MSR_HWP_CAPABILITIES:
		/* The highest level, the highest that is always had, an efficient one, the least. */
		*value = level_of(v, most_ratio(v)) |
			 level_of(v, options.tsc_mhz / MHZ_PER_RATIO) << 8 |
			 level_of(v, least_ratio()) << 16 | level_of(v, least_ratio()) << 24;
		return is_hybrid();
	case MSR_HWP_REQUEST:
		*value = f->request;
		return is_hybrid();
	default:
		return false;
	}
}

/* Have the vCPU go on at an address of the guest, after registers were written. */
static void go_on_at(CPUState *cpu, void *address)
{
	write_register(cpu, GDB_RIP, (uintptr_t)address);
	cpu_loop_exit(cpu);
}

/* Translated code calls this before rdmsr. If the register is ours, go on behind the instruction. */
static void rdmsr_is_next(unsigned int index, void *behind)
{
	CPUState *cpu = qemu_get_cpu(index);
	uint64_t value;

	if (!cpu || !read_msr(&vcpus[index], read_register(cpu, GDB_RCX), &value))
		return;

	/* QEMU finds the guest's state by the address in the block that called this. */
	cpu_restore_state(cpu, (uintptr_t)__builtin_return_address(0));
	write_register(cpu, GDB_RAX, (uint32_t)value);
	write_register(cpu, GDB_RDX, value >> 32);
	go_on_at(cpu, behind);
}

/* Translated code calls this before cpuid. If the kernel asks for the kind of the core, tell it. */
static void cpuid_is_next(unsigned int index, void *behind)
{
	CPUState *cpu = qemu_get_cpu(index);

	if (!cpu || (uint32_t)read_register(cpu, GDB_RAX) != CPUID_KIND)
		return;

	cpu_restore_state(cpu, (uintptr_t)__builtin_return_address(0));
	write_register(cpu, GDB_RAX, is_slow(&vcpus[index]) ? KIND_SLOW : KIND_FAST);
	write_register(cpu, GDB_RBX, 0);
	write_register(cpu, GDB_RCX, 0);
	write_register(cpu, GDB_RDX, 0);
	go_on_at(cpu, behind);
}

/* The vCPU asks for a ratio, which it has transition_ns later. */
static void ask_for(struct vcpu *v, unsigned int ratio)
{
	struct frequency *f = &frequencies[v - vcpus];

	if (ratio < least_ratio())
		ratio = least_ratio();
	if (ratio > most_ratio(v))
		ratio = most_ratio(v);
	f->requests++;
	/* A request during a transition changes where it ends, not when. */
	if (f->holds == f->asked || vcpu_local_now(v) >= f->holds_from_ns) {
		WRITE_ONCE(f->holds, f->asked);
		f->holds_from_ns = vcpu_local_now(v) + options.transition_ns;
	}
	f->asked = ratio;
}

/* Return the level that the kernel asks for: the highest it allows, if it leaves that to the CPU. */
static unsigned int level_asked(uint64_t request)
{
	const unsigned int least = request & 0xff, most = request >> 8 & 0xff;
	const unsigned int level = request >> 16 & 0xff ? request >> 16 & 0xff : most;

	return level < least ? least : level > most ? most : level;
}

/* Translated code calls this before wrmsr. */
static void wrmsr_is_next(unsigned int index, void *userdata)
{
	struct vcpu *v = &vcpus[index];
	struct frequency *f = &frequencies[index];
	CPUState *cpu = qemu_get_cpu(index);
	uint64_t value;

	(void)userdata;
	if (!cpu)
		return;

	value = (uint32_t)read_register(cpu, GDB_RAX) | read_register(cpu, GDB_RDX) << 32;
	switch ((uint32_t)read_register(cpu, GDB_RCX)) {
	case MSR_PERF_CTL:
		if (!f->is_enabled)
			ask_for(v, value >> 8 & 0xff);
		break;
	case MSR_PM_ENABLE:
		/* Only a reset clears it. */
		f->is_enabled |= is_hybrid() && value & 1;
		break;
	case MSR_HWP_REQUEST:
		f->request = value;
		if (f->is_enabled)
			ask_for(v, ratio_at(v, level_asked(value)));
		break;
	}
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
		void *behind = (void *)(uintptr_t)(qemu_plugin_insn_vaddr(insn) + sizeof(bytes));

		if (qemu_plugin_insn_size(insn) != sizeof(bytes) ||
		    qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) != sizeof(bytes) ||
		    bytes[0] != 0x0f)
			continue;
		if (bytes[1] == 0x32)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, rdmsr_is_next,
							       QEMU_PLUGIN_CB_RW_REGS, behind);
		if (bytes[1] == 0xa2 && is_hybrid())
			qemu_plugin_register_vcpu_insn_exec_cb(insn, cpuid_is_next,
							       QEMU_PLUGIN_CB_RW_REGS, behind);
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
	for (unsigned int ratio = least_ratio(); ratio <= most_ratio(&vcpus[index]); ratio++) {
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
		return is_hybrid() ? "slow_mhz= needs max_mhz=" : NULL;
	if (options.min_mhz < MHZ_PER_RATIO || options.min_mhz > options.max_mhz ||
	    options.max_mhz < options.tsc_mhz || options.max_mhz > MAX_RATIO * MHZ_PER_RATIO ||
	    options.min_mhz % MHZ_PER_RATIO || options.max_mhz % MHZ_PER_RATIO)
		return "max_mhz= needs min_mhz=, both multiples of 100, and the frequency of the TSC "
		       "between them";
	if (is_hybrid() &&
	    (options.slow_mhz < options.tsc_mhz || options.slow_mhz > options.max_mhz ||
	     options.slow_mhz % MHZ_PER_RATIO || !options.slow_from ||
	     options.slow_from >= nr_vcpus || options.threads > 1))
		return "slow_mhz= needs slow_from= of a vCPU, threads=1, and to be from the TSC's frequency to "
		       "max_mhz=, in multiples of 100";
	if (host_is_short())
		return "max_mhz= takes no physical_cpus=: a frequency does not follow a vCPU to "
		       "another physical CPU";
	if (!x86_cpu_gdb_read_register || !x86_cpu_gdb_write_register || !cpu_restore_state ||
	    !cpu_loop_exit)
		return "max_mhz=: this QEMU does not export the registers of an x86 vCPU";
	for (unsigned int i = 0; i < nr_vcpus; i++) {
		frequencies[i].request = REQUEST_AT_RESET;
		frequencies[i].asked = most_ratio(&vcpus[i]);
		frequencies[i].holds = most_ratio(&vcpus[i]);
		frequencies[i].runs = most_ratio(&vcpus[i]);
	}
	return NULL;
}
