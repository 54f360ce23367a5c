/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * bandwidth.bpf.h - mechanism "cpu-max": a cgroup stays within its limit of CPU time.
 *
 * Idea (CFS bandwidth control, Turner, Rao and Rao 2010): a cgroup with cpu.max has a budget of CPU
 * time for each period. The kernel enforces that for its own classes only, and tells a sched_ext
 * scheduler the limits. A scheduler that ignores them voids every container's limit silently.
 *
 *   task is charged -> so is each cgroup with a limit, from the task's own to the root
 *        |
 *   budget used up? -> the cgroup is throttled; its timer expires at the end of the period
 *        |
 *   task of a throttled cgroup
 *     becomes runnable, or used up its slice -> is parked (parking.bpf.h)
 *     runs at a tick                         -> its slice is over
 *     begins to run (from a CPU's queue, or stolen)
 *                                            -> is preempted at once, and parked
 *
 *   timer: quota added (portable/bandwidth.h); out of debt? --no--> next period
 *        | yes
 *   each parked task -> queue of its CPU
 *
 * Tasks of a throttled cgroup that wait in CPUs' queues stay there until they would run. They use a
 * few microseconds more than allowed, and running tasks up to a tick. The next periods pay that
 * debt back.
 *
 * The kernel's watchdog ends a scheduler that leaves a runnable task waiting for 30 seconds, and
 * does not know of limits. With many tasks and a small quota a task may wait for longer. So a task
 * that was parked for LONGEST_PARKING_NS is released, begins to run, which is all that the watchdog
 * looks at, and is parked again.
 *
 * A parked task may hold a lock in the kernel, as under the kernel's own scheduler up to 6.17.
 * (Later kernels throttle a task only on its return to user space, for which a sched_ext scheduler
 * has no means.) Tasks that need the lock wait for one period, or several if the cgroup is in debt.
 * Tasks that were killed or exit, and kernel threads, are never parked.
 *
 * What it does not do: count in the kernel's cpu.stat (nr_throttled stays 0).
 */
#ifndef __MAGPIE_BANDWIDTH_BPF_H
#define __MAGPIE_BANDWIDTH_BPF_H

const volatile bool cpu_max_enabled = true;

#define LONGEST_PARKING_NS 10000000000ULL
#define NO_LIMIT (~0ULL)

/* From the kernel's linux/sched.h and linux/sched/signal.h; the bit of SIGKILL in a set of signals. */
#define PF_EXITING 0x00000004
#define SIGKILL_BIT (1ULL << (9 - 1))
#define SIGNAL_GROUP_EXIT 0x00000004

struct bandwidth_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CGROUPS);
	__type(key, u32);
	__type(value, struct bandwidth_timer);
} bandwidth_timers SEC(".maps");

/* How many cgroups have a limit, and are throttled. One read decides the common case: none. */
struct {
	u32 limited;
	u32 throttled;
} nr_cgroups __attribute__((aligned(64)));

/*
 * Start the timer of a slot; whether it runs now. It fails where the kernel must defer the start
 * and has no memory for that.
 */
static __always_inline bool start_bandwidth_timer(u32 slot, u64 delay_ns)
{
	struct bandwidth_timer *timer = bpf_map_lookup_elem(&bandwidth_timers, &slot);

	return timer && !bpf_timer_start(&timer->timer, delay_ns, 0);
}

/* The first throttled cgroup from @slot's to the root; ROOT_SLOT if there is none. */
__noinline u32 find_blocker(u32 slot)
{
	u32 found = ROOT_SLOT;
	u32 level;

	slot = cgroup_at(slot)->limited;
	bpf_for(level, 0, MAX_CGROUP_DEPTH) {
		if (slot == ROOT_SLOT)
			break;
		if (READ_ONCE(cgroup_at(slot)->throttled)) {
			found = slot;
			break;
		}
		slot = cgroup_at(slot)->next_limited;
	}

	return found;
}

/*
 * Return true for kernel threads and for tasks that are killed or exit. The kernel sends SIGKILL to
 * each thread, but a thread dequeues the signal before it is marked as exiting. If a tick in
 * between parked it, no further signal would reach it until the cgroup was out of debt, and the
 * cgroup could not be removed. So ask the whole process, too, also for threads that end because
 * another thread executes a program.
 *
 * A task that may not migrate now is exempt, too: on a kernel with PREEMPT_RT it holds a lock, for
 * which tasks of other cgroups would wait until the period ends.
 */
static __always_inline bool is_exempt(const struct task_struct *p)
{
	return p->flags & (PF_EXITING | PF_KTHREAD) || p->pending.signal.sig[0] & SIGKILL_BIT ||
	       p->signal->flags & SIGNAL_GROUP_EXIT || p->signal->group_exec_task ||
	       is_migration_disabled(p);
}

/* The throttled cgroup that keeps the task from running, or ROOT_SLOT. */
static __always_inline u32 blocker_of(const struct task_struct *p, const struct task_state *ts)
{
	if (!cpu_max_enabled || !READ_ONCE(nr_cgroups.throttled) || is_exempt(p))
		return ROOT_SLOT;

	return find_blocker(ts->cgroup);
}

/* Return whether the task's cgroup, or one above, is throttled and the task is not exempt. */
static __always_inline bool is_throttled(const struct task_struct *p, const struct task_state *ts)
{
	return blocker_of(p, ts) != ROOT_SLOT;
}

