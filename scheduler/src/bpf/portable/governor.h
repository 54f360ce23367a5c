/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * governor.h - how many cores a guest should use, from what the host gives it.
 *
 * A governor is a pure function. Once a period its input is the share of the counted CPUs' time
 * that the host took, and its result is the number of cores to use from now on. A governor knows
 * no clock and no topology; monitor.bpf.h chooses which cores.
 *
 *   step    one core less above `high`, one more below `low`, as published
 *   direct  above `high` at once down to what the host gave, in whole cores; below `low` up by
 *           1, 2, 4, ... while work keeps all cores in use busy
 *
 * The host gives a part of the last of these cores. `direct` keeps that core if the part is three
 * quarters of it, or more than a quarter of all that the host gave. So a guest that is given 4.6
 * cores uses four, and one that is given 1.6 uses two. When three quarters alone counted, a guest
 * of two vCPUs that was given 1.6 used one: hackbench took 1.22 times as long as under EEVDF, and
 * takes 0.80 (virtual time, lab/hosts/small.toml).
 *
 * At an alarm (monitor.bpf.h) little was seen, so `direct` then leaves as much more as may be
 * missing in the estimate: a core too many costs little until the next look, one too few costs a
 * second.
 *
 * `direct` judges by the time in which there was work, upwards as downwards. When it went up by the
 * average of the whole period, work of a third of a second every four seconds kept the one core
 * that an unlucky first look had left it, beside a second one that the host had free: it took twice
 * as long.
 *
 * Both governors probe: they use more cores for a period, because nothing else shows whether the
 * host has more to give. If the host answers with steal time, the probe has failed, and the wait
 * before the next probe doubles, up to LONGEST_WAIT periods. A probe that succeeds with as many
 * cores as failed before halves the wait. (A success with fewer cores does not count. When it did,
 * one core more than 100 caused too little steal time to be seen and three more too much, and the
 * two answers in turn kept the wait short for ever.) So on a steady host probes become rare, and
 * the number of cores does not oscillate.
 *
 * To use fewer cores is a probe, too, because a host may divide its CPUs among busy vCPUs instead
 * of among guests: there fewer vCPUs get less. Until the host has no more steal time, `direct`
 * therefore goes down to LOST percent of what the host gave at first, but not further; and if the
 * host gives less than that, `direct` uses as many cores as before. That ends, too, when the host
 * gives as much as at first, because it then weighs guests: where it gives 1.6 cores and two are in
 * use, steal time never ends, and a neighbour that began to work much later was taken for such a
 * loss. About half, because that much less may do for the same work when no lock's holder is
 * preempted: in hackbench, 8 vCPUs needed 1.84 times the CPU time. Less than half, because half is
 * what is left when a neighbour of the same size begins to work: where that counted as a loss, one
 * of five guests used all cores again for a second. Where vCPUs are weighed, two guests of the same
 * size with twice the host's CPUs or more give 40 % or less to the one that uses as many cores as
 * it was given. What it does not see: there, beside smaller neighbours, a guest may keep 45 to 50 %
 * of what it had. The wait before it tries fewer again doubles as well.
 *
 *   steal > high? --yes--> direct: less than 45 % since it went down? --yes--> as many as before
 *        |                         | no
 *        |                 direct: as many given as are used, or such a wait? --yes--> stay
 *        | no                      | no
 *        |                       fewer; after a probe: wait longer next time
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
#define WORTH_KEEPING 75 /* 1/100: so much of a core is worth the core */
#define WORTH_SHARING 4 /* and so is more than one part in so many of what the host gave */

#define LOST 45 /* percent of what the host gave: less than that with fewer cores is a loss */
#define AS_MUCH 90 /* percent of it: from there on fewer cores are given as much */

#define DOUBTED 8 /* at an alarm, one part in so many of what the host took, up to a core */

#define ALL_IN_USE 90 /* 1/100 of each core: one that idles now and then counts as in use */

enum governor_kind {
	GOVERNOR_STEP,
	GOVERNOR_DIRECT,
};

struct governor_config {
	u32 kind;
	u32 high; /* steal time above this is too much, 1/100 of a percent */
	u32 low; /* steal time below this counts as none */
};

struct governor_state {
	u32 cores; /* in use, 1 .. input.total */
	u32 wait; /* periods until the next probe */
	u32 backoff; /* the next wait after a failed probe */
	u32 growth; /* cores added by the next probe */
	u32 failed; /* cores in use when a probe last failed, or 0 */
	u32 more; /* cores in use before it went down, not yet answered; or 0 */
	u32 more_given; /* what the host gave to these, 1/100 of a core */
	u32 stay; /* periods until it may go down again */
	u32 patience; /* the next such wait */
	bool probing; /* the last change was a probe, not yet answered */
};

