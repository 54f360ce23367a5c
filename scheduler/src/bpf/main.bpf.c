/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * main.bpf.c - the operations of scx_magpie, each a few lines that call the
 * mechanisms.
 *
 * One translation unit: separate BPF objects cost about one per cent and limit
 * the number of arguments. Read in this order:
 *
 *   intf.h            limits, events, topology: shared with user space
 *   state.bpf.h       what is known of each CPU and task, and who writes it
 *   cgroup.bpf.h   0  containers keep their share
 *   bandwidth.bpf.h 0 and keep within their limit
 *   queue.bpf.h    0  a fair queue for each CPU
 *   steal.bpf.h    1  an idle CPU takes waiting work at once
 *   wakeup.bpf.h   2  where a woken task runs
 *   fork.bpf.h     2  in which LLC a new task looks
 *   spread.bpf.h   2  a task that never sleeps finds an idle core
 *   idle.bpf.h     3  an average idle time that is true
 *   balance.bpf.h  4a busy CPUs even out what idle ones cannot
 *   idle_map.bpf.h 4b which CPUs are idle
 *   push.bpf.h     4c a task that must wait again finds an idle CPU
 *   late_ticks.bpf.h 5 how many those are, where nothing tells
 *   preferred.bpf.h 5 use only as many CPUs as the host gives
 *   parking.bpf.h  0  where tasks beyond a limit wait
 *   portable/         their arithmetic, also compiled and tested natively
 *
 * The way of a task:
 *
 *   wakeup -> select_cpu -> idle CPU found: its local queue -> running
 *                        -> none: enqueue -> queue of the CPU  -> dispatch
 *                                                 ^                   |
 *                                                 +-- slice used up --+
 */
#include <scx/common.bpf.h>
#include "intf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

#include "portable/average.h"
#include "portable/bandwidth.h"
#include "portable/governor.h"
#include "portable/idle_map.h"
#include "portable/llc_order.h"
#include "portable/placement.h"
#include "portable/shares.h"
#include "portable/sparsemask.h"
#include "portable/weight.h"
#include "state.bpf.h"
#include "cgroup.bpf.h"
#include "idle_map.bpf.h"
#include "bandwidth.bpf.h"
#include "queue.bpf.h"
#include "late_ticks.bpf.h"
#include "preferred.bpf.h"
#include "idle.bpf.h"
#include "steal.bpf.h"
#include "balance.bpf.h"
#include "fork.bpf.h"
#include "wakeup.bpf.h"
#include "spread.bpf.h"
#include "push.bpf.h"
#include "parking.bpf.h"

s32 BPF_STRUCT_OPS(magpie_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	return place_wakeup(p, prev_cpu, wake_flags);
}

void BPF_STRUCT_OPS(magpie_enqueue, struct task_struct *p, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *ts = task_state(p);

	if (!ts) {
		scx_bpf_error("no state for %s[%d]", p->comm, p->pid);
		return;
	}

	if (park_task(p, ts, enq_flags))
		return;

	if (go_to_idle_core(p, ts, enq_flags) || wake_on_idle_core(p, ts, cpu, enq_flags))
		return;

	if (is_restricted()) {
		s32 other = redirect(p, cpu);

		if (other != cpu) {
			queue_elsewhere(p, ts, other, enq_flags);
			return;
		}
	}

	if (!queue_task(p, ts, cpu, enq_flags) || is_pinned(p))
		return;

	if (has_cpu_back_soon(state_of(cpu), enq_flags))
		return;

	if (!(enq_flags & SCX_ENQ_WAKEUP))
		push(p, ts, cpu, enq_flags);
	/* Last: the insert is carried out after this, and a thief may come before it. */
	set_overloaded(cpu, true);
}

/*
 *   running task still runnable, may stay, and first --yes--> keep it
 *        | no
 *   own queue -> nothing there -> keep it after all, or search elsewhere
 */
