/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * tree.bpf.h - mechanisms "cpu-weight" and "cpu-max", common part: the kernel's cgroups as slots.
 *
 *   cgroup created -> a free slot: its parent's slot, its weight, later its limit
 *   task forked, moved -> the slot is looked up and noted in the task
 *   cgroup removed -> the slot is free again
 *
 * What it does not do: tell more than MAX_CGROUPS cgroups apart. Tasks of further cgroups count as
 * the root's.
 */
#ifndef __MAGPIE_TREE_BPF_H
#define __MAGPIE_TREE_BPF_H

#define MAX_CGROUP_DEPTH 32
#define ROOT_SLOT 0

struct cgroup_state {
	/* Line 0: shares.bpf.h writes it when it changes, every charge reads it. */
	u64 factor;

	/* Written when cgroups come, go or change. */
	u64 id __attribute__((aligned(64))); /* 0 if the slot is free */
	u32 parent;
	u32 weight; /* on the scale of nice weights */
	u32 idle; /* cpu.idle: counts instead of the weight */

	/* Only the update of shares uses these. */
	u32 now; /* active weight of its own tasks, of this round */
	u32 activity; /* how often it or a descendant is active */
	u32 own_activity; /* how often its own tasks are */
	u64 active; /* moving average of the active weight, while there is any */
	u64 sum; /* of children's and own tasks' weights, by activity */
	u64 round; /* last in which it or a descendant was active */
	u64 share; /* of its own tasks */

	/* Limits, see bandwidth.bpf.h. Every charge reads them once any cgroup has a limit. */
	u32 limited __attribute__((aligned(64))); /* nearest slot with a limit, from its own up */
	u32 next_limited; /* the next one above its own */
	u32 throttled;
	u32 looks; /* how often its timer still expires after the release of all tasks */
	u32 nr_released; /* by its timer, behind others; in memory for the verifier */
	bool has_parking;
	u64 quota; /* ns, 0 without a limit */
	u64 period, burst; /* ns */
	u64 period_end;
	u64 throttled_at; /* valid while it is throttled */
	u64 throttles, throttled_ns; /* how often and for how long it was throttled */
	s64 budget; /* what it may still use, or its debt, ns; all CPUs write it */
} __attribute__((aligned(64)));

struct cgroup_state cgroup_states[MAX_CGROUPS];
u32 nr_cgroup_slots = 1; /* slots in use are below */

/* By id of the kernel's cgroup. Read only when tasks fork and move. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CGROUPS);
	__type(key, u64);
	__type(value, u32);
} cgroup_slots SEC(".maps");

/*
 * The mask: as in topology_of(). The barrier: where the compiler knows the bound, as in a loop, it
 * would drop the mask, and older verifiers do not know what the compiler knows.
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

/* A cgroup's slot. A cgroup without a slot, or one that is gone, counts as the root. */
static __always_inline u32 slot_of_id(u64 id)
{
	u32 *slot = bpf_map_lookup_elem(&cgroup_slots, &id);

	return slot ? *slot : ROOT_SLOT;
}

static __always_inline u32 slot_of(struct cgroup *cgrp)
{
	return cgrp ? slot_of_id(BPF_CORE_READ(cgrp, kn, id)) : ROOT_SLOT;
}

/* Give a free slot to the cgroup with this id; ROOT_SLOT if there is none. */
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
 * Add a cgroup, and return its slot. The kernel adds parents first, one cgroup at a time
 * (cgroup_mutex).
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
			count_event(state_here(), EVENT_CGROUP_LUMPED, 1);
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

/*
 * Remove a cgroup. Its entries in the rows of shares.bpf.h stay: a task that is about to end may
 * still take its weight out of them.
 */
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

#endif /* __MAGPIE_TREE_BPF_H */
