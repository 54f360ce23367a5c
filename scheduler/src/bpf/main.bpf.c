/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * main.bpf.c - the operations of scx_magpie: calls of its mechanisms.
 *
 * One translation unit, because separate BPF objects cost about one per cent of speed and limit the
 * number of arguments. Each file uses only files before it, except that portable/placement.h
 * declares functions of place/search.bpf.h and others, which native tests replace.
 *
 * Read in this order:
 *
 *   intf.h                    limits, events, topology: shared with user space
 *   portable/                 arithmetic, also compiled and tested natively
 *   base/topology.bpf.h       which CPUs share a core, an LLC, a node
 *   base/timer.bpf.h          how timers are prepared
 *   base/runqueue.bpf.h       what the kernel's runqueue says
 *   base/clock.bpf.h          what time it is
 *   base/state.bpf.h          what is known of each CPU, LLC and task
 *   base/uclamp.bpf.h         the bounds that a user sets for a task's performance
 *   base/hotplug.bpf.h        which CPUs may have tasks sent to them
 *   queue/fair.bpf.h          queue: vruntime, lag, clocks, deadlines
 *   queue/overloaded.bpf.h    queue: which CPUs have queued tasks for others
 *   queue/queue.bpf.h         queue: the earliest deadline runs first
 *   queue/hrtick.bpf.h        queue: a request ends in time
 *   queue/overdue.bpf.h       queue: no task waits for long
 *   guest/preferred.bpf.h     preferred: tasks stay on preferred CPUs
 *   guest/late_ticks.bpf.h    preferred: steal time, estimated
 *   power/power.bpf.h         power: work stays on few cores
 *   guest/monitor.bpf.h       preferred: how many CPUs
 *   cgroup/tree.bpf.h         cgroups as slots
 *   cgroup/shares.bpf.h       cpu-weight
 *   cgroup/bandwidth.bpf.h    cpu-max: budgets
 *   cgroup/parking.bpf.h      cpu-max: where throttled tasks wait
 *   place/move_cost.bpf.h     wakeup, steal: what a move costs a task
 *   place/idle_map.bpf.h      wakeup: which CPUs are idle
 *   place/search.bpf.h        wakeup: searches for an idle CPU
 *   place/queue_choice.bpf.h  wakeup: which queue a task joins if no CPU is idle
 *   place/fork.bpf.h          fork: in which LLC a new task's search begins
 *   place/wakeup.bpf.h        wakeup: where a woken task runs
 *   place/spread.bpf.h        spread: a running task finds an idle core
 *   power/frequency.bpf.h     frequency: what performance a CPU asks for
 *   balance/avg_idle.bpf.h    steal: how long this CPU idles
 *   balance/steal.bpf.h       steal: an idle CPU takes a waiting task
 *   balance/balance.bpf.h     balance: busy CPUs even out
 *   balance/push.bpf.h        push: a requeued task wakes an idle CPU
 *   balance/patience.bpf.h    push: a task waits a moment for its CPU before it leaves
 *   ops/enqueue.bpf.h         the steps of each operation
 *   ops/dispatch.bpf.h
 *   ops/run.bpf.h
 *   ops/start.bpf.h
 *
 * The way of a task:
 *
 *   wakeup -> select_cpu -> idle CPU found: its local queue -> running
 *                        -> none: enqueue -> queue of the CPU  -> dispatch
 *                                                 ^                   |
 *                                                 +-- slice used up --+
 */

/*
 * libbpf cannot tell the version of a kernel such as 7.3-cloud-amd64, which has no third number,
 * and loads no object that asks for it. The headers ask in is_migration_disabled(): is the kernel
 * older than 6.18? A weak option that no kernel has is 0, so the answer is yes, and the header then
 * uses what it found out by a trial, which this program does not make.
 */
#define LINUX_KERNEL_VERSION CONFIG_MAGPIE_KERNEL_VERSION
extern int CONFIG_MAGPIE_KERNEL_VERSION __attribute__((section(".kconfig"), weak));

#include <scx/common.bpf.h>
#include "intf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

