/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * shares.bpf.h - mechanism "cpu-weight": a cgroup gets its share of CPU time.
 *
 * Idea (flattened cgroup hierarchy, scx_flatcg): multiply out the weights on the way from the root
 * to a cgroup. The cgroup then has one number, its share, and a context switch costs the same
 * however deep the cgroup is. In scx_flatcg each cgroup is a queue. Here the share becomes a factor
 * of the rate at which the vruntimes of the cgroup's tasks advance, beside their nice values.
 * Queues, stealing and balancing need not know of cgroups.
 *
 *   task becomes runnable -> its weight is added to its cgroup's entry in this CPU's row
 *   task sleeps           -> and taken out there                  (no line is shared)
 *
 *   tick, last update over 10 ms ago? --yes--> timer, at once:
 *       rows of all CPUs  -> active weight of each cgroup, averaged
 *       up the hierarchy  -> how often each cgroup is active; sums of weights
 *       down              -> share of each; factor = active weight / share
 *
 *   task is charged       -> rate = rate of its nice value * factor of its cgroup
 *
 * The kernel has a runqueue per cgroup and CPU, and must guess how to divide a cgroup's weight
 * among its CPUs. Flat weights need not be divided: balance/balance.bpf.h moves tasks until the
 * clocks agree, whatever weights make them differ.
 *
 * The active weight is averaged over about eight updates, so shares follow a change within a tenth
 * of a second. Ticks drive the updates: an idle machine makes none. The updates take at most a
 * hundredth of one CPU's time; with many cgroups they come less often instead. An update that would
 * keep a CPU for long is made in parts.
 *
 * No task waits for too long, however light its cgroup is: see queue/overdue.bpf.h.
 *
 * What it does not do: move tasks.
 */
#ifndef __MAGPIE_SHARES_BPF_H
#define __MAGPIE_SHARES_BPF_H

const volatile bool cpu_weight_enabled = true;

/* The least time between two updates, and how many times its cost it is at least. */
const volatile u64 share_interval_ns = 10000000;
#define SHARE_COST_FACTOR 100

/* How long a part of an update takes, but for the last few cgroups, and the pause after it. */
#define LONGEST_PART_NS 100000ULL
#define PART_PAUSE_NS 200000ULL
#define CGROUPS_AT_ONCE 64
#define ENTRIES_AT_ONCE 16 /* of each row: a cache line of each CPU */

/*
 * The weights of a cgroup's tasks that became runnable on a CPU, less those that went to sleep
 * there. Only the sum over all CPUs means anything, because tasks migrate. User space sets the
 * number of rows to that of CPUs.
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
	u64 cost; /* so far, ns */
	u32 step, slot; /* where the next part begins */
} share_sums;

u64 next_share_update;

/* Add a weight to a cgroup's entry in this CPU's row; to subtract, add the negative. */
static __always_inline void count_in_cgroup(u32 slot, u32 weight)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct cgroup_row *row = bpf_map_lookup_elem(&cgroup_rows, &cpu);

	if (row)
		row->weight[bounded_slot(slot)] += weight;
}

/*
 * Return whether there are cgroups to count tasks in. After the first cgroup was created, a task
 * counts from the next time it becomes runnable or begins to run.
 */
static __always_inline bool has_cgroups(void)
{
	return cpu_weight_enabled && READ_ONCE(nr_cgroup_slots) > 1;
}

/* A task becomes runnable: add its weight to its cgroup's active weight. */
static __always_inline void join_cgroup(struct task_state *ts)
{
	if (!has_cgroups() || ts->counted)
		return;

	ts->counted = true;
	count_in_cgroup(ts->cgroup, ts->weight);
}

/* A task sleeps, is parked or ends: take out the weight with which it was counted. */
static __always_inline void leave_cgroup(struct task_state *ts)
{
	if (!cpu_weight_enabled || !ts->counted)
		return;

	count_in_cgroup(ts->cgroup, -ts->weight);
	ts->counted = false;
}

/* Set the task's rate from its nice value and its cgroup's factor of now. */
static __always_inline void refresh_rate(struct task_state *ts)
{
	u64 rate;

	if (!cpu_weight_enabled)
		return;

	rate = scale_rate(ts->nice_rate, cgroup_at(ts->cgroup)->factor);
	WRITE_CHANGED(ts->rate, rate);
}

/* Change a task's weight; its cgroup counts a task that runs or waits with the new one. */
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

/* Move a task to another cgroup, which then counts the task if it runs or waits. */
static __always_inline void move_to_cgroup(struct task_state *ts, u32 slot)
{
	bool is_active = ts->counted;

	leave_cgroup(ts);
	ts->cgroup = slot;
	refresh_rate(ts);
	if (is_active)
		join_cgroup(ts);
}

static __always_inline u64 weight_of_cgroup(const struct cgroup_state *state)
{
	return state->idle ? CGROUP_IDLE_WEIGHT : state->weight;
}

/* Add the entries [from, end) of a CPU's row to the active weights of this round. */
__noinline int add_row(u32 cpu, u32 from, u32 end)
{
	struct cgroup_row *row = bpf_map_lookup_elem(&cgroup_rows, &cpu);
	u32 slot;

	if (!row)
		return 0;

	bpf_for(slot, from, end) {
		u32 weight = row->weight[bounded_slot(slot)];

		if (weight)
			cgroup_at(slot)->now += weight;
	}

	return 0;
}

/*
 * Add the entries [from, end) of all rows. All at once, because a single row means nothing: a task
 * counts in the row of its waker's CPU and is taken out of that where it sleeps.
 */
