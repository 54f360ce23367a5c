/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * frequency.bpf.h - mechanism "frequency": each CPU asks for the performance that it uses.
 *
 * Idea (schedutil, Linux kernel/sched/cpufreq_schedutil.c): the scheduler knows how busy a CPU is
 * and tells the frequency governor. Under a sched_ext scheduler the governor uses the CPU's
 * performance target instead of the kernel's own utilisation. The kernel sets that to the maximum
 * when the scheduler starts, and calls the governor when a target is set and for real-time tasks. A
 * CPU whose scheduler sets none keeps the frequency that it has, or gets its highest one for good.
 *
 *   a task begins to run: after idle time and 8 ms after the last look, for the first time, or it
 *   needs more than the target
 *        |                              a tick, and no idle time for as long
 *        |                              all is asked for, and the task may have it? --yes--> done
 *   utilisation := moving average            |
 *   of busy time, portable/perf.h <----------'
 *        |                                   |
 *        |                              the task is not known to sleep?  --yes--> all
 *        |                                   | no
 *        |                              twice the utilisation, at the next tick four times, then all
 *        |<----------------------------------'
 *        |
 *   wanted := utilisation; for a CPU hog all; for a task of negative nice at least half
 *   wanted := within the task's uclamp
 *        |
 *   a step away from the target, and not too soon? --yes--> scx_bpf_cpuperf_set()
 *
 *   a real-time or deadline task takes the CPU     -------> all
 *
 *   a CPU goes idle with a target -> the timer, unless it is set
 *                                      |
 *   for each CPU with a target that has idled for 20 ms
 *   since it last looked ----------------------------------> nothing
 *   some CPU idles with a target, but not for so long? ----> the timer again
 *
 * The target has no margin, because the governor itself adds a quarter.
 *
 * A CPU that goes idle keeps its target for a moment, because a load of 60 frames a second would
 * otherwise change it twice a frame. All idle periods since the CPU's last look count together,
 * because a real-time task causes no look: one that woke every 20 ms on an otherwise idle CPU kept
 * a target of 792 of 1024 for half a second. One timer for the machine lowers the targets of all
 * CPUs that have idled for longer. A timer for each CPU would wake each of them from deep sleep.
 * The timer is not pinned, so the kernel lets it expire on a busy CPU when it is set again by an
 * idle one. A CPU in deep sleep has no frequency of its own to lower; the CPUs that share its
 * frequency need to know.
 *
 * Each look is in the CPU's own memory; a switch between looks costs one comparison. A CPU that
 * switches without idle time does not look, because it is about to be saturated. A saturated CPU
 * that asks for all, or may not ask for more yet, does nothing more at its ticks, because a look
 * takes longer than the rest of a tick.
 *
 * The timer also writes another CPU's target. A CPU that leaves idle meanwhile reads what the
 * kernel has at its next look. Of many drivers a CPU can only set its own frequency, so the kernel
 * does not call the governor for the other CPU. That CPU sets its target at its next look, step or
 * not: without this, one that had run a hog stayed at its highest frequency while it had little to
 * do.
 *
 * What it does not do: choose CPUs by their frequency, or know that CPUs share one. The governor
 * takes the highest target of the CPUs that do. A real-time task that begins on an idle CPU raises
 * no target here: the governor itself knows of it. It may miss the task's end, so the CPU sets its
 * target again after it, step or not.
 */
#ifndef __MAGPIE_FREQUENCY_BPF_H
#define __MAGPIE_FREQUENCY_BPF_H

/* How often a CPU that leaves idle looks at its utilisation, at most. */
#define LOOK_INTERVAL_NS 8000000ULL

/* Without idle time for this long, a bit less than a tick of a kernel of 250 Hz, a CPU is saturated. */
#define SATURATED_NS 3900000ULL

/* A task with so many bursts that saw a tick, the current one included, is expected to sleep soon. */
#define BURSTS_OF_A_SLEEPER 5

/* What a CPU deems enough so that each task that begins to run has a look. */
#define NOT_ENOUGH (-1)

/* A CPU that has idled for this long since its last look asks for nothing, once the timer finds it. */
#define IDLE_HOLD_NS 20000000ULL

/* When the timer looks after a CPU went idle: twice as long, so that one look mostly suffices. */
#define SWEEP_INTERVAL_NS 40000000ULL

