// SPDX-License-Identifier: GPL-2.0-only
/*
 * arithmetic_shim.c - the arithmetic of portable/ as functions that Rust can
 * call.
 */
#include "average.h"
#include "bandwidth.h"
#include "shares.h"
#include "steal.h"
#include "weight.h"

/* See COUNT_LOADS in sparsemask_shim.c. */
_Thread_local unsigned long magpie_loads;

u64 magpie_average_add(u64 average, u64 sample);
bool magpie_is_repeated(u64 sum, u64 longest);
u64 magpie_punctual_after(u64 punctual, u64 delay, u64 interval);
u64 magpie_late_after(u64 punctual);
u64 magpie_late_time(u64 delay, u64 excess, u64 after, u64 interval);
u64 magpie_late_sum(u64 late, u64 busy, u64 interval);
u32 magpie_weight_of_nice(s32 nice);
u64 magpie_weight_to_rate(u32 weight);
u64 magpie_virtual_time(u64 ns, u64 rate);

const u32 magpie_idle_policy_weight = IDLE_POLICY_WEIGHT;

u64 magpie_average_add(u64 average, u64 sample)
{
	return average_add(average, sample);
}

bool magpie_is_repeated(u64 sum, u64 longest)
{
	return is_repeated(sum, longest);
}

u64 magpie_punctual_after(u64 punctual, u64 delay, u64 interval)
{
	return punctual_after(punctual, delay, interval);
}

u64 magpie_late_after(u64 punctual)
{
	return late_after(punctual);
}

u64 magpie_late_time(u64 delay, u64 excess, u64 after, u64 interval)
{
	return late_time(delay, excess, after, interval);
}

u64 magpie_late_sum(u64 late, u64 busy, u64 interval)
{
	return late_sum(late, busy, interval);
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

u32 magpie_scale_cgroup_weight(u32 weight);
u32 magpie_activity_add(u32 activity, bool is_active);
u64 magpie_activity_weight(u64 weight, u32 activity);
u64 magpie_share_of_parent(u64 parent, u64 weight, u32 activity, u64 sum);
u64 magpie_cgroup_factor(u64 active, u64 share, u64 all_active, u64 all_share);
u64 magpie_scale_rate(u64 rate, u64 factor);

u32 magpie_scale_cgroup_weight(u32 weight)
{
	return scale_cgroup_weight(weight);
}

u32 magpie_activity_add(u32 activity, bool is_active)
{
	return activity_add(activity, is_active);
}

u64 magpie_activity_weight(u64 weight, u32 activity)
{
	return activity_weight(weight, activity);
}

u64 magpie_share_of_parent(u64 parent, u64 weight, u32 activity, u64 sum)
{
	return share_of_parent(parent, weight, activity, sum);
}

u64 magpie_cgroup_factor(u64 active, u64 share, u64 all_active, u64 all_share)
{
	return cgroup_factor(active, share, all_active, all_share);
}

u64 magpie_scale_rate(u64 rate, u64 factor)
{
	return scale_rate(rate, factor);
}

u64 magpie_periods_over(u64 now, u64 end, u64 period);
s64 magpie_budget_to_add(s64 budget, u64 periods, u64 quota, u64 burst);

u64 magpie_periods_over(u64 now, u64 end, u64 period)
{
	return periods_over(now, end, period);
}

s64 magpie_budget_to_add(s64 budget, u64 periods, u64 quota, u64 burst)
{
	return budget_to_add(budget, periods, quota, burst);
}
