// SPDX-License-Identifier: GPL-2.0-only
/*
 * fair_shim.c - portable/fair.h as functions that Rust can call.
 */
#include "fair.h"

const s64 magpie_largest_lag = LARGEST_LAG_NS;
const s64 magpie_largest_debt = LARGEST_DEBT_NS;

bool magpie_is_before(u64 time, u64 other);
u64 magpie_later_of(u64 time, u64 other);
s64 magpie_clamp_lag(s64 lag, s64 least, s64 most);
u64 magpie_request_of(u64 slice, u64 burst, u64 rate);
s64 magpie_lag_after_sleep(s64 lag, u64 slice, u64 rate);
s64 magpie_lag_after_move(s64 lag, s64 clock_lead);
u64 magpie_lag_to_catch_up(s64 lag, u64 slice, u64 rate);
u64 magpie_charge_with_catch_up(u64 used, u64 *catch_up);

bool magpie_is_before(u64 time, u64 other)
{
	return is_before(time, other);
}

u64 magpie_later_of(u64 time, u64 other)
{
	return later_of(time, other);
}

s64 magpie_clamp_lag(s64 lag, s64 least, s64 most)
{
	return clamp_lag(lag, least, most);
}

u64 magpie_request_of(u64 slice, u64 burst, u64 rate)
{
	return request_of(slice, burst, rate);
}

s64 magpie_lag_after_sleep(s64 lag, u64 slice, u64 rate)
{
	return lag_after_sleep(lag, slice, rate);
}

s64 magpie_lag_after_move(s64 lag, s64 clock_lead)
{
	return lag_after_move(lag, clock_lead);
}

u64 magpie_lag_to_catch_up(s64 lag, u64 slice, u64 rate)
{
	return lag_to_catch_up(lag, slice, rate);
}

u64 magpie_charge_with_catch_up(u64 used, u64 *catch_up)
{
	return charge_with_catch_up(used, catch_up);
}
