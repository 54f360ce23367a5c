/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The cost of memory: declarations that the files of the model share.
 *
 *	insn.c		which instructions are strings, are locked, or change the address space
 *	memory.c	an access of translated code: is it free, and if not, what does it cost?
 *	home.c		which node's memory has a line
 *	directory.c	coherence: which core or memory serves a line that L1 lacks
 *	cache.c		one cache: sets, ways, the least recently used line
 *	fetch.c		lines of code: is one in L1I, and if not, what does it cost?
 *	contention.c	lines that several CPUs write at the same time
 *	bandwidth.c	how many lines a core, an LLC and a node's memory serve in a time
 *	mode.c		system calls, interrupts, another address space
 *	tlb.c		which pages a CPU's TLB has, and what a walk costs
 *	memory_options.c	the model's part of the plugin's options
 *
 * A *line* is a guest-physical address divided by 64.
 */
#ifndef MAGPIE_MEMORY_H
#define MAGPIE_MEMORY_H

#include "vtime.h"

#define LINE_SHIFT 6
#define LINE_BYTES (1 << LINE_SHIFT)
#define PAGE_SHIFT 12
#define MAX_LLCS 256
#define MAX_NODES 64
#define MAX_THREADS 2 /* of a core */
#define LINE_LOCKS 256 /* divides the number of sets of an LLC, see directory.c */

/*
 * An entry of a cache: the line plus one, so that 0 is empty, and what the core
 * may do. 29 bits of lines are 32 GiB of guest-physical addresses.
 */
#define ENTRY_LINE 0x1fffffffu
#define ENTRY_WRITER_SHIFT 29
#define ENTRY_WRITER (3u << ENTRY_WRITER_SHIFT) /* in L1: the thread that wrote last, plus one */
#define ENTRY_WRITABLE (1u << 31) /* no other core has the line */
#define MAX_LINES (ENTRY_LINE - 1)

#define STREAM_TRAINED 2 /* misses of a walk that are not prefetched */

/* Where an access that its core's L1 does not serve is served. */
enum source {
	FROM_L1,
	FROM_L2,
	FROM_LLC,
	FROM_SIBLING, /* the core's other thread wrote the line last */
	FROM_SAME_LLC, /* a core of the same LLC has the line, or must give it up */
	FROM_OTHER_LLC, /* a core of another LLC of the node, or that LLC */
	FROM_OTHER_NODE,
	FROM_DRAM,
	FROM_REMOTE_DRAM,
	NR_SOURCES,
	/* No sources, but causes of stalls. */
	WAIT_CONTENTION = NR_SOURCES, /* see contention.c */
	WAIT_CORE, /* a bandwidth is used up: see bandwidth.c */
	WAIT_LLC,
	WAIT_NODE,
	MODE_SYSCALL, /* see mode.c */
	MODE_INTERRUPT,
	MODE_SPACE,
	WAIT_WALK, /* see tlb.c */
	WAIT_FETCH, /* see fetch.c */
	NR_CAUSES,
};

struct cache {
	uint32_t *entries; /* the ways of each set, the most recently used first */
	uint32_t sets, ways;
	uint64_t reciprocal; /* of the number of sets, times 2^64 */
};

/* A filter before L1, by virtual address: a line that it has needs no look-up. See memory.c. */
#define FRONT_SETS 64
#define FRONT_WAY_BITS 3
#define FRONT_WAYS (1 << FRONT_WAY_BITS)

struct front {
	uint64_t tag[FRONT_SETS][FRONT_WAYS];
	uint32_t line[FRONT_SETS][FRONT_WAYS];
};

struct core {
	uint32_t lock; /* of its caches, and of the fronts of the core's threads */
	unsigned int index, llc, node;
	unsigned int nr_threads;
	struct front *fronts[MAX_THREADS];
	uint64_t *code_fronts[MAX_THREADS]; /* see fetch.c */
	struct cache l1, l1i, l2; /* l1i: without sets if code costs nothing */
} __attribute__((aligned(128)));

