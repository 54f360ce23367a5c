/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * queue.bpf.h - mechanism 0: a fair queue for each CPU.
 *
 * Idea (EEVDF, Linux kernel/sched/fair.c; Stoica and Abdel-Wahab 1995): each
 * task has a virtual runtime that advances with CPU time over weight. A queue is
 * ordered by *key* = vruntime + request, the virtual deadline by which the task
 * should have had its next request of CPU time. The smallest key runs. The
 * request is what the task is about to need: its average burst between two
 * sleeps, at least a quarter of a slice and at most one. So tasks that run briefly
 * are due soon, get through a queue of CPU hogs, and still have no more than their
 * share.
 *
 * Each CPU has one queue (the DSQ whose id is the CPU number) and a *clock*: the
 * largest vruntime that a task had when it began to run there. A CPU that leaves
 * idle sets its clock to the furthest of its LLC. So within an LLC the clocks of
 * busy CPUs can be compared: one that falls behind gives its tasks less than
 * others get, and balance.bpf.h evens that out. Between LLCs they cannot, and a
 * task that crosses takes along only its distance to the clock.
 *
 *   wakeup/fork                            slice used up
 *        |                                      |
 *   vruntime := clock + distance,          charge the CPU time
 *   distance within [-credit, +debt]            |
 *        |                                 smaller key waiting? --no--> keep it
 *   CPU idle? --yes--> straight to it           | yes
 *        | no                                   v
 *   well before the running one? --yes--> preempt, else queue by key
 *
 * credit: what a sleeper may be ahead after a long sleep, so that it runs soon
 * but cannot save up CPU time. debt: what it owes from before, so that a task
 * cannot win by sleeping. The request is never more than one slice of virtual
 * time: scaled up for light tasks, it would let heavy ones run for seconds
 * before a light one is due at all.
 *
 * Only a task that has already used up a slice since it last slept is preempted
 * by a wakeup (one in its first slice will probably sleep soon and leave by
 * itself), and only after it has run for a while this time. Without that, tasks
 * that wake many others (hackbench) are switched out at each of these wakeups. A CPU
 * hog has no such protection: who woke behind it would wait for the next tick, or two.
 * A hog is known by the ticks that it has seen, not by CPU time: a vCPU that the host
 * held back charges its task with that time, and any task would soon look like one.
 *
 * Who is woken by a write to a pipe or a socket, and cannot preempt, is in no hurry: it
 * waits behind all who are at the clock, and what it is woken for piles up. In the order
 * of keys, receivers of hackbench came before the other senders, took one or two messages
 * each and slept again: two CPUs switched twice as often as under EEVDF. Who is woken by a
 * timer or a futex has nothing to gain from waiting.
 *
 * A task is queued on the CPU whose runqueue it is on. Then the kernel's own
 * wakeup path reschedules that CPU if it idles, under the runqueue lock, and no
 * kick can be lost. (The exception, with its kick, is in preferred.bpf.h.)
 *
 * What it does not do: real-time tasks (placed by the kernel). Weights of cgroups
 * come to it as the tasks' rates, see cgroup.bpf.h.
 */
#ifndef __MAGPIE_QUEUE_BPF_H
#define __MAGPIE_QUEUE_BPF_H

const volatile u64 slice_ns = 3000000;
const volatile bool preempt_enabled = true;

/* How far before the running task a woken one must be to preempt it. */
const volatile u64 preempt_margin_ns = 1000000;

/*
 * At most one push in this time from one CPU (push.bpf.h), and none in it after a
 * preemption that should be over by then.
 */
const volatile u64 push_interval_ns = 100000;

/* How long a task runs undisturbed once it has the CPU. */
const volatile u64 preempt_protect_ns = 1000000;

/* A task that runs for less between two sleeps is believed to sleep next. */
#define SLEEPS_SOON_NS 100000

#define CREDIT_NS ((s64)(slice_ns / 2))
#define CLOCK_STEP_NS 1000000ULL
#define LARGEST_LEAD_NS 50000000LL
#define LARGEST_DEBT_NS 1000000000LL

/*
 * A quarter of a slice. With less, a task that takes one message at a time comes before
 * those that write many: it sleeps again at once, and four groups of hackbench on two
 * CPUs switch 1.4 times as often.
 */
