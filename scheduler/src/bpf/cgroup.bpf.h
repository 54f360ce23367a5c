/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cgroup.bpf.h - mechanism 0, continued: containers keep their share.
 *
 * Idea (flattened cgroup hierarchy, scx_flatcg): the weights along the way from
 * the root to a cgroup are multiplied out, so that a cgroup has one number, and
 * what is done at each context switch does not depend on how deep it is. There,
 * cgroups are queues. Here they are not: that number becomes part of the rate at
 * which the cgroup's tasks age, as their nice values are, and everything else,
 * queues for each CPU, stealing, balancing, stays as it is without cgroups.
 *
 *   task becomes runnable -> its weight joins its cgroup's row on this CPU
 *   task sleeps           -> and leaves it                    (nothing is shared)
 *
 *   tick, and the last update was a while ago? --yes--> timer, at once:
 *       rows of all CPUs  -> active weight of each cgroup, averaged
 *       up the hierarchy  -> how often each is active; sums of weights
 *       down              -> share of each; factor = active weight / share
 *
 *   task is charged       -> rate = rate of its nice value * factor of its cgroup
 *
 * The kernel's own scheduler has a runqueue for each cgroup on each CPU and must
 * guess how a cgroup's weight is to be spread over its CPUs. With flat weights
 * there is nothing to spread: where tasks are is up to balance.bpf.h, which evens
 * out clocks whatever weights make them differ.
 *
 * The active weight is sampled and averaged over about eight updates, so shares
 * follow a change within a tenth of a second. The updates are driven by ticks: an
 * idle machine makes none. One never takes more than a hundredth of the time of
 * one CPU, however many cgroups there are: it comes less often instead.
 *
 * No task waits for too long, however light its cgroup: see limit_debt().
 *
 * What it does not do: tell more than MAX_CGROUPS cgroups apart.
 */
#ifndef __MAGPIE_CGROUP_BPF_H
#define __MAGPIE_CGROUP_BPF_H

const volatile bool cpu_weight_enabled = true;
const volatile bool cpu_max_enabled = true;

/* How often shares are calculated, at most, and how many times its cost at least. */
const volatile u64 share_interval_ns = 10000000;
#define SHARE_COST_FACTOR 100

#define MAX_CGROUP_DEPTH 32
#define ROOT_SLOT 0

/* Half of ops.timeout_ms: what the lightest task waits beside the heaviest. */
#define LONGEST_WAIT_NS 15000000000ULL

struct cgroup_state {
	/* Line 0: written by the update when it changes, read at every charge. */
	u64 factor;

	/* Written when cgroups come, go or change. */
	u64 id __attribute__((aligned(64))); /* 0 if the slot is free */
	u32 parent;
	u32 weight; /* on the scale of nice weights */
	u32 idle; /* cpu.idle: counts instead of the weight */

	/* The update's own. */
	u32 now; /* active weight of its own tasks, of this round */
	u32 activity; /* how often it or a descendant is active */
	u32 own_activity; /* how often its own tasks are */
	u64 active; /* moving average of the active weight, while there is any */
	u64 sum; /* of children's and own tasks' weights, by activity */
	u64 round; /* last in which it or a descendant was active */
	u64 share; /* of its own tasks */

	/* Limits, see bandwidth.bpf.h. Read at every charge where there is any limit. */
	u32 limited __attribute__((aligned(64))); /* slot: itself or the next above that has one */
	u32 next_limited; /* the next above itself */
	u32 throttled;
	u32 looks; /* of the timer, after it has released all */
	u32 nr_released; /* by its timer, behind others; in memory for the verifier */
	bool has_parking;
	u64 quota; /* ns, 0 without a limit */
	u64 period, burst; /* ns */
	u64 period_end;
	u64 throttled_at; /* valid while it is throttled */
	u64 throttles, throttled_ns; /* how often it was, for how long: for people */
	s64 budget; /* what it may still use, or its debt; written by all CPUs */
} __attribute__((aligned(64)));

struct cgroup_state cgroup_states[MAX_CGROUPS];
u32 nr_cgroup_slots = 1; /* slots in use are below */

/* By id of the kernel's cgroup. Looked up when tasks fork and move, and not more often. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CGROUPS);
	__type(key, u64);
	__type(value, u32);
} cgroup_slots SEC(".maps");

/*
 * Weights of the tasks that became runnable on a CPU, less those that went to sleep
 * there, for each cgroup. Only the sum over CPUs means anything: tasks move. Of the
 * length of the machine: user space sets it.
 */
