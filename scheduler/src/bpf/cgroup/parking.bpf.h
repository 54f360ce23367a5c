/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * parking.bpf.h - mechanism "cpu-max", part: where the tasks of a throttled cgroup wait.
 *
 * Each cgroup has a *parking DSQ*: a queue in order of arrival, from which no CPU takes tasks. The
 * timer of a throttled cgroup expires at the end of each period:
 *
 *   quota added, out of debt? --yes--> release all
 *        | no
 *   release tasks that were killed, tasks whose CPU goes offline, and tasks for which the watchdog
 *   would end the scheduler soon (they are parked again at once); again after the next period
 *
 * The kernel inserts a task into the parking DSQ only after ops.enqueue() has returned, so a task
 * can arrive there after the release of all tasks; long after, if the host withholds the vCPU at
 * that moment. So the timer expires three more times after a release: after a moment, after another
 * period, and long after that.
 *
 * What it does not do: decide who is throttled (bandwidth.bpf.h).
 */
#ifndef __MAGPIE_PARKING_BPF_H
#define __MAGPIE_PARKING_BPF_H

#define PARKING_DSQ (1ULL << 32) /* + slot of the cgroup */
#define LOOKS_AFTER_RELEASE 3
#define FIRST_LOOK_NS 1000000
#define LAST_LOOK_NS LONGEST_PARKING_NS

/*
 * A parked task is queued without a release: it moved to a cgroup that is not throttled, it is
 * killed, its CPU goes offline, or its own cgroup has just been unthrottled. As after a release, it
 * is owed nothing: by its old vruntime, a hog had the CPU alone for as long as it had been parked.
 */
static __always_inline void leave_parking(struct task_state *ts, s32 cpu)
{
	if (cpu_max_enabled && ts->parked)
		join_after_parking(ts, cpu);
}

/*
 * Park a task that becomes runnable, or has used up its slice, if its cgroup or one above is
 * throttled; whether it was parked.
 */
static __always_inline bool park_task(struct task_struct *p, struct task_state *ts, u64 enq_flags)
{
	u32 blocker = blocker_of(p, ts);

	/* Never on a CPU that goes offline: the kernel waits until that CPU has no task. */
	if (blocker == ROOT_SLOT || !is_usable(scx_bpf_task_cpu(p))) {
		leave_parking(ts, scx_bpf_task_cpu(p));
		return false;
	}

	if (ts->slept)
		end_burst(ts);
	leave_cgroup(ts);
	/*
	 * A change of affinity enqueues a parked task again: keep the time at which it was parked
	 * first.
	 */
	if (!ts->parked_at)
		ts->parked_at = scx_bpf_now();
	ts->parked = true;
	count_event(state_here(), EVENT_PARK, 1);
	scx_bpf_dsq_insert(p, PARKING_DSQ + blocker, slice_of(ts), 0);
	return true;
}

/*
 * Have @nr idle CPUs search for released tasks that wait behind others. This does not search the
 * idle map for CPUs that the tasks may use: the verifier takes the timer for a part of the
 * sleepable ops.cgroup_init(), where a global function has no RCU lock for a task's affinity. If a
 * kicked CPU may run none of the tasks, the next tick of the tasks' own CPU offers them.
 */
static __always_inline void kick_searchers(u32 nr)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		struct cpu_state *state = state_of(cpu);

		if (!nr)
			break;
		if (!READ_ONCE(state->idles) || !is_preferred(cpu))
			continue;
		kick_searcher(cpu, ANYWHERE);
		nr--;
	}
}

/*
 * Release all parked tasks of a cgroup (@all), or only those that must not stay: killed ones, those
 * whose CPU goes offline, and those parked for too long. Kicks a searcher for each released task
 * that will wait behind another one.
 */
static __always_inline void release_parked(u32 slot, bool all, u64 now)
{
	struct cgroup_state *state = cgroup_at(slot);
	struct task_struct *p;

	state->nr_released = 0;

	bpf_for_each(scx_dsq, p, PARKING_DSQ + slot, 0) {
		struct task_state *ts = task_state(p);
		s32 cpu = scx_bpf_task_cpu(p);
		bool may_stay = is_usable(cpu);

		if (!ts)
			continue;
		if (!all && may_stay && !is_exempt(p) &&
		    time_before(now, ts->parked_at + LONGEST_PARKING_NS))
			continue;

		join_after_parking(ts, cpu);
		if (!may_stay) {
			leave_to_kernel(BPF_FOR_EACH_ITER, p, cpu);
			continue;
		}

		if (move_to_queue(BPF_FOR_EACH_ITER, p, ts, cpu) && !is_pinned(p) &&
		    (!READ_ONCE(state_of(cpu)->idles) || scx_bpf_dsq_nr_queued(cpu) > 1))
			state->nr_released++;
	}

	kick_searchers(state->nr_released);
}

/* Return in how many ns the timer looks again for tasks that were parked after the release. */
static __always_inline u64 next_look(const struct cgroup_state *state)
{
	if (state->looks == LOOKS_AFTER_RELEASE - 1)
		return FIRST_LOOK_NS;

	return state->looks ? state->period : LAST_LOOK_NS;
}

/*
 * The timer's callback: at the end of a period, unthrottle the cgroup if it has paid its debt, and
 * release its tasks; afterwards, look for tasks that were parked late.
 */
static int end_bandwidth_period(void *map, u32 *key, struct bandwidth_timer *timer)
{
	u32 slot = *key;
	struct cgroup_state *state = cgroup_at(slot);
	u64 now = scx_bpf_now();
	bool is_over;

	if (state->quota)
		refill(state, now);
	is_over = !state->quota || READ_ONCE(state->budget) > 0;

	if (is_over && unthrottle(state)) {
		state->throttled_ns += now - state->throttled_at;
		count_event(state_here(), EVENT_THROTTLE_NS, now - state->throttled_at);
		state->looks = LOOKS_AFTER_RELEASE;
	}

	bpf_rcu_read_lock();
	release_parked(slot, is_over, now);
	bpf_rcu_read_unlock();

	if (is_over && state->looks) {
		state->looks--;
		bpf_timer_start(&timer->timer, next_look(state), 0);
	}
	/*
	 * A CPU may have throttled the cgroup again meanwhile, and started the timer before that:
	 * the cgroup's tasks would wait for the last look.
	 */
	if (!is_over || READ_ONCE(state->throttled)) {
		s64 left = READ_ONCE(state->period_end) - now;

		bpf_timer_start(&timer->timer, left > 0 ? left : 0, 0);
	}

	return 0;
}

/*
 * Create the parking DSQ and the timer of a slot, once: the DSQ is never destroyed, because the
 * kernel ends a scheduler that destroys a DSQ with a task in it.
 */
static __always_inline int open_parking(u32 slot)
{
	int err;

	if (cgroup_at(slot)->has_parking)
		return 0;

	err = scx_bpf_create_dsq(PARKING_DSQ + slot, -1);
	err = err ?: prepare_timer(&bandwidth_timers, slot, end_bandwidth_period);
	cgroup_at(slot)->has_parking = !err;
	return err;
}

#endif /* __MAGPIE_PARKING_BPF_H */
