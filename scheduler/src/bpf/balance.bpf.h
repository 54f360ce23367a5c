/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * balance.bpf.h - busy CPUs even out what idle ones cannot.
 *
 * Stealing only helps CPUs that run dry. With more CPU hogs than CPUs none ever
 * does: twelve hogs on eight CPUs would stay as they fell, some with half of a
 * CPU and some with a whole one. So a CPU whose running task used up its slice
 * looks around now and then:
 *
 *   slice used up, due? --no--> nothing
 *        | yes
 *   a queue longer than ours by two?           --> pull its first task
 *   ours empty, another's not, rotation due?   --> pull its first task:
 *        the odd one out changes, so that in time every task had its share
 *
 * Source: the rule of two is the kernel's; the rotation replaces its imbalance
 * percentages, which leave a difference of one alone for long.
 */
#ifndef __MAGPIE_BALANCE_BPF_H
#define __MAGPIE_BALANCE_BPF_H

/* How often a busy CPU looks around; rotation moves a task at most this often. */
const volatile u64 balance_interval_ns = 20000000;

#define BALANCE_VICTIMS 8 /* queues looked at in one round */

/*
 * The first overloaded CPU from @from on whose queue is longer than @length by
 * at least @margin, or NO_PLACE.
 */
__noinline u32 find_longer_queue(s32 cpu, u32 from, u32 end, u32 length)
{
	u32 place = from;
	int i;

	bpf_for(i, 0, BALANCE_VICTIMS) {
		u32 victim;

		place = next_overloaded(place, end);
		if (place >= end)
			break;

		victim = place_to_cpu(place);
		if (victim != NO_PLACE && victim != cpu && scx_bpf_dsq_nr_queued(victim) > length)
			return victim;

		place++;
	}

	return NO_PLACE;
}

/* Called at the end of a slice, with the running task still runnable. */
static __always_inline bool pull_when_unbalanced(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	u64 now = scx_bpf_now();
	u32 own, place, victim;

	if (time_before(now, state->next_balance))
		return false;

	state->next_balance = now + balance_interval_ns;
	own = scx_bpf_dsq_nr_queued(cpu);
	place = topology_of(cpu)->place;

	/* Empty here, one waiting there: rotate. Otherwise two make a difference. */
	victim = find_longer_queue(cpu, place + 1, nr_places, own ? own + 1 : 0);
	if (victim == NO_PLACE)
		victim = find_longer_queue(cpu, 0, place, own ? own + 1 : 0);
	if (victim == NO_PLACE || !scx_bpf_dsq_move_to_local(victim, 0))
		return false;

	count_event(state, EVENT_ROTATE, 1);
	return true;
}

#endif /* __MAGPIE_BALANCE_BPF_H */
