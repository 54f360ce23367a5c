/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * steal.h - how much time of a vCPU the host withheld, from its late ticks.
 *
 * Idea: sampling. Each tick that is due asks whether the vCPU has a CPU of the host at that moment.
 * If it has none, the tick is late, and stands for the time between two ticks.
 *
 * Short delays do not count, because sections with interrupts off cause them, too, and because an
 * emulated timer is itself late. How late shows in the ticks of a moment at which the vCPU had a
 * CPU: the least delay of recent ones, or the bound below, here "punctual". From late_after() on a
 * tick is late.
 *
 * A vCPU that is withheld for D at a time has delays from 0 to D, all equally likely. So of D only
 * D - late_after is seen, and the delays that are seen are (D + late_after) / 2 on average. That
 * gives D, and what is seen is scaled to it. On a host that is a little short D is short: with 8
 * vCPUs on 7 CPUs and slices of 2.8 ms it is 0.4 ms, because each CPU whose slice ends takes the
 * one that waits.
 */
#ifndef __MAGPIE_STEAL_H
#define __MAGPIE_STEAL_H

#include "portable.h"

/* From this delay on a tick is late if others come at once. */
#define LATE_NS 125000ULL

/* So many ticks are asked at least: of fewer, a few late ones are chance. */
#define LEAST_TICKS 16

/* How much more than was seen is assumed, at most: D is then 1.25 late_after. */
#define MOST_UNSEEN 3

/*
 * Return the delay of a punctual tick after one more: less at once, more by an eighth a tick, but
 * never more than 1/32 of the interval. Without that bound a host whose slices keep step with the
 * ticks, so that none of a vCPU's ticks finds it on a CPU, would look like a late timer. @punctual is
 * 0 before the first tick, which is compared with the bound. When it was compared with 0, all of the
 * first 80 ticks of an emulator's timer were late, and a guest that began to work lost CPUs.
 */
static inline u64 punctual_after(u64 punctual, u64 delay, u64 interval)
{
	u64 most = interval / 32;
	u64 more = punctual ? punctual + punctual / 8 + 1 : most;

	if (more > most)
		more = most;

	return delay < more ? delay : more;
}

/* Return from which delay on a tick is late, ns. */
static inline u64 late_after(u64 punctual)
{
	return LATE_NS + 4 * punctual;
}

/*
 * Return the time, ns, for which a late tick stands. @delay: how late it is. @excess: by how much
 * more than @after, late_after(), such delays are, on average of those shorter than the @interval
 * of ticks.
 */
static inline u64 late_time(u64 delay, u64 excess, u64 after, u64 interval)
{
	u64 most = interval * MOST_UNSEEN;
	u64 scaled;

	if (delay >= interval)
		return (delay / interval + 1) * interval;
	if (!excess)
		return most;

	scaled = interval * (2 * excess + after) / (2 * excess);
	return scaled < most ? scaled : most;
}

/*
 * Return the time withheld in a period, ns: the sum of its late ticks, or 0 if the CPUs were @busy for
 * so short a time, in sum, that few ticks were asked.
 */
static inline u64 late_sum(u64 late, u64 busy, u64 interval)
{
	return busy < LEAST_TICKS * interval ? 0 : late;
}

/* Return whether a sum has several parts as long as the longest, rather than one or two. */
static inline bool is_repeated(u64 sum, u64 longest)
{
	return sum / 3 >= longest;
}

#endif /* __MAGPIE_STEAL_H */
