/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fair.h - lag and deadlines: the arithmetic of fair shares.
 *
 * Idea (EEVDF: Stoica and Abdel-Wahab 1995; Linux kernel/sched/fair.c). A task's *vruntime*
 * advances with CPU time over weight. The *clock* of a runqueue is how far its tasks are. A task's
 * *lag* is clock minus vruntime: positive if the runqueue owes the task CPU time, negative if the
 * task has had too much. A task that leaves a runqueue keeps its lag, within bounds, and joins the
 * next one with it. So the clocks of two runqueues never need to agree.
 *
 *   sleeps, wakes:  lag within [-2 slices of its weight, 0]
 *   migrates:       lag within [-1 s, 50 ms]; of that, one slice at once and the rest by and by
 *   was parked:     lag within [-1 s, 0]
 *
 * All times are nanoseconds, real or virtual. Virtual times wrap around: compare them with
 * is_before() only. Source of the bounds: each was measured, see queue/fair.bpf.h.
 *
 * What it does not do: know clocks, queues or tasks. tests/native runs it with sanitizers and
 * checks its properties.
 */
#ifndef __MAGPIE_FAIR_H
#define __MAGPIE_FAIR_H

#include "weight.h"

#define LARGEST_LAG_NS 50000000LL
#define LARGEST_DEBT_NS 1000000000LL

static inline bool is_before(u64 time, u64 other)
{
	return (s64)(time - other) < 0;
}

static inline u64 later_of(u64 time, u64 other)
{
	return is_before(time, other) ? other : time;
}

static inline s64 clamp_lag(s64 lag, s64 least, s64 most)
{
	if (lag < least)
		return least;

	return lag > most ? most : lag;
}

/*
 * What a task asks for before others have their turn, as virtual time: as much as its usual burst,
 * but at least one slice and at most two. A longer request means the same share in longer turns. So
 * a task that wakes at the clock is due up to a slice before one of longer bursts that is there,
 * too. It preempts that one, and goes on to do so until it owes the difference.
 *
 * The request is never more than the span itself: scaled up for light tasks, it would let heavy
 * tasks run for seconds before a light one is due.
 */
static inline u64 request_of(u64 slice, u64 burst, u64 rate)
{
	u64 span = burst < slice ? slice : burst > 2 * slice ? 2 * slice : burst;

	return rate < NICE_0_RATE ? virtual_time(span, rate) : span;
}

/*
 * Both bounds are needed. Without the lower one, a task that ran alone with a low weight starves.
 * With an upper one above 0, sleep is worth CPU time: tasks that pass messages to each other wake
 * before those that never slept, take one message each, and switch twice as often.
 */
static inline s64 lag_after_sleep(s64 lag, u64 slice, u64 rate)
{
	return clamp_lag(lag, -2 * (s64)virtual_time(slice, rate), 0);
}

/*
 * @clock_lead: how far the new runqueue's clock is ahead of the old one's, 0 if they cannot be
 * compared. It counts because to even it out is what a migration is for; within a bound, because a
 * far larger lead is from light tasks that ran alone, not from this task.
 */
static inline s64 lag_after_move(s64 lag, s64 clock_lead)
{
	lag += clamp_lag(clock_lead, -LARGEST_LAG_NS, LARGEST_LAG_NS);
	return clamp_lag(lag, -LARGEST_DEBT_NS, LARGEST_LAG_NS);
}

/* The part of a lag that is more than one slice: the task gets it back by and by. */
static inline u64 lag_to_catch_up(s64 lag, u64 slice, u64 rate)
{
	s64 at_once = virtual_time(slice, rate);

	return lag > at_once ? lag - at_once : 0;
}

/*
 * What @used virtual time adds to vruntime. A task with lag to catch up has twice its share: half
 * of its time does not count until @catch_up is used up.
 */
static inline u64 charge_with_catch_up(u64 used, u64 *catch_up)
{
	u64 free = used / 2 < *catch_up ? used / 2 : *catch_up;

	*catch_up -= free;
	return used - free;
}

#endif /* __MAGPIE_FAIR_H */
