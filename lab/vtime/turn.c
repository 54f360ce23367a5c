// SPDX-License-Identifier: GPL-2.0-only
/*
 * Virtual time, windows, and which vCPU runs next.
 *
 * Invariants, all under the lock of wakeup.c:
 *
 *  1. now_ns, the machine's virtual time, is the least local time of the
 *     vCPUs that are ready or running. If there is none, it jumps to the next
 *     timer, so that idle time costs nothing.
 *  2. now_ns does not pass the deadline of the main loop's next timer before
 *     the main loop has served it. Neither does a turn.
 *  3. A turn ends a window after the least local time of the other vCPUs.
 *  4. The next turn goes to the ready vCPU that is furthest behind, and of
 *     several to the one with the lowest index, so that the order is the same
 *     in every run.
 *
 *	 IDLE,      kick                turn given
 *	 WORKING ────────────▶ READY ───────────────▶ RUNNING
 *	  ▲                      ▲                      │ │
 *	  │                      └──────────────────────┘ │
 *	  │                        limit reached          │
 *	  └───────────────────────────────────────────────┘
 *	            halts, or enters a loop of work.c
 *
 * On a host with fewer physical CPUs than vCPUs, a vCPU without one is WAITING instead of READY
 * (host.c). A turn then also ends where the vCPU's slice of the physical CPU does.
 *
 * perturb.c changes windows, the order of turns, and delays, if it is on.
 *
 * In deterministic mode there is one turn, and the main loop excludes it: no
 * vCPU executes while the main loop works, and the main loop begins only when
 * no vCPU has the turn.
 *
 * All of this is about the vCPUs and the main loops of all guests of a host (guests.c). Where
 * several main loops want to work at one time, they do so one after the other, in the order of
 * their guests. Physical CPUs that are free are given when they have all done so, because the
 * order in which vCPUs ask for them must not matter.
 */
#include "vtime.h"

static uint32_t release; /* number of general releases of this guest, see turn_release_all() */

/* Change the state, and the count of turns and the two arrays, which follow from it. */
static void set_state(struct vcpu *v, enum vcpu_state state)
{
	const size_t i = v - host->vcpus;

	if (v->state == VCPU_RUNNING)
		host->running--;
	if (state == VCPU_RUNNING)
		host->running++;
	__atomic_store_n(&v->state, state, __ATOMIC_SEQ_CST);
	WRITE_ONCE(host->active_ns[i],
		   state == VCPU_READY || state == VCPU_RUNNING ? v->local_ns : NEVER);
	host->ready_ns[i] = state == VCPU_READY ? v->local_ns : NEVER;
}

/* Make the vCPU look at its state again. */
static void let_look(struct vcpu *v)
{
	wakeup_change(&v->turn_word, &v->asleep);
}

/* Return the least local time of the vCPUs that are ready or running but @except, or NEVER. */
static int64_t least_active(const struct vcpu *except)
{
	const size_t skip = except ? (size_t)(except - host->vcpus) : MAX_VCPUS;
	int64_t least = NEVER;

	for (size_t i = 0; i < host->nr_vcpus; i++) {
		const int64_t t = READ_ONCE(host->active_ns[i]);

		if (t < least && i != skip)
			least = t;
	}
	return least;
}

/* Return the ready vCPU with the least local time, or NULL. */
static struct vcpu *furthest_behind(void)
{
	int64_t least = NEVER;
	struct vcpu *v = NULL;

	for (size_t i = 0; i < host->nr_vcpus; i++) {
		if (host->ready_ns[i] < least) {
			least = host->ready_ns[i];
			v = &host->vcpus[i];
		}
	}
	return v;
}

/* Return the local time at which a turn of this vCPU ends. */
static int64_t turn_limit(const struct vcpu *v)
{
	const int64_t others = least_active(v), slice_end = host_slice_end(v);
	int64_t end = guests_horizon();

	/* If the slice is over already, the vCPU goes on for a window and then sees that. */
	if (slice_end < end)
		end = slice_end > v->local_ns ? slice_end : v->local_ns + v->window_ns;
	if (others == NEVER || others + v->window_ns > end)
		return end;
	return others + v->window_ns;
}

/*
 * Return the ready vCPU that gets the next turn, or NULL. With perturbation this is any that is
 * within its window; the one furthest behind always is.
 */
static struct vcpu *next_to_run(void)
{
	struct vcpu *next = NULL;

