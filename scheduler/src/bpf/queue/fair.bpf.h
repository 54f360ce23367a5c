/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fair.bpf.h - mechanism "queue", part: vruntimes, clocks and deadlines of tasks and CPUs.
 *
 * The only file that writes a task's vruntime, or the clock of a CPU or an LLC. portable/fair.h has
 * the arithmetic and its source.
 *
 * A CPU's *clock* is the largest vruntime with which a task, in its turn, began to run there. The
 * CPUs of an LLC compare their clocks in the time of the LLC, whose clock is the furthest of
 * theirs: each CPU has a *base*, which is its clock where the LLC's is 0. A CPU that leaves idle is
 * at the LLC's clock, as no task there is owed or owes anything. So a clock that falls behind
 * belongs to a CPU that gives its tasks less, which balance/balance.bpf.h evens out.
 *
 *   leaves idle, clock behind the LLC's -> the clock is set to the LLC's
 *   leaves idle, clock ahead of it      -> the base grows: the clock is the LLC's from here on
 *   tick, 50 ms ahead of it             -> likewise
 *
 * The clock of a CPU that ran a light task alone is far ahead, and says nothing of what the next
 * tasks there get. When it became the LLC's clock, each CPU that took it over pulled tasks from all
 * others: the CPU times of 12 equal hogs on 8 CPUs differed by up to 41 % within 2 s, and now by
 * 1.5 %. Clocks of different LLCs cannot be compared.
 *
 *   task is forked              -> vruntime = clock + one slice: a child owes a slice
 *   wakes, migrates, was parked -> vruntime = clock - lag, the lag within the bounds of
 *                                  portable/fair.h
 *   runs                        -> vruntime advances with CPU time over weight
 *   begins to run               -> the CPU's clock follows the task's vruntime
 *   tick                        -> the LLC's clock follows the CPU's, if it is a millisecond behind,
 *                                  and at most 50
 *
 * What it does not do: know of cgroups. Their weights are in the tasks' rates
 * (cgroup/shares.bpf.h).
 */
#ifndef __MAGPIE_FAIR_BPF_H
#define __MAGPIE_FAIR_BPF_H

const volatile u64 slice_ns = 3000000;

/* Honour slices that were asked for with sched_setattr(2). */
const volatile bool custom_slice_enabled = true;

/* The longest slice that a task gets because it asks, in slices of the scheduler. */
#define LONGEST_CUSTOM_SLICE 4

/*
 * A task with shorter bursts is expected to sleep soon, rather than to use up its slice. A woken
 * task may then wait for its CPU instead of moving to an idle one.
 */
#define SLEEPS_SOON_NS 100000

/* How far an LLC's clock may be behind a CPU's: a tick seldom needs to write the LLC's line. */
#define CLOCK_STEP_NS 1000000ULL

/*
 * A task that has seen this many ticks since it last slept is a CPU hog. With 4 ticks, senders of
 * hackbench count as hogs, too: four groups on two CPUs then switch 1.9 times as often as under
 * EEVDF, and with 16 ticks 1.4 times.
 */
#define TICKS_OF_A_HOG 16

/* The CPU time that the task is expected to use before it sleeps. */
static __always_inline u64 expected_burst(const struct task_state *ts)
{
	return ts->burst > ts->avg_burst ? ts->burst : ts->avg_burst;
}

/*
 * For how much longer the task runs before it sleeps, at the longest, if this burst is like the
 * others: up to twice the average. Negative if the burst is longer than that.
 */
static __always_inline s64 usual_rest(const struct task_state *ts)
{
	return 2 * ts->avg_burst - ts->burst;
}

/*
 * Return whether the task is a CPU hog. Ticks count, not CPU time: when the host withholds a vCPU,
 * the kernel charges the vCPU's task with that time, and any task would soon be taken for a hog.
 */
static __always_inline bool is_hog(const struct task_state *ts)
{
	return ts->ticks >= TICKS_OF_A_HOG;
}

/*
 * Return whether the task is not known to sleep: it is a CPU hog, or it never slept. A task that
 * never slept counts because a build's processes run for a few slices and exit: otherwise a task
 * that wakes beside them would wait for the first slice of each. The average burst does not count,
 * because it contains the time that the host withheld: by the average, hackbench in a guest of 8
 * vCPUs on 2 CPUs took 0.65 times as long as under EEVDF, without it 0.37 times.
 */
static __always_inline bool is_cpu_bound(const struct task_state *ts)
{
	return !ts->avg_burst || is_hog(ts);
}

static __always_inline bool is_idle_policy(const struct task_state *ts)
{
	return ts->nice_rate == weight_to_rate(IDLE_POLICY_WEIGHT);
}

