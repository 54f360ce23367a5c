// SPDX-License-Identifier: GPL-2.0-only
/* power_shim.c - portable/power.h as a function that Rust can call. */
#include "power.h"

u32 magpie_power_next(struct power_state *state, u32 level, u32 total, u32 busy, bool waited);

u32 magpie_power_next(struct power_state *state, u32 level, u32 total, u32 busy, bool waited)
{
	return power_next(state, level, total, busy, waited);
}
