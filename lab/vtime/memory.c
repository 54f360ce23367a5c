// SPDX-License-Identifier: GPL-2.0-only
/*
 * The cost of an access to memory.
 *
 * QEMU calls load(), store() or locked() for each access of translated code. Most
 * accesses end in the vCPU's front, a filter by virtual address. A line in the front
 * is in the core's L1 too, so the access is free, because the cost of an instruction
 * contains an L1 hit. Any other line is looked up by physical address:
 *
 *	access -- front -- hit: free
 *	            | miss
 *	          tlb.c -- hit, or a walk through the page tables
 *	            |
 *	          L1 (core's lock) -- hit: free; 'sibling' if the other thread wrote last
 *	            | miss, or a write without the right to
 *	          directory.c (line's lock): L2, another core, the LLC, a node's memory
 *	            |
 *	          the share of the latency that this access waits
 *
 * The tag of an entry of a front contains the number of an address space. A load of
 * CR3 gives user addresses a new number, so the front forgets what the hardware's
 * TLB would forget. After an invlpg the front forgets everything.
 *
 * How long an access waits, of the latency less the instruction's own cost:
 *
 *	a locked instruction		all of it
 *	a load by a pointer just loaded	all of it
 *	the third line of a walk, and on	`streamed`: prefetched
 *	a store				`stored`: the store buffer waits, not the processor
 *	a load soon after a miss	`overlapped`: several misses are under way
 *	another load			all of it
 *
 * A line from an LLC or from memory also waits if more lines are under way than the
 * bandwidth allows: bandwidth.c.
 *
 * Repeated string instructions cost by bytes, and their lines like those of other
 * accesses: QEMU executes up to 65536 iterations as one instruction, and without
 * this, copying would be free.
 *
 * A stall is added to the vCPU's score, as so many instructions of its present
 * speed, so that turns, windows and timers need not know of it. Its time does not
 * depend on that speed.
 *
 * Without the option `memory` none of these functions is called by translated code.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

/* Two misses less than this many instructions apart are under way at the same time. */
#define REORDER_INSNS 224
/* An address less than this far beyond a loaded value is in what the value points to. */
#define FIELD_BYTES 4096
_Static_assert(NR_CAUSES <= MAX_CAUSES, "struct memory_counts has room for all");

#define NR_STREAMS 8

/* The tag of a front: may be written; 51 bits of virtual line; address space. */
#define TAG_WRITABLE 1ULL
#define TAG_LINE (((1ULL << 51) - 1) << 1)
#define SPACE_SHIFT 52
#define NR_SPACES (1u << (64 - SPACE_SHIFT))

enum access { LOAD, STORE, LOCKED };

struct stream {
	uint64_t line;
	unsigned int length;
};

struct cpu_memory {
	struct front front;
	struct core *core;
	unsigned int thread;
	uint64_t user_space, kernel_space; /* address spaces, shifted as in a tag; never 0 */

	uint64_t last_value; /* loaded by the last access that the front lacked */
	uint64_t last_miss; /* score at the last miss */
	struct stream streams[NR_STREAMS]; /* next_stream is the oldest */
	unsigned int next_stream;
	uint64_t rest_ps; /* stalls that the score lacks, less than an instruction takes */
	uint64_t locked_line; /* virtual line of the last locked instruction's load */
	uint64_t copied_line; /* virtual line of the last string instruction's store */
	uint64_t copied_bytes; /* of string instructions, not charged yet */

	uint64_t nr[NR_CAUSES], stall_ps[NR_CAUSES];
	uint64_t string_bytes, string_ps;
} __attribute__((aligned(128)));

static struct cpu_memory cpus[MAX_VCPUS];
static uint64_t latency_ps[NR_SOURCES];
static uint64_t ps_per_kib;

struct core *memory_core(unsigned int index)
{
	return cpus[index].core;
}

unsigned int memory_thread(unsigned int index)
{
	return cpus[index].thread;
}

/* The vCPU's front of code is there from now on. No vCPU executes. */
void memory_set_code_front(unsigned int index, uint64_t *front)
{
	if (cpus[index].core)
		cpus[index].core->code_fronts[cpus[index].thread] = front;
}

/* Return the address space that has this address. */
static uint64_t space_of(const struct cpu_memory *c, uint64_t vaddr)
{
	return (int64_t)vaddr < 0 ? c->kernel_space : c->user_space;
}