/*
 * Note the slice that the task, or its parent before the fork, asked for. Each sched_setattr(2)
 * calls ops.set_weight(), so no other operation reads it from the kernel, whose bounds are 0.1 and
 * 100 ms. Slices of 100 ms would be too long: 300 tasks that ask for them on one CPU would wait for
 * 30 s, after which the kernel's watchdog ends the scheduler.
 */
static __always_inline void note_custom_slice(const struct task_struct *p, struct task_state *ts)
{
	u64 longest = LONGEST_CUSTOM_SLICE * slice_ns;

	if (!custom_slice_enabled)
		return;

	ts->has_custom_slice = p->se.custom_slice;
	if (!ts->has_custom_slice)
		ts->slice = slice_ns;
	else
		ts->slice = p->se.slice < longest ? p->se.slice : longest;
}

/* For how long the task runs before the next one has its turn, ns. */
static __always_inline u64 slice_of(const struct task_state *ts)
{
	return custom_slice_enabled ? ts->slice : slice_ns;
}

/*
 * Return whether the task asks for two slices. A slice that a user asked for is the
 * request, as under EEVDF: it says when the task is due, and changes nothing about its share.
 */
static __always_inline bool asks_for_two(const struct task_state *ts)
{
	if (custom_slice_enabled && ts->has_custom_slice)
		return false;

	return is_cpu_bound(ts) || is_idle_policy(ts);
}

/* The task's request as virtual time, see request_of(). */
static __always_inline u64 request(const struct task_state *ts)
{
	return request_of(slice_of(ts), asks_for_two(ts), ts->rate);
}

static __always_inline u64 deadline_of(const struct task_state *ts)
{
	return ts->vruntime + request(ts);
}

/* The switch of place/move_cost.bpf.h, which asks what bursts were like. */
const volatile bool move_cost_enabled = true;

/*
 * The task stops and is no longer runnable: it sleeps, unless only its affinity or nice value
 * changes. (If they change while it is about to sleep, that counts as a sleep, too.) When it wakes,
 * it joins a clock on the CPU where it will wait or run. If its waker did that, the task's line
 * would move to the waker's CPU and back.
 */
static __always_inline void note_sleep(const struct task_struct *p, struct task_state *ts)
{
	if (p->__state != TASK_RUNNING)
		ts->slept = true;
}

/* The task slept: its burst is complete. */
static __always_inline void end_burst(struct task_state *ts)
{
	ts->avg_burst = average_add(ts->avg_burst, ts->burst);
	if (move_cost_enabled)
		learn_burst(&ts->moves, ts->burst);
	ts->burst = 0;
	ts->slept = false;
	ts->ticks = 0;
	WRITE_CHANGED(ts->shares_core, false);
}

/* A CPU's clock in the time of its LLC. */
static __always_inline u64 clock_in_llc(const struct cpu_state *state)
{
	return READ_ONCE(state->clock) - READ_ONCE(state->clock_base);
}

/* The CPU's own clock, or its LLC's if that is further. */
static __always_inline u64 furthest_clock(const struct cpu_state *state, s32 cpu)
{
	return later_of(state->clock,
			READ_ONCE(llc_state_of(cpu)->clock) + READ_ONCE(state->clock_base));
}

/*
 * The clock that a task joins on a CPU. An idle CPU's own clock stands still, so its LLC's counts.
 */
static __always_inline u64 clock_of(s32 cpu)
{
	const struct cpu_state *state = state_of(cpu);

	return READ_ONCE(state->idles) ? furthest_clock(state, cpu) : state->clock;
}

/* How far a CPU's clock is ahead of another one's; 0 if the two are of different LLCs. */
static __always_inline s64 clock_lead(s32 cpu, s32 other)
{
	if (is_in_other_llc(cpu, other))
		return 0;

	return clock_of(cpu) - state_of(cpu)->clock_base -
	       (clock_of(other) - state_of(other)->clock_base);
}

/* Move a task to a CPU's clock, with a lag. */
static __always_inline void join_with_lag(struct task_state *ts, s32 cpu, u64 clock, s64 lag)
{
	ts->vruntime = clock - lag;
	ts->cpu = cpu;
}

/*
 * A child owes one slice. If it joined at the clock itself, a chain of tasks that fork and exit
 * would run for ever before a CPU hog.
 */
static __always_inline s64 lag_of_child(void)
{
	return -(s64)slice_ns;
}

/* The lag with which a task that wakes, or is new, joins any CPU. */
static __always_inline s64 lag_when_woken(const struct task_state *ts)
{
	if (ts->cpu < 0)
		return lag_of_child();

	return lag_after_sleep(clock_of(ts->cpu) - ts->vruntime, slice_ns, ts->rate);
}