/* The governor adds this part to a target: four fifths are all, and need no change to become so. */
#define GOVERNOR_MARGIN 4

struct sweep_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sweep_timer);
} sweep_timers SEC(".maps");

/* A line of its own: each CPU that goes idle reads it, and it changes twice a sweep. */
struct {
	u32 is_set;
} sweep __attribute__((aligned(64)));

/* Return the target that the kernel has. */
static __always_inline u32 target_of(s32 cpu)
{
	const struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);

	return rq ? rq->scx.cpuperf_target : 0;
}

/*
 * Note the CPU's target; a look that is pending is done with. A task that needs more has a look
 * when it begins to run.
 */
static __always_inline void note_target(struct cpu_state *state, u32 perf)
{
	state->perf_target = perf;
	state->enough = perf;
}

static __always_inline void set_target(struct cpu_state *state, s32 cpu, u32 perf)
{
	/*
	 * Before the kernel has the target: if the timer lowers it meanwhile, its note stays. A CPU
	 * that is told twice costs nothing but a call.
	 */
	WRITE_ONCE(state->untold, 0);
	scx_bpf_cpuperf_set(cpu, perf);
	count_event(state, EVENT_TARGET_SET, 1);
	if (perf > state->perf_target)
		count_event(state, EVENT_TARGET_RAISE, 1);
	note_target(state, perf);
}

/*
 * Ask for @wanted if it is a step away from the target (is_perf_step()), or if the governor may not
 * know the target, and the last change is long enough ago (may_set_target()), because each change
 * calls the governor, which may write a register.
 */
static __always_inline void want_perf(struct cpu_state *state, s32 cpu, u32 wanted, u32 capacity,
				      u64 now)
{
	bool is_soon;

	if (!READ_ONCE(state->untold) && !is_perf_step(state->perf_target, wanted, capacity))
		return;

	is_soon = state->target_due > now;
	if (!may_set_target(&state->target_due, now, wanted > state->perf_target)) {
		count_event(state, EVENT_TARGET_LIMITED, 1);
		return;
	}

	set_target(state, cpu, wanted);
	/*
	 * schedutil drops a call that comes too soon after a change of the frequency: set the
	 * target again once the limit lets it.
	 */
	if (is_soon)
		WRITE_ONCE(state->untold, 1);
}

/* The next measurement counts from here. */
static __always_inline void begin_measuring(struct cpu_state *state, u64 now)
{
	state->looked_at = now;
	state->idled_when_looked = state->idled;
}

/* Measure the utilisation since the last look. */
static __always_inline void measure(struct cpu_state *state, s32 cpu, u64 now)
{
	u64 span = now - state->looked_at;
	u64 idle = state->idled - state->idled_when_looked;
	u64 busy = span > idle ? span - idle : 0;

	if (state->looked_at)
		state->utilisation = utilisation_after(
			state->utilisation,
			level_of(busy, span, state->capacity, scx_bpf_cpuperf_cur(cpu)), span);
	begin_measuring(state, now);
}

/* Return whether the CPU has not idled for so long that its tasks may need more than they get. */
static __always_inline bool is_saturated(const struct cpu_state *state, u64 now)
{
	return now - state->no_idle_since >= SATURATED_NS;
}

/* Note that the task runs for a tick, once between two sleeps. */
static __always_inline void note_tick_of_burst(struct task_state *ts)
{
	if (ts->ticks == 1 && ts->tick_bursts < BURSTS_OF_A_SLEEPER)
		ts->tick_bursts++;
}

/*
 * Return whether the task will probably sleep soon although it has run for a tick, because it did
 * so often. Its average burst says little: a task that draws frames also sleeps after a few
 * microseconds, to wait for a lock or an answer, and a new CPU hog has slept while its program was
 * loaded.
 */
static __always_inline bool is_sleeper(const struct task_state *ts)
{
	return ts->tick_bursts >= BURSTS_OF_A_SLEEPER && !is_hog(ts);
}

/*
 * Return the performance that the running task of a saturated CPU should have. How much it would
 * use is not known. A task that is not known to sleep gets all at once. One that is gets more from
 * tick to tick: it may be a frame whose drawing takes longer than a tick at a low frequency only,
 * and such frames got the highest one otherwise. The ramp begins at what the CPU uses, not at its
 * target. From its target it climbed to the top in a few frames, because a target that was raised
 * may not be lowered before the next frame begins.
 */