/* Return the tag of a read-only entry for this address in the present address space. */
static uint64_t tag_of(const struct cpu_memory *c, uint64_t vaddr)
{
	return (vaddr >> (LINE_SHIFT - 1) & TAG_LINE) | space_of(c, vaddr);
}

/*
 * Where a front has a virtual address: neighbouring lines in other sets, pages in other ways. Which
 * way is a hash of the page, because the hot pages of a kernel are alike in their lowest bits: the
 * first page of each CPU's data, the last one of each stack.
 */
static unsigned int front_set(uint64_t vaddr)
{
	return vaddr >> LINE_SHIFT & (FRONT_SETS - 1);
}

static unsigned int front_way(uint64_t vaddr)
{
	return (uint32_t)(vaddr >> PAGE_SHIFT) * 0x9e3779b1u >> (32 - FRONT_WAY_BITS);
}

static uint64_t *front_slot(struct cpu_memory *c, uint64_t vaddr)
{
	return &c->front.tag[front_set(vaddr)][front_way(vaddr)];
}

/* Make this access free from now on. The caller holds the core's lock. */
static void front_add(struct cpu_memory *c, uint64_t vaddr, uint32_t line, bool writable)
{
	uint64_t *slot = front_slot(c, vaddr);

	c->front.line[front_set(vaddr)][front_way(vaddr)] = line + 1;
	WRITE_ONCE(*slot,
		   tag_of(c, vaddr) | (writable && !contention_is_on(line) ? TAG_WRITABLE : 0));
}

/* Let the local time of the vCPU advance, as if it had executed instructions. */
static void stall(struct cpu_memory *c, struct vcpu *v, uint64_t ps)
{
	uint64_t insns;

	profile_stall(v, ps);
	c->rest_ps += ps;
	if (c->rest_ps < v->cost_ps)
		return;
	insns = c->rest_ps / v->cost_ps;
	c->rest_ps %= v->cost_ps;
	*v->score += insns;
	v->stalled += insns;
	if (vcpu_is_beyond_quantum(v))
		v->late_stall_ps += insns * v->cost_ps;
}

/*
 * Return true if this line continues a walk, forward or backward, that a prefetcher
 * has noticed. Keeps the walks that it has seen last.
 */
static bool is_streamed(struct cpu_memory *c, uint64_t vline)
{
	for (unsigned int i = 0; i < NR_STREAMS; i++) {
		struct stream *s = &c->streams[i];
		const uint64_t forward = vline - s->line;

		if (forward == 0)
			return s->length > STREAM_TRAINED;
		if (forward == 1 || forward == 2 || forward == (uint64_t)-1) {
			s->line = vline;
			return ++s->length > STREAM_TRAINED;
		}
	}
	c->streams[c->next_stream++ % NR_STREAMS] = (struct stream){ vline, 1 };
	return false;
}

/* Return the share of its latency that this access waits: the table above. */
static double share(struct cpu_memory *c, const struct vcpu *v, uint64_t vaddr, enum access access)
{
	const bool is_dependent = vaddr - c->last_value < FIELD_BYTES;

	if (access == LOCKED || (access == LOAD && is_dependent))
		return 1;
	if (is_streamed(c, vaddr >> LINE_SHIFT))
		return memory_options.streamed;
	if (access == STORE)
		return memory_options.stored;
	return *v->score - c->last_miss < REORDER_INSNS ? memory_options.overlapped : 1;
}

/* Return the latency of a line that one CPU takes from another. */
uint64_t memory_transfer_ps(unsigned int to, unsigned int from)
{
	const struct core *a = cpus[to].core, *b = cpus[from].core;

	return latency_ps[a == b ? FROM_SIBLING : core_distance(a, b)];
}

/* Let the vCPU wait for a cause that is not the latency of a line. */
void memory_wait(unsigned int index, enum source cause, uint64_t ps)
{
	struct cpu_memory *c = &cpus[index];

	if (!ps)
		return;
	c->nr[cause]++;
	c->stall_ps[cause] += ps;
	stall(c, &vcpus[index], ps);
}

/* Return the vCPU's local time, with the part of an instruction that its score lacks. */
static int64_t present_ps(unsigned int index)
{
	return vcpu_local_ps(&vcpus[index]) + cpus[index].rest_ps;
}

