/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * weight.h - from nice values to virtual time.
 *
 * The vruntime of a task of weight w that runs for t nanoseconds advances by t * 1024 / w. The
 * table is the kernel's sched_prio_to_weight[]: ten per cent of CPU time for each nice level.
 * scx.weight is not used because it is rounded to the cgroup scale (nice 19 becomes 1 of 100, 46 %
 * too little).
 */
#ifndef __MAGPIE_WEIGHT_H
#define __MAGPIE_WEIGHT_H

#include "portable.h"

#define NICE_0_WEIGHT 1024
#define IDLE_POLICY_WEIGHT 3
#define WEIGHT_SHIFT 20
#define NICE_0_RATE (1ULL << WEIGHT_SHIFT)

static const u32 nice_to_weight[40] = {
	88761, 71755, 56483, 46273, 36291, /* -20 .. -16 */
	29154, 23254, 18705, 14949, 11916, /* -15 .. -11 */
	9548,  7620,  6100,  4904,  3906, /* -10 ..  -6 */
	3121,  2501,  1991,  1586,  1277, /*  -5 ..  -1 */
	1024,  820,   655,   526,   423, /*   0 ..   4 */
	335,   272,   215,   172,   137, /*   5 ..   9 */
	110,   87,    70,    56,    45, /*  10 ..  14 */
	36,    29,    23,    18,    15, /*  15 ..  19 */
};

/* Virtual nanoseconds per nanosecond, as a fixed-point number. */
static inline u64 weight_to_rate(u32 weight)
{
	return ((u64)NICE_0_WEIGHT << WEIGHT_SHIFT) / (weight ? weight : 1);
}

/*
 * ns * rate, without the fraction. In two parts, because the product does not fit into 64 bits: a
 * SCHED_IDLE task that ran for 52 seconds would be charged next to nothing. The result is exact for
 * spans of up to half a year at any weight.
 */
static inline u64 virtual_time(u64 ns, u64 rate)
{
	u64 whole = ns >> WEIGHT_SHIFT;
	u64 part = ns & (NICE_0_RATE - 1);

	return whole * rate + ((part * rate) >> WEIGHT_SHIFT);
}

#endif /* __MAGPIE_WEIGHT_H */