static __always_inline u32 saturated_perf(struct cpu_state *state, const struct task_state *ts,
					  u64 now)
{
	u64 beyond = now - state->no_idle_since - SATURATED_NS;
	u32 ramp;

	if (!is_sleeper(ts)) {
		state->utilisation = state->capacity << UTILISATION_SHIFT;
		return state->capacity;
	}

	ramp = ramp_perf(state->utilisation >> UTILISATION_SHIFT, beyond, state->capacity);
	return ramp > state->perf_target ? ramp : state->perf_target;
}

/*
 * Return the least performance with which a task should run, clamps aside. A CPU hog gets all: it
 * uses whatever it gets. A task of negative nice gets half, because its user says that it matters.
 */
static __always_inline u32 least_perf(const struct task_struct *p, const struct task_state *ts,
				      u32 capacity)
{
	if (is_hog(ts))
		return capacity;

	/* Kernel threads of negative nice are many, and few of them are in a hurry. */
	if (ts->nice_rate < NICE_0_RATE && !(p->flags & PF_KTHREAD))
		return capacity / 2;

	return 0;
}

/*
 * Look at the CPU and at the task that runs, and ask for what they need. At a tick the CPU is
 * saturated.
 */
static __noinline void look_at_load(struct cpu_state *state, const struct task_struct *p,
				    struct task_state *ts, u64 now, bool is_tick)
{
	s32 cpu = scx_bpf_task_cpu(p);
	u32 capacity = state->capacity;
	u32 floor = uclamp_min(p), most = uclamp_max(p);
	u32 least, wanted, ramp = 0;

	note_target(state, target_of(cpu));
	measure(state, cpu, now);
	if (is_tick)
		ramp = saturated_perf(state, ts, now);

	least = least_perf(p, ts, capacity);
	wanted = state->utilisation >> UTILISATION_SHIFT;
	if (wanted < PERF_NONE)
		wanted = 0;
	if (wanted + wanted / GOVERNOR_MARGIN >= capacity)
		wanted = capacity;
	if (wanted < ramp)
		wanted = ramp;
	if (wanted < least)
		wanted = least;
	ts->least_perf = clamp_perf(least > floor ? least : floor, 0, most);
	wanted = clamp_perf(wanted, floor, most);

	want_perf(state, cpu, wanted, capacity, now);
}

/*
 * A task begins to run. Look if the CPU has idled and the last look is old; also if this task needs
 * more than the target, because it would run slowly until the next look. A kernel thread that has
 * seen no tick leaves the look to the next task, because it mostly runs for microseconds. It would
 * ask for what tasks of a lower uclamp use here, or lower what the next task needs, and schedutil
 * drops a call that comes within half a millisecond of another.
 */
static __always_inline void perf_task_begins(struct cpu_state *state, const struct task_struct *p,
					     struct task_state *ts, u64 now)
{
	if (frequency_enabled && ts->least_perf > state->enough &&
	    !(p->flags & PF_KTHREAD && !ts->ticks))
		look_at_load(state, p, ts, now, false);
}

/*
 * A tick while a task of ours runs. If the CPU has idled lately, the task that ran next has looked,
 * or the last look is not old.
 */
static __always_inline void perf_tick(struct cpu_state *state, const struct task_struct *p,
				      struct task_state *ts, u64 now)
{
	if (!frequency_enabled)
		return;

	note_tick_of_burst(ts);
	if (!is_saturated(state, now))
		return;

	if (state->perf_target == state->capacity && uclamp_max(p) >= state->capacity) {
		if (is_hog(ts))
			ts->least_perf = state->capacity;
	} else if (is_target_due(state->target_due, now, true)) {
		look_at_load(state, p, ts, now, true);
	} else {
		count_event(state, EVENT_TARGET_LIMITED, 1);
	}
}

/*
 * A real-time or deadline task took the CPU from a task of ours. Ask for all, as schedutil does for
 * such tasks: the target holds until the next look, and without this it would be what our task
 * asked for. The kernel's stopper threads, which migrate tasks, run for microseconds: they ask for
 * nothing.
 */
static __always_inline void perf_lost(struct cpu_state *state, s32 cpu,
				      const struct scx_cpu_release_args *args)
{
	if (!frequency_enabled ||
	    (args->reason != SCX_CPU_PREEMPT_RT && args->reason != SCX_CPU_PREEMPT_DL))
		return;

	want_perf(state, cpu, state->capacity, state->capacity, rq_now(cpu));
}