/* A line has come from there. Let the vCPU wait if that is more than the bandwidth allows. */
static void wait_for_bandwidth(unsigned int index, uint32_t line, enum source source)
{
	const struct core *core = cpus[index].core;

	if (source == FROM_LLC)
		memory_wait(index, WAIT_LLC, bandwidth_of_llc(index, core->llc, present_ps(index)));
	if (source != FROM_DRAM && source != FROM_REMOTE_DRAM)
		return;
	memory_wait(index, WAIT_CORE, bandwidth_of_core(index, core->index, present_ps(index)));
	memory_wait(index, WAIT_NODE, bandwidth_of_node(index, home_node(line), present_ps(index)));
}

/* Count a line of code that has come from there, and let the vCPU wait for a share of its latency. */
void memory_charge_code(unsigned int index, uint32_t line, enum source source, double share)
{
	struct cpu_memory *c = &cpus[index];
	struct vcpu *v = &vcpus[index];
	const uint64_t ps = latency_ps[source];
	const uint64_t wait_ps = ps > v->cost_ps ? (ps - v->cost_ps) * share : 0;

	c->nr[WAIT_FETCH]++;
	c->stall_ps[WAIT_FETCH] += wait_ps;
	stall(c, v, wait_ps);
	wait_for_bandwidth(index, line, source);
}

/* Return true if another CPU had the line. */
static bool is_from_cpu(enum source source)
{
	return source >= FROM_SIBLING && source <= FROM_OTHER_NODE;
}

/* A locked instruction was charged this latency. Let it wait for those of other CPUs too. */
static void wait_for_others(unsigned int index, uint32_t line, enum source source,
			    uint64_t latency_ps)
{
	const bool is_taken = is_from_cpu(source);
	uint64_t ps;

	line_lock(line);
	ps = contention_wait(index, line, present_ps(index) - latency_ps, is_taken, latency_ps);
	line_unlock(line);
	memory_wait(index, WAIT_CONTENTION, ps);
}

/* Count an access that L1 or something behind it served, and let the vCPU wait for it. */
static void charge(unsigned int index, uint32_t info, uint64_t vaddr, uint32_t line,
		   enum access access, enum source source)
{
	struct cpu_memory *c = &cpus[index];
	struct vcpu *v = &vcpus[index];
	uint64_t ps = latency_ps[source];

	c->nr[source]++;
	if (source != FROM_L1) {
		ps = ps > v->cost_ps ? ps - v->cost_ps : 0;
		ps *= share(c, v, vaddr, access);
		c->stall_ps[source] += ps;
		stall(c, v, ps);
		wait_for_bandwidth(index, line, source);
		c->last_miss = *v->score;
	}
	if (is_from_cpu(source))
		profile_transfer(v, access != LOAD);
	if (access == LOCKED && memory_options.contention)
		wait_for_others(index, line, source, ps);
	c->last_value = 0;
	if (access == LOAD && qemu_plugin_mem_size_shift(info) == 3)
		c->last_value = qemu_plugin_mem_get_value(info).data.u64;
}

/*
 * L1 has the line with the right to this access. Return FROM_SIBLING if the core's
 * other thread wrote the line last, else FROM_L1. The caller holds the core's lock.
 */
static enum source hit_l1(struct cpu_memory *c, uint32_t *entry, uint32_t line, bool write)
{
	const uint32_t me = (c->thread + 1) << ENTRY_WRITER_SHIFT;
	const uint32_t writer = *entry & ENTRY_WRITER;
	const bool is_sibling = writer && writer != me;

	/* While one thread's front may write the line, the other front must not have it. */
	if (is_sibling || (write && !writer && c->core->nr_threads > 1))
		front_forget(c->core, line);
	if (write)
		*entry = (*entry & ~ENTRY_WRITER) | me;
	else if (is_sibling)
		*entry &= ~ENTRY_WRITER;
	return is_sibling ? FROM_SIBLING : FROM_L1;
}

/* Serve an access that the front lacks: from L1, or from where the directory says. */
__attribute__((noinline)) static void look_up(unsigned int index, uint32_t info, uint64_t vaddr,
					      enum access access)
{
	struct cpu_memory *c = &cpus[index];
	struct qemu_plugin_hwaddr *where = qemu_plugin_get_hwaddr(info, vaddr);
	const bool write = access != LOAD;
	enum source source;
	uint32_t line, *entry;
	uint64_t address;
	bool writable;

