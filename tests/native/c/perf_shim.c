// SPDX-License-Identifier: GPL-2.0-only
/* perf_shim.c - portable/perf.h as functions that Rust can call. */
#include "perf.h"

const u32 magpie_perf_one = PERF_ONE;
const u32 magpie_perf_step = PERF_STEP;
const u32 magpie_utilisation_shift = UTILISATION_SHIFT;

u64 magpie_decay_after(u64 ns);
u32 magpie_level_of(u64 busy, u64 span, u32 capacity, u32 frequency);
u32 magpie_utilisation_after(u32 utilisation, u32 level, u64 span);
u32 magpie_clamp_perf(u32 perf, u32 least, u32 most);
u32 magpie_ramp_perf(u32 used, u64 beyond, u32 capacity);
bool magpie_is_perf_step(u32 target, u32 wanted, u32 capacity);
bool magpie_may_set_target(u64 *due, u64 now, bool is_raised);

u64 magpie_decay_after(u64 ns)
{
	return decay_after(ns);
}

u32 magpie_level_of(u64 busy, u64 span, u32 capacity, u32 frequency)
{
	return level_of(busy, span, capacity, frequency);
}

u32 magpie_utilisation_after(u32 utilisation, u32 level, u64 span)
{
	return utilisation_after(utilisation, level, span);
}

u32 magpie_clamp_perf(u32 perf, u32 least, u32 most)
{
	return clamp_perf(perf, least, most);
}

u32 magpie_ramp_perf(u32 used, u64 beyond, u32 capacity)
{
	return ramp_perf(used, beyond, capacity);
}

bool magpie_is_perf_step(u32 target, u32 wanted, u32 capacity)
{
	return is_perf_step(target, wanted, capacity);
}

bool magpie_may_set_target(u64 *due, u64 now, bool is_raised)
{
	return may_set_target(due, now, is_raised);
}