static __always_inline void add_rows(u32 from, u32 end)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus)
		add_row(cpu, from, end);
}

/* Mark a cgroup with active tasks as active, and each cgroup on the way to the root. */
__noinline int mark_active(u32 slot)
{
	struct cgroup_state *state = cgroup_at(slot);
	u32 level;

	if ((s32)state->now <= 0)
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

/*
 * Update a cgroup's averages, and add its weight to the sum that its siblings divide by. A task
 * that became runnable on one CPU and sleeps on another while the rows are added up may make the
 * sum negative.
 */
__noinline int note_activity(u32 slot)
{
	struct cgroup_state *state = cgroup_at(slot);
	u64 now = (s32)state->now > 0 ? (u64)state->now << ACTIVE_SHIFT : 0;
	bool is_active = state->round == share_sums.round;

	state->now = 0;
	if (!is_active && state->activity < ACTIVITY_NONE) {
		state->activity = state->own_activity = 0;
		return 0;
	}

	if (now) {
		/* An average from long ago says nothing of a cgroup that is active again. */
		state->active = state->own_activity ? average_add(state->active, now) : now;
	}
	state->own_activity = activity_add(state->own_activity, now);
	if (!now && state->own_activity < ACTIVITY_NONE)
		state->own_activity = 0;
	state->activity = activity_add(state->activity, is_active);

	state->sum += activity_weight(state->active >> ACTIVE_SHIFT, state->own_activity);
	if (slot != ROOT_SLOT)
		cgroup_at(state->parent)->sum +=
			activity_weight(weight_of_cgroup(state), state->activity);

	return 0;
}

/* The share of a cgroup's own tasks: their part of the cgroup, of its parent, up to the root. */
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

/* A cgroup's factor, for the rates of its tasks. */
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

	return 0;
}

/* Begin an update. */
static __always_inline void begin_update(void)
{
	share_sums.round++;
	share_sums.active = 0;
	share_sums.share = 0;
	share_sums.cost = 0;
}

/* Take one of the last four steps of an update for the cgroups [from, end). */
static __always_inline void update_cgroups(u32 step, u32 from, u32 end)
{
	u32 slot;

	bpf_for(slot, from, end) {
		if (step == 0)
			mark_active(slot);
		else if (step == 1)
			note_activity(slot);
		else if (step == 2)
			find_share(slot);
		else
			apply_share(slot);
	}
}

/*
 * Go on with an update where the last call left it, for a few cgroups; whether it is complete. Each
 * of the five steps is for all cgroups.
 */
__noinline bool update_some(void)
{
	u32 step = share_sums.step;
	u32 from = share_sums.slot;
	u32 end = from + (step ? CGROUPS_AT_ONCE : ENTRIES_AT_ONCE);
	u32 slots = READ_ONCE(nr_cgroup_slots);
	bool is_last = end >= slots;

	if (is_last)
		end = slots;
	if (!step && !from)
		begin_update();
	if (!step)
		add_rows(from, end);
	else
		update_cgroups(step - 1, from, end);

	share_sums.slot = is_last ? 0 : end;
	if (!is_last)
		return false;

	share_sums.step = step < 4 ? step + 1 : 0;
	return !share_sums.step;
}

/*
 * The timer's callback: from the rows of all CPUs to each cgroup's factor. An update in one go kept
 * a CPU of 64 for 4 ms beside 1000 cgroups, at 500 MIPS. So it is made in parts, each a callback.
 */
static int update_shares(void *map, int *key, struct share_timer *timer)
{
	struct cpu_state *here = state_here();
	u64 began = bpf_ktime_get_ns();
	bool is_complete = false;
	u64 now = began;
	u32 i;

	bpf_for(i, 0, MAX_CGROUPS) {
		is_complete = update_some();
		now = bpf_ktime_get_ns();
		if (is_complete || now - began >= LONGEST_PART_NS)
			break;
	}

	share_sums.cost += now - began;
	count_event(here, EVENT_SHARE_PART, 1);
	count_event(here, EVENT_SHARE_NS, now - began);
	if (!is_complete) {
		bpf_timer_start(&timer->timer, PART_PAUSE_NS, 0);
		return 0;
	}

	if (share_sums.cost * SHARE_COST_FACTOR > share_interval_ns)
		WRITE_ONCE(next_share_update, now + share_sums.cost * SHARE_COST_FACTOR);
	count_event(here, EVENT_SHARE_UPDATE, 1);
	return 0;
}

/*
 * At a tick: if an update of the shares is due, start the timer that makes it. The tick itself has
 * the runqueue lock, under which an update would take too long.
 */
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

	/* Many CPUs tick at the same time: one of them wins. */
	if (__sync_val_compare_and_swap(&next_share_update, due, now + share_interval_ns) != due)
		return;

	timer = bpf_map_lookup_elem(&share_timers, &key);
	if (timer)
		bpf_timer_start(&timer->timer, 0, 0);
}

/* Set up the root cgroup, and prepare the timer. */
static __always_inline int start_shares(void)
{
	cgroup_states[ROOT_SLOT].id = 1;
	cgroup_states[ROOT_SLOT].factor = FACTOR_ONE;
	return prepare_timer(&share_timers, 0, update_shares);
}

/* The weight of a task's nice value, or of SCHED_IDLE. */
static __always_inline u32 weight_of_policy(const struct task_struct *p)
{
	u32 nice = p->static_prio - 100;

	if (p->policy == SCHED_IDLE)
		return IDLE_POLICY_WEIGHT;

	return nice < 40 ? nice_to_weight[nice] : NICE_0_WEIGHT;
}

#endif /* __MAGPIE_SHARES_BPF_H */
