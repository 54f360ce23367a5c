/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * preferred.bpf.h - mechanism 5: use only as many CPUs as the host gives.
 *
 * Idea ("cpu_preferred_mask and steal-driven vCPU backoff", v2, Linux kernel
 * list): on an overcommitted host the guests together ask for more CPUs than
 * exist, and the host preempts vCPUs, often while they hold locks. A guest that
 * asks for fewer CPUs when the host takes time away runs faster, and so do the
 * others.
 *
 *   timer, every period (sooner when the host takes very much):
 *   time that the host took, of the preferred CPUs
 *        |
 *   governor (portable/governor.h): how many cores from now on
 *        |
 *   the first so many online cores of core_at_rank[] are preferred; the order
 *   takes cores evenly from the nodes
 *
 *   wakeup   -> only preferred CPUs, where the task's affinity has any
 *   running  -> on another CPU: moved at the next tick
 *   queued   -> on another CPU: moved when that CPU next looks for work
 *   steal    -> a CPU that is not preferred takes only from its like: what is
 *               left there may not run anywhere else
 *
 * Affinity is never changed: a task that may run on no preferred CPU runs where
 * it may.
 *
 * How the time is known: the kernel counts steal time where the hypervisor
 * exposes it. Elsewhere it is estimated from late ticks, see late_ticks.bpf.h.
 *
 * What it does not do: real-time tasks, which the kernel places itself. Moving
 * interrupts and unbound workqueues, which user space does (host_state.rs).
 */
#ifndef __MAGPIE_PREFERRED_BPF_H
#define __MAGPIE_PREFERRED_BPF_H

const volatile u32 nr_cores = 1;

/* Place of the first CPU of each core, in the order in which cores are taken. */
const volatile u16 core_at_rank[MAX_CPUS];

extern struct kernel_cpustat kernel_cpustat __ksym;
extern struct cpuhp_cpu_state cpuhp_state __ksym;

/* Settings that user space may change while the scheduler runs. */
struct preferred_settings preferred_settings = {
	.mode = PREFERRED_AUTO,
	.source = STEAL_SOURCE_AUTO,
	.governor = GOVERNOR_DIRECT,
	.period_ns = 1000000000,
	.high = 200,
	.low = 100,
};

/* What the monitor saw and decided; written by the timer, read by user space. */
struct preferred_status preferred_status;

/* One bit a CPU, read on every wakeup, written when the number of cores changes. */
u64 preferred_bits[MAX_CPUS / 64];
u64 requested_bits[MAX_CPUS / 64]; /* PREFERRED_SET: what the user asked for */

private(PREFERRED) struct bpf_cpumask __kptr *preferred_mask;

struct monitor_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct monitor_timer);
} monitor_timers SEC(".maps");

/*
 * Looks in each period. When the host takes many times what is too much, the governor
 * is asked at once: with the default period a load that comes all at once would
 * otherwise thrash for a second.
 */
#define LOOKS 8
#define ALARM 10 /* times preferred_settings.high */

struct governor_state governor;

/* Whether any CPU is withheld at all; one read decides the common case. */
static __always_inline bool is_restricted(void)
{
	return preferred_enabled && READ_ONCE(preferred_status.withheld);
}

static __always_inline bool is_preferred(s32 cpu)
{
	u32 index = cpu & (MAX_CPUS - 1);

	return !is_restricted() || preferred_bits[index / 64] & (1ULL << (index % 64));
}

/*
 * Online, and not on its way offline. The kernel tells us of that only in the middle:
 * before, the CPU dispatches nothing any more and waits for RCU, whose thread must not
 * wait in that CPU's queue.
 */
static __always_inline bool is_usable(s32 cpu)
{
	struct cpuhp_cpu_state *hotplug = bpf_per_cpu_ptr(&cpuhp_state, cpu);

	return state_of(cpu)->is_online && hotplug &&
	       hotplug->target >= bpf_core_enum_value(enum cpuhp_state, CPUHP_AP_ACTIVE);
}

/* May this task run on a preferred CPU? */
static __always_inline bool has_preferred(const struct task_struct *p)
{
	struct bpf_cpumask *mask = preferred_mask;

	return mask && bpf_cpumask_intersects(p->cpus_ptr, (const struct cpumask *)mask);
}

static __always_inline bool must_leave(const struct task_struct *p, s32 cpu)
{
	return is_restricted() && !is_preferred(cpu) && !is_pinned(p) && has_preferred(p);
}

/* An idle preferred CPU for the task, or a negative number. */
static __always_inline s32 pick_idle_preferred(struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct bpf_cpumask *mask = preferred_mask;

	if (!mask)
		return -ENOENT;

	return scx_bpf_select_cpu_and(p, prev_cpu, wake_flags, (const struct cpumask *)mask, 0);
}

