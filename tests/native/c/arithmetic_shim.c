// SPDX-License-Identifier: GPL-2.0-only
/*
 * arithmetic_shim.c - the arithmetic of portable/ as functions that Rust can
 * call.
 */
#include "average.h"
#include "weight.h"

/* See COUNT_LOADS in sparsemask_shim.c. */
_Thread_local unsigned long magpie_loads;

u64 magpie_average_add(u64 average, u64 sample);
u32 magpie_weight_of_nice(s32 nice);
u64 magpie_weight_to_rate(u32 weight);
u64 magpie_virtual_time(u64 ns, u64 rate);

const u32 magpie_idle_policy_weight = IDLE_POLICY_WEIGHT;

u64 magpie_average_add(u64 average, u64 sample)
{
	return average_add(average, sample);
}

u32 magpie_weight_of_nice(s32 nice)
{
	return nice_to_weight[nice + 20];
}

u64 magpie_weight_to_rate(u32 weight)
{
	return weight_to_rate(weight);
}

u64 magpie_virtual_time(u64 ns, u64 rate)
{
	return virtual_time(ns, rate);
}