	if (!where || qemu_plugin_hwaddr_is_io(where))
		return;
	address = qemu_plugin_hwaddr_phys_addr(where);
	if (address >= home_top())
		return;
	line = address >> LINE_SHIFT;
	memory_wait(index, WAIT_WALK, tlb_walk_ps(index, vaddr, address, space_of(c, vaddr)));

	core_lock(c->core);
	entry = cache_use(&c->core->l1, line);
	if (entry && (!write || *entry & ENTRY_WRITABLE)) {
		source = hit_l1(c, entry, line, write);
		front_add(c, vaddr, line, write);
		core_unlock(c->core);
		charge(index, info, vaddr, line, access, source);
		return;
	}
	core_unlock(c->core);

	line_lock(line);
	source = directory_fetch(c->core, line, write, &writable);
	core_lock(c->core);
	directory_fill(c->core, line, writable);
	hit_l1(c, cache_use(&c->core->l1, line), line, write);
	front_add(c, vaddr, line, write);
	core_unlock(c->core);
	line_unlock(line);
	charge(index, info, vaddr, line, access, source);
}

/* A load is free if the front has the line, whether or not the line may be written. */
static void load(unsigned int index, uint32_t info, uint64_t vaddr, void *userdata)
{
	struct cpu_memory *c = &cpus[index];

	(void)userdata;
	if (__builtin_expect((READ_ONCE(*front_slot(c, vaddr)) | TAG_WRITABLE) ==
				     (tag_of(c, vaddr) | TAG_WRITABLE),
			     1))
		return;
	look_up(index, info, vaddr, LOAD);
}

/* Return true if the front has the line with the right to write. */
static bool front_may_write(struct cpu_memory *c, uint64_t vaddr)
{
	return READ_ONCE(*front_slot(c, vaddr)) == (tag_of(c, vaddr) | TAG_WRITABLE);
}

/* A store is free if the front has the line with the right to write. */
static void store(unsigned int index, uint32_t info, uint64_t vaddr, void *userdata)
{
	(void)userdata;
	if (__builtin_expect(!front_may_write(&cpus[index], vaddr), 0))
		look_up(index, info, vaddr, STORE);
}

/* A locked instruction's load asks for the line once, to write it. */
static void locked(unsigned int index, uint32_t info, uint64_t vaddr, void *userdata)
{
	(void)userdata;
	cpus[index].locked_line = vaddr >> LINE_SHIFT;
	if (__builtin_expect(!front_may_write(&cpus[index], vaddr), 0))
		look_up(index, info, vaddr, LOCKED);
}

/* Its store is then free. */
static void locked_store(unsigned int index, uint32_t info, uint64_t vaddr, void *userdata)
{
	if (cpus[index].locked_line != vaddr >> LINE_SHIFT)
		locked(index, info, vaddr, userdata);
}

/* Charge the bytes that string instructions have written since the last charge. */
static void charge_copy(struct cpu_memory *c, struct vcpu *v, uint64_t more_ps)
{
	const uint64_t ps = c->copied_bytes * ps_per_kib / 1024 + more_ps;

	c->string_bytes += c->copied_bytes;
	c->string_ps += ps;
	c->copied_bytes = 0;
	stall(c, v, ps);
}

/* Before a string instruction that writes: charge what it costs whatever its length. */
static void copy_begins(unsigned int index, void *userdata)
{
	(void)userdata;
	cpus[index].copied_line = ~0ULL;
	charge_copy(&cpus[index], &vcpus[index], memory_options.string_start_ns * 1000);
}

/*
 * A store of such an instruction: once in a line, charge its bytes, and then the store itself. An
 * instruction has up to 65536 stores.
 */
static void copy_store(unsigned int index, uint32_t info, uint64_t vaddr, void *userdata)
{
	struct cpu_memory *c = &cpus[index];

	c->copied_bytes += 1ULL << qemu_plugin_mem_size_shift(info);
	if (c->copied_line == vaddr >> LINE_SHIFT)
		return;
	c->copied_line = vaddr >> LINE_SHIFT;
	charge_copy(c, &vcpus[index], 0);
	store(index, info, vaddr, userdata);
}

/* Of the other string instructions, each iteration costs an instruction, as on a processor. */
static void scan_load(unsigned int index, uint32_t info, uint64_t vaddr, void *userdata)
{
	struct cpu_memory *c = &cpus[index];
	const uint64_t ps = vcpus[index].cost_ps;

	c->string_ps += ps;
	stall(c, &vcpus[index], ps);
	load(index, info, vaddr, userdata);
}