void BPF_STRUCT_OPS(magpie_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_state *state = state_of(cpu);
	struct task_state *stayer = NULL;
	u64 looks;

	if (prev && is_runnable(prev) && !must_leave(prev, cpu))
		stayer = task_state(prev);

	if (stayer) {
		charge(prev, stayer);
		if (stayer->goes_to || is_throttled(prev, stayer))
			stayer = NULL;
	}

	if (stayer) {
		if (steal_enabled && pull_when_unbalanced(cpu, stayer->vruntime))
			return;

		if (is_still_first(stayer, cpu)) {
			keep_running(prev, stayer, state);
			return;
		}
	}

	if (!is_preferred(cpu))
		drain_queue(cpu);

	if (scx_bpf_dsq_move_to_local(cpu, 0)) {
		count_event(state, EVENT_DISPATCH, 1);
		/* If it goes back into the queue, what it says of that would be true again. */
		if (!scx_bpf_dsq_nr_queued(cpu) && (!stayer || is_pinned(prev)))
			set_overloaded(cpu, false);
		return;
	}

	set_overloaded(cpu, false);

	/* What was ahead of it has left meanwhile. */
	if (stayer) {
		keep_running(prev, stayer, state);
		return;
	}

	looks = nr_looks(state);
	/* Even without stealing, what a tick kicked us for is not left waiting. */
	if ((steal_enabled || state->must_search) && steal_work(cpu))
		return;

	/* The search dropped the runqueue lock: something may have come. */
	if (nr_looks(state) != looks && scx_bpf_dsq_move_to_local(cpu, 0))
		return;

	if (!prev)
		idle_goes_on(state, cpu);
}

void BPF_STRUCT_OPS(magpie_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *state = state_of(cpu);
	struct task_state *ts = task_state(p);
	bool in_turn = true;

	if (!ts)
		return;

	/* Taken from another CPU's queue. */
	if (ts->cpu != cpu) {
		join_after_move(ts, cpu);
		in_turn = !scx_bpf_dsq_nr_queued(cpu);
	}

	if (state->has_no_tick)
		WRITE_ONCE(state->has_no_tick, 0);
	look_again(state);
	join_cgroup(ts);
	start_running(state, ts, in_turn);
	idle_policy_begins(state, cpu, p);
	if (preferred_enabled)
		note_running(state);
	stop_if_throttled(p, ts, cpu);
}

void BPF_STRUCT_OPS(magpie_stopping, struct task_struct *p, bool runnable)
{
	struct cpu_state *state = state_of(scx_bpf_task_cpu(p));
	struct task_state *ts = task_state(p);

	/* A real-time task may come next; a stale key would preempt in vain. */
	if (state->preempt_key)
		WRITE_ONCE(state->preempt_key, 0);
	idle_policy_ends(state);

	if (!ts)
		return;

	charge(p, ts);
	if (runnable)
		return;

	leave_cgroup(ts);
	/* For a pinned task, nobody asks where to wake it, nor says how. */
	ts->woken_by_writer = false;
}

bool BPF_STRUCT_OPS(magpie_yield, struct task_struct *from, struct task_struct *to)
{
	struct task_state *ts = task_state(from);

	if (ts)
		ts->yielded = true;
	scx_bpf_task_set_slice(from, 0);
	return false;
}

/* The net under all of the above, once a tick on every busy CPU: see push.bpf.h. */
void BPF_STRUCT_OPS(magpie_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *state = state_of(cpu);
	struct task_state *ts = task_state(p);

	if (ts) {
		ts->ticks++;
		publish_clock(state, ts, cpu);
		end_if_throttled(p, ts);
	}
	idle_is_over(state, cpu);
	update_shares_when_due();
	if (preferred_enabled) {
		note_tick(state);
		if (must_leave(p, cpu)) {
			scx_bpf_task_set_slice(p, 0);
			return;
		}
	}

	if (ts)
		leave_shared_core(p, ts, cpu);
	tell_waiting(cpu);
}

void BPF_STRUCT_OPS(magpie_update_idle, s32 cpu, bool idle)
{
	struct cpu_state *state = state_of(cpu);
	u32 missed;

	if (!idle) {
		end_idle(state);
		catch_up_clock(state, cpu);
		idle_ends(state);
		if (preferred_enabled)
			note_busy(state);
		return;
	}

	begin_idle(state);
	note_waiting(cpu, 0);
	idle_begins(state, cpu);
	if (preferred_enabled)
		note_idle(state);

	/*
	 * The last moment at which a task could have slipped in unseen: the
	 * search for work dropped the runqueue lock while this CPU did not yet
	 * look idle to wakers. From here on a wakeup on this runqueue finds the
	 * idle task running and reschedules it.
	 */
	missed = look_again(state);
	if (missed)
		WRITE_ONCE(state->must_search, missed);
	if (missed || scx_bpf_dsq_nr_queued(cpu)) {
		count_event(state, EVENT_RESCUE, 1);
		scx_bpf_kick_cpu(cpu, 0);
	}
}

