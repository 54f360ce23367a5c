/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * shares.h - from cgroups' weights to the rate at which their tasks age.
 *
 * The hierarchy's weights are flattened: a cgroup's *share* is its part of its parent's share,
 * which the parent's children divide by weight. The cgroup's tasks divide it in turn:
 *
 *   weight of a task = its nice weight * share / active weight of the cgroup
 *
 * The *active weight* is the sum of the nice weights of the cgroup's tasks that run or wait. The
 * rates of the tasks are multiplied by the cgroup's *factor*, active weight / share. All factors
 * are scaled so that the tasks of the machine together have the weight that they have without
 * cgroups. So if one cgroup has all tasks, its factor is 1, and clocks run as fast as without
 * cgroups.
 *
 * A cgroup that is seldom active takes little from its siblings: its *activity*, the part of time
 * in which it is active, scales its weight among them. Its own share is the one that it has while
 * it is active.
 */
#ifndef __MAGPIE_SHARES_H
#define __MAGPIE_SHARES_H

#include "average.h"
#include "weight.h"

#define SHARE_ONE (1ULL << 28)
#define ACTIVITY_ONE (1U << 16)
#define ACTIVITY_NONE (1U << 6) /* an average near 0 rests below this */
#define FACTOR_ONE NICE_0_RATE
#define LARGEST_FACTOR (1024 * FACTOR_ONE)
#define SMALLEST_FACTOR (FACTOR_ONE / 64)
#define LARGEST_RATE (1024 * NICE_0_RATE)

/* Within these, no product overflows: 65,536 tasks of nice 0 in a cgroup, 524,288 in all. */
#define MOST_ACTIVE (1ULL << 30)
#define MOST_ACTIVE_IN_ALL (1ULL << 33)
#define MOST_SHARE_IN_ALL (8 * SHARE_ONE)

/* Averages of weights have a fraction; without it, light ones would round to 0. */
#define ACTIVE_SHIFT 4

#define CGROUP_DEFAULT_WEIGHT 100
#define CGROUP_IDLE_WEIGHT 3 /* as a SCHED_IDLE task's */

/* cpu.weight on the scale of nice weights: a cgroup of weight 100 equals one task of nice 0. */
static inline u32 scale_cgroup_weight(u32 weight)
{
	u32 scaled = weight * NICE_0_WEIGHT / CGROUP_DEFAULT_WEIGHT;

	return scaled ? scaled : 1;
}

static inline u32 activity_add(u32 activity, bool is_active)
{
	return average_add(activity, is_active ? ACTIVITY_ONE : 0);
}

/* A cgroup's weight in the sum that its siblings divide by. */
static inline u64 activity_weight(u64 weight, u32 activity)
{
	return weight * activity / ACTIVITY_ONE;
}

/*
 * The part of its parent's share that a cgroup has while it is active. @sum: of the weights of all
 * the parent's children by their activity. This cgroup counts with its full weight instead.
 */
static inline u64 share_of_parent(u64 parent, u64 weight, u32 activity, u64 sum)
{
	u64 own = activity_weight(weight, activity);
	u64 others = sum > own ? sum - own : 0; /* the weight may have changed meanwhile */

	return parent * weight / (others + weight ? others + weight : 1);
}

/*
 * A cgroup's factor: active weight / share, divided by the same of all cgroups together.
 * Bounded, so that no product below or in virtual_time() overflows.
 */
static inline u64 cgroup_factor(u64 active, u64 share, u64 all_active, u64 all_share)
{
	u64 quotient, factor, largest;

	if (!active || !all_active || !all_share)
		return FACTOR_ONE;

	if (active > MOST_ACTIVE)
		active = MOST_ACTIVE;
	if (all_active > MOST_ACTIVE_IN_ALL)
		all_active = MOST_ACTIVE_IN_ALL;
	if (all_share > MOST_SHARE_IN_ALL)
		all_share = MOST_SHARE_IN_ALL;

	largest = all_active * (LARGEST_FACTOR / FACTOR_ONE);
	quotient = active * all_share / (share ? share : 1);
	if (quotient > largest)
		quotient = largest;

	factor = quotient * FACTOR_ONE / all_active;
	return factor < SMALLEST_FACTOR ? SMALLEST_FACTOR : factor;
}

/* Multiply a rate by a cgroup's factor, within bounds: no rate is 0, and no product overflows. */
static inline u64 scale_rate(u64 rate, u64 factor)
{
	u64 scaled = (rate * factor) >> WEIGHT_SHIFT;

	if (!scaled)
		return 1;

	return scaled > LARGEST_RATE ? LARGEST_RATE : scaled;
}

#endif /* __MAGPIE_SHARES_H */