	if (!perturbation.is_on)
		return furthest_behind();
	for (size_t i = 0; i < host->nr_vcpus; i++) {
		struct vcpu *v = &host->vcpus[i];

		if (v->state != VCPU_READY)
			continue;
		v->window_ns = perturb_window(v);
		if (v->local_ns < turn_limit(v) && (!next || perturb_rank(v) < perturb_rank(next)))
			next = v;
	}
	return next;
}

/* Return true if no vCPU may execute because a main loop works, or wants to, or the run is over. */
static bool main_has_precedence(void)
{
	return options.deterministic && (host->is_over || guests_main_is_active());
}

/* Advance now_ns as far as the vCPUs and the next timer allow. A due timer calls its main loop. */
static void advance_time(void)
{
	const int64_t end = guests_horizon();
	int64_t t = least_active(NULL);

	if (host->is_over)
		return;
	if (t == NEVER) {
		if (guests_main_is_active() || end == NEVER)
			return;
		t = end;
		if (t > host->now_ns)
			counters->jumps++;
	}
	if (t > end)
		t = end;
	if (t > host->now_ns)
		__atomic_store_n(&host->now_ns, t, __ATOMIC_RELEASE);

	for (unsigned int i = 0; i < host->nr_guests; i++) {
		struct guest *g = &host->guests[i];

		if (g->main_state == MAIN_WAITS && host->now_ns >= g->main_deadline_ns) {
			g->counters.timer_calls++;
			g->main_state = MAIN_CALLED;
			g->main_hold_ns = host->now_ns;
			wakeup_call_main(g);
		}
	}
}

/* The vCPU's turn, if it has one, does not go on beyond @limit. It sees that at its next quantum end. */
static void shorten_turn(struct vcpu *v, int64_t limit)
{
	if (v->state == VCPU_RUNNING && v->limit_ns > limit)
		WRITE_ONCE(v->limit_ns, limit);
}

/* No turn goes on beyond the horizon. */
static void shorten_turns(void)
{
	const int64_t end = guests_horizon();

	for (size_t i = 0; i < host->nr_vcpus; i++)
		shorten_turn(&host->vcpus[i], end);
}

/*
 * A vCPU that had no turn wants one from its local time on. The turns of the others are shortened,
 * because none may leave this one further behind than a window.
 */
static void make_ready(struct vcpu *v)
{
	set_state(v, VCPU_READY);
	for (size_t i = 0; i < host->nr_vcpus; i++)
		shorten_turn(&host->vcpus[i], v->local_ns + host->vcpus[i].window_ns);
}

/* Give free physical CPUs to the vCPUs that wait. */
static void admit_waiting(void)
{
	struct vcpu *v;

	while ((v = host_admit()))
		make_ready(v);
}

/*
 * Give free physical CPUs to the vCPUs that wait. If others still wait, the turns of those that
 * have one end with their slices, or at once if they are preempted.
 */
static void give_physical(void)
{
	admit_waiting();
	host_preempt();
	if (!host_has_queue())
		return;
	for (size_t i = 0; i < host->nr_vcpus; i++) {
		const int64_t end = host_slice_end(&host->vcpus[i]), local = host->active_ns[i];

		shorten_turn(&host->vcpus[i], end > local ? end : local);
	}
}

/* After any change: advance the time, and give the physical CPUs and turns that are free. */
static void dispatch(void)
{
	struct vcpu *v;

	if (host_is_short() && !main_has_precedence())
		give_physical();
	advance_time();
	while (!main_has_precedence() && host->running < options.turns) {
		int64_t limit;

		v = next_to_run();
		if (!v)
			break;
		limit = turn_limit(v);
		if (v->local_ns >= limit)
			break;
		WRITE_ONCE(v->limit_ns, limit);
		v->is_fresh = true;
		host->guests[v->guest].counters.turns++;
		perturb_note_turn(v);
		set_state(v, VCPU_RUNNING);
		let_look(v);
	}
	for (unsigned int i = 0; i < host->nr_guests; i++) {
		struct guest *g = &host->guests[i];

		if (g->main_asleep && guests_main_may_work(g))
			wakeup_change(&g->main_word, &g->main_asleep);
	}
	WRITE_ONCE(host->wanted,
		   main_has_precedence() || (host->running < options.turns && furthest_behind()));
}

/*
 * Count a vCPU that is beyond its turn by more than a block. Blocks are counted whole, with the
 * time that they wait for memory.
 */