/* Any preferred CPU that the task may use, else -1. */
static __always_inline s32 any_preferred(const struct task_struct *p)
{
	struct bpf_cpumask *mask = preferred_mask;
	u32 cpu;

	if (!mask)
		return -1;

	/* One that has just gone offline may be in the mask until the next period. */
	cpu = bpf_cpumask_any_and_distribute(p->cpus_ptr, (const struct cpumask *)mask);
	return cpu < nr_cpus && is_usable(cpu) ? (s32)cpu : -1;
}

/* Where a woken task waits when nothing idles. */
static __always_inline s32 queue_for(const struct task_struct *p, s32 prev_cpu)
{
	s32 cpu = is_preferred(prev_cpu) || !has_preferred(p) ? prev_cpu : any_preferred(p);

	return cpu < 0 ? prev_cpu : cpu;
}

/* On the kernel's masks: an idle CPU that a waiting task may use, or a negative number. */
static __always_inline s32 pick_idle_plainly(const struct task_struct *p)
{
	struct bpf_cpumask *mask = preferred_mask;
	s32 cpu;

	if (!is_restricted() || !mask || !has_preferred(p))
		return scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

	cpu = scx_bpf_pick_idle_cpu((const struct cpumask *)mask, 0);
	if (cpu >= 0 && !bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
		/* Picking took it out of the idle mask; the kick puts it back. */
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return -EBUSY;
	}

	return cpu;
}

/*
 * Where a waiting task should be queued: not on a CPU that it must leave. The
 * caller kicks the returned CPU if it is another one.
 */
static __always_inline s32 redirect(const struct task_struct *p, s32 cpu)
{
	s32 other;

	if (!must_leave(p, cpu))
		return cpu;

	other = any_preferred(p);
	if (other < 0 || other == cpu)
		return cpu;

	count_event(state_of(bpf_get_smp_processor_id()), EVENT_BACKOFF, 1);
	return other;
}

/* Here and in drain_queue() a task waits on another CPU than its own: so the kick. */
static __always_inline void queue_elsewhere(struct task_struct *p, struct task_state *ts, s32 cpu,
					    u64 enq_flags)
{
	if (enq_flags & SCX_ENQ_WAKEUP)
		join_after_sleep(ts, cpu);
	else
		join_after_move(ts, cpu);

	scx_bpf_dsq_insert_vtime(p, cpu, slice_ns, key_of(ts), enq_flags);
	set_overloaded(cpu, true);
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

#define DRAIN_AT_ONCE 16 /* each takes a runqueue lock and a kick */

/*
 * Hand what waits on a CPU that is not preferred to those that are. A global function:
 * inlined in ops.dispatch() its ways multiplied with the others there, and loading took a
 * quarter longer.
 */
__noinline int drain_queue(s32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	struct task_struct *p;

	state->walked = 0;
	bpf_for_each(scx_dsq, p, cpu, 0) {
		s32 other = redirect(p, cpu);
		struct task_state *ts;

		if (other == cpu)
			continue;

		ts = task_state(p);
		if (!ts)
			continue;

		join_after_move(ts, other);
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, key_of(ts));
		if (scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, other, 0)) {
			set_overloaded(other, true);
			scx_bpf_kick_cpu(other, SCX_KICK_IDLE);
		}
		if (++state->walked >= DRAIN_AT_ONCE)
			break;
	}

	return 0;
}

static __always_inline bool is_core_online(u32 first, u32 size)
{
	bool online = false;
	u32 i;

	bpf_for(i, 0, size) {
		if (is_usable(place_to_cpu(first + i))) {
			online = true;
			break;
		}
	}

	return online;
}

static __always_inline bool is_requested(u32 cpu)
{
	return requested_bits[(cpu / 64) % (MAX_CPUS / 64)] & (1ULL << (cpu % 64));
}

/* The lock: the verifier takes the timer for a part of the sleepable ops.init. */
static __always_inline void set_preferred(u32 cpu, bool preferred)
{
	u64 *word = &preferred_bits[(cpu / 64) % (MAX_CPUS / 64)];
	struct bpf_cpumask *mask;

	bpf_rcu_read_lock();
	mask = preferred_mask;
	if (preferred) {
		*word |= 1ULL << (cpu % 64);
		if (mask)
			bpf_cpumask_set_cpu(cpu, mask);
	} else {
		*word &= ~(1ULL << (cpu % 64));
		if (mask)
			bpf_cpumask_clear_cpu(cpu, mask);
	}
	bpf_rcu_read_unlock();
}

/*
 * Sums of one round, in memory and not in registers: the verifier follows a
 * register through every iteration of a loop, and would not come to an end.
 */
