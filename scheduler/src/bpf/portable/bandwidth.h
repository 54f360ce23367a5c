/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * bandwidth.h - what a cgroup with a limit may still use.
 *
 * A *budget* of CPU time that each period adds the quota to, up to quota + burst.
 * What was used beyond it is a debt: the budget is negative, and the next periods
 * pay it back. So usage over many periods is the limit, however late a CPU notices
 * that the budget is used up.
 */
#ifndef __MAGPIE_BANDWIDTH_H
#define __MAGPIE_BANDWIDTH_H

#include "portable.h"

/* Periods for which a quota is added at once, after a long time without use. */
#define MOST_PERIODS 10000ULL

/* Periods that are over at @now, if the current one ends at @end. */
static inline u64 periods_over(u64 now, u64 end, u64 period)
{
	if ((s64)(now - end) < 0 || !period)
		return 0;

	return 1 + (now - end) / period;
}

/* What these periods add to the budget. */
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