static void check_window(const struct vcpu *v)
{
	const int64_t beyond = v->local_ns - v->limit_ns;
	const uint64_t block_ps = (uint64_t)MAX_BLOCK_INSNS * v->cost_ps + v->late_stall_ps;

	if (beyond > counters->beyond_max_ns)
		counters->beyond_max_ns = beyond;
	if (beyond > (int64_t)(block_ps / 1000))
		counters->broken++;
}

/* Return true once for each general release. */
static bool is_released(struct vcpu *v)
{
	if (v->seen_release == release)
		return false;
	v->seen_release = release;
	return true;
}

/* Return true if the vCPU wants a turn, and has none. */
static bool waits_for_turn(const struct vcpu *v)
{
	return v->state == VCPU_READY || v->state == VCPU_WAITING;
}

/*
 * The vCPU's own thread: wait for a turn, or for a general release. Return
 * true if the vCPU has a turn. After a general release a thread comes here
 * again at a time that depends on the host, while another vCPU executes. So
 * there is no dispatch() here: it would see that vCPU at any time of its turn.
 */
static bool wait_for_turn(struct vcpu *v)
{
	while (v->state != VCPU_RUNNING && !is_released(v))
		wakeup_sleep(&v->turn_word, &v->asleep);
	return v->state == VCPU_RUNNING;
}

/* A vCPU wants a physical CPU. */
static void wait_for_physical(struct vcpu *v)
{
	v->waits_since_ns = v->local_ns;
	set_state(v, VCPU_WAITING);
}

/*
 * A vCPU gives up its physical CPU, if it has one, to one that waits. While a main loop works,
 * several vCPUs may do so in any order: then it stays free until dispatch().
 */
static void leave_physical(struct vcpu *v)
{
	if (!v->has_physical)
		return;
	host_leave(v);
	if (main_has_precedence())
		return;
	admit_waiting();
}

/* A vCPU without a turn wants to execute from that time on. dispatch() gives it a physical CPU. */
static void become_ready(struct vcpu *v, int64_t at_ns)
{
	if (own->is_gone)
		return;
	if (at_ns > v->waits_since_ns) {
		if (v->state == VCPU_IDLE)
			v->idle_ns += at_ns - v->waits_since_ns;
		if (v->state == VCPU_WORKING)
			v->work_ns += at_ns - v->waits_since_ns;
	}
	if (v->local_ns < at_ns)
		v->local_ns = at_ns;
	if (!host_is_short()) {
		make_ready(v);
		return;
	}
	wait_for_physical(v);
}

/* The turn of a vCPU that wants to execute on is over. So may be its slice of a physical CPU. */
static void end_turn(struct vcpu *v)
{
	v->yields = false;
	vcpu_count(v);
	check_window(v);
	v->local_ns += perturb_stop(v);
	if (v->local_ns < host_slice_end(v)) {
		set_state(v, VCPU_READY);
		return;
	}
	/* It may be the one that comes next, and then goes on. */
	wait_for_physical(v);
	leave_physical(v);
}

/* A vCPU has not started, and its local time is the epoch. */
void turn_init(struct vcpu *v)
{
	host->active_ns[v - host->vcpus] = NEVER;
	host->ready_ns[v - host->vcpus] = NEVER;
	v->local_ns = EPOCH_NS;
	v->window_ns = options.window_ns;
}

/*
 * The vCPU's own thread, before it executes guest code: wait for a turn. Return
 * false if the vCPU has none, because it must look for work in QEMU first.
 */
bool turn_take(struct vcpu *v)
{
	bool has_turn;

	/* No lock is needed, because only the vCPU's own thread ends its turn. */
	if (v->state == VCPU_RUNNING && !v->yields)
		return true;

	wakeup_lock();
	if (v->state == VCPU_RUNNING) {
		end_turn(v);
		dispatch();
	} else if (!waits_for_turn(v)) {
		become_ready(v, host->now_ns);
		dispatch();
	}
	has_turn = wait_for_turn(v);
	wakeup_unlock();
	return has_turn;
}

/*
 * The vCPU's own thread has nothing to execute, because the vCPU is idle or
 * working: sleep until the vCPU is kicked and has a turn. Return false if it has
 * none, because it must look for work in QEMU first.
 */
