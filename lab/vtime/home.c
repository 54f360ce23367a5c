// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which node's memory has a line: guest-physical memory is divided among the nodes in the order of
 * addresses, each with as many whole MiB, and the last one with the rest.
 */
#include "memory.h"

/*
 * QEMU's q35 machine has all memory below 4 GiB if it is less than MOST_LOW. Of more
 * memory, LOW_OF_MORE is there and the rest above 4 GiB.
 */
#define GIB (1ULL << 30)
#define MOST_LOW (0xb0000000ULL)
#define LOW_OF_MORE (2 * GIB)

static uint64_t ram_bytes(void)
{
	return (uint64_t)memory_options.ram_mib << 20;
}

/* Return how much memory is below 4 GiB. */
static uint64_t low_bytes(void)
{
	if (ram_bytes() >= MOST_LOW)
		return LOW_OF_MORE;
	return ram_bytes();
}

/* The end of guest-physical memory. */
uint64_t home_top(void)
{
	return ram_bytes() > low_bytes() ? 4 * GIB + ram_bytes() - low_bytes() : ram_bytes();
}

/* Return the node whose memory has the line. */
unsigned int home_node(uint32_t line)
{
	uint64_t address = (uint64_t)line << LINE_SHIFT;
	unsigned int node;

	if (address >= 4 * GIB)
		address -= 4 * GIB - low_bytes();
	node = address / ((uint64_t)(memory_options.ram_mib / memory_options.nr_nodes) << 20);
	if (node >= memory_options.nr_nodes)
		node = memory_options.nr_nodes - 1;
	return node;
}

/* Return whether the memory of the core's own node or of another one has the line. */
enum source home_source(const struct core *core, uint32_t line)
{
	return home_node(line) == core->node ? FROM_DRAM : FROM_REMOTE_DRAM;
}
