/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * average.h - the moving average of idle periods, bursts, delays and costs.
 *
 * A new sample weighs 1/8, as in the kernel's update_avg(): about the last eight samples matter, no
 * history is kept, and there is no division.
 */
#ifndef __MAGPIE_AVERAGE_H
#define __MAGPIE_AVERAGE_H

#include "portable.h"

#define AVERAGE_SHIFT 3

/*
 * Return the average after one more sample. It moves by an eighth of its distance to the sample,
 * and rests when the distance is below 8. Two cases rather than a signed difference, so that no
 * pair of values, however far apart, takes the average past the sample.
 */
static inline u64 average_add(u64 average, u64 sample)
{
	if (sample < average)
		return average - ((average - sample) >> AVERAGE_SHIFT);

	return average + ((sample - average) >> AVERAGE_SHIFT);
}

#endif /* __MAGPIE_AVERAGE_H */