struct preferred_sums {
	u64 busy, late, steal; /* of the preferred CPUs, ns */
	u64 longest_busy; /* ... of the one that was it most */
	u32 given; /* average of cores busy without the time that was taken, 1/100 */
	u32 counted; /* preferred CPUs */
	u32 threads, cores; /* online */
	u32 used; /* cores preferred */
	u32 chosen, withheld; /* online CPUs, preferred or not */
} preferred_sums;

__noinline int apply_to_core(u32 rank, u32 cores)
{
	bool is_set = preferred_settings.mode == PREFERRED_SET;
	bool is_within = preferred_sums.used < cores;
	u32 first = core_at_rank[rank & (MAX_CPUS - 1)];
	u32 size = topology_of(place_to_cpu(first))->core_size;
	u32 i;

	bpf_for(i, 0, size) {
		u32 cpu = place_to_cpu(first + i);
		bool usable, preferred;

		if (cpu >= nr_cpus || cpu >= MAX_CPUS)
			continue;

		usable = is_usable(cpu);
		preferred = usable && (is_set ? is_requested(cpu) : is_within);
		set_preferred(cpu, preferred);
		if (preferred)
			preferred_sums.chosen++;
		else if (usable)
			preferred_sums.withheld++;
	}

	if (is_core_online(first, size))
		preferred_sums.used++;

	return 0;
}

/*
 * Make the first @cores online cores preferred, or what the user asked for. A
 * wakeup meanwhile sees a mask that is at worst without the cores that change,
 * and then falls back to the task's previous CPU.
 */
static __always_inline void apply_preferred(u32 cores)
{
	u32 rank;

	preferred_sums.used = 0;
	preferred_sums.chosen = 0;
	preferred_sums.withheld = 0;

	bpf_for(rank, 0, nr_cores)
		apply_to_core(rank, cores);

	preferred_status.cores = preferred_settings.mode == PREFERRED_SET ? 0 : cores;
	/* All that the user asked for are offline: never none, so all. */
	WRITE_ONCE(preferred_status.withheld, preferred_sums.chosen ? preferred_sums.withheld : 0);
	WRITE_ONCE(preferred_status.applied, preferred_status.applied + 1);
}

/*
 * A task that was redirected to a CPU on its way offline arrived after
 * ops.cpu_offline() had emptied the queue: thieves do not mind that its CPU is gone.
 * One redirected to a CPU on its way online, whose vCPU the host then held back, was
 * kicked for before the kernel let that CPU dispatch: it is kicked again.
 */