bool turn_wait(struct vcpu *v, enum vcpu_state state)
{
	bool has_turn, is_new;

	wakeup_lock();
	/*
	 * It was kicked, and its thread has looked for work after a general release, at a time that
	 * depends on the host. It looks again with its turn, and is idle from then on.
	 */
	if (waits_for_turn(v)) {
		has_turn = wait_for_turn(v);
		wakeup_unlock();
		return has_turn;
	}
	if (v->state == VCPU_RUNNING) {
		vcpu_count(v);
		/*
		 * This vCPU was kicked since it last looked for work. It keeps
		 * its turn and looks again: without the turn it would look
		 * while another vCPU executes, and whether the other vCPU
		 * still finds this one idle would be a race.
		 */
		if (__atomic_exchange_n(&v->kicked, false, __ATOMIC_SEQ_CST)) {
			wakeup_unlock();
			return true;
		}
	}
	v->yields = false;
	is_new = v->state != state;
	if (is_new)
		v->waits_since_ns = v->local_ns;
	set_state(v, state);
	leave_physical(v);
	/*
	 * Pairs with turn_wake(), which may have run before set_state() above
	 * and left a running vCPU as it was. Only this thread clears the mark,
	 * so no kick is lost.
	 */
	if (__atomic_exchange_n(&v->kicked, false, __ATOMIC_SEQ_CST)) {
		become_ready(v, host->now_ns);
		dispatch();
		has_turn = v->state == VCPU_RUNNING;
		wakeup_unlock();
		return has_turn;
	}
	if (is_new)
		dispatch();
	has_turn = wait_for_turn(v);
	wakeup_unlock();
	return has_turn;
}

/* Return true if only a kick makes this vCPU want a turn. */
static bool waits_for_kick(const struct vcpu *v)
{
	const enum vcpu_state state = __atomic_load_n(&v->state, __ATOMIC_SEQ_CST);

	return state == VCPU_IDLE || state == VCPU_WORKING;
}

/* Any thread: QEMU kicks this vCPU. It becomes ready at the local time of the vCPU that kicks. */
void turn_wake(struct vcpu *v)
{
	/*
	 * QEMU's RCU thread kicks all vCPUs so that they leave cpu_exec(). Ignore
	 * those kicks: a vCPU that waits here has left, and when that thread runs
	 * depends on the host.
	 */
	if (!self && !mainloop_is_self())
		return;
	__atomic_store_n(&v->kicked, true, __ATOMIC_SEQ_CST);
	if (!waits_for_kick(v))
		return;

	wakeup_lock();
	if (waits_for_kick(v)) {
		int64_t at = host->now_ns;

		if (self && self->state == VCPU_RUNNING && vcpu_local_now(self) > at)
			at = vcpu_local_now(self);
		become_ready(v, at + perturb_wakeup(v, at));
		dispatch();
	}
	wakeup_unlock();
}

/*
 * The vCPU's own thread, at a quantum end and after vcpu_count(). Return true if
 * its turn goes on.
 */
bool turn_extend(struct vcpu *v)
{
	bool goes_on;

	WRITE_ONCE(host->active_ns[v - host->vcpus], v->local_ns);
	if (!READ_ONCE(host->wanted) && v->local_ns < READ_ONCE(v->limit_ns))
		return true;

	wakeup_lock();
	counters->slow_quanta++;
	check_window(v);
	dispatch();
	goes_on = !main_has_precedence() && v->local_ns < host_slice_end(v);
	if (goes_on) {
		const int64_t limit = turn_limit(v);

		goes_on = v->local_ns < limit;
		if (goes_on)
			WRITE_ONCE(v->limit_ns, limit);
	}
	wakeup_unlock();
	return goes_on;
}

/*
 * General release: all vCPUs that wait here pass through QEMU's loop once,
 * without executing guest code. Called when a thread is about to wait until
 * vCPUs stop or run a work item; otherwise SIGTERM would wait for ever.
 */
void turn_release_all(void)
{
	wakeup_lock();
	release++;
	for (size_t i = 0; i < nr_vcpus; i++)
		let_look(&vcpus[i]);
	wakeup_unlock();
}

/* Any thread: return the machine's virtual time. */
int64_t turn_now(void)
{
	return __atomic_load_n(&host->now_ns, __ATOMIC_ACQUIRE);
}

/*
 * The main loop has a reason to return from ppoll(). Until it has returned, no
 * turn may end after the timer that it knows of, nor more than a window from
 * now.
 */
