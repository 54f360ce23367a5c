/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * balance.bpf.h - mechanism "balance": busy CPUs even out what idle CPUs cannot.
 *
 * Idea (the kernel's periodic balancing, Linux kernel/sched/fair.c; the rotating duty is from
 * "Push-based load balancing", RFC v2, Linux kernel list). Stealing helps only CPUs that run out of
 * work. With more CPU hogs than CPUs none does: twelve hogs on eight CPUs would stay where they
 * began, some with half of a CPU and some with a whole one. So a CPU whose running task used up its
 * slice looks at others now and then:
 *
 *   slice used up
 *        |
 *   own LLC due? (each CPU every 20 ms)
 *     a queue longer than ours by two?                 --> pull its first task
 *     a clock well behind ours?                        --> pull its first task
 *        |
 *   balance duty ours? (one CPU of the LLC every 5 to 10 ms)
 *     an LLC where more tasks wait for its size?       --> pull a first task
 *     an LLC with a slower pace than ours?             --> pull a first task, then wait until the
 *                                                          paces show the effect
 *
 * The first rule of each pair is the kernel's, and fast. The second rule for the own LLC makes
 * shares equal in the end, whatever made them unequal (a difference of one task, a real-time task,
 * a vCPU that the host withholds): a clock that is behind belongs to a CPU whose tasks had less
 * than ours. So one of these tasks comes here and runs first, and the next time another task is
 * behind. The kernel's imbalance percentages leave a difference of one task alone for long.
 *
 * Clocks of different LLCs drift apart while one LLC is idle, so the last rule compares their
 * *pace*: virtual time per real time, which is one over the weight that shares a CPU. The pace
 * contains the weights of tasks and cgroups, which queue lengths do not. The rule rests while paces
 * are equal: when tasks changed LLCs at a fixed rate, the changes made an even state uneven.
 *
 * Each CPU adds at its tick to its LLC's sum how many tasks wait. A scan compares these sums, not
 * the lengths of queues at that moment: ticks come to all CPUs at once, and in the queue of a CPU
 * that is between two tasks one task less seems to wait. The last of two tasks was sometimes missed
 * for 200 ms.
 *
 * In each LLC one CPU at a time scans the other LLCs on behalf of all; the duty rotates. If the CPU
 * on duty idles or keeps a task for long, the next CPU that looks takes the duty. Scans follow each
 * other sooner while they find tasks.
 *
 * What it does not do: even out LLCs whose paces differ by less than a sixteenth.
 */
#ifndef __MAGPIE_BALANCE_BPF_H
#define __MAGPIE_BALANCE_BPF_H

const volatile bool balance_enabled = true;

/* How often a busy CPU looks at its own LLC, and so how often it pulls at most. */
const volatile u64 balance_interval_ns = 20000000;

/* How far behind a clock must be. With less, tasks would migrate for one slice. */
const volatile u64 balance_margin_ns = 8000000;

/* Time between two scans of other LLCs. Longer than a tick, which counts what was pulled. */
#define SHORTEST_DUTY_NS (balance_interval_ns / 4)
#define LONGEST_DUTY_NS (balance_interval_ns / 2)
#define PULLS_IN_DUTY 8
#define ROTATION_INTERVALS 10 /* longer than an average of paces takes to follow */
#define BALANCE_VICTIMS 8 /* queues looked at in one round */
#define PACE_SHIFT 16
#define FULL_PACE (1ULL << PACE_SHIFT) /* of a nice 0 task alone */

/* One look at the own LLC. */
struct balance_round {
	s32 cpu;
	u32 length; /* of the own queue */
	u64 clock; /* vruntime of the own running task, in the time of the LLC */
	u64 behind; /* a clock before this one is well behind */
	u32 victim; /* best so far, or NO_PLACE */
};

/* Set the own pace, 0 if it is not known, and count it in the LLC. */
static __always_inline void set_pace(struct cpu_state *state, s32 cpu, u64 pace)
{
	struct llc_state *llc = llc_state_of(cpu);
	u64 before = state->pace;

	if (pace == before)
		return;

	state->pace = pace;
	__sync_fetch_and_add(&llc->paces, pace - before);
	if (!pace != !before)
		__sync_fetch_and_add(&llc->nr_paced, pace ? 1 : -1);
}

/*
 * The CPU goes idle: its pace says nothing of what the next tasks will get. The pace of an LLC
 * where a light task had run alone was wrong for a quarter of a second, and the LLC pulled tasks
 * for that long.
 */