/* Return the number after that of an address space, as in a tag. It is never 0. */
static uint64_t next_space(uint64_t space)
{
	const uint64_t number = (space >> SPACE_SHIFT) % (NR_SPACES - 1) + 1;

	return number << SPACE_SHIFT;
}

/* Make the front forget all user addresses. */
static void forget_user(struct cpu_memory *c)
{
	c->user_space = next_space(c->user_space);
	/* The numbers begin anew, so no tag with an earlier number may be left. */
	if (c->user_space == next_space(0)) {
		core_lock(c->core);
		memset(&c->front, 0, sizeof(c->front));
		core_unlock(c->core);
	}
}

/* Before a load of CR3. */
static void space_changes(unsigned int index, void *userdata)
{
	(void)userdata;
	mode_space(index);
	forget_user(&cpus[index]);
}

/* Before an invlpg, or a change of CR0 or CR4: make the front forget everything. */
static void translation_changes(unsigned int index, void *userdata)
{
	struct cpu_memory *c = &cpus[index];

	(void)userdata;
	forget_user(c);
	core_lock(c->core);
	memset(&c->front, 0, sizeof(c->front));
	core_unlock(c->core);
}

/* Register the calls for an instruction's accesses. */
static void watch(struct qemu_plugin_insn *insn)
{
	mem_cb on_load = load, on_store = store;
	exec_cb on_exec = NULL;

	switch (insn_kind(insn)) {
	case INSN_PLAIN:
		break;
	case INSN_LOCKED:
		on_load = locked;
		on_store = locked_store;
		break;
	case INSN_COPY:
		on_exec = copy_begins;
		on_store = copy_store;
		break;
	case INSN_SCAN:
		on_load = scan_load;
		break;
	case INSN_SYSCALL:
		on_exec = mode_syscall;
		break;
	case INSN_IRET:
		on_exec = mode_interrupt;
		break;
	case INSN_NEW_SPACE:
		on_exec = space_changes;
		break;
	case INSN_NEW_TRANSLATION:
		on_exec = translation_changes;
		break;
	}
	if (on_exec)
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_exec, QEMU_PLUGIN_CB_NO_REGS, NULL);
	qemu_plugin_register_vcpu_mem_cb(insn, on_load, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_R,
					 NULL);
	qemu_plugin_register_vcpu_mem_cb(insn, on_store, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W,
					 NULL);
}

/* Watch the lines and the accesses of a translated block. @code_front: of the scoreboard. */
void memory_watch(struct qemu_plugin_tb *tb, qemu_plugin_u64 code_front)
{
	const size_t nr = memory_options.on ? qemu_plugin_tb_n_insns(tb) : 0;

	if (fetch_is_on())
		fetch_watch(tb, code_front);
	for (size_t i = 0; i < nr; i++)
		watch(qemu_plugin_tb_get_insn(tb, i));
}

/* Return the vCPU's misses, for the report. */
struct memory_counts memory_counts(unsigned int index)
{
	const struct cpu_memory *c = &cpus[index];
	struct memory_counts counts = {
		.string_bytes = c->string_bytes,
		.string_ns = c->string_ps / 1000,
	};

	for (int s = 0; s < NR_CAUSES; s++) {
		counts.nr[s] = c->nr[s];
		counts.stall_ns[s] = c->stall_ps[s] / 1000;
	}
	return counts;
}

/* Make the model as the options say, and give each vCPU its core. */
void memory_init(void)
{
	const struct memory_options *o = &memory_options;
	unsigned int index = 0;

	if (!o->on)
		return;
	for (int s = 0; s < NR_SOURCES; s++)
		latency_ps[s] = o->ns[s] * 1000;
	ps_per_kib = 1024 * 1000 / o->string_bytes_per_ns;
	directory_init();
	contention_init();
	bandwidth_init();
	mode_init();
	tlb_init();
	/*
	 * QEMU numbers CPUs in the order of slots. An LLC with fewer cores than
	 * others has slots without a CPU.
	 */
	for (unsigned int i = 0; i < nr_cores; i++) {
		struct core *core = &cores[i];

		for (; core->nr_threads < options.threads && index < nr_vcpus; index++) {
			struct cpu_memory *c = &cpus[index];

			c->core = core;
			c->thread = core->nr_threads;
			c->user_space = c->kernel_space = next_space(0);
			core->fronts[core->nr_threads++] = &c->front;
		}
	}
}
