/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * bandwidth.h - how much CPU time a cgroup with a limit may still use.
 *
 * Each period adds the quota to the cgroup's *budget*, up to quota + burst. If the cgroup uses more
 * than its budget, the budget is negative, and the next periods pay this debt back. So the usage of
 * a cgroup that always wants more equals the limit over many periods, however late a CPU notices
 * that the budget is used up.
 */
#ifndef __MAGPIE_BANDWIDTH_H
#define __MAGPIE_BANDWIDTH_H

#include "portable.h"

/* The most periods whose quotas are added at once, after a long time without use. */
#define MOST_PERIODS 10000ULL

/*
 * Return how many periods are over at @now, if the current one ends at @end: none if there is no
 * period.
 */
static inline u64 periods_over(u64 now, u64 end, u64 period)
{
	if ((s64)(now - end) < 0 || !period)
		return 0;

	return 1 + (now - end) / period;
}

/*
 * Return by how much these periods raise the budget, ns: by a quota each, but not beyond quota plus
 * burst. The caller adds it atomically, because CPUs charge the budget meanwhile.
 */
static inline s64 budget_to_add(s64 budget, u64 periods, u64 quota, u64 burst)
{
	s64 most = (s64)(quota + burst);
	s64 sum;

	if (periods > MOST_PERIODS)
		periods = MOST_PERIODS;

	sum = budget + (s64)(periods * quota);
	if (sum > most)
		sum = most;

	return sum > budget ? sum - budget : 0;
}

#endif /* __MAGPIE_BANDWIDTH_H */