struct cgroup_row {
	u32 weight[MAX_CGROUPS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cgroup_row);
} cgroup_rows SEC(".maps");

struct share_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct share_timer);
} share_timers SEC(".maps");

/* Sums of one update. In memory, so that the verifier does not follow them. */
struct share_sums {
	u64 round;
	u64 active, share; /* of all cgroups, by activity */
	u64 smallest; /* factor */
} share_sums;

u64 next_share_update;
u64 longest_debt_ns = LONGEST_WAIT_NS;

/*
 * As in state_of(). The barrier: where the compiler knows the bound, as in a loop, it
 * would drop the mask, and older verifiers do not know what it knows.
 */
static __always_inline u32 bounded_slot(u32 slot)
{
	barrier_var(slot);
	return slot & (MAX_CGROUPS - 1);
}

static __always_inline struct cgroup_state *cgroup_at(u32 slot)
{
	return &cgroup_states[bounded_slot(slot)];
}

static __always_inline void count_in_cgroup(u32 slot, u32 weight)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct cgroup_row *row = bpf_map_lookup_elem(&cgroup_rows, &cpu);

	if (row)
		row->weight[bounded_slot(slot)] += weight;
}

/* Without cgroups there is nothing to share out. Tasks are counted from when they next run. */
static __always_inline bool has_cgroups(void)
{
	return cpu_weight_enabled && READ_ONCE(nr_cgroup_slots) > 1;
}

static __always_inline void join_cgroup(struct task_state *ts)
{
	if (!has_cgroups() || ts->counted)
		return;

	ts->counted = ts->weight;
	count_in_cgroup(ts->cgroup, ts->counted);
}

static __always_inline void leave_cgroup(struct task_state *ts)
{
	if (!cpu_weight_enabled || !ts->counted)
		return;

	count_in_cgroup(ts->cgroup, -ts->counted);
	ts->counted = 0;
}

static __always_inline void refresh_rate(struct task_state *ts)
{
	if (cpu_weight_enabled)
		ts->rate = scale_rate(ts->nice_rate, cgroup_at(ts->cgroup)->factor);
}

static __always_inline void set_task_weight(struct task_state *ts, u32 weight)
{
	bool is_active = ts->counted;

	leave_cgroup(ts);
	ts->weight = weight;
	ts->nice_rate = ts->rate = weight_to_rate(weight);
	refresh_rate(ts);
	if (is_active)
		join_cgroup(ts);
}

static __always_inline void move_to_cgroup(struct task_state *ts, u32 slot)
{
	bool is_active = ts->counted;

	leave_cgroup(ts);
	ts->cgroup = slot;
	refresh_rate(ts);
	if (is_active)
		join_cgroup(ts);
}

/* Light enough for a CPU with such tasks alone to run ahead of all others. */
static __always_inline bool is_in_light_cgroup(const struct task_state *ts)
{
	return cpu_weight_enabled && ts->rate > 4 * NICE_0_RATE;
}

/*
 * With weights 1 and 10000 on two levels, a task could wait for days for its turn,
 * and the kernel's watchdog would end the scheduler after half a minute. What a task
 * owes is bounded by what the heaviest cgroup's tasks take half of that time for.
 */
static __always_inline void limit_debt(struct task_state *ts, u64 clock)
{
	u64 latest = clock + longest_debt_ns;

	if (time_before(latest, ts->vruntime))
		ts->vruntime = latest;
}

/* A cgroup that has no slot, and one that is gone, is taken for the root. */
static __always_inline u32 slot_of_id(u64 id)
{
	u32 *slot = bpf_map_lookup_elem(&cgroup_slots, &id);

	return slot ? *slot : ROOT_SLOT;
}

static __always_inline u32 slot_of(struct cgroup *cgrp)
{
	return cgrp ? slot_of_id(BPF_CORE_READ(cgrp, kn, id)) : ROOT_SLOT;
}

