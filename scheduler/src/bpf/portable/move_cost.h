/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * move_cost.h - what a move to another LLC costs a task, learned from its own bursts.
 *
 * The kernel does not know how much of a cache a task uses, or how long the machine needs to fetch
 * it again. Both show in how long the task's bursts last. So bursts after a move to another LLC are
 * averaged, and all others:
 *
 *   another LLC would run the task at once. Does it wait instead?
 *
 *     it never moved so far?                     --yes--> move
 *     bursts after such moves longer than
 *     others by more than it would wait?         --yes--> wait
 *                                                --no---> move
 */
#ifndef __MAGPIE_MOVE_COST_H
#define __MAGPIE_MOVE_COST_H

#include "average.h"

/*
 * A move costs no more than that: about the time in which 16 MiB are fetched. The burst after a
 * move may be long for other reasons.
 */
#define LARGEST_MOVE_COST_NS 1000000

/* How much of the cost is forgotten with each burst nearby, so that a far move is tried again. */
#define FAR_DECAY_SHIFT 10

/* A longer burst counts as one of that length, so that an average fits 32 bits. */
#define LONGEST_BURST_NS 0xffffffffU

struct move_history {
	u32 near; /* average burst in the LLC of the burst before, ns; 0: not known */
	u32 far; /* average burst after a move to another LLC, ns; 0: not known */
	bool is_far; /* the burst that runs now is one after such a move */
	bool is_next_far; /* the burst that will begin when that has ended */
	bool is_mixed; /* a part of the burst that runs now ran before a move */
};

/* Return by how much longer the task runs after a move to another LLC, ns; 0 if not known. */
static inline u64 far_move_cost(const struct move_history *history)
{
	u64 near = history->near;
	u64 far = history->far;

	if (!near || far <= near)
		return 0;

	return far - near < LARGEST_MOVE_COST_NS ? far - near : LARGEST_MOVE_COST_NS;
}

/* A CPU was chosen for a task that has slept; whether it is one of another LLC. */
static inline void note_next_burst(struct move_history *history, bool is_far)
{
	WRITE_CHANGED(history->is_next_far, is_far);
}

/*
 * The task was taken to another LLC while it waited, after @ns of its burst. A burst of which a
 * part ran before the move teaches nothing.
 */
static inline void note_far_move(struct move_history *history, u64 ns)
{
	history->is_far = true;
	history->is_mixed = ns;
}

/* Forget a part of what far moves cost; all of it once they seem to cost nothing. */
static inline void forget_far(struct move_history *history)
{
	if (history->far > history->near)
		history->far -= ((history->far - history->near) >> FAR_DECAY_SHIFT) + 1;
	else
		history->far = 0;
}

/* The burst is over, it lasted for @burst, ns; the next one begins. */
static inline void learn_burst(struct move_history *history, u64 burst)
{
	u32 ns = burst < LONGEST_BURST_NS ? burst : LONGEST_BURST_NS;
	bool is_far = history->is_far;
	bool is_mixed = history->is_mixed;

	history->is_far = history->is_next_far;
	history->is_next_far = false;
	history->is_mixed = false;
	if (is_mixed)
		return;

	if (is_far) {
		history->far = history->far ? average_add(history->far, ns) : ns;
	} else {
		history->near = history->near ? average_add(history->near, ns) : ns;
		forget_far(history);
	}
}

#endif /* __MAGPIE_MOVE_COST_H */