static void expect_main(void)
{
	int64_t end;

	/* A vCPU that executes alone has not advanced the time since its turn began. */
	advance_time();
	end = host->now_ns + options.window_ns;
	own->main_state = MAIN_CALLED;
	own->main_hold_ns = own->main_deadline_ns < end ? own->main_deadline_ns : end;
	shorten_turns();
}

/*
 * The main loop is about to wait in ppoll() until @deadline_ns. A turn that was given before may go
 * on for longer than that: a vCPU that executes alone has a turn until the timer that was next
 * then, and may have set an earlier one since. Its turn is shortened, or it would pass the earlier
 * timer by up to a tick.
 */
void turn_main_waits(int64_t deadline_ns)
{
	wakeup_lock();
	if (own->is_gone) {
		wakeup_unlock();
		return;
	}
	own->main_deadline_ns = deadline_ns + perturb_timer(deadline_ns);
	if (own->main_renotified) {
		/*
		 * A vCPU notified the main loop while the main loop was busy.
		 * Whether ppoll() sees that is a race, so make ppoll() return
		 * in any case.
		 */
		own->main_renotified = false;
		expect_main();
		wakeup_call_main(own);
	} else {
		own->main_state = MAIN_WAITS;
	}
	shorten_turns();
	dispatch();
	wakeup_unlock();
}

/*
 * The main loop has returned from ppoll(), and works from here on. In
 * deterministic mode it first waits until no vCPU has a turn, and no other main loop works or comes
 * before it.
 */
void turn_main_woken(void)
{
	wakeup_lock();
	if (own->is_gone) {
		wakeup_unlock();
		return;
	}
	if (own->main_state == MAIN_WAITS) {
		counters->host_calls++;
		expect_main();
	}
	while (options.deterministic && !own->is_gone && !guests_main_may_work(own)) {
		WRITE_ONCE(host->wanted, true);
		wakeup_sleep(&own->main_word, &own->main_asleep);
	}
	if (!own->is_gone)
		own->main_state = MAIN_BUSY;
	if (own->main_deadline_ns <= host->now_ns &&
	    host->now_ns - own->main_deadline_ns > counters->late_max_ns)
		counters->late_max_ns = host->now_ns - own->main_deadline_ns;
	clock_freeze_main(host->now_ns);
	wakeup_unlock();
}

/*
 * A vCPU is about to write to a file that the main loop polls, most often
 * because it has set a timer that is due before all others. Time must not pass
 * that timer before the main loop has seen it.
 */
void turn_main_notified(int fd)
{
	wakeup_lock();
	if (own->is_gone) {
		/* Its end is no business of the others. */
	} else if (own->main_state == MAIN_WAITS && mainloop_polls(fd)) {
		counters->notify_calls++;
		expect_main();
		WRITE_ONCE(host->wanted, true);
	} else if (own->main_state == MAIN_BUSY) {
		own->main_renotified = true;
	}
	wakeup_unlock();
	if (options.deterministic && self)
		vcpu_end_quantum_early(self);
}

/* Return true if all vCPUs are halted and no timer is set: the machine waits for the host. */
bool turn_machine_sleeps(void)
{
	bool sleeps;

	wakeup_lock();
	sleeps = least_active(NULL) == NEVER && !guests_main_is_active() &&
		 guests_horizon() == NEVER;
	wakeup_unlock();
	return sleeps;
}

/*
 * Under the lock: a guest has ended, or its process has died in the middle of anything. Its vCPUs
 * are off, its physical CPUs are the others', and its main loop has no timer.
 */
void turn_leave(struct guest *g)
{
	g->is_gone = true;
	g->main_state = MAIN_WAITS;
	g->main_deadline_ns = NEVER;
	g->main_asleep = false;
	guests_note_end();
	for (unsigned int i = 0; i < g->nr_vcpus; i++)
		set_state(&host->vcpus[g->first_vcpu + i], VCPU_OFF);
	for (unsigned int i = 0; i < g->nr_vcpus; i++)
		leave_physical(&host->vcpus[g->first_vcpu + i]);
	/* It may have died in the middle of a change. */
	for (unsigned int i = 0; i < host->nr_vcpus; i++)
		set_state(&host->vcpus[i], host->vcpus[i].state);
	host->running = 0;
	for (unsigned int i = 0; i < host->nr_vcpus; i++)
		host->running += host->vcpus[i].state == VCPU_RUNNING;
	dispatch();
}
