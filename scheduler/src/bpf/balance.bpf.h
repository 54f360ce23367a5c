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
 *   a queue of our LLC longer than ours by two?       --> pull its first task
 *   a clock of our LLC well behind ours?              --> pull its first task
 *   an LLC where more wait, by two or for its size?   --> pull a first task
 *   an LLC whose clocks go slower than ours?          --> pull a first task, then
 *                                                         wait for what it changed
 *
 * The first and third rule are the kernel's, and fast. The second is what makes shares
 * equal in the end, whatever made them unequal (a difference of one task, a
 * real-time task, a vCPU that the host held back): a clock that is behind means
 * that the tasks there had less than ours, so one of them comes here, where it
 * is first in line, and the odd one out changes. The kernel's percentages of
 * imbalance leave a difference of one alone for long.
 *
 * Clocks of different LLCs drift apart while one is idle, so the last rule compares
 * their *pace*: virtual time over real time, which is one over the weight that a CPU
 * has to share out. It sees the weights of tasks and cgroups, which lengths do not,
 * and rests when the LLCs are even: when a task changed its LLC at a fixed rate, the
 * changes themselves made an even state uneven.
 *
 * What it does not do: even out LLCs whose paces differ by less than a sixteenth.
 */
#ifndef __MAGPIE_BALANCE_BPF_H
#define __MAGPIE_BALANCE_BPF_H

/* How often a busy CPU looks around, so also the most it pulls. */
const volatile u64 balance_interval_ns = 20000000;

/* How far behind a clock must be. Less would move tasks for one slice's worth. */
const volatile u64 balance_margin_ns = 8000000;

#define ROTATION_INTERVALS 10 /* more than an average of paces takes to follow */
#define BALANCE_VICTIMS 8 /* queues looked at in one round */
#define PACE_SHIFT 16
#define FULL_PACE (1ULL << PACE_SHIFT) /* of a nice 0 task alone */

/* What a round has found so far. */
struct balance_round {
	s32 cpu;
	u32 length; /* of the own queue */
	u64 clock; /* where the own one is */
	u64 behind; /* before which the clocks of the LLC's victims are well behind */
	u64 pace; /* of the own LLC */
	bool may_rotate; /* and a slower one gives a task */
	u32 ours; /* tasks that wait in the own LLC */
	u32 theirs; /* and in the other that is being looked at */
	u32 llc; /* that one */
	u32 victim; /* or NO_PLACE */
};

/* How fast the own clock went since the last time, and what follows for the LLC. */
static __always_inline void measure_pace(struct cpu_state *state, struct llc_state *llc, u64 now)
{
	u64 virtual = state->clock - state->paced_clock;
	u64 passed = now - state->paced_at;

	/* Anything longer has an idle period in it, at whose end the clock may jump. */
	if (passed < 2 * balance_interval_ns)
		state->pace = average_add(state->pace, (virtual << PACE_SHIFT) / (passed ?: 1));
	else
		state->pace = FULL_PACE;

	WRITE_ONCE(llc->pace, average_add(READ_ONCE(llc->pace), state->pace));
	state->paced_at = now;
	state->paced_clock = state->clock;
}

/* The slower CPUs of an LLC leave it to the faster ones, which have more to give. */
static __always_inline bool may_rotate(const struct cpu_state *state, const struct llc_state *llc,
				       u64 now)
{
	return state->pace >= READ_ONCE(llc->pace) &&
	       !time_before(now, READ_ONCE(llc->next_rotation));
}

/* How much faster the one is than the other, to say so: less is chance. */
static __always_inline bool is_faster(u64 pace, u64 other)
{
	return pace > other + other / 16;
}

/*
 * Many light tasks are less than a few heavy ones: a longer queue whose clock is ahead
 * and faster all the same has nothing to give. But a far lead is of what once ran there.
 */
static __always_inline bool is_lighter(const struct balance_round *round, u32 victim)
{
	const struct cpu_state *state = state_of(victim);
	s64 lead = (s64)(state->clock - round->clock);

	return lead > (s64)balance_margin_ns && lead < LARGEST_LEAD_NS &&
	       is_faster(state->pace, state_of(round->cpu)->pace);
}