#define SHORTEST_REQUEST_NS (slice_ns / 4)

/* CPU time that the task will probably use before it sleeps. */
static __always_inline u64 expected_burst(const struct task_state *ts)
{
	return ts->burst > ts->avg_burst ? ts->burst : ts->avg_burst;
}

/* Virtual time, but never more of it than the same span of real time. */
static __always_inline u64 span_in_queue(const struct task_state *ts, u64 span)
{
	return ts->rate < NICE_0_RATE ? virtual_time(span, ts->rate) : span;
}

static __always_inline u64 request(const struct task_state *ts)
{
	u64 need = expected_burst(ts);

	if (need < SHORTEST_REQUEST_NS)
		need = SHORTEST_REQUEST_NS;
	else if (need > slice_ns)
		need = slice_ns;

	return span_in_queue(ts, need);
}

static __always_inline u64 key_of(const struct task_state *ts)
{
	return ts->vruntime + request(ts);
}

/* The task has slept: its burst is complete. */
static __always_inline void end_burst(struct task_state *ts)
{
	ts->avg_burst = average_add(ts->avg_burst, ts->burst);
	ts->burst = 0;
	ts->ticks = 0;
	ts->shares_core = false;
}

static __always_inline struct llc_state *llc_state_at(u32 llc)
{
	return &llc_states[llc & (MAX_LLCS - 1)];
}

static __always_inline struct llc_state *llc_state_of(s32 cpu)
{
	return llc_state_at(topology_of(cpu)->llc);
}

/* Its own clock, or its LLC's if that is further. */
static __always_inline u64 furthest_clock(const struct cpu_state *state, s32 cpu)
{
	u64 clock = READ_ONCE(llc_state_of(cpu)->clock);

	return time_before(state->clock, clock) ? clock : state->clock;
}

/* Where a CPU's tasks are by now; an idle CPU's own clock stands still. */
static __always_inline u64 clock_of(s32 cpu)
{
	const struct cpu_state *state = state_of(cpu);

	return READ_ONCE(state->idle_since) ? furthest_clock(state, cpu) : state->clock;
}

static __always_inline s64 bounded(s64 value, s64 low, s64 high)
{
	if (value < low)
		return low;

	return value > high ? high : value;
}

/*
 * A child starts one slice behind. At the clock itself, a chain of tasks that
 * fork and exit would run for ever before a CPU hog.
 */
static __always_inline void join_first(struct task_state *ts, s32 cpu)
{
	ts->vruntime = clock_of(cpu) + slice_ns;
	ts->cpu = cpu;
}

/*
 * Bounded on both sides: without it a task that slept for an hour would hold the
 * CPU for that long, and one that ran alone with a low weight would starve.
 */
static __always_inline void join_after_sleep(struct task_state *ts, s32 cpu)
{
	s64 debt = 2 * virtual_time(slice_ns, ts->rate);

	end_burst(ts);
	ts->lead = 0;
	if (ts->cpu < 0) {
		join_first(ts, cpu);
		return;
	}

	ts->vruntime =
		clock_of(cpu) + bounded((s64)(ts->vruntime - clock_of(ts->cpu)), -CREDIT_NS, debt);
	ts->cpu = cpu;
}

/*
 * A task that changes its CPU while it waits keeps what it owes there: a vCPU that
 * the host held back charges the task on it with all of that time, and when moves
 * forgave it, one hog of eight had 40 % more CPU time than its equals. Within an
 * LLC the lead of one clock over the other counts too, either way: evening it out
 * is what the move is for. Only up to a bound: a larger lead tells of a clock that
 * ran with light tasks alone, not of what this task had. And only a slice of it at
 * once: when hogs came one after the other, each with 50 ms that it was behind, a task
 * that sleeps for microseconds at a time waited for up to 758 ms.
 */