/*
 * A woken or new task joins a CPU's clock: it keeps a debt, and no positive lag. Global: the
 * verifier proves it once.
 */
__noinline int join_after_sleep(struct task_state *ts __arg_nonnull, s32 cpu)
{
	end_burst(ts);
	WRITE_CHANGED(ts->catch_up, 0);
	join_with_lag(ts, cpu, clock_of(cpu), lag_when_woken(ts));
	return 0;
}

/*
 * A task that migrates while it is runnable joins the new CPU's clock with its lag, to which the
 * lead of that clock is added if the clocks can be compared: lag_after_move(). A debt is kept: when
 * migrations forgave debts, one hog of eight got 40 % more CPU time than its equals, because the
 * kernel charges a task with the time for which the host withholds its vCPU.
 *
 * Of a positive lag the task gets at most one slice at once, the rest by and by (@catch_up). When
 * hogs arrived one after the other with 50 ms of lag each, a task that sleeps for microseconds at a
 * time waited for up to 758 ms. Global, too.
 */
__noinline int join_after_move(struct task_state *ts __arg_nonnull, s32 cpu)
{
	u64 clock = clock_of(cpu);
	s64 lag;

	if (ts->cpu < 0) {
		join_with_lag(ts, cpu, clock, lag_of_child());
		return 0;
	}

	lag = lag_after_move(clock_of(ts->cpu) - ts->vruntime + ts->catch_up,
			     clock_lead(cpu, ts->cpu));
	ts->catch_up = lag_to_catch_up(lag, slice_ns, ts->rate);
	join_with_lag(ts, cpu, clock, lag - ts->catch_up);
	return 0;
}

/* Let the task join the clock of the CPU where it will wait or run, if it has not yet. */
static __always_inline void join_clock(struct task_state *ts, s32 cpu)
{
	if (ts->slept)
		join_after_sleep(ts, cpu);
	else if (ts->cpu != cpu)
		join_after_move(ts, cpu);
}

/*
 * A task that was parked joins a CPU's clock: it keeps a debt, and no positive lag. With positive
 * lag, all tasks of a throttled cgroup ran before their neighbours as each period began. Global, too.
 */
__noinline int join_after_parking(struct task_state *ts __arg_nonnull, s32 cpu)
{
	u64 clock = clock_of(cpu);
	s64 lag;

	ts->parked = false;
	if (ts->cpu < 0) {
		join_with_lag(ts, cpu, clock, lag_of_child());
		return 0;
	}

	WRITE_CHANGED(ts->catch_up, 0);
	lag = clock_of(ts->cpu) - ts->vruntime;
	join_with_lag(ts, cpu, clock, clamp_lag(lag, -LARGEST_DEBT_NS, 0));
	return 0;
}

/* The task has used CPU time, ns. */
static __always_inline void advance_vruntime(struct task_state *ts, u64 used)
{
	ts->vruntime += charge_with_catch_up(virtual_time(used, ts->rate), &ts->catch_up);
	ts->burst += used;
}

/* Let a CPU's clock follow a task that begins to run there; it never goes back. */
static __always_inline void advance_clock(struct cpu_state *state, const struct task_state *ts)
{
	state->clock = later_of(state->clock, ts->vruntime);
}

/* A CPU leaves idle: its clock, which stood still, is that of its LLC from here on. */
static __always_inline void catch_up_clock(struct cpu_state *state, s32 cpu)
{
	u64 clock = READ_ONCE(llc_state_of(cpu)->clock);

	state->clock = later_of(state->clock, clock + state->clock_base);
	state->clock_base = state->clock - clock;
}

/*
 * Let the LLC's clock follow this CPU's, unless the running task is light: the clock of a CPU with
 * a SCHED_IDLE task alone runs 341 times as fast. A light task that ran here before may have left
 * the clock far ahead: then let this CPU's base follow instead.
 */
static __always_inline void publish_clock(struct cpu_state *state, const struct task_state *current,
					  s32 cpu)
{
	u64 *clock = &llc_state_of(cpu)->clock;
	s64 lead = clock_in_llc(state) - READ_ONCE(*clock);

	if (current->nice_rate > NICE_0_RATE || current->rate > 4 * NICE_0_RATE)
		return;

	if (lead > LARGEST_LAG_NS)
		state->clock_base += lead;
	else if (lead > (s64)CLOCK_STEP_NS)
		WRITE_ONCE(*clock, clock_in_llc(state));
}

#endif /* __MAGPIE_FAIR_BPF_H */