/* A CPU of the own LLC at which @length tasks wait; whether the round is decided. */
static __always_inline bool consider_near(struct balance_round *round, u32 victim, u32 length)
{
	round->ours += length;
	if (length >= round->length + 2 && !is_lighter(round, victim)) {
		round->victim = victim;
		return true;
	}

	if (time_before(state_of(victim)->clock, round->behind)) {
		round->victim = victim;
		round->behind = state_of(victim)->clock;
	}
	return false;
}

/*
 * Whether the victim's LLC still has as many tasks waiting, for its size, when one has
 * come from there. Not if its clocks go faster for all that: they are light.
 */
static __always_inline bool has_more_waiting(const struct balance_round *round, u32 llc, u64 pace)
{
	u32 ours = llc_of(topology_of(round->cpu)->llc)->size;

	return !is_faster(pace, round->pace) &&
	       (u64)(round->theirs - 1) * ours >= (u64)(round->ours + 1) * llc_of(llc)->size;
}

/* The same of another LLC. */
static __always_inline bool consider_far(struct balance_round *round, u32 victim, u32 length)
{
	u32 llc = topology_of(victim)->llc;
	u64 pace = READ_ONCE(llc_state_of(victim)->pace);

	if (round->llc != llc) {
		round->llc = llc;
		round->theirs = 0;
	}

	round->theirs += length;
	if (has_more_waiting(round, llc, pace)) {
		round->victim = victim;
		return true;
	}

	if (round->may_rotate && is_faster(round->pace, pace))
		round->victim = victim;
	return false;
}

/* Look at the overloaded CPUs of [from, end); whether the round is decided. */
static __always_inline bool look_around(struct balance_round *round, u32 from, u32 end,
					bool is_near)
{
	u32 place = from;
	bool decided = false;
	int i;

	bpf_for(i, 0, BALANCE_VICTIMS) {
		u32 victim, length;

		place = next_overloaded(place, end);
		if (place >= end)
			break;

		victim = place_to_cpu(place++);
		length = scx_bpf_dsq_nr_queued(victim);
		if (!length || !may_steal_from(round->cpu, victim))
			continue;

		decided = is_near ? consider_near(round, victim, length)
				  : consider_far(round, victim, length);
		if (decided)
			break;
	}

	return decided;
}

/*
 * Called at the end of a slice, with the running task still runnable and its
 * virtual runtime up to date. Its own LLC first.
 */
__noinline bool pull_when_unbalanced(s32 cpu, u64 vruntime)
{
	struct cpu_state *state = state_of(cpu);
	const volatile struct llc_topology *llc = llc_of(topology_of(cpu)->llc);
	u32 place = topology_of(cpu)->place;
	u32 first = llc->first, end = first + llc->size;
	struct llc_state *own = llc_state_of(cpu);
	u64 now = scx_bpf_now();
	struct balance_round round = {
		.cpu = cpu,
		.clock = vruntime,
		.behind = vruntime - balance_margin_ns,
		.llc = NO_PLACE,
		.victim = NO_PLACE,
	};

	if (time_before(now, state->next_balance))
		return false;

	state->next_balance = now + balance_interval_ns;
	measure_pace(state, own, now);
	round.pace = READ_ONCE(own->pace);
	round.may_rotate = may_rotate(state, own, now);
	round.length = scx_bpf_dsq_nr_queued(cpu);
	round.ours = round.length;
	if (!look_around(&round, place + 1, end, true) &&
	    !look_around(&round, first, place, true) && round.victim == NO_PLACE &&
	    !look_around(&round, end, nr_places, false))
		look_around(&round, 0, first, false);

	if (round.victim == NO_PLACE || !scx_bpf_dsq_move_to_local(round.victim, 0))
		return false;

	if (topology_of(round.victim)->llc != topology_of(cpu)->llc)
		WRITE_ONCE(own->next_rotation, now + ROTATION_INTERVALS * balance_interval_ns);

	count_event(state, EVENT_ROTATE, 1);
	return true;
}

#endif /* __MAGPIE_BALANCE_BPF_H */