void BPF_STRUCT_OPS(magpie_set_weight, struct task_struct *p, u32 weight)
{
	struct task_state *ts = task_state(p);
	u32 nice = p->static_prio - 100;

	if (!ts)
		return;

	if (p->policy == SCHED_IDLE)
		set_task_weight(ts, IDLE_POLICY_WEIGHT);
	else if (nice < 40)
		set_task_weight(ts, nice_to_weight[nice]);
}

s32 BPF_STRUCT_OPS(magpie_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_state *ts;

	ts = bpf_task_storage_get(&task_states, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!ts)
		return -ENOMEM;

	ts->cpu = -1;
	ts->recent = NO_CPU;
	ts->cgroup = cpu_weight_enabled || cpu_max_enabled ? slot_of(args->cgroup) : ROOT_SLOT;
	set_task_weight(ts, NICE_0_WEIGHT);
	return 0;
}

void BPF_STRUCT_OPS(magpie_enable, struct task_struct *p)
{
	struct task_state *ts = task_state(p);

	if (!ts)
		return;

	ts->cpu = -1;
	ts->charged = p->se.sum_exec_runtime;
}

/* A task that is not ours has the CPU: its ticks tell of nothing that waits. */
static __always_inline void lose_tick(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);

	WRITE_ONCE(state->has_no_tick, 1);
	if (preferred_enabled)
		forget_tick(state);
}

/*
 * It goes to another class, or ends: it may do so from the queue, without running again,
 * and while it runs, for which the kernel makes no call of cpu_release.
 */
void BPF_STRUCT_OPS(magpie_disable, struct task_struct *p)
{
	struct task_state *ts = task_state(p);

	if (ts) {
		forget_fork(ts);
		leave_cgroup(ts);
	}

	/* A real-time task from here on: what waits behind it would see no tick. */
	if (scx_bpf_task_running(p)) {
		lose_tick(scx_bpf_task_cpu(p));
		tell_waiting(scx_bpf_task_cpu(p));
	}
}

s32 BPF_STRUCT_OPS_SLEEPABLE(magpie_cgroup_init, struct cgroup *cgrp,
			     struct scx_cgroup_init_args *args)
{
	u32 slot = add_cgroup(cgrp, args->weight);
	int err;

	if (!cpu_max_enabled || slot == ROOT_SLOT)
		return 0;

	err = open_parking(slot);
	if (err)
		return err;

	link_limits(slot);
	set_limit(slot, args->bw_period_us, args->bw_quota_us, args->bw_burst_us);
	return 0;
}

void BPF_STRUCT_OPS_SLEEPABLE(magpie_cgroup_exit, struct cgroup *cgrp)
{
	if (cpu_max_enabled)
		set_limit(slot_of(cgrp), 0, NO_LIMIT, 0);
	remove_cgroup(cgrp);
}

void BPF_STRUCT_OPS(magpie_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us,
		    u64 burst_us)
{
	set_limit(slot_of(cgrp), period_us, quota_us, burst_us);
}

void BPF_STRUCT_OPS(magpie_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	set_cgroup_weight(cgrp, weight);
}

void BPF_STRUCT_OPS(magpie_cgroup_set_idle, struct cgroup *cgrp, bool idle)
{
	set_cgroup_idle(cgrp, idle);
}

void BPF_STRUCT_OPS(magpie_cgroup_move, struct task_struct *p, struct cgroup *from,
		    struct cgroup *to)
{
	struct task_state *ts = task_state(p);

	if (ts)
		move_to_cgroup(ts, slot_of(to));
}

/* The kernel lets a new CPU dispatch only some microseconds after it has told us. */
#define ONLINE_DELAY_NS 10000000

