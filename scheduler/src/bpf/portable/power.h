/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * power.h - how many cores a machine uses that saves power, from how busy they are.
 *
 * A pure function, called several times a second: each call is a look. It knows no clock and no
 * topology.
 *
 *   tasks have waited?       --yes--> all cores; from now on at least one more than were in use
 *        | no
 *   wanted := busy cores / the part of a core's time that may be in use
 *   wanted := at least as many as that, and as LEAST_CORES
 *        |
 *   more than in use?        --yes--> wanted, at once
 *        | no
 *   fewer for POWER_LOOKS?   --yes--> the most that were wanted meanwhile
 *
 * It goes up at once, because tasks would wait, and goes down slowly, because each change moves
 * tasks. How busy the cores are says little of a load whose tasks all wake at the same moment, such
 * as those that draw a frame: only that they waited shows that the cores were too few. So the
 * number of cores that was too low is remembered, and tried again after PROBE_LOOKS.
 */
#ifndef __MAGPIE_POWER_RULE_H
#define __MAGPIE_POWER_RULE_H

#include "portable.h"

#define POWER_LOOKS 8
#define PROBE_LOOKS 128

/* With fewer, a task that is always busy would leave nothing to all others. */
#define LEAST_CORES 2

enum power_level {
	POWER_PERFORMANCE, /* all cores */
	POWER_BALANCED,
	POWER_SAVER,
};

struct power_state {
	u32 cores; /* in use; 0 at the start: all */
	u32 most; /* wanted since fewer are wanted than in use */
	u32 looks; /* for which fewer are wanted */
	u32 least; /* with fewer, tasks have waited */
	u32 probe; /* looks until one less is tried */
};

/* Return which part of a core's time may be in use, in percent. */
static inline u32 power_load(u32 level)
{
	return level == POWER_SAVER ? 70 : 45;
}

/* Return how many cores are wanted, and remember if there were too few. */
static inline u32 power_wanted(struct power_state *state, u32 level, u32 total, u32 busy,
			       bool waited)
{
	u32 wanted = (busy + power_load(level) - 1) / power_load(level);

	if (waited && state->cores < total) {
		state->least = state->cores + 1;
		state->probe = PROBE_LOOKS;
		return total;
	}

	if (state->least > LEAST_CORES && !state->probe--) {
		state->least--;
		state->probe = PROBE_LOOKS;
	}
	if (wanted < state->least)
		wanted = state->least;
	if (wanted < LEAST_CORES)
		wanted = LEAST_CORES;

	return wanted > total || level == POWER_PERFORMANCE ? total : wanted;
}

/*
 * The number of cores to use from now on; state->cores is set to it. @busy: average of cores busy
 * since the last call, 1/100. @waited: tasks have waited since then.
 */
static inline u32 power_next(struct power_state *state, u32 level, u32 total, u32 busy, bool waited)
{
	u32 wanted;

	if (!state->cores || state->cores > total)
		state->cores = total;

	wanted = power_wanted(state, level, total, busy, waited);
	if (state->most < wanted)
		state->most = wanted;
	if (wanted < state->cores && ++state->looks < POWER_LOOKS)
		return state->cores;

	state->cores = wanted < state->cores ? state->most : wanted;
	state->most = 0;
	state->looks = 0;
	return state->cores;
}

#endif /* __MAGPIE_POWER_RULE_H */