/* clang-format off */
#include "portable/average.h"
#include "portable/bandwidth.h"
#include "portable/fair.h"
#include "portable/governor.h"
#include "portable/idle_map.h"
#include "portable/llc_order.h"
#include "portable/move_cost.h"
#include "portable/perf.h"
#include "portable/placement.h"
#include "portable/power.h"
#include "portable/shares.h"
#include "portable/sparsemask.h"
#include "portable/steal.h"
#include "portable/weight.h"
#include "base/topology.bpf.h"
#include "base/timer.bpf.h"
#include "base/runqueue.bpf.h"
#include "base/clock.bpf.h"
#include "base/state.bpf.h"
#include "base/uclamp.bpf.h"
#include "base/hotplug.bpf.h"
#include "queue/fair.bpf.h"
#include "queue/overloaded.bpf.h"
#include "queue/queue.bpf.h"
#include "queue/hrtick.bpf.h"
#include "queue/overdue.bpf.h"
#include "guest/preferred.bpf.h"
#include "guest/late_ticks.bpf.h"
#include "power/power.bpf.h"
#include "guest/monitor.bpf.h"
#include "cgroup/tree.bpf.h"
#include "cgroup/shares.bpf.h"
#include "cgroup/bandwidth.bpf.h"
#include "cgroup/parking.bpf.h"
#include "place/move_cost.bpf.h"
#include "place/idle_map.bpf.h"
#include "place/search.bpf.h"
#include "place/queue_choice.bpf.h"
#include "place/fork.bpf.h"
#include "place/wakeup.bpf.h"
#include "place/spread.bpf.h"
#include "power/frequency.bpf.h"
#include "balance/avg_idle.bpf.h"
#include "balance/steal.bpf.h"
#include "balance/balance.bpf.h"
#include "balance/push.bpf.h"
#include "balance/patience.bpf.h"
#include "ops/enqueue.bpf.h"
#include "ops/dispatch.bpf.h"
#include "ops/run.bpf.h"
#include "ops/start.bpf.h"
/* clang-format on */

s32 BPF_STRUCT_OPS(magpie_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	return place_wakeup(p, prev_cpu, wake_flags);
}

/* A runnable task has no CPU: park it, send it to an idle CPU, or queue it. */
void BPF_STRUCT_OPS(magpie_enqueue, struct task_struct *p, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *ts = task_state(p);

	if (!ts) {
		scx_bpf_error("no state for %s[%d]", p->comm, p->pid);
		return;
	}

	if (park_task(p, ts, enq_flags) || migrate_to_idle_core(p, ts, enq_flags) ||
	    wake_on_idle_core(p, ts, cpu, enq_flags) || queue_on_preferred(p, ts, cpu, enq_flags))
		return;

	wait_on(p, ts, cpu, enq_flags);
}

/* A CPU needs a task: keep the running one, take the own queue's first one, or search elsewhere. */
void BPF_STRUCT_OPS(magpie_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_state *state = state_of(cpu);
	struct task_state *stayer = find_stayer(prev, cpu);

	hurry_overdue_when_asked(state, cpu);
	if (stayer && pull_when_unbalanced(cpu, stayer->vruntime))
		return;

	if (stayer && is_still_first(stayer, cpu))
		keep_running(prev, stayer, state, cpu);
	else if (dispatch_own(state, cpu, prev, stayer))
		return;
	else if (stayer)
		keep_running(prev, stayer, state, cpu);
	else
		look_elsewhere(state, cpu, prev);
}

/* A task begins to run: publish what others ask of this CPU. */
void BPF_STRUCT_OPS(magpie_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *state = state_of(cpu);
	struct task_state *ts = task_state(p);
	u64 now = rq_now(cpu);
	bool in_turn;

	if (!ts)
		return;

	in_turn = arrive(ts, cpu);
	regain_cpu(state);
	join_cgroup(ts);
	begin_slice(state, ts, cpu, in_turn, now);
	idle_policy_begins(state, cpu, p);
	perf_task_begins(state, p, ts, now);
	stop_if_throttled(p, ts, cpu);
}

/* The running task leaves the CPU: charge it. */
void BPF_STRUCT_OPS(magpie_stopping, struct task_struct *p, bool runnable)
{
	struct cpu_state *state = state_of(scx_bpf_task_cpu(p));
	struct task_state *ts = task_state(p);

	/* A real-time task may run next, which wakeups would try in vain to preempt. */
	forbid_preemption(state);
	idle_policy_ends(state);
	if (!ts)
		return;

	charge(p, ts);
	if (!runnable) {
		leave_cgroup(ts);
		note_sleep(p, ts);
	}
}

