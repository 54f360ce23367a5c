/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * parking.bpf.h - where the tasks of a throttled cgroup wait, and how they come back.
 *
 * The second half of bandwidth.bpf.h, which says what for. Each cgroup has a
 * parking place, a DSQ in the order of arrival. Its timer runs while it is
 * throttled, at the end of each period:
 *
 *   quota added, out of debt? --yes--> release all
 *        | no
 *   release those that were killed meanwhile, those whose CPU goes offline, and those
 *   that the watchdog would soon ask for (they will be back at once); again at the end
 *   of the next period
 *
 * The kernel puts a task into the parking place only after ops.enqueue() returned,
 * so a task can miss the release that it should have been in, by much if the host
 * holds the vCPU back just then. The timer looks again: a moment later, after another
 * period, and long after.
 */
#ifndef __MAGPIE_PARKING_BPF_H
#define __MAGPIE_PARKING_BPF_H

#define LOOKS_AFTER_RELEASE 3
#define FIRST_LOOK_NS 1000000
#define LAST_LOOK_NS LONGEST_PARKING_NS

/* Instead of queueing it: whether the task is parked. */
static __always_inline bool park_task(struct task_struct *p, struct task_state *ts, u64 enq_flags)
{
	u32 blocker = blocker_of(p, ts);

	/* On a CPU on its way offline nothing may wait: the kernel waits for it to be empty. */
	if (blocker == ROOT_SLOT || !is_usable(scx_bpf_task_cpu(p)))
		return false;

	if (enq_flags & SCX_ENQ_WAKEUP)
		end_burst(ts);
	leave_cgroup(ts);
	/* Unless it was taken out and comes back, as for a new affinity: it has not run. */
	if (!ts->parked_at)
		ts->parked_at = scx_bpf_now();
	count_event(state_of(bpf_get_smp_processor_id()), EVENT_PARK, 1);
	scx_bpf_dsq_insert(p, PARKING_DSQ + blocker, slice_ns, 0);
	return true;
}

/* At a tick, which charges it: its slice may be long. */
static __always_inline void end_if_throttled(struct task_struct *p, struct task_state *ts)
{
	if (!cpu_max_enabled || !READ_ONCE(nr_cgroups.limited))
		return;

	charge(p, ts);
	if (is_throttled(p, ts))
		scx_bpf_task_set_slice(p, 0);
}

/*
 * Where it was, but not ahead of the clock: to wait for a limit earns no credit. With it
 * all tasks of the cgroup were before their neighbours as each period began.
 */
static __always_inline void join_after_parking(struct task_state *ts, s32 cpu)
{
	if (ts->cpu < 0) {
		join_first(ts, cpu);
		return;
	}

	ts->lead = 0;
	ts->vruntime = clock_of(cpu) +
		       bounded((s64)(ts->vruntime - clock_of(ts->cpu)), 0, LARGEST_DEBT_NS);
	ts->cpu = cpu;
}

/*
 * So many idle CPUs look for what was released and waits behind another. Not by a
 * search of the idle map: the verifier takes the timer for a part of the sleepable
 * ops.cgroup_init, where a global function has no RCU lock for a task's affinity. What
 * that misses, the next tick offers.
 */
static __always_inline void kick_searchers(u32 nr)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		struct cpu_state *state = state_of(cpu);

		if (!nr)
			break;
		if (!READ_ONCE(state->idle_since) || !is_preferred(cpu))
			continue;
		WRITE_ONCE(state->must_search, ANYWHERE);
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		nr--;
	}
}

/* Release all that are parked, or those that were killed or have been for too long. */
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

		/* As in ops.cpu_offline(): there the kernel pushes it away. */
		if (!may_stay) {
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
			continue;
		}

		join_after_parking(ts, cpu);
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, key_of(ts));
		if (scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, cpu, 0)) {
			if (!is_pinned(p))
				set_overloaded(cpu, true);
			if (!is_pinned(p) &&
			    (!state_of(cpu)->idle_since || scx_bpf_dsq_nr_queued(cpu) > 1))
				state->nr_released++;
			/* Whatever we know of it: the kernel knows whether it idles. */
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		}
	}

	kick_searchers(state->nr_released);
}

static __always_inline u64 next_look(const struct cgroup_state *state)
{
	if (state->looks == LOOKS_AFTER_RELEASE - 1)
		return FIRST_LOOK_NS;

	return state->looks ? state->period : LAST_LOOK_NS;
}

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
		count_event(state_of(bpf_get_smp_processor_id()), EVENT_THROTTLE_NS,
			    now - state->throttled_at);
		state->looks = LOOKS_AFTER_RELEASE;
	}

	bpf_rcu_read_lock();
	release_parked(slot, is_over, now);
	bpf_rcu_read_unlock();

	if (!is_over) {
		s64 left = READ_ONCE(state->period_end) - now;

		bpf_timer_start(&timer->timer, left > 0 ? left : 0, 0);
	} else if (state->looks) {
		state->looks--;
		bpf_timer_start(&timer->timer, next_look(state), 0);
	}

	return 0;
}

#endif /* __MAGPIE_PARKING_BPF_H */
