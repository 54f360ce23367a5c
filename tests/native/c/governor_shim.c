// SPDX-License-Identifier: GPL-2.0-only
/* governor_shim.c - portable/governor.h as functions that Rust can call. */
#include "governor.h"

u32 magpie_governor_next(const struct governor_config *config, struct governor_state *state,
			 const struct governor_input *input);
u32 magpie_governor_doubt(const struct governor_input *input);

const u32 magpie_governor_longest_wait = LONGEST_WAIT;

u32 magpie_governor_next(const struct governor_config *config, struct governor_state *state,
			 const struct governor_input *input)
{
	return governor_next(config, state, input);
}

u32 magpie_governor_doubt(const struct governor_input *input)
{
	return governor_doubt(input);
}