/* Claims a free slot; ROOT_SLOT if there is none. */
__noinline u32 claim_slot(u64 id)
{
	u32 found = ROOT_SLOT;
	u32 slot;

	bpf_for(slot, ROOT_SLOT + 1, MAX_CGROUPS) {
		if (!cgroup_at(slot)->id &&
		    !__sync_val_compare_and_swap(&cgroup_at(slot)->id, 0, id)) {
			found = slot;
			break;
		}
	}

	return found;
}

/*
 * Parents come before their children; cgroup_mutex lets one in at a time. Returns
 * the slot.
 */
static __always_inline u32 add_cgroup(struct cgroup *cgrp, u32 weight)
{
	u64 id = BPF_CORE_READ(cgrp, kn, id);
	struct cgroup *parent = NULL;
	struct cgroup_state *state;
	u32 slot = ROOT_SLOT;

	if (cgrp->level > 0) {
		slot = claim_slot(id);
		if (slot == ROOT_SLOT) {
			count_event(state_of(bpf_get_smp_processor_id()), EVENT_CGROUP_LUMPED, 1);
			return ROOT_SLOT;
		}
		parent = bpf_cgroup_ancestor(cgrp, cgrp->level - 1);
	}

	state = cgroup_at(slot);
	state->parent = slot_of(parent);
	state->weight = scale_cgroup_weight(weight);
	state->idle = false;
	state->activity = state->own_activity = 0;
	state->active = 0;
	state->throttles = state->throttled_ns = 0;
	state->factor = FACTOR_ONE;
	if (parent)
		bpf_cgroup_release(parent);

	if (slot >= nr_cgroup_slots)
		WRITE_ONCE(nr_cgroup_slots, slot + 1);
	bpf_map_update_elem(&cgroup_slots, &id, &slot, BPF_ANY);
	return slot;
}

/* The rows stay: a task that is about to end may still leave its weight's place. */
static __always_inline void remove_cgroup(struct cgroup *cgrp)
{
	u64 id = BPF_CORE_READ(cgrp, kn, id);
	u32 slot = slot_of_id(id);

	bpf_map_delete_elem(&cgroup_slots, &id);
	if (slot != ROOT_SLOT)
		WRITE_ONCE(cgroup_at(slot)->id, 0);
}

static __always_inline void set_cgroup_weight(struct cgroup *cgrp, u32 weight)
{
	u32 slot = slot_of(cgrp);

	if (slot != ROOT_SLOT)
		cgroup_at(slot)->weight = scale_cgroup_weight(weight);
}

static __always_inline void set_cgroup_idle(struct cgroup *cgrp, bool idle)
{
	u32 slot = slot_of(cgrp);

	if (slot != ROOT_SLOT)
		cgroup_at(slot)->idle = idle;
}

static __always_inline u64 weight_of_cgroup(const struct cgroup_state *state)
{
	return state->idle ? CGROUP_IDLE_WEIGHT : state->weight;
}

/* Add a CPU's row to what the cgroups have in this round. */
__noinline int add_row(u32 cpu)
{
	struct cgroup_row *row = bpf_map_lookup_elem(&cgroup_rows, &cpu);
	u32 slot;

	if (!row)
		return 0;

	bpf_for(slot, 0, nr_cgroup_slots) {
		u32 weight = row->weight[bounded_slot(slot)];

		if (weight)
			cgroup_at(slot)->now += weight;
	}

	return 0;
}

/* A cgroup with active tasks is active, and so is each on the way to the root. */
__noinline int mark_active(u32 slot)
{
	struct cgroup_state *state = cgroup_at(slot);
	u32 level;

	if (!state->now)
		return 0;

	bpf_for(level, 0, MAX_CGROUP_DEPTH) {
		state = cgroup_at(slot);
		if (state->round == share_sums.round)
			break;
		state->round = share_sums.round;
		slot = state->parent;
	}

	return 0;
}

/* Averages; and what the cgroup adds to the sums that its siblings divide by. */
__noinline int note_activity(u32 slot)
{
	struct cgroup_state *state = cgroup_at(slot);
	u64 now = (u64)state->now << ACTIVE_SHIFT;
	bool is_active = state->round == share_sums.round;

	if (!is_active && state->activity < ACTIVITY_NONE) {
		state->activity = state->own_activity = 0;
		return 0;
	}

	if (now) {
		/* What it was long ago tells nothing of a cgroup that is active again. */
		state->active = state->own_activity ? average_add(state->active, now) : now;
	}
	state->own_activity = activity_add(state->own_activity, now);
	if (!now && state->own_activity < ACTIVITY_NONE)
		state->own_activity = 0;
	state->activity = activity_add(state->activity, is_active);
	state->now = 0;

	state->sum += activity_weight(state->active >> ACTIVE_SHIFT, state->own_activity);
	if (slot != ROOT_SLOT)
		cgroup_at(state->parent)->sum +=
			activity_weight(weight_of_cgroup(state), state->activity);

	return 0;
}

