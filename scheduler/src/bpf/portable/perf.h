/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * perf.h - from how busy a CPU was to the performance that it should have.
 *
 * Utilisation is a moving average of busy time with the half-life of the kernel's PELT, 32 periods
 * of about a millisecond. It is scale-invariant: busy time counts by the capacity of the CPU and by
 * the frequency at which it ran, so a CPU at half its frequency that is busy for half of the time
 * has a utilisation of a quarter. Performance and utilisation are parts of PERF_ONE, the capacity
 * of the fastest CPU at its highest frequency, as in the kernel's scx_bpf_cpuperf_set().
 *
 *   busy and idle time since the last look -> level -> utilisation moves towards the level
 *   utilisation -> wanted -> within the task's clamps -> a step away from the target?
 *                                                            | yes
 *                                                        rate limit -> new target
 *
 * A target that is raised may come up to PERF_BURST intervals early, one that is lowered may not.
 * So a rise seldom waits, and a second has at most 1 + PERF_BURST + 80 targets.
 */
#ifndef __MAGPIE_PERF_H
#define __MAGPIE_PERF_H

#include "portable.h"

#define PERF_ONE 1024

/* Utilisation has ten more bits: a look after 2 ms moves it by a twentieth of the distance. */
#define UTILISATION_SHIFT 10

#define DECAY_PERIOD_SHIFT 20 /* ns in a period: 1.05 ms */
#define HALF_LIFE_SHIFT 5 /* periods in which a half is left */
#define DECAY_SHIFT 16

/* A target that differs by less is kept. With more than an eighth, too, if that is more. */
#define PERF_STEP 16
#define PERF_STEP_SHIFT 3

/* A CPU that uses less than half a step asks for nothing. */
#define PERF_NONE (PERF_STEP / 2)

#define PERF_INTERVAL_NS 12500000ULL
#define PERF_BURST 4

/* ns after which what a saturated CPU asks for doubles again: 4.2 ms. */
#define RAMP_SHIFT 22

/* 2^(-n/32), as parts of 2^DECAY_SHIFT. */
static const u32 decay_of_periods[33] = {
	65536, 64132, 62757, 61413, 60097, 58809, 57549, 56316, 55109, 53928, 52773,
	51642, 50535, 49452, 48393, 47356, 46341, 45348, 44376, 43425, 42495, 41584,
	40693, 39821, 38968, 38133, 37316, 36516, 35734, 34968, 34219, 33486, 32768,
};

/*
 * Return the part of a utilisation that is left after this time, of 2^DECAY_SHIFT. Between two
 * periods it is on a straight line, not on the curve.
 */
static inline u64 decay_after(u64 ns)
{
	u64 periods = ns >> DECAY_PERIOD_SHIFT;
	u64 part = ns & ((1ULL << DECAY_PERIOD_SHIFT) - 1);
	u64 halvings = periods >> HALF_LIFE_SHIFT;
	u32 at = periods & ((1 << HALF_LIFE_SHIFT) - 1);
	u64 left = decay_of_periods[at];
	u64 lost = left - decay_of_periods[at + 1];

	if (halvings > DECAY_SHIFT)
		return 0;

	return (left - ((lost * part) >> DECAY_PERIOD_SHIFT)) >> halvings;
}

/* How busy a CPU was, as utilisation: @busy of @span ns, at a capacity and a frequency. */
static inline u32 level_of(u64 busy, u64 span, u32 capacity, u32 frequency)
{
	u64 level;

	if (busy > span)
		busy = span;
	/* Shifted, so that no span overflows the product. */
	if (span >> 40) {
		span >>= 24;
		busy >>= 24;
	}

	level = span ? (busy << UTILISATION_SHIFT) / span : 0;
	return (level * capacity * frequency) >> UTILISATION_SHIFT;
}

/* The utilisation after a time during which the CPU was busy at a level. It never passes that. */
static inline u32 utilisation_after(u32 utilisation, u32 level, u64 span)
{
	u64 left = decay_after(span);

	if (utilisation < level)
		return level - (((level - utilisation) * left) >> DECAY_SHIFT);

	return level + (((utilisation - level) * left) >> DECAY_SHIFT);
}

/* The performance within the clamps of a task. The upper one counts if they cross. */
static inline u32 clamp_perf(u32 perf, u32 least, u32 most)
{
	if (perf < least)
		perf = least;

	return perf > most ? most : perf;
}

/*
 * Return whether the performance that is wanted is a step away from the target. All and nothing are
 * always a step.
 */
static inline bool is_perf_step(u32 target, u32 wanted, u32 capacity)
{
	u32 lower = target < wanted ? target : wanted;
	u32 distance = target < wanted ? wanted - target : target - wanted;
	u32 step = lower >> PERF_STEP_SHIFT;

	if (!distance)
		return false;
	if (!wanted || wanted == capacity)
		return true;

	return distance >= (step > PERF_STEP ? step : PERF_STEP);
}

/*
 * The performance that a CPU wants whose task is known to sleep, but has not for long: @beyond
 * longer than makes it saturated. Twice what it uses, and twice as much again for each tick of a
 * kernel of 250 Hz. An eighth of all is the least that is doubled, because few CPUs have a
 * frequency below a quarter.
 */
static inline u32 ramp_perf(u32 used, u64 beyond, u32 capacity)
{
	u64 doublings = 1 + (beyond >> RAMP_SHIFT);

	if (used < capacity / 8)
		used = capacity / 8;
	if (doublings >= 3)
		return capacity;

	return clamp_perf(used << doublings, 0, capacity);
}

/* Return whether the target may change now. @due begins as 0. */
static inline bool is_target_due(u64 due, u64 now, bool is_raised)
{
	return due <= now + (is_raised ? PERF_BURST * PERF_INTERVAL_NS : 0);
}

/* Return whether the target may change now, and note that it does. */
static inline bool may_set_target(u64 *due, u64 now, bool is_raised)
{
	if (!is_target_due(*due, now, is_raised))
		return false;

	*due = (*due > now ? *due : now) + PERF_INTERVAL_NS;
	return true;
}

#endif /* __MAGPIE_PERF_H */