static __always_inline void join_after_move(struct task_state *ts, s32 cpu)
{
	s64 at_once = virtual_time(slice_ns, ts->rate);
	s64 distance;

	if (ts->cpu < 0) {
		join_first(ts, cpu);
		return;
	}

	distance = (s64)(ts->vruntime - ts->lead - clock_of(ts->cpu));
	if (topology_of(ts->cpu)->llc == topology_of(cpu)->llc)
		distance += bounded((s64)(clock_of(ts->cpu) - clock_of(cpu)), -LARGEST_LEAD_NS,
				    LARGEST_LEAD_NS);

	distance = bounded(distance, -LARGEST_LEAD_NS, LARGEST_DEBT_NS);
	ts->lead = distance < -at_once ? -at_once - distance : 0;
	ts->vruntime = clock_of(cpu) + distance + ts->lead;
	ts->cpu = cpu;
}

/* A task with a lead left has twice its share: half of its time counts. */
static __always_inline u64 without_lead(struct task_state *ts, u64 virtual)
{
	u64 used = virtual / 2 < ts->lead ? virtual / 2 : ts->lead;

	ts->lead -= used;
	return virtual - used;
}

/* Account the CPU time since the last call. The kernel's sum is up to date here. */
static __always_inline void charge(struct task_struct *p, struct task_state *ts)
{
	u64 sum = p->se.sum_exec_runtime;

	u64 used = sum - ts->charged;

	refresh_rate(ts);
	ts->vruntime += without_lead(ts, virtual_time(used, ts->rate));
	ts->burst += used;
	ts->charged = sum;
	charge_cgroups(ts, used);
}

static __always_inline void advance_clock(struct cpu_state *state, const struct task_state *ts)
{
	if (time_before(state->clock, ts->vruntime))
		state->clock = ts->vruntime;
}

/* The first task of a CPU that idled starts where the LLC is by now. */
static __always_inline void catch_up_clock(struct cpu_state *state, s32 cpu)
{
	state->clock = furthest_clock(state, cpu);
}

/*
 * Not from below nice 0: the clock of a CPU with a SCHED_IDLE task alone runs 341
 * times as fast, and would leave every other busy CPU behind for good.
 */
static __always_inline void publish_clock(const struct cpu_state *state,
					  const struct task_state *current, s32 cpu)
{
	u64 *clock = &llc_state_of(cpu)->clock;

	if (current->nice_rate <= NICE_0_RATE && !is_in_light_cgroup(current) &&
	    time_before(READ_ONCE(*clock) + CLOCK_STEP_NS, state->clock))
		WRITE_ONCE(*clock, state->clock);
}

static __always_inline bool should_preempt(const struct task_struct *p, const struct task_state *ts,
					   const struct cpu_state *state)
{
	u64 current_key = READ_ONCE(state->preempt_key);

	if (!preempt_enabled || !current_key || p->policy == SCHED_BATCH || p->policy == SCHED_IDLE)
		return false;

	return time_before(key_of(ts) + preempt_margin_ns, current_key) &&
	       time_before(READ_ONCE(state->running_since) + preempt_protect_ns, scx_bpf_now());
}

/*
 * The key of a task that begins to wait. Who was woken by a writer comes behind all who
 * are at the clock, and before those who have used up a slice since.
 */
static __always_inline u64 key_to_wait_with(const struct task_state *ts, s32 cpu, u64 enq_flags)
{
	u64 from;

	if (!(enq_flags & SCX_ENQ_WAKEUP) || !ts->woken_by_writer)
		return key_of(ts);

	from = clock_of(cpu);
	if (time_before(from, ts->vruntime))
		from = ts->vruntime;

	return from + span_in_queue(ts, slice_ns + slice_ns / 2);
}