static __always_inline void forget_pace(struct cpu_state *state, s32 cpu)
{
	set_pace(state, cpu, 0);
}

/* The CPU leaves idle, or has just measured its pace: measure from here on. */
static __always_inline void begin_pace(struct cpu_state *state, u64 now)
{
	state->paced_at = now;
	state->paced_clock = state->clock;
}

/* Measure how fast the own clock advanced since the last time. */
static __always_inline void measure_pace(struct cpu_state *state, s32 cpu, u64 now)
{
	u64 virtual = state->clock - state->paced_clock;
	u64 passed = now - state->paced_at;

	set_pace(state, cpu,
		 average_add(state->pace ?: FULL_PACE, (virtual << PACE_SHIFT) / (passed ?: 1)));
	begin_pace(state, now);
}

/* The mean pace of those CPUs of an LLC that have one. */
static __always_inline u64 pace_of_llc(u32 llc)
{
	const struct llc_state *state = llc_state_at(llc);
	u32 nr_paced = READ_ONCE(state->nr_paced);

	return nr_paced ? READ_ONCE(state->paces) / nr_paced : FULL_PACE;
}

/* Return whether one pace is really faster than the other: a smaller difference is chance. */
static __always_inline bool is_faster(u64 pace, u64 other)
{
	return pace > other + other / 16;
}

/* Return whether the tasks of a CPU get more than those of another, by the paces of both. */
static __always_inline bool gets_more(s32 cpu, s32 other)
{
	u64 pace = state_of(other)->pace;

	return pace && is_faster(state_of(cpu)->pace, pace);
}

/*
 * Return true for a CPU whose clock is ahead of ours and has a faster pace: its tasks already get
 * more, however many wait there, because queue length is not load.
 */
static __always_inline bool is_lighter(const struct balance_round *round, u32 victim)
{
	s64 lead = (s64)(clock_in_llc(state_of(victim)) - round->clock);

	return lead > (s64)balance_margin_ns && gets_more(victim, round->cpu);
}

/*
 * Return whether a CPU's tasks get less than ours, whose clock is at @clock and further behind than
 * any considered so far. Clocks that are further apart than a task's largest lag say nothing: those
 * of CPUs that idled for a moment are, in an LLC of light tasks alone, which move no clock of an
 * LLC. Then the paces decide. A nice 0 hog beside 16 of nice 5 on 8 CPUs should have more than one
 * CPU by its weight, so its clock falls behind for ever; when such clocks did not count, neighbours
 * left it one of their hogs for good, and it had 0.76 of a CPU.
 */
static __always_inline bool gets_less(const struct balance_round *round, u32 victim, u64 clock)
{
	return is_before(round->clock - LARGEST_LAG_NS, clock) || gets_more(round->cpu, victim);
}

/*
 * Consider a CPU of the own LLC where @length tasks wait; whether the round is decided: a queue
 * that is longer by two is taken at once, the clock furthest behind only after all were considered.
 */
static __always_inline bool consider(struct balance_round *round, u32 victim, u32 length)
{
	u64 clock;

	if (length >= round->length + 2 && !is_lighter(round, victim)) {
		round->victim = victim;
		return true;
	}

	clock = clock_in_llc(state_of(victim));
	if (is_before(clock, round->behind) && gets_less(round, victim, clock)) {
		round->victim = victim;
		round->behind = clock;
	}
	return false;
}

/* Consider the overloaded CPUs of [from, end); whether the round is decided. */
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

/* Pull a task from the own LLC; whether one was pulled. @vruntime: of the running task. */
__noinline bool pull_near(s32 cpu, u64 vruntime)
{
	const volatile struct llc_topology *llc = llc_of(topology_of(cpu)->llc);
	u32 place = topology_of(cpu)->place;
	u64 clock = vruntime - state_of(cpu)->clock_base;
	struct balance_round round = {
		.cpu = cpu,
		.length = scx_bpf_dsq_nr_queued(cpu),
		.clock = clock,
		.behind = clock - balance_margin_ns,
		.victim = NO_PLACE,
	};

	if (!look_around(&round, place + 1, llc->first + llc->size))
		look_around(&round, llc->first, place);

	if (round.victim == NO_PLACE || !scx_bpf_dsq_move_to_local(round.victim, 0))
		return false;

	note_waiting(round.victim, scx_bpf_dsq_nr_queued(round.victim));
	return true;
}

