// SPDX-License-Identifier: GPL-2.0-only
/*
 * The memory model's part of the plugin's options: their defaults, their names, and
 * what is refused.
 */
#include <stdlib.h>

#include "memory.h"

struct memory_options memory_options = {
	.overlapped = 0.25,
	.stored = 0.3,
	.streamed = 0.03,
	.string_start_ns = 10,
	.string_bytes_per_ns = 100,
	.contention = 1,
};

/* The last one is NULL. */
const char *const memory_cause_names[NR_CAUSES + 1] = {
	"l1",
	"l2",
	"llc",
	"sibling",
	"same_llc",
	"other_llc",
	"other_node",
	"dram",
	"remote_dram",
	"contention",
	"core_bandwidth",
	"llc_bandwidth",
	"node_bandwidth",
	"syscall",
	"interrupt",
	"address_space",
	"page_walk",
	"fetch",
};

/* The numbers of the plugin's options; `memory` switches the model on. */
const struct number_option memory_number_options[] = {
	{ "memory", 0, 1, &memory_options.on },
	{ "l1_kib", 1, 1 << 20, &memory_options.l1_kib },
	{ "l1_ways", 1, 64, &memory_options.l1_ways },
	{ "l1i_kib", 0, 1 << 20, &memory_options.l1i_kib },
	{ "l1i_ways", 0, 64, &memory_options.l1i_ways },
	{ "l2_kib", 1, 1 << 20, &memory_options.l2_kib },
	{ "l2_ways", 1, 64, &memory_options.l2_ways },
	{ "llc_kib", 1, 1 << 22, &memory_options.llc_kib },
	{ "llc_ways", 1, 64, &memory_options.llc_ways },
	{ "llc_cores", 1, MAX_VCPUS, &memory_options.llc_cores },
	{ "l2_ns", 0, 10000, &memory_options.ns[FROM_L2] },
	{ "llc_ns", 0, 10000, &memory_options.ns[FROM_LLC] },
	{ "sibling_ns", 0, 10000, &memory_options.ns[FROM_SIBLING] },
	{ "same_llc_ns", 0, 10000, &memory_options.ns[FROM_SAME_LLC] },
	{ "other_llc_ns", 0, 10000, &memory_options.ns[FROM_OTHER_LLC] },
	{ "other_node_ns", 0, 10000, &memory_options.ns[FROM_OTHER_NODE] },
	{ "dram_ns", 0, 10000, &memory_options.ns[FROM_DRAM] },
	{ "remote_dram_ns", 0, 10000, &memory_options.ns[FROM_REMOTE_DRAM] },
	{ "overlapped", 0, 1, &memory_options.overlapped },
	{ "stored", 0, 1, &memory_options.stored },
	{ "streamed", 0, 1, &memory_options.streamed },
	{ "string_start_ns", 0, 10000, &memory_options.string_start_ns },
	{ "string_bytes_per_ns", 0.01, 10000, &memory_options.string_bytes_per_ns },
	{ "contention", 0, 1, &memory_options.contention },
	{ "core_bytes_per_ns", 0, 10000, &memory_options.core_bytes_per_ns },
	{ "llc_bytes_per_ns", 0, 10000, &memory_options.llc_bytes_per_ns },
	{ "node_bytes_per_ns", 0, 10000, &memory_options.node_bytes_per_ns },
	{ "syscall_ns", 0, 10000, &memory_options.syscall_ns },
	{ "interrupt_ns", 0, 10000, &memory_options.interrupt_ns },
	{ "address_space_ns", 0, 10000, &memory_options.space_ns },
	{ "tlb_entries", 0, 1 << 16, &memory_options.tlb_entries },
	{ "tlb_ways", 1, 64, &memory_options.tlb_ways },
	{ "walk_ns", 0, 10000, &memory_options.walk_ns },
	{ "ram_mib", 1, 1 << 20, &memory_options.ram_mib },
	{ 0 },
};

/* Set the option llc_nodes: the node of each LLC, as in 0-0-1-1. Return false if malformed. */
bool memory_set_nodes(const char *text)
{
	struct memory_options *o = &memory_options;
	char *end;

	for (o->nr_llcs = 0; o->nr_llcs < MAX_LLCS; text = end + 1) {
		const unsigned long node = strtoul(text, &end, 10);

		if (end == text || node >= MAX_NODES)
			return false;
		o->llc_node[o->nr_llcs++] = node;
		if (node >= o->nr_nodes)
			o->nr_nodes = node + 1;
		if (*end != '-')
			return !*end;
	}
	return false;
}

/* Return what is wrong with the options of the model, or NULL. */
const char *memory_fault(void)
{
	const struct memory_options *o = &memory_options;

	if (!o->on)
		return NULL;
	if (!o->nr_llcs || !o->llc_cores || !o->ram_mib)
		return "memory=1 needs llc_nodes=, llc_cores= and ram_mib=";
	if (options.threads > MAX_THREADS)
		return "memory=1 takes at most 2 threads per core";
	if (o->l1_kib * 1024 < o->l1_ways * LINE_BYTES ||
	    o->l2_kib * 1024 < o->l2_ways * LINE_BYTES ||
	    (fetch_is_on() && (o->l1i_ways < 1 || o->l1i_kib * 1024 < o->l1i_ways * LINE_BYTES)))
		return "memory=1: a cache is smaller than one set";
	if ((uint64_t)(o->llc_kib * 1024 / LINE_BYTES / o->llc_ways) % LINE_LOCKS ||
	    o->llc_kib * 1024 < o->llc_ways * LINE_BYTES * LINE_LOCKS)
		return "memory=1: llc_kib must be a multiple of 16 times llc_ways";
	if (o->tlb_entries && (o->tlb_ways < 1 || o->tlb_entries < o->tlb_ways))
		return "memory=1: the TLB is smaller than one set";
	if (home_top() >> LINE_SHIFT > MAX_LINES)
		return "memory=1 takes at most 30 GiB of guest memory";
	return NULL;
}

bool memory_is_on(void)
{
	return memory_options.on;
}