/* Returns whether the task waits in the queue, rather than preempting. */
static __always_inline bool queue_task(struct task_struct *p, struct task_state *ts, s32 cpu,
				       u64 enq_flags)
{
	struct cpu_state *here = state_of(bpf_get_smp_processor_id());
	struct cpu_state *state = state_of(cpu);

	join_cgroup(ts);
	if (enq_flags & SCX_ENQ_WAKEUP) {
		join_after_sleep(ts, cpu);

		if (should_preempt(p, ts, state)) {
			/* Once: the next wakeup must not queue up behind this one. */
			WRITE_ONCE(state->preempt_key, 0);
			/* Soon over, and not worth moving the preempted task for. */
			if (ts->avg_burst < push_interval_ns) {
				WRITE_ONCE(state->next_push, scx_bpf_now() + push_interval_ns);
				if (is_bound_kernel_thread(p))
					WRITE_ONCE(state->soon_free, 1);
			}
			count_event(here, EVENT_PREEMPT, 1);
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags | SCX_ENQ_PREEMPT);
			return false;
		}
	} else if (ts->cpu != cpu) {
		join_after_move(ts, cpu);
	}

	if (cpu_weight_enabled)
		limit_debt(ts, clock_of(cpu));
	count_event(here, EVENT_ENQUEUE, 1);
	scx_bpf_dsq_insert_vtime(p, cpu, slice_ns, key_to_wait_with(ts, cpu, enq_flags), enq_flags);
	return true;
}

/*
 * The task gives way to a kernel thread that is bound to its CPU and soon over. Then an
 * idle CPU must not take it: such threads woke for 20 us each, and CPU hogs lost the cores
 * to which they had just spread. Not to others: a shell that waits for its children runs
 * briefly, until it forks, and only a tick found who waited behind it.
 */
static __always_inline bool has_cpu_back_soon(struct cpu_state *state, u64 enq_flags)
{
	if (enq_flags & (SCX_ENQ_WAKEUP | SCX_ENQ_REENQ) || !READ_ONCE(state->soon_free))
		return false;

	WRITE_ONCE(state->soon_free, 0);
	return true;
}

/* The smallest key in a CPU's queue; false if the queue is empty. */
static __always_inline bool peek_key(s32 cpu, u64 *key)
{
	struct task_struct *p;
	bool found = false;

	bpf_for_each(scx_dsq, p, cpu, 0) {
		*key = p->scx.dsq_vtime;
		found = true;
		break;
	}

	return found;
}

/* Whether a task whose slice is used up is still the one that should run. */
static __always_inline bool is_still_first(struct task_state *ts, s32 cpu)
{
	u64 key;

	if (!peek_key(cpu, &key))
		return true;

	if (ts->yielded)
		return false;

	return time_before(key_of(ts), key);
}

/* With fewer, senders of hackbench are hogs too, and it takes an eighth longer. */
#define TICKS_OF_A_HOG 16

static __always_inline bool is_hog(const struct task_state *ts)
{
	return ts->ticks >= TICKS_OF_A_HOG;
}

/*
 * @in_turn: not pulled here past those who wait. What such a task owes must not push
 * the clock: one that was 47 ms ahead of the others had them run for that long, because
 * it slept and woke relative to the clock that it had pushed itself.
 *
 * Publish to wakers how soon the task that runs now could be preempted: a
 * SCHED_IDLE task at once, another after its first slice since it slept. A task
 * that was pulled here may be far behind the clock; its key then counts as if it
 * were not, or no sleeper could preempt it until it has caught up.
 */
static __always_inline void start_running(struct cpu_state *state, struct task_state *ts,
					  bool in_turn)
{
	bool is_idle_policy = ts->nice_rate == weight_to_rate(IDLE_POLICY_WEIGHT);
	bool sleeps_soon = expected_burst(ts) < SLEEPS_SOON_NS;
	u64 key = 0;

	ts->yielded = false;
	ts->goes_to = 0;
	if (in_turn)
		advance_clock(state, ts);

	if (is_idle_policy || ts->burst >= slice_ns) {
		key = state->clock + request(ts);
		state->running_since = is_idle_policy || is_hog(ts) ? 0 : scx_bpf_now();
	}
	if (state->preempt_key != key)
		WRITE_ONCE(state->preempt_key, key);
	if (state->sleeps_soon != sleeps_soon)
		WRITE_ONCE(state->sleeps_soon, sleeps_soon);
	/* Who was to be preempted slept first. */
	if (state->soon_free)
		WRITE_ONCE(state->soon_free, 0);
}

static __always_inline void keep_running(struct task_struct *p, struct task_state *ts,
					 struct cpu_state *state)
{
	start_running(state, ts, true);
	scx_bpf_task_set_slice(p, slice_ns);
	count_event(state, EVENT_KEEP, 1);
}

#endif /* __MAGPIE_QUEUE_BPF_H */