/* The share of a cgroup's own tasks: from theirs in the cgroup up to the root. */
__noinline int find_share(u32 slot)
{
	struct cgroup_state *own = cgroup_at(slot);
	struct cgroup_state *state = own;
	u32 level;

	if (!own->own_activity)
		return 0;

	own->share = share_of_parent(SHARE_ONE, own->active >> ACTIVE_SHIFT, own->own_activity,
				     own->sum);
	bpf_for(level, 0, MAX_CGROUP_DEPTH) {
		if (slot == ROOT_SLOT)
			break;
		state = cgroup_at(slot);
		slot = state->parent;
		own->share = share_of_parent(own->share, weight_of_cgroup(state), state->activity,
					     cgroup_at(slot)->sum);
	}

	share_sums.active += activity_weight(own->active, own->own_activity);
	share_sums.share += activity_weight(own->share, own->own_activity);
	return 0;
}

__noinline int apply_share(u32 slot)
{
	struct cgroup_state *state = cgroup_at(slot);
	u64 factor;

	state->sum = 0;
	if (!state->own_activity)
		return 0;

	factor = cgroup_factor(state->active, state->share, share_sums.active, share_sums.share);
	if (factor != state->factor)
		WRITE_ONCE(state->factor, factor);
	if (factor < share_sums.smallest)
		share_sums.smallest = factor;

	return 0;
}

static int update_shares(void *map, int *key, struct share_timer *timer)
{
	struct cpu_state *here = state_of(bpf_get_smp_processor_id());
	u64 began = bpf_ktime_get_ns();
	u64 cost;
	u32 i;

	share_sums.round++;
	share_sums.active = 0;
	share_sums.share = 0;
	share_sums.smallest = FACTOR_ONE;

	bpf_for(i, 0, nr_cpus)
		add_row(i);
	bpf_for(i, 0, nr_cgroup_slots)
		mark_active(i);
	bpf_for(i, 0, nr_cgroup_slots)
		note_activity(i);
	bpf_for(i, 0, nr_cgroup_slots)
		find_share(i);
	bpf_for(i, 0, nr_cgroup_slots)
		apply_share(i);

	longest_debt_ns = virtual_time(LONGEST_WAIT_NS, share_sums.smallest);

	cost = bpf_ktime_get_ns() - began;
	if (cost * SHARE_COST_FACTOR > share_interval_ns)
		WRITE_ONCE(next_share_update, began + cost * SHARE_COST_FACTOR);
	count_event(here, EVENT_SHARE_UPDATE, 1);
	count_event(here, EVENT_SHARE_NS, cost);
	return 0;
}

/* Not here, under the runqueue lock, but in a timer as soon as the tick is over. */
static __always_inline void update_shares_when_due(void)
{
	struct share_timer *timer;
	u64 now, due;
	u32 key = 0;

	if (!has_cgroups())
		return;

	now = scx_bpf_now();
	due = READ_ONCE(next_share_update);
	if (time_before(now, due))
		return;

	/* One of the CPUs that tick at the same time. */
	if (__sync_val_compare_and_swap(&next_share_update, due, now + share_interval_ns) != due)
		return;

	timer = bpf_map_lookup_elem(&share_timers, &key);
	if (timer)
		bpf_timer_start(&timer->timer, 0, 0);
}

static __always_inline int start_shares(void)
{
	struct share_timer *timer;
	u32 key = 0;
	int err;

	timer = bpf_map_lookup_elem(&share_timers, &key);
	if (!timer)
		return -ENOENT;

	cgroup_states[ROOT_SLOT].id = 1;
	cgroup_states[ROOT_SLOT].factor = FACTOR_ONE;
	err = bpf_timer_init(&timer->timer, &share_timers, CLOCK_MONOTONIC);
	return err ?: bpf_timer_set_callback(&timer->timer, update_shares);
}

#endif /* __MAGPIE_CGROUP_BPF_H */
