/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * move_cost.h - what a move costs a task, learned from its own bursts.
 *
 * The kernel does not know how much of a cache a task uses, what a busy sibling takes from it, or
 * how long the machine needs to fetch it again. All of that shows in how long the task's bursts
 * last. So bursts are averaged by how they began, and two questions compare the averages:
 *
 *   its previous CPU idles beside a busy sibling, and another core is idle. Does the task stay?
 *
 *     no burst of one kind known yet?            --yes--> that kind
 *     the TRY_EVERY-th choice?                   --yes--> the kind that seems worse: things change
 *     stayed bursts longer than moved ones
 *     by more than a sixteenth?                  --yes--> move
 *                                                --no---> stay
 *
 *   another LLC would run it at once. Does the task wait instead?
 *
 *     it never moved so far?                     --yes--> move
 *     bursts after such moves longer than
 *     others by more than it would wait?         --yes--> wait
 *                                                --no---> move
 *
 * A tie between cores is for staying: a move costs others, too, whose caches it fills.
 */
#ifndef __MAGPIE_MOVE_COST_H
#define __MAGPIE_MOVE_COST_H

#include "average.h"

/* How a burst began. */
enum burst_kind {
	BURST_NEAR, /* in the LLC of the burst before, without a choice */
	BURST_STAYED, /* on its previous CPU, whose core was shared */
	BURST_MOVED, /* on an idle core of the same LLC */
	BURST_FAR, /* in another LLC */
	NR_BURST_KINDS,
};

#define TRY_EVERY 16

/*
 * A move costs no more than that: about the time in which 16 MiB are fetched. The burst after a move
 * may be long for other reasons.
 */
#define LARGEST_MOVE_COST_NS 1000000

/* How much of the cost is forgotten with each burst nearby, so that a far move is tried again. */
#define FAR_DECAY_SHIFT 10

struct move_history {
	u64 burst[NR_BURST_KINDS]; /* average length of each kind, ns; 0: not known. NEAR: of all but FAR */
	u32 choices; /* how many STAYED and MOVED bursts began */
	u32 kind; /* of the burst that runs now, enum burst_kind */
	u32 next; /* of the burst that will begin when that has ended */
};

/* Return whether the task is to stay, if its previous CPU idles beside a busy one. */
static inline bool does_better_at_home(const struct move_history *history)
{
	u64 stayed = history->burst[BURST_STAYED];
	u64 moved = history->burst[BURST_MOVED];
	bool stays;

	if (!moved || !stayed)
		return moved;

	stays = stayed <= moved + moved / 16;
	return history->choices % TRY_EVERY ? stays : !stays;
}

/* Return by how much longer the task runs after a move to another LLC, ns; 0 if not known. */
static inline u64 far_move_cost(const struct move_history *history)
{
	u64 near = history->burst[BURST_NEAR];
	u64 far = history->burst[BURST_FAR];

	if (!near || far <= near)
		return 0;

	return far - near < LARGEST_MOVE_COST_NS ? far - near : LARGEST_MOVE_COST_NS;
}

/* A CPU was chosen for a task that has slept: its next burst begins like this. */
static inline void note_next_burst(struct move_history *history, u32 kind)
{
	history->next = kind;
	if (kind == BURST_STAYED || kind == BURST_MOVED)
		history->choices++;
}

/*
 * The task was taken to another LLC while it waited, after @ns of its burst. A burst of which a part
 * ran before the move teaches nothing.
 */
static inline void note_far_move(struct move_history *history, u64 ns)
{
	history->kind = ns ? NR_BURST_KINDS : BURST_FAR;
}

/* Note a sample of a kind. */
static inline void learn_kind(struct move_history *history, u32 kind, u64 ns)
{
	history->burst[kind] = history->burst[kind] ? average_add(history->burst[kind], ns) : ns;
}

/* Forget a part of what far moves cost; all of it once they seem to cost nothing. */
static inline void forget_far(struct move_history *history)
{
	u64 near = history->burst[BURST_NEAR];
	u64 *far = &history->burst[BURST_FAR];

	if (*far > near)
		*far -= ((*far - near) >> FAR_DECAY_SHIFT) + 1;
	else
		*far = 0;
}

/* The burst is over, it lasted for @ns; the next one begins. */
static inline void learn_burst(struct move_history *history, u64 ns)
{
	u32 kind = history->kind;

	history->kind = history->next;
	history->next = BURST_NEAR;
	if (kind >= NR_BURST_KINDS)
		return;
	if (kind != BURST_NEAR)
		learn_kind(history, kind, ns);
	if (kind != BURST_FAR) {
		learn_kind(history, BURST_NEAR, ns);
		forget_far(history);
	}
}

#endif /* __MAGPIE_MOVE_COST_H */