struct memory_options {
	double on;
	double llc_cores; /* cores of the largest LLC, for which QEMU gives every LLC slots */
	double l1i_kib, l1i_ways; /* 0: code costs nothing */
	double l1_kib, l1_ways, l2_kib, l2_ways, llc_kib, llc_ways;
	double ns[NR_SOURCES];
	double overlapped, stored, streamed; /* shares of a latency */
	double string_start_ns, string_bytes_per_ns;
	double contention; /* contention.c is on */
	double core_bytes_per_ns, llc_bytes_per_ns, node_bytes_per_ns; /* 0: no limit */
	double syscall_ns, interrupt_ns, space_ns; /* of mode switches */
	double tlb_entries, tlb_ways, walk_ns; /* entries: 0 if every page is there */
	double ram_mib; /* guest memory, divided evenly among the nodes */
	unsigned int nr_llcs, nr_nodes;
	unsigned int llc_node[MAX_LLCS];
};

extern struct memory_options memory_options;

/* cache.c */
void cache_init(struct cache *k, uint64_t bytes, uint32_t ways);
uint32_t *cache_find(struct cache *k, uint32_t line);
uint32_t *cache_use(struct cache *k, uint32_t line);
uint32_t cache_victim(const struct cache *k, uint32_t line);
uint32_t cache_insert(struct cache *k, uint32_t line, uint32_t flags);
bool cache_remove(struct cache *k, uint32_t line);
void *memory_zeroed(size_t bytes);

/* directory.c */
extern struct core *cores;
extern unsigned int nr_cores;
void directory_init(void);
void line_lock(uint32_t line);
void line_unlock(uint32_t line);
void core_lock(struct core *core);
void core_unlock(struct core *core);
void memory_lock(uint32_t *word);
void memory_unlock(uint32_t *word);
enum source directory_fetch(struct core *core, uint32_t line, bool write, bool *writable);
void directory_fill(struct core *core, uint32_t line, bool writable);
void directory_fill_code(struct core *core, uint32_t line, bool writable);
bool front_forget(struct core *core, uint32_t line);

enum source core_distance(const struct core *a, const struct core *b);

/* contention.c */
void contention_init(void);
bool contention_is_on(uint32_t line);
uint64_t contention_wait(unsigned int cpu, uint32_t line, int64_t now_ps, bool is_taken,
			 uint64_t latency_ps);

/* bandwidth.c */
void bandwidth_init(void);
uint64_t bandwidth_of_core(unsigned int cpu, unsigned int core, int64_t now_ps);
uint64_t bandwidth_of_llc(unsigned int cpu, unsigned int llc, int64_t now_ps);
uint64_t bandwidth_of_node(unsigned int cpu, unsigned int node, int64_t now_ps);

/* mode.c */
void mode_init(void);
void mode_syscall(unsigned int index, void *userdata);
void mode_interrupt(unsigned int index, void *userdata);
void mode_space(unsigned int index);

/* tlb.c */
void tlb_init(void);
uint64_t tlb_walk_ps(unsigned int cpu, uint64_t vaddr, uint64_t paddr, uint64_t space);

/* fetch.c */
bool fetch_is_on(void);
bool code_front_forget(struct core *core, uint32_t line);
void fetch_watch(struct qemu_plugin_tb *tb, qemu_plugin_u64 front);

/* home.c */
uint64_t home_top(void);
unsigned int home_node(uint32_t line);
enum source home_source(const struct core *core, uint32_t line);

/* memory.c */
struct core *memory_core(unsigned int index);
unsigned int memory_thread(unsigned int index);
void memory_charge_code(unsigned int index, uint32_t line, enum source source, double share);
void memory_wait(unsigned int index, enum source cause, uint64_t ps);
uint64_t memory_transfer_ps(unsigned int to, unsigned int from);

/* insn.c */
enum insn_kind {
	INSN_PLAIN,
	INSN_LOCKED, /* reads and writes one line, in one step */
	INSN_COPY, /* a repeated string instruction that writes: its bytes are counted */
	INSN_SCAN, /* another repeated string instruction */
	INSN_SYSCALL, /* a system call begins */
	INSN_IRET, /* an interrupt or an exception ends */
	INSN_NEW_SPACE, /* loads CR3: other translations for user addresses */
	INSN_NEW_TRANSLATION, /* changes translations of any address */
};

enum insn_kind insn_kind(const struct qemu_plugin_insn *insn);

#endif
