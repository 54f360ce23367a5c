/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * balance.bpf.h - mechanism 4a: busy CPUs even out what idle ones cannot.
 *
 * Stealing only helps CPUs that run dry. With more CPU hogs than CPUs none ever
 * does: twelve hogs on eight CPUs would stay as they fell, some with half of a
 * CPU and some with a whole one. So a CPU whose running task used up its slice
 * looks around now and then:
 *
 *   slice used up
 *        |
 *   due to look at the own LLC? (each CPU every 20 ms)
 *     a queue longer than ours by two?                --> pull its first task
 *     a clock well behind ours?                       --> pull its first task
 *        |
 *   our turn to look at other LLCs? (one CPU of the LLC every 5 to 10 ms)
 *     an LLC where more wait, by two or for its size? --> pull a first task
 *     an LLC whose clocks go slower than ours?        --> pull a first task, then
 *                                                         wait for what it changed
 *
 * The first rule of each kind is the kernel's, and fast. The second rule for the own
 * LLC makes shares equal in the end, whatever made them unequal (a difference of one
 * task, a real-time task, a vCPU that the host held back): a clock that is behind
 * means that the tasks there had less than ours, so one of them comes here, where it
 * is first in line, and the odd one out changes. The kernel's percentages of
 * imbalance leave a difference of one alone for long.
 *
 * Clocks of different LLCs drift apart while one is idle, so the last rule compares
 * their *pace*: virtual time over real time, which is one over the weight that a CPU
 * has to share out. It sees the weights of tasks and cgroups, which lengths do not,
 * and rests when the LLCs are even: when a task changed its LLC at a fixed rate, the
 * changes themselves made an even state uneven.
 *
 * How many tasks wait is noted by each CPU at its tick, in the sum of its LLC. A look
 * at the queues themselves would not do: ticks come to all CPUs at once, and a CPU
 * that has taken its next task and has not yet put back the last one looks as if less
 * waited there. The last of two tasks to be evened out was sometimes missed for 200 ms.
 *
 * Other LLCs are looked at for all CPUs of one by a single one: the turn goes round. A
 * CPU that idles or keeps a task for long misses it, and the next one that comes takes
 * it. Turns follow each other sooner while they find something.
 *
 * What it does not do: even out LLCs whose paces differ by less than a sixteenth.
 */
#ifndef __MAGPIE_BALANCE_BPF_H
#define __MAGPIE_BALANCE_BPF_H

const volatile bool balance_enabled = true;

/* How often a busy CPU looks around, so also the most it pulls from its own LLC. */
const volatile u64 balance_interval_ns = 20000000;

/* How far behind a clock must be. Less would move tasks for one slice's worth. */
const volatile u64 balance_margin_ns = 8000000;

/* Longer than a tick: by the next turn, the last one's pull has been counted. */
#define SHORTEST_TURN_NS (balance_interval_ns / 4)
#define LONGEST_TURN_NS (balance_interval_ns / 2)
#define TRIES_IN_TURN 8
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
	u32 victim; /* or NO_PLACE */
};

/*
 * How many tasks that may leave wait there. Writes only what has changed. Its own tick
 * and who takes a task from it may come here at once: the sum is that of what is noted
 * all the same.
 */
static __always_inline void note_waiting(s32 cpu, u32 waiting)
{
	struct cpu_state *state = state_of(cpu);
	u32 before;

	if (READ_ONCE(state->waiting) == waiting)
		return;

	before = __sync_lock_test_and_set(&state->waiting, waiting);
	__sync_fetch_and_add(&llc_state_of(cpu)->waiting, waiting - before);
}

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
static __always_inline bool consider(struct balance_round *round, u32 victim, u32 length)
{
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

/* Look at the overloaded CPUs of [from, end); whether the round is decided. */
static __always_inline bool look_around(struct balance_round *round, u32 from, u32 end)
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

		decided = consider(round, victim, length);
		if (decided)
			break;
	}

	return decided;
}

/* From the own LLC. @vruntime: of the running task. */
__noinline bool pull_near(s32 cpu, u64 vruntime)
{
	const volatile struct llc_topology *llc = llc_of(topology_of(cpu)->llc);
	u32 place = topology_of(cpu)->place;
	struct balance_round round = {
		.cpu = cpu,
		.length = scx_bpf_dsq_nr_queued(cpu),
		.clock = vruntime,
		.behind = vruntime - balance_margin_ns,
		.victim = NO_PLACE,
	};

	if (!look_around(&round, place + 1, llc->first + llc->size))
		look_around(&round, llc->first, place);

	if (round.victim == NO_PLACE || !scx_bpf_dsq_move_to_local(round.victim, 0))
		return false;

	note_waiting(round.victim, scx_bpf_dsq_nr_queued(round.victim));
	return true;
}