/* Add the quota of each period that is over. The CPU that moves the end of the period does it. */
static __always_inline void refill(struct cgroup_state *state, u64 now)
{
	u64 end = READ_ONCE(state->period_end);
	u64 periods = periods_over(now, end, state->period);

	if (!periods || __sync_val_compare_and_swap(&state->period_end, end,
						    end + periods * state->period) != end)
		return;

	__sync_fetch_and_add(&state->budget, budget_to_add(READ_ONCE(state->budget), periods,
							   state->quota, state->burst));
}

/*
 * Mark a cgroup as unthrottled; whether it was throttled. The caller releases the parked tasks, as
 * only one of several callers is told so.
 */
static __always_inline bool unthrottle(struct cgroup_state *state)
{
	if (!__sync_val_compare_and_swap(&state->throttled, 1, 0))
		return false;

	__sync_fetch_and_add(&nr_cgroups.throttled, -1);
	return true;
}

/* Throttle a cgroup, but only with a timer: without one its tasks would wait for ever. */
static __always_inline void throttle(u32 slot, struct cgroup_state *state, u64 now)
{
	s64 left = READ_ONCE(state->period_end) - now;

	if (__sync_val_compare_and_swap(&state->throttled, 0, 1))
		return;

	state->throttled_at = now;
	__sync_fetch_and_add(&nr_cgroups.throttled, 1);
	if (!start_bandwidth_timer(slot, left > 0 ? left : 0)) {
		unthrottle(state);
		return;
	}
	state->throttles++;
	count_event(state_here(), EVENT_THROTTLE, 1);
}

/* Take CPU time from the budgets of a cgroup and of those above it, ns. */
__noinline int consume_budget(u32 slot, u64 used)
{
	u64 now = scx_bpf_now();
	u32 level;

	slot = cgroup_at(slot)->limited;
	bpf_for(level, 0, MAX_CGROUP_DEPTH) {
		struct cgroup_state *state = cgroup_at(slot);

		if (slot == ROOT_SLOT)
			break;
		refill(state, now);
		__sync_fetch_and_add(&state->budget, -(s64)used);
		if (READ_ONCE(state->budget) <= 0 && state->quota)
			throttle(slot, state, now);
		slot = state->next_limited;
	}

	return 0;
}

/*
 * Charge a task, and its cgroups, for the CPU time since the last call. Call it where the kernel's
 * sum is up to date.
 */
static __always_inline void charge(struct task_struct *p, struct task_state *ts)
{
	u64 sum = p->se.sum_exec_runtime;
	u64 used = sum - ts->charged;

	refresh_rate(ts);
	advance_vruntime(ts, used);
	ts->charged = sum;
	if (cpu_max_enabled && READ_ONCE(nr_cgroups.limited))
		consume_budget(ts->cgroup, used);
}

/*
 * The task comes to this scheduler: it joins the clock as a new one, and is not charged for the CPU
 * time that it has used before.
 */
static __always_inline void start_charging(const struct task_struct *p, struct task_state *ts)
{
	ts->cpu = -1;
	ts->slept = true;
	ts->parked = false;
	ts->parked_at = 0;
	ts->charged = p->se.sum_exec_runtime;
}

/*
 * A task begins to run, which is all that the watchdog asks of a parked one. If its cgroup is
 * throttled, stop it at once.
 */
static __always_inline void stop_if_throttled(const struct task_struct *p, struct task_state *ts,
					      s32 cpu)
{
	if (!cpu_max_enabled)
		return;

	WRITE_CHANGED(ts->parked_at, 0);
	if (READ_ONCE(nr_cgroups.throttled) && is_throttled(p, ts))
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* Link a cgroup to the next one with a limit on the way to the root. */
__noinline int link_limits(u32 slot)
{
	struct cgroup_state *state = cgroup_at(slot);
	u32 next = state->parent;
	u32 level;

	bpf_for(level, 0, MAX_CGROUP_DEPTH) {
		if (next == ROOT_SLOT || cgroup_at(next)->quota)
			break;
		next = cgroup_at(next)->parent;
	}

	WRITE_ONCE(state->next_limited, next);
	WRITE_ONCE(state->limited, state->quota ? slot : next);
	return 0;
}

/* Set a limit; NO_LIMIT ends it. A cgroup that the old limit throttles is unthrottled at once. */
static __always_inline void set_limit(u32 slot, u64 period_us, u64 quota_us, u64 burst_us)
{
	struct cgroup_state *state = cgroup_at(slot);
	u64 quota = quota_us == NO_LIMIT ? 0 : quota_us * 1000;
	bool was_limited = state->quota;
	u32 i;

	if (slot == ROOT_SLOT)
		return;

	state->period = period_us * 1000;
	state->burst = burst_us * 1000;
	state->budget = quota;
	WRITE_ONCE(state->period_end, scx_bpf_now() + state->period);
	WRITE_ONCE(state->quota, quota);

	if (was_limited != !!quota) {
		__sync_fetch_and_add(&nr_cgroups.limited, quota ? 1 : -1);
		bpf_for(i, ROOT_SLOT + 1, nr_cgroup_slots) {
			if (cgroup_at(i)->id)
				link_limits(i);
		}
	}

	if (READ_ONCE(state->throttled))
		start_bandwidth_timer(slot, 0);
}

/* A tick: charge the running task, and end its slice, which may be long, if it is throttled. */
static __always_inline void end_if_throttled(struct task_struct *p, struct task_state *ts)
{
	if (!cpu_max_enabled || !READ_ONCE(nr_cgroups.limited))
		return;

	charge(p, ts);
	if (is_throttled(p, ts))
		scx_bpf_task_set_slice(p, 0);
}

#endif /* __MAGPIE_BANDWIDTH_BPF_H */