/* End the slice, and let any queued task run first, see is_still_first(). */
bool BPF_STRUCT_OPS(magpie_yield, struct task_struct *from, struct task_struct *to)
{
	struct task_state *ts = task_state(from);

	if (ts)
		ts->yielded = true;
	scx_bpf_task_set_slice(from, 0);
	return false;
}

/* Once a tick on every busy CPU: the net under all other operations. */
void BPF_STRUCT_OPS(magpie_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *state = state_of(cpu);
	struct task_state *ts = task_state(p);
	u64 now = rq_now(cpu);

	if (ts)
		tick_task(p, ts, state, cpu, now);
	idle_is_over(state, cpu);
	look_for_overdue_when_due(state, now);
	update_shares_when_due();
	prepare_patience();
	if (evict_at_tick(p, state, cpu, now))
		return;

	start_hrtick(state, cpu, now);
	if (ts)
		leave_shared_core(p, ts, cpu);
	open_if_tasks_wait(state, cpu, now);
	offer_queue(cpu);
}

void BPF_STRUCT_OPS(magpie_update_idle, s32 cpu, bool idle)
{
	if (idle)
		enter_idle(state_of(cpu), cpu);
	else
		leave_idle(state_of(cpu), cpu);
}

void BPF_STRUCT_OPS(magpie_set_weight, struct task_struct *p, u32 weight)
{
	struct task_state *ts = task_state(p);

	if (!ts)
		return;

	set_task_weight(ts, weight_of_policy(p));
	note_custom_slice(p, ts);
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
	ts->slice = slice_ns;
	ts->least_perf = UNKNOWN_PERF;
	set_task_weight(ts, NICE_0_WEIGHT);
	return 0;
}

void BPF_STRUCT_OPS(magpie_enable, struct task_struct *p)
{
	struct task_state *ts = task_state(p);

	if (ts)
		start_charging(p, ts);
}

/*
 * The task changes its class, or ends. It may change its class while it is queued, and then never
 * run here again, or while it runs, in which case the kernel does not call cpu_release().
 */
void BPF_STRUCT_OPS(magpie_disable, struct task_struct *p)
{
	struct task_state *ts = task_state(p);

	if (ts) {
		forget_fork(ts);
		leave_cgroup(ts);
	}

	/*
	 * From here on the task is of another class, and no tick of ours offers the tasks behind
	 * it.
	 */
	if (scx_bpf_task_running(p)) {
		lose_ticks(state_of(scx_bpf_task_cpu(p)), scx_bpf_now());
		offer_queue(scx_bpf_task_cpu(p));
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

/*
 * A task of a higher class takes the CPU from a task of ours, which waits in the CPU's local queue
 * now. Kernels from 7.1 deprecate this operation but still call it.
 */
void BPF_STRUCT_OPS(magpie_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	lose_cpu(state_of(cpu), cpu);
	perf_lost(state_of(cpu), cpu, args);
}

/*
 * Without cpu_online() and cpu_offline() the kernel would end the scheduler on CPU hotplug. The
 * topology has every possible CPU, so there is little to do.
 */
void BPF_STRUCT_OPS(magpie_cpu_online, s32 cpu)
{
	state_of(cpu)->is_online = 1;
	idle_ends(state_of(cpu));
	note_hotplug(ONLINE_DELAY_NS);
}

void BPF_STRUCT_OPS(magpie_cpu_offline, s32 cpu)
{
	/* First, so that redirect() sends no further task here. */
	WRITE_ONCE(state_of(cpu)->is_online, 0);
	empty_queue(cpu);
	idle_goes_offline(state_of(cpu), cpu);
	note_hotplug(0);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(magpie_init)
{
	s32 err;

	find_online_cpus();
	err = create_queues();
	err = err ?: prepare_cpu_timers(&patience_timers, NULL);
	if (!err && hrtick_enabled)
		err = prepare_cpu_timers(&hrtick_timers, hrtick);
	if (!err && frequency_enabled)
		err = start_perf();
	if (!err && cpu_weight_enabled)
		err = start_shares();
	if (!err && preferred_enabled)
		err = start_monitor();

	return err;
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