/* Where this CPU is in its LLC. */
static __always_inline u32 offset_of(s32 cpu)
{
	return topology_of(cpu)->place - llc_of(topology_of(cpu)->llc)->first;
}

/* Whether this CPU is the one that looks at the other LLCs now. */
static __always_inline bool take_turn(struct llc_state *llc, s32 cpu, u64 now)
{
	u64 due = READ_ONCE(llc->next_turn);

	if (time_before(now, due))
		return false;

	/* Its turn, or that of a CPU that does not come. */
	if (READ_ONCE(llc->turn) != offset_of(cpu) && time_before(now, due + SHORTEST_TURN_NS))
		return false;

	return __sync_val_compare_and_swap(&llc->next_turn, due, now + SHORTEST_TURN_NS) == due;
}

/* This CPU has had its turn, and found something or not. */
static __always_inline void pass_turn(struct llc_state *llc, s32 cpu, bool found, u64 now)
{
	u32 next = offset_of(cpu) + 1;

	WRITE_ONCE(llc->turn, next < llc_of(topology_of(cpu)->llc)->size ? next : 0);
	if (!found)
		WRITE_ONCE(llc->next_turn, now + LONGEST_TURN_NS);
}

/*
 * Whether another LLC still has as many tasks waiting, for its size, when one has come
 * from there. Not if its clocks go faster for all that: they are light.
 */
static __always_inline bool has_more_waiting(u32 other, u32 own)
{
	const struct llc_state *theirs = llc_state_at(other), *ours = llc_state_at(own);
	u32 waiting = READ_ONCE(theirs->waiting);

	return waiting && !is_faster(READ_ONCE(theirs->pace), READ_ONCE(ours->pace)) &&
	       (u64)(waiting - 1) * llc_of(own)->size >=
		       (u64)(READ_ONCE(ours->waiting) + 1) * llc_of(other)->size;
}

/* The nearest LLC that has more waiting, or else one that is slower; or NO_PLACE. */
__noinline u32 find_busier_llc(u32 own, bool may_rotate)
{
	u64 pace = READ_ONCE(llc_state_at(own)->pace);
	u32 found = NO_PLACE;
	u32 i;

	bpf_for(i, 1, nr_llcs) {
		u32 other = nth_llc(own, i);
		const struct llc_state *theirs = llc_state_at(other);

		if (has_more_waiting(other, own)) {
			found = other;
			break;
		}

		if (found == NO_PLACE && may_rotate && READ_ONCE(theirs->waiting) &&
		    is_faster(pace, READ_ONCE(theirs->pace)))
			found = other;
	}

	return found;
}

/*
 * From another LLC, in this CPU's turn to look for all of its own. At a tick all CPUs
 * there may be between two tasks, so that not one of them has a task waiting: they soon
 * will.
 */
static __always_inline bool pull_far(s32 cpu, u64 now)
{
	u32 llc = topology_of(cpu)->llc;
	struct llc_state *own = llc_state_at(llc);
	u32 busier = find_busier_llc(llc, !time_before(now, READ_ONCE(own->next_rotation)));
	bool found = false;
	u32 i;

	count_event(state_of(cpu), EVENT_TURN, 1);
	if (busier == NO_PLACE)
		return false;

	bpf_for(i, 0, TRIES_IN_TURN) {
		found = steal_from_llc(cpu, busier, spread_start(cpu, busier));
		if (found)
			break;
	}

	if (found)
		WRITE_ONCE(own->next_rotation, now + ROTATION_INTERVALS * balance_interval_ns);
	return found;
}

/*
 * Called at the end of a slice, with the running task still runnable and its
 * virtual runtime up to date. Its own LLC first.
 */
static __always_inline bool pull_when_unbalanced(s32 cpu, u64 vruntime)
{
	struct cpu_state *state = state_of(cpu);
	struct llc_state *own = llc_state_of(cpu);
	u64 now = scx_bpf_now();
	bool found = false;

	if (!balance_enabled)
		return false;

	if (!time_before(now, state->next_balance)) {
		state->next_balance = now + balance_interval_ns;
		measure_pace(state, own, now);
		found = pull_near(cpu, vruntime);
	}

	if (nr_llcs > 1 && !found && take_turn(own, cpu, now)) {
		found = pull_far(cpu, now);
		pass_turn(own, cpu, found, now);
	}

	if (found) {
		note_waiting(cpu, scx_bpf_dsq_nr_queued(cpu) + 1);
		count_event(state, EVENT_ROTATE, 1);
	}
	return found;
}

#endif /* __MAGPIE_BALANCE_BPF_H */