/* Observed in the last period. */
struct governor_input {
	u32 total; /* online cores, at least 1 */
	u32 steal; /* taken by the host, 1/100 of a percent of the counted time */
	/* While there was work, 1/100 of a core: */
	u32 busy; /* average of cores busy, steal included; 0 if the work was too short to tell */
	u32 given; /* cores that the host gave */
	u32 doubt; /* by how much that may be too low */
};

/*
 * By how much the cores that an alarm takes for given may be too few. Between two looks 8 CPUs have
 * 250 ticks. Where the host gave two cores the estimate was 1.1 to 2.1, and one run of hackbench in
 * seven had one core for a second, in which it took twice as long. If a core too many is left, less
 * is taken and doubted, and the next look or the end of the period takes it back.
 */
__proved_once u32 governor_doubt(const struct governor_input *input __arg_nonnull)
{
	u32 taken = input->busy > input->given ? input->busy - input->given : 0;

	return taken / DOUBTED < 100 ? taken / DOUBTED : 100;
}

static inline u32 governor_clamp(u32 cores, u32 most)
{
	if (cores < 1)
		return 1;

	return cores > most ? most : cores;
}

/* Return how many cores to use where the host gives @given of them, 1/100 of a core. */
static inline u32 governor_whole(u32 given)
{
	u32 part = given % 100;
	bool is_worth = part >= WORTH_KEEPING || part > given / WORTH_SHARING;

	return given / 100 + is_worth;
}

/* What the host must give to fewer cores, 1/100 of a core. */
static inline u32 governor_least(const struct governor_state *state)
{
	return state->more_given * LOST / 100;
}

/* Return whether the host gives too little since fewer cores are in use. */
static inline bool governor_lost(const struct governor_state *state,
				 const struct governor_input *input)
{
	return state->more > state->cores && input->given + input->doubt < governor_least(state) &&
	       input->busy >= state->cores * ALL_IN_USE;
}

/* Fewer cores were right: the host has answered. */
static inline void governor_settle(struct governor_state *state)
{
	if (!state->more)
		return;

	state->more = 0;
	state->patience = 1;
}

/* Return whether the host gives as much to fewer cores as it gave to more. */
static inline bool governor_kept(const struct governor_state *state,
				 const struct governor_input *input)
{
	return state->more > state->cores &&
	       (u64)input->given * 100 >= (u64)state->more_given * AS_MUCH;
}

/* Fewer cores were a mistake: return to how many to go back. */
static inline u32 governor_return(struct governor_state *state)
{
	u32 cores = state->more;

	state->more = 0;
	state->probing = false;
	state->stay = state->patience;
	state->patience *= 2;
	if (state->patience > LONGEST_WAIT)
		state->patience = LONGEST_WAIT;

	return cores;
}

/* Too much steal time: return to how many cores to go down, and set the wait for the next probe. */
static inline u32 governor_shrink(const struct governor_config *config,
				  struct governor_state *state, const struct governor_input *input)
{
	u32 fewer = governor_whole(input->given + input->doubt);
	u32 least = (governor_least(state) + 99) / 100;

	if (config->kind == GOVERNOR_DIRECT) {
		if (governor_lost(state, input))
			return governor_return(state);
		if (governor_kept(state, input))
			governor_settle(state);

		if (state->stay) {
			state->stay--;
			return state->cores;
		}

		if (state->more && fewer < least)
			fewer = least;
		/* The guest would lose more by giving up a core than the host takes. */
		if (fewer >= state->cores) {
			state->probing = false;
			return state->cores;
		}
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
	if (config->kind == GOVERNOR_STEP)
		return state->cores - 1;

	if (!state->more) {
		state->more = state->cores;
		state->more_given = input->given;
	}

	return fewer;
}

/* Next to no steal time, and no wait: return how many cores the next probe uses. */
static inline u32 governor_grow(const struct governor_config *config, struct governor_state *state,
				const struct governor_input *input)
{
	u32 more = 1;

	if (state->cores >= input->total)
		return state->cores;

	if (config->kind == GOVERNOR_DIRECT) {
		if (input->busy < state->cores * ALL_IN_USE)
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
	if (!state->patience)
		state->patience = 1;
	state->cores = governor_clamp(state->cores, input->total);

	if (input->steal > config->high && (state->cores > 1 || state->more)) {
		state->cores = governor_shrink(config, state, input);
	} else if (input->steal <= config->high) {
		governor_settle(state);
		if (state->stay)
			state->stay--;
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
