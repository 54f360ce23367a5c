/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fair.h - lag and deadlines: the arithmetic of fair shares.
 *
 * Idea (EEVDF: Stoica and Abdel-Wahab 1995; Linux kernel/sched/fair.c). A task's *vruntime*
 * advances with CPU time over weight. The *clock* of a runqueue is the virtual time that its tasks
 * have reached. A task's *lag* is clock minus vruntime: positive if the runqueue owes the task CPU
 * time, negative (a *debt*) if the task has had too much. A task that leaves a runqueue keeps its
 * lag, within bounds, and joins the next runqueue with it. So two runqueues whose clocks have
 * nothing in common can exchange tasks. Where two clocks can be compared, because the CPUs of an
 * LLC take over the furthest clock as they leave idle, the difference counts too.
 *
 *   sleeps, wakes:  lag within [-2 slices of its weight, 0]
 *   migrates:       lag within [-1 s, 50 ms]; of a positive lag, one slice at once and the rest by
 *                   and by
 *   was parked:     lag within [-1 s, 0]
 *
 * All times are nanoseconds, real or virtual. Virtual times wrap around: compare them with
 * is_before() only. queue/fair.bpf.h has the measurements behind the bounds.
 *
 * What it does not do: know clocks, queues or tasks. tests/native runs it with sanitizers and
 * checks its properties.
 */
#ifndef __MAGPIE_FAIR_H
#define __MAGPIE_FAIR_H

#include "weight.h"

/* Bounds of the lag that a migration keeps. */
#define LARGEST_LAG_NS 50000000LL
#define LARGEST_DEBT_NS 1000000000LL

/* Return whether a virtual time is before another one, across the wrap. */
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
 * Return a task's request as virtual time: one slice, or two if the task is CPU-bound. The request
 * does not change a task's share. But of two tasks at the clock, one that wakes is due one slice
 * before a CPU-bound one: it preempts that task whenever it wakes, until it owes a slice.
 *
 * The result is never more than the request in real time: scaled up for light tasks, it would let
 * heavy tasks run for seconds before a light one is due.
 */
static inline u64 request_of(u64 slice, bool is_cpu_bound, u64 rate)
{
	u64 span = is_cpu_bound ? 2 * slice : slice;

	return rate < NICE_0_RATE ? virtual_time(span, rate) : span;
}

/*
 * Return the lag with which a task wakes. Both bounds are needed. Without the lower one, a task
 * that ran alone with a low weight starves. With an upper one above 0, sleep earns CPU time: tasks
 * that pass messages to each other are due before those that did not sleep, take one message each,
 * and the CPU switches twice as often.
 */
static inline s64 lag_after_sleep(s64 lag, u64 slice, u64 rate)
{
	return clamp_lag(lag, -2 * (s64)virtual_time(slice, rate), 0);
}

/*
 * Return the lag with which a task joins another runqueue. @clock_lead: how far the new runqueue's
 * clock is ahead of the old one's, 0 if the two cannot be compared. With the lead the task keeps
 * its vruntime: where the clock is further, each task has had more, and a task that comes from a
 * CPU which gave less is owed the difference. The lead counts up to a bound only, because light
 * tasks that ran alone make far larger leads.
 */
static inline s64 lag_after_move(s64 lag, s64 clock_lead)
{
	lag += clamp_lag(clock_lead, -LARGEST_LAG_NS, LARGEST_LAG_NS);
	return clamp_lag(lag, -LARGEST_DEBT_NS, LARGEST_LAG_NS);
}

/*
 * Return the part of a lag beyond one slice. The task gets it by and by: at once, it would keep the
 * other tasks of the queue waiting for as long.
 */
static inline u64 lag_to_catch_up(s64 lag, u64 slice, u64 rate)
{
	s64 at_once = virtual_time(slice, rate);

	return lag > at_once ? lag - at_once : 0;
}

/*
 * Return by how much @used virtual time advances a task's vruntime. A task with lag to catch up
 * gets twice its share: half of its time does not count until @catch_up is used up.
 */
static inline u64 charge_with_catch_up(u64 used, u64 *catch_up)
{
	u64 free = used / 2 < *catch_up ? used / 2 : *catch_up;

	if (free)
		*catch_up -= free;
	return used - free;
}

#endif /* __MAGPIE_FAIR_H */