static __always_inline void rescue_redirected(s32 cpu)
{
	s32 here = bpf_get_smp_processor_id();
	bool usable = is_usable(cpu);

	if (!scx_bpf_dsq_nr_queued(cpu) || (usable && !state_of(cpu)->idle_since))
		return;

	count_event(state_of(here), EVENT_RESCUE, 1);
	if (!usable) {
		WRITE_ONCE(state_of(here)->must_search, 1 + cpu);
		cpu = here;
	}
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

/* Add what happened on an online CPU since the last period. */
__noinline int observe_cpu(u32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	struct kernel_cpustat *stat;
	u64 busy_ns, since, steal_ns = 0;

	if (!is_usable(cpu))
		return 0;

	preferred_sums.threads++;
	if (!is_core_online(topology_of(cpu)->core_first,
			    topology_of(cpu)->place - topology_of(cpu)->core_first))
		preferred_sums.cores++;

	stat = bpf_per_cpu_ptr(&kernel_cpustat, cpu);
	if (stat)
		steal_ns = stat->cpustat[CPUTIME_STEAL];

	since = READ_ONCE(state->busy_since);
	busy_ns = state->busy_ns + (since ? scx_bpf_now() - since : 0);

	state->now_busy_ns = busy_ns;
	if (is_preferred(cpu)) {
		preferred_sums.counted++;
		busy_ns -= state->seen_busy_ns;
		preferred_sums.busy += busy_ns;
		if (preferred_sums.longest_busy < busy_ns)
			preferred_sums.longest_busy = busy_ns;
		preferred_sums.late += late_in_period(state);
		preferred_sums.steal += steal_ns - state->seen_steal_ns;
	}

	state->now_late_ns = state->late_ns;
	state->now_steal_ns = steal_ns;
	if (steal_ns)
		preferred_status.kernel_steal_ns = steal_ns;

	return 0;
}

/* The next period begins with what was observed last. */
static __always_inline void end_period(u64 now)
{
	bool is_new_window = !time_before(now, late_window_end);
	u32 cpu;

	if (is_new_window)
		late_window_end = now + LATE_WINDOW_NS;

	bpf_for(cpu, 0, nr_cpus) {
		struct cpu_state *state = state_of(cpu);

		state->seen_busy_ns = state->now_busy_ns;
		if (is_new_window)
			begin_late_window(state);
		state->seen_late_ns = state->now_late_ns;
		state->seen_steal_ns = state->now_steal_ns;
	}
}

static __always_inline u32 steal_source(void)
{
	if (preferred_settings.source != STEAL_SOURCE_AUTO)
		return preferred_settings.source;

	return preferred_status.kernel_steal_ns ? STEAL_SOURCE_KERNEL : STEAL_SOURCE_ESTIMATE;
}

static __always_inline void observe(struct governor_input *input, u64 elapsed)
{
	struct preferred_sums *sums = &preferred_sums;
	u64 taken, threads, core_ns;
	u32 cpu;

	__builtin_memset(sums, 0, sizeof(*sums));
	bpf_for(cpu, 0, nr_cpus)
		observe_cpu(cpu);

	preferred_status.source = steal_source();
	taken = preferred_status.source == STEAL_SOURCE_KERNEL ? sums->steal : sums->late;
	if (taken > sums->busy)
		taken = sums->busy;

	/* What a core can give in this period, all its siblings together. */
	input->total = sums->cores ?: 1;
	threads = sums->threads;
	core_ns = elapsed * threads / input->total ?: 1;
	input->steal = taken * 10000 / (sums->counted * elapsed ?: 1);
	input->wanted = sums->busy * 100 / core_ns;
	sums->given = (sums->busy - taken) * 100 / core_ns;

	/*
	 * And while there was work: a load that began in the middle of the period has half of
	 * what it is given on average, and had only one core left of the two that it got.
	 */
	core_ns = sums->longest_busy * threads / input->total ?: 1;
	input->given = (sums->busy - taken) * 100 / core_ns;
}

/* Look at settings and online CPUs soon, and not only after the period. */
static __always_inline int apply_after(u64 delay_ns)
{
	struct monitor_timer *timer;
	u32 key = 0;

	timer = bpf_map_lookup_elem(&monitor_timers, &key);
	return timer ? bpf_timer_start(&timer->timer, delay_ns, 0) : -ENOENT;
}

/* Called by user space after it has changed the settings. */
SEC("syscall")
int apply_settings(void *ctx)
{
	return apply_after(0);
}

static int monitor(void *map, int *key, struct monitor_timer *timer)
{
	struct governor_config config = {
		.kind = preferred_settings.governor,
		.high = preferred_settings.high,
		.low = preferred_settings.low,
	};
	struct governor_input input = {};
	u64 now = scx_bpf_now();
	u32 before = governor.cores;
	bool is_auto = preferred_settings.mode == PREFERRED_AUTO;
	bool ended = false;
	u32 cpu, cores;
	u64 elapsed;

	bpf_for(cpu, 0, nr_cpus)
		rescue_redirected(cpu);

	elapsed = now - preferred_status.last_period;
	bpf_timer_start(&timer->timer, preferred_settings.period_ns / LOOKS, 0);

	/* Not if we are early, see apply_after(): too short a time to judge by. */
	if (elapsed >= preferred_settings.period_ns / (2 * LOOKS)) {
		observe(&input, elapsed);
		ended = elapsed >= preferred_settings.period_ns * (2 * LOOKS - 1) / (2 * LOOKS) ||
			(is_auto && input.steal >= ALARM * config.high);
	}

	if (!ended) {
		if (!is_auto)
			governor.cores = nr_cores;
		apply_preferred(governor.cores);
		return 0;
	}

	end_period(now);
	preferred_status.last_period = now;
	preferred_status.steal = input.steal;
	preferred_status.wanted = input.wanted;
	preferred_status.given = preferred_sums.given;
	preferred_status.total = input.total;

	if (is_auto)
		cores = governor_next(&config, &governor, &input);
	else
		cores = governor.cores = nr_cores;

	if (cores != before)
		preferred_status.changes++;
	preferred_status.direction = cores < before ? -1 : cores > before;
	apply_preferred(cores);
	return 0;
}

static __always_inline int start_monitor(void)
{
	struct bpf_cpumask *mask;
	struct monitor_timer *timer;
	u32 key = 0;
	int err;

	mask = bpf_cpumask_create();
	if (!mask)
		return -ENOMEM;
	mask = bpf_kptr_xchg(&preferred_mask, mask);
	if (mask)
		bpf_cpumask_release(mask);

	timer = bpf_map_lookup_elem(&monitor_timers, &key);
	if (!timer)
		return -ENOENT;

	governor.cores = nr_cores;
	preferred_status.last_period = scx_bpf_now();

	err = bpf_timer_init(&timer->timer, &monitor_timers, CLOCK_MONOTONIC);
	err = err ?: bpf_timer_set_callback(&timer->timer, monitor);
	return err ?: bpf_timer_start(&timer->timer, preferred_settings.period_ns / LOOKS, 0);
}

#endif /* __MAGPIE_PREFERRED_BPF_H */