/*
 * With these two the kernel does not end the scheduler on CPU hotplug. The
 * topology covers every possible CPU, so little is to be done when one comes.
 */
void BPF_STRUCT_OPS(magpie_cpu_online, s32 cpu)
{
	state_of(cpu)->is_online = 1;
	idle_ends(state_of(cpu));
	if (preferred_enabled)
		apply_after(ONLINE_DELAY_NS);
}

/*
 * A real-time or deadline task took the CPU: what was sent straight to its local
 * queue is queued again, where others can take it. Kernels from 7.1 deprecate this
 * operation but still call it.
 */
void BPF_STRUCT_OPS(magpie_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	lose_tick(cpu);
	scx_bpf_reenqueue_local();
	tell_waiting(cpu);
}

/*
 * An offline CPU is not asked for work any more, so what waits in its queue
 * would wait for ever. In its local queue the kernel pushes it away as it does
 * with its own tasks.
 */
void BPF_STRUCT_OPS(magpie_cpu_offline, s32 cpu)
{
	struct task_struct *p;

	/* First, so that redirect() sends nothing here any more. */
	WRITE_ONCE(state_of(cpu)->is_online, 0);
	bpf_for_each(scx_dsq, p, cpu, 0)
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);

	set_overloaded(cpu, false);
	note_waiting(cpu, 0);
	idle_goes_offline(state_of(cpu), cpu);
	if (preferred_enabled)
		apply_after(0);
}

static void find_online_cpus(void)
{
	const struct cpumask *online = scx_bpf_get_online_cpumask();
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		struct cpu_state *state = state_of(cpu);

		state->looks = MOST_LOOKS;
		state->is_online = bpf_cpumask_test_cpu(cpu, online);
		/*
		 * One that idles says so only the next time. One that does not
		 * says so at its next tick or switch.
		 */
		if (state->is_online)
			idle_goes_on(state, cpu);
		else
			idle_goes_offline(state, cpu);
	}

	scx_bpf_put_cpumask(online);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(magpie_init)
{
	s32 cpu, err;

	find_online_cpus();

	bpf_for(cpu, 0, nr_cpus) {
		err = scx_bpf_create_dsq(cpu, topology_of(cpu)->node);
		if (err) {
			scx_bpf_error("cannot create the queue of CPU %d: %d", cpu, err);
			return err;
		}
	}

	err = cpu_weight_enabled ? start_shares() : 0;
	if (err)
		return err;

	return preferred_enabled ? start_monitor() : 0;
}

void BPF_STRUCT_OPS(magpie_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

/* One operation a line. */
/* clang-format off */
SCX_OPS_DEFINE(magpie_ops,
	       .select_cpu = (void *)magpie_select_cpu,
	       .enqueue = (void *)magpie_enqueue,
	       .dispatch = (void *)magpie_dispatch,
	       .running = (void *)magpie_running,
	       .stopping = (void *)magpie_stopping,
	       .yield = (void *)magpie_yield,
	       .tick = (void *)magpie_tick,
	       .update_idle = (void *)magpie_update_idle,
	       .set_weight = (void *)magpie_set_weight,
	       .init_task = (void *)magpie_init_task,
	       .enable = (void *)magpie_enable,
	       .disable = (void *)magpie_disable,
	       .cgroup_init = (void *)magpie_cgroup_init,
	       .cgroup_exit = (void *)magpie_cgroup_exit,
	       .cgroup_move = (void *)magpie_cgroup_move,
	       .cgroup_set_weight = (void *)magpie_cgroup_set_weight,
	       .cgroup_set_bandwidth = (void *)magpie_cgroup_set_bandwidth,
	       .cgroup_set_idle = (void *)magpie_cgroup_set_idle,
	       .cpu_release = (void *)magpie_cpu_release,
	       .cpu_online = (void *)magpie_cpu_online,
	       .cpu_offline = (void *)magpie_cpu_offline,
	       .init = (void *)magpie_init,
	       .exit = (void *)magpie_exit,
	       .flags = SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_LAST |
			SCX_OPS_ENQ_MIGRATION_DISABLED | SCX_OPS_ALLOW_QUEUED_WAKEUP,
	       .timeout_ms = 30000,
	       .name = "magpie");
/* clang-format on */