/*
 * A task of a higher class has the CPU. The governor raises the frequency for a real-time task by
 * itself, and may miss its end: have the next look of ours set the target again.
 */
static __always_inline void perf_outranked(struct cpu_state *state)
{
	if (frequency_enabled)
		WRITE_ONCE(state->untold, 1);
}

/* Set the timer, unless another CPU has. */
static __noinline void start_sweep(void)
{
	struct sweep_timer *timer;
	u32 key = 0;

	if (__sync_lock_test_and_set(&sweep.is_set, 1))
		return;

	timer = bpf_map_lookup_elem(&sweep_timers, &key);
	if (!timer || bpf_timer_start(&timer->timer, SWEEP_INTERVAL_NS, 0))
		WRITE_ONCE(sweep.is_set, 0);
}

/* The CPU goes idle: if it has a target, the timer will lower that. */
static __always_inline void perf_idle_begins(const struct cpu_state *state)
{
	if (frequency_enabled && state->perf_target && !READ_ONCE(sweep.is_set))
		start_sweep();
}

/*
 * Add the idle period that ends to the CPU's sum, and have the next task look if the last look is
 * old. Call this before end_idle(), which forgets the period.
 */
static __always_inline void perf_idle_ends(struct cpu_state *state, u64 now)
{
	if (!frequency_enabled)
		return;

	if (state->idle_since)
		state->idled += now - state->idle_since;
	state->no_idle_since = now;
	if (now - state->looked_at >= LOOK_INTERVAL_NS)
		state->enough = NOT_ENOUGH;
}

/*
 * Have a CPU that has idled for long ask for nothing. Returns whether it idles with a target still.
 * A CPU that is busy at this moment counts, too: the timer is set as a CPU goes idle, so it meets a
 * task whose period divides the timer's at the same point of each period.
 */
static __always_inline bool lower_idle_cpu(s32 cpu, u64 now)
{
	struct cpu_state *state = state_of(cpu);
	u64 idled = READ_ONCE(state->idled) - READ_ONCE(state->idled_when_looked);
	u64 since = READ_ONCE(state->idle_since);

	if (!READ_ONCE(state->perf_target))
		return false;
	if (since && !is_before(now, since))
		idled += now - since;
	if (idled < IDLE_HOLD_NS || !may_set_target(&state->target_due, now, false))
		return since;

	scx_bpf_cpuperf_set(cpu, 0);
	WRITE_ONCE(state->untold, 1);
	WRITE_ONCE(state->perf_target, target_of(cpu));
	WRITE_ONCE(state->enough, NOT_ENOUGH);
	count_event(state_here(), EVENT_TARGET_SET, 1);
	count_event(state_here(), EVENT_TARGET_IDLE, 1);
	return false;
}

/*
 * Note the capacity of a CPU, because the kernel's function takes as long as a switch may cost. It
 * seldom changes: when a driver for frequencies is loaded, on hybrid machines.
 */
static __always_inline void note_capacity(s32 cpu)
{
	WRITE_ONCE(state_of(cpu)->capacity, scx_bpf_cpuperf_cap(cpu));
}

/* The timer: lower the targets of idle CPUs, and come back for those that have idled too shortly. */
static int sweep_targets(void *map, u32 *key, struct sweep_timer *timer)
{
	u64 now = scx_bpf_now();
	bool is_left = false;
	u32 cpu;

	WRITE_ONCE(sweep.is_set, 0);
	bpf_for(cpu, 0, nr_cpus) {
		note_capacity(cpu);
		if (lower_idle_cpu(cpu, now))
			is_left = true;
	}
	if (is_left)
		start_sweep();

	return 0;
}

/* Prepare the timer, and take back the maximum that the kernel has set. */
static __always_inline s32 start_perf(void)
{
	s32 err = prepare_timer(&sweep_timers, 0, sweep_targets);
	u32 cpu;

	if (err)
		return err;

	bpf_for(cpu, 0, nr_cpus) {
		note_capacity(cpu);
		set_target(state_of(cpu), cpu, 0);
		/* The kernel calls no governor for a scheduler that is not enabled yet. */
		WRITE_ONCE(state_of(cpu)->untold, 1);
	}

	return 0;
}

#endif /* __MAGPIE_FREQUENCY_BPF_H */
