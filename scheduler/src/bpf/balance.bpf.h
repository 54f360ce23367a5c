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
 *   a queue longer than ours by two?                  --> pull its first task
 *   a clock of our LLC well behind ours?              --> pull its first task
 *   nothing waits here, something in another LLC,
 *   and the last such pull was a while ago?           --> pull its first task
 *
 * The first rule is the kernel's, and fast. The second is what makes shares
 * equal in the end, whatever made them unequal (a difference of one task, a
 * real-time task, a vCPU that the host held back): a clock that is behind means
 * that the tasks there had less than ours, so one of them comes here, where it
 * is first in line, and the odd one out changes. The kernel's percentages of
 * imbalance leave a difference of one alone for long.
 *
 * What it does not do: compare clocks of different LLCs, which drift apart while
 * one is idle; there, the odd task changes at a fixed, low rate.
 */
#ifndef __MAGPIE_BALANCE_BPF_H
#define __MAGPIE_BALANCE_BPF_H

/* How often a busy CPU looks around, so also the most it pulls. */
const volatile u64 balance_interval_ns = 20000000;

/* How far behind a clock must be. Less would move tasks for one slice's worth. */
const volatile u64 balance_margin_ns = 8000000;

#define ROTATION_INTERVALS 5
#define BALANCE_VICTIMS 8 /* queues looked at in one round */

/* What a round has found so far. */
struct balance_round {
	s32 cpu;
	u32 length; /* of the own queue */
	u64 clock; /* victims must be behind this */
	bool may_rotate;
	u32 victim; /* or NO_PLACE */
};

/* Look at the overloaded CPUs of [from, end); whether the round is decided. */
static __always_inline bool look_around(struct balance_round *round, u32 from, u32 end)
{
	u32 llc = topology_of(round->cpu)->llc;
	u32 place = from;
	bool decided = false;
	int i;

	bpf_for(i, 0, BALANCE_VICTIMS) {
		u32 victim, length;

		place = next_overloaded(place, end);
		if (place >= end)
			break;

		victim = place_to_cpu(place++);
		if (!may_steal_from(round->cpu, victim))
			continue;

		length = scx_bpf_dsq_nr_queued(victim);
		if (length >= round->length + 2) {
			round->victim = victim;
			decided = true;
			break;
		}
		if (!length)
			continue;

		if (topology_of(victim)->llc != llc) {
			if (round->may_rotate && !round->length && round->victim == NO_PLACE)
				round->victim = victim;
		} else if (time_before(state_of(victim)->clock, round->clock)) {
			round->victim = victim;
			round->clock = state_of(victim)->clock;
		}
	}

	return decided;
}

/*
 * Called at the end of a slice, with the running task still runnable and its
 * virtual runtime up to date. Its own LLC first: rotation only takes what is
 * left over.
 */
__noinline bool pull_when_unbalanced(s32 cpu, u64 vruntime)
{
	struct cpu_state *state = state_of(cpu);
	const volatile struct llc_topology *llc = llc_of(topology_of(cpu)->llc);
	u32 place = topology_of(cpu)->place;
	u32 first = llc->first, end = first + llc->size;
	u64 now = scx_bpf_now();
	struct balance_round round = {
		.cpu = cpu,
		.clock = vruntime - balance_margin_ns,
		.may_rotate = time_before(state->next_rotation, now),
		.victim = NO_PLACE,
	};

	if (time_before(now, state->next_balance))
		return false;

	state->next_balance = now + balance_interval_ns;
	round.length = scx_bpf_dsq_nr_queued(cpu);

	if (!look_around(&round, place + 1, end) && !look_around(&round, first, place) &&
	    !look_around(&round, end, nr_places))
		look_around(&round, 0, first);

	if (round.victim == NO_PLACE || !scx_bpf_dsq_move_to_local(round.victim, 0))
		return false;

	if (topology_of(round.victim)->llc != topology_of(cpu)->llc)
		state->next_rotation = now + ROTATION_INTERVALS * balance_interval_ns;

	count_event(state, EVENT_ROTATE, 1);
	return true;
}

#endif /* __MAGPIE_BALANCE_BPF_H */
