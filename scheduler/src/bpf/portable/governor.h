/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * governor.h - how many cores a guest should use, from what the host gives it.
 *
 * A governor is a pure function: once a period it is told what share of the
 * time of the counted CPUs the host took away, and says how many cores to use
 * from now on. No clock, no topology: which cores those are is for others.
 *
 *   step    one core less above `high`, one more below `low`, as published
 *   direct  above `high` at once down to what the host really gave, where three
 *           quarters of a core count as one; below `low` up by 1, 2, 4, ... while
 *           all cores in use are wanted
 *
 * Both probe: the only way to learn that the host has more to give is to ask for
 * it. A probe that was answered with steal time is a failure, and the wait before
 * the next one doubles, up to LONGEST_WAIT periods; one that succeeds with as many
 * cores as failed before halves it. (A success with fewer is no news. When it
 * counted, one core more than 100 was too little to be seen, three more too many,
 * and the two answers in turn kept the wait short for ever.) So on a steady host
 * the number of changes grows with the logarithm of time until probes are
 * LONGEST_WAIT periods apart, and nothing oscillates.
 *
 *   steal > high? --yes--> direct: as many given as are used? --yes--> stay
 *        | no                        | no
 *        |                         fewer; after a probe: wait longer next time
 *   steal < low?  --no---> stay
 *        | yes
 *   waiting?      --yes--> stay
 *        | no
 *   direct: all in use? --no--> stay
 *        | yes
 *   more: this is a probe
 */
#ifndef __MAGPIE_GOVERNOR_H
#define __MAGPIE_GOVERNOR_H

#include "portable.h"

#define LONGEST_WAIT 64 /* periods between probes, at most */
#define WORTH_KEEPING 25 /* 1/100 of a core that may be missing of the last one */

enum governor_kind {
	GOVERNOR_STEP,
	GOVERNOR_DIRECT,
};

struct governor_config {
	u32 kind;
	u32 high; /* steal, 1/100 of a percent: above is too much */
	u32 low; /* below is none */
};

struct governor_state {
	u32 cores; /* in use, 1 .. input.total */
	u32 wait; /* periods until the next probe */
	u32 backoff; /* what wait becomes after a failed probe */
	u32 growth; /* cores added by the next probe */
	u32 failed; /* cores in use when a probe last failed, 0 before */
	bool probing; /* the last change was a probe, not yet answered */
};

/* What was seen in the last period. */
struct governor_input {
	u32 total; /* cores there are, at least 1 */
	u32 steal; /* taken by the host, 1/100 of a percent of the counted time */
	u32 wanted; /* average of cores busy, 1/100 of a core, steal included */
	u32 given; /* cores that the host gave while there was work, 1/100 */
};

static inline u32 governor_clamp(u32 cores, u32 most)
{
	if (cores < 1)
		return 1;

	return cores > most ? most : cores;
}

static inline u32 governor_shrink(const struct governor_config *config,
				  struct governor_state *state, const struct governor_input *input)
{
	u32 given = (input->given + WORTH_KEEPING) / 100;

	/* Giving one up would lose more than the host takes. */
	if (config->kind == GOVERNOR_DIRECT && given >= state->cores) {
		state->probing = false;
		return state->cores;
	}

	if (state->probing) {
		state->backoff *= 2;
		if (state->backoff > LONGEST_WAIT)
			state->backoff = LONGEST_WAIT;
		state->failed = state->cores;
	}
	state->probing = false;
	state->wait = state->backoff;
	state->growth = 1;

	return config->kind == GOVERNOR_DIRECT ? given : state->cores - 1;
}

static inline u32 governor_grow(const struct governor_config *config, struct governor_state *state,
				const struct governor_input *input)
{
	u32 more = 1;

	if (state->cores >= input->total)
		return state->cores;

	if (config->kind == GOVERNOR_DIRECT) {
		/* Nine tenths: a core that waits now and then is in use. */
		if (input->wanted < state->cores * 90)
			return state->cores;
		more = state->growth;
		state->growth *= 2;
	}

	state->probing = true;
	return state->cores + more;
}

/* The number of cores to use from now on; state->cores is set to it. */
static inline u32 governor_next(const struct governor_config *config, struct governor_state *state,
				const struct governor_input *input)
{
	if (!state->backoff)
		state->backoff = 1;
	if (!state->growth)
		state->growth = 1;
	state->cores = governor_clamp(state->cores, input->total);

	if (input->steal > config->high && state->cores > 1) {
		state->cores = governor_shrink(config, state, input);
	} else if (input->steal <= config->high) {
		if (state->probing && state->cores >= state->failed && state->backoff > 1)
			state->backoff /= 2;
		state->probing = false;

		if (state->wait)
			state->wait--;
		else if (input->steal < config->low)
			state->cores = governor_grow(config, state, input);
	}

	state->cores = governor_clamp(state->cores, input->total);
	return state->cores;
}

#endif /* __MAGPIE_GOVERNOR_H */
