/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * bandwidth.bpf.h - mechanism 0, continued: containers keep within their limit.
 *
 * Idea (CFS bandwidth control, Turner, Rao and Rao 2010): a cgroup with cpu.max has
 * a budget of CPU time for each period. The kernel does not do that for sched_ext
 * tasks but tells the limits, so without this file every container's limit would
 * silently be gone.
 *
 *   task is charged -> so is each cgroup with a limit, from its own to the root
 *        |
 *   budget used up? -> the cgroup is throttled; timer at the end of the period
 *        |
 *   task of a throttled cgroup
 *     becomes runnable, or used up its slice -> waits in the cgroup's parking place
 *     runs at a tick                         -> its slice is over
 *     begins to run (it had waited in a CPU's queue, or was stolen)
 *                                            -> is preempted at once, and parked
 *
 *   timer: quota added (portable/bandwidth.h); out of debt? --no--> next period
 *        | yes
 *   each parked task -> queue of its CPU, or the next throttled cgroup's parking place
 *
 * There is no hunt for the tasks of a throttled cgroup that wait all over the
 * machine: they are parked when they come to run. That they may use a few
 * microseconds more, and those that run up to a tick, makes a debt that the next
 * periods pay back.
 *
 * The kernel's watchdog ends a scheduler that leaves a runnable task waiting for 30
 * seconds, and does not know of limits. With many tasks and a small quota one may
 * well wait for longer. So a task that was parked for LONGEST_PARKING_NS is let go
 * to begin to run, which is all that the watchdog looks at, and parked again.
 *
 * A parked task may hold a lock in the kernel that others need, as under the
 * kernel's own scheduler up to 6.17 (later ones throttle only on return to user
 * space, which a sched_ext scheduler has no means for). They wait until it is
 * released: for a period, or for several if the cgroup is in debt. Tasks that were
 * killed or exit, and kernel threads, are not parked.
 *
 * What it does not do: count in the kernel's cpu.stat (nr_throttled stays 0).
 */
#ifndef __MAGPIE_BANDWIDTH_BPF_H
#define __MAGPIE_BANDWIDTH_BPF_H

#define PARKING_DSQ (1ULL << 32) /* + slot of the cgroup */
#define LONGEST_PARKING_NS 10000000000ULL
#define NO_LIMIT (~0ULL)

/* From the kernel's linux/sched.h. */
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

/* Cgroups. Whether to look at all: one read decides the common case. */
struct {
	u32 limited;
	u32 throttled;
} nr_cgroups __attribute__((aligned(64)));

/* Whether it runs now. Where the kernel has to put that off, it may lack the memory. */
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
 * A limit is no reason to let a kill wait. The kernel gives SIGKILL to each thread, but
 * a thread takes it back before it is marked as exiting, and a tick in between had it
 * parked until the cgroup was out of debt, beyond the reach of any further signal, with
 * the cgroup full and not to be removed. So the whole process is asked, and for the
 * threads that end because another one executes a program.
 */
static __always_inline bool is_exempt(const struct task_struct *p)
{
	return p->flags & (PF_EXITING | PF_KTHREAD) || p->pending.signal.sig[0] & SIGKILL_BIT ||
	       p->signal->flags & SIGNAL_GROUP_EXIT || p->signal->group_exec_task;
}

static __always_inline u32 blocker_of(const struct task_struct *p, const struct task_state *ts)
{
	if (!cpu_max_enabled || !READ_ONCE(nr_cgroups.throttled) || is_exempt(p))
		return ROOT_SLOT;

	return find_blocker(ts->cgroup);
}

static __always_inline bool is_throttled(const struct task_struct *p, const struct task_state *ts)
{
	return blocker_of(p, ts) != ROOT_SLOT;
}

/* Add the quota of each period that is over. Whoever moves the end of the period does it. */
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

/* Whether it was throttled. */
static __always_inline bool unthrottle(struct cgroup_state *state)
{
	if (!__sync_val_compare_and_swap(&state->throttled, 1, 0))
		return false;

	__sync_fetch_and_add(&nr_cgroups.throttled, -1);
	return true;
}

/* Only with a timer that will end it: without, its tasks would wait for ever. */
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
	count_event(state_of(bpf_get_smp_processor_id()), EVENT_THROTTLE, 1);
}

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

static __always_inline void charge_cgroups(const struct task_state *ts, u64 used)
{
	if (cpu_max_enabled && READ_ONCE(nr_cgroups.limited))
		consume_budget(ts->cgroup, used);
}

/*
 * It begins to run, which the watchdog sees. If it came out of a CPU's queue, see there
 * that it does not go on.
 */
static __always_inline void stop_if_throttled(const struct task_struct *p, struct task_state *ts,
					      s32 cpu)
{
	if (!cpu_max_enabled || !READ_ONCE(nr_cgroups.throttled))
		return;

	ts->parked_at = 0;
	if (is_throttled(p, ts))
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* The cgroups with a limit from this one up to the root, as a list without the others. */
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

/* A quota in microseconds, or NO_LIMIT. Whoever was throttled by the old one is released. */
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

static int end_bandwidth_period(void *map, u32 *key, struct bandwidth_timer *timer);

/*
 * Once for each slot: a parking place is never taken down, since the kernel would end
 * a scheduler that does so while a last task is in it.
 */
static __always_inline int open_parking(u32 slot)
{
	struct bandwidth_timer *timer = bpf_map_lookup_elem(&bandwidth_timers, &slot);
	int err;

	if (!timer || cgroup_at(slot)->has_parking)
		return 0;

	err = scx_bpf_create_dsq(PARKING_DSQ + slot, -1);
	err = err ?: bpf_timer_init(&timer->timer, &bandwidth_timers, CLOCK_MONOTONIC);
	err = err ?: bpf_timer_set_callback(&timer->timer, end_bandwidth_period);
	cgroup_at(slot)->has_parking = !err;
	return err;
}

#endif /* __MAGPIE_BANDWIDTH_BPF_H */