/* Take the balance duty if it is due and this CPU's; whether it was taken. */
static __always_inline bool take_duty(struct llc_state *llc, s32 cpu, u64 now)
{
	u64 due = READ_ONCE(llc->next_duty);

	if (is_before(now, due))
		return false;

	/* The duty is another CPU's. If that CPU does not come, any CPU may take it. */
	if (READ_ONCE(llc->on_duty) != offset_of(cpu) && is_before(now, due + SHORTEST_DUTY_NS))
		return false;

	return __sync_val_compare_and_swap(&llc->next_duty, due, now + SHORTEST_DUTY_NS) == due;
}

/* Pass the duty to the next CPU of the LLC. @found: the scan pulled a task. */
static __always_inline void pass_duty(struct llc_state *llc, s32 cpu, bool found, u64 now)
{
	u32 next = offset_of(cpu) + 1;

	WRITE_ONCE(llc->on_duty, next < llc_of(topology_of(cpu)->llc)->size ? next : 0);
	if (!found)
		WRITE_ONCE(llc->next_duty, now + LONGEST_DUTY_NS);
}

/*
 * Return whether another LLC has as many tasks waiting for its size even after one has moved here.
 * Not if its clocks are faster all the same: then its tasks are light.
 */
static __always_inline bool has_more_waiting(u32 other, u32 own, u64 pace)
{
	const struct llc_state *theirs = llc_state_at(other), *ours = llc_state_at(own);
	u32 waiting = READ_ONCE(theirs->waiting);

	return waiting && !is_faster(pace_of_llc(other), pace) &&
	       (u64)(waiting - 1) * llc_of(own)->size >=
		       (u64)(READ_ONCE(ours->waiting) + 1) * llc_of(other)->size;
}

/* The nearest LLC where more tasks wait, else one with a slower pace, else NO_PLACE. */
__noinline u32 find_busier_llc(u32 own, bool may_rotate)
{
	u64 pace = pace_of_llc(own);
	u32 found = NO_PLACE;
	u32 i;

	bpf_for(i, 1, nr_llcs) {
		u32 other = nth_llc(own, i);

		if (has_more_waiting(other, own, pace)) {
			found = other;
			break;
		}

		if (found == NO_PLACE && may_rotate && READ_ONCE(llc_state_at(other)->waiting) &&
		    is_faster(pace, pace_of_llc(other)))
			found = other;
	}

	return found;
}

/*
 * Pull a task from another LLC, on behalf of all CPUs of the own one; whether one was pulled.
 * Several attempts are needed: at a tick all CPUs there may be between two tasks, so that for a
 * moment no task waits.
 */
static __always_inline bool pull_far(s32 cpu, u64 now)
{
	u32 llc = topology_of(cpu)->llc;
	struct llc_state *own = llc_state_at(llc);
	u32 busier = find_busier_llc(llc, !is_before(now, READ_ONCE(own->next_rotation)));
	bool found = false;
	u32 i;

	count_event(state_of(cpu), EVENT_TURN, 1);
	if (busier == NO_PLACE)
		return false;

	/* Tasks that wait here for long would wait for longer than a move costs. */
	state_of(cpu)->refused = NEVER_REFUSES;
	bpf_for(i, 0, PULLS_IN_DUTY) {
		found = steal_from_llc(cpu, busier, spread_start(cpu, busier));
		if (found)
			break;
	}

	if (found)
		WRITE_ONCE(own->next_rotation, now + ROTATION_INTERVALS * balance_interval_ns);
	return found;
}

/*
 * At the end of a slice: pull a task from the own LLC or another one; whether one was pulled.
 * @vruntime: of the running task, which is still runnable.
 */
static __always_inline bool pull_when_unbalanced(s32 cpu, u64 vruntime)
{
	struct cpu_state *state = state_of(cpu);
	struct llc_state *own = llc_state_of(cpu);
	u64 now = scx_bpf_now();
	bool found = false;

	if (!balance_enabled)
		return false;

	if (!is_before(now, state->next_balance)) {
		state->next_balance = now + balance_interval_ns;
		measure_pace(state, cpu, now);
		found = pull_near(cpu, vruntime);
	}

	if (nr_llcs > 1 && !found && take_duty(own, cpu, now)) {
		found = pull_far(cpu, now);
		pass_duty(own, cpu, found, now);
	}

	if (found) {
		note_waiting(cpu, scx_bpf_dsq_nr_queued(cpu) + 1);
		count_event(state, EVENT_ROTATE, 1);
	}
	return found;
}

#endif /* __MAGPIE_BALANCE_BPF_H */
