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
 */
#include <stdio.h>

#include "vtime.h"

enum main_state {
	MAIN_BUSY, /* serves timers or I/O, may set new timers */
	MAIN_WAITS, /* in ppoll() until main_deadline_ns */
	MAIN_CALLED, /* has a reason to return from ppoll(), but has not returned */
};

static int64_t now_ns = EPOCH_NS;
static unsigned int running; /* turns given */
static uint32_t release; /* number of general releases, see turn_release_all() */

static enum main_state main_state = MAIN_BUSY;
static int64_t main_deadline_ns = NEVER;
static int64_t main_hold_ns = EPOCH_NS; /* no turn goes beyond it unless MAIN_WAITS */
static bool main_renotified; /* a vCPU notified the main loop while it was busy */
static bool main_asleep; /* sleeps on main_word */
static uint32_t main_word; /* futex: changes when the main loop may go on */
static int main_eventfd = -1;

/*
 * A vCPU wants a turn, or the main loop wants to work: each running vCPU looks at
 * the others at its next quantum end.
 */
static bool wanted;

/*
 * Every turn scans all vCPUs. These two arrays are dense, 2 KiB each for 256
 * vCPUs, so a scan reads fewer cache lines than the vCPUs themselves have.
 */
static int64_t active_ns[MAX_VCPUS]; /* local time if ready or running, else NEVER */
static int64_t ready_ns[MAX_VCPUS]; /* local time if ready, else NEVER */

/* Change the state, and the count of turns and the two arrays, which follow from it. */
static void set_state(struct vcpu *v, enum vcpu_state state)
{
	const size_t i = v - vcpus;

	if (v->state == VCPU_RUNNING)
		running--;
	if (state == VCPU_RUNNING)
		running++;
	__atomic_store_n(&v->state, state, __ATOMIC_SEQ_CST);
	WRITE_ONCE(active_ns[i],
		   state == VCPU_READY || state == VCPU_RUNNING ? v->local_ns : NEVER);
	ready_ns[i] = state == VCPU_READY ? v->local_ns : NEVER;
}

/* Make the vCPU look at its state again. */
static void let_look(struct vcpu *v)
{
	wakeup_change(&v->turn_word, &v->asleep);
}

/* Return the least local time of the vCPUs that are ready or running but @except, or NEVER. */
static int64_t least_active(const struct vcpu *except)
{
	const size_t skip = except ? (size_t)(except - vcpus) : MAX_VCPUS;
	int64_t least = NEVER;

	for (size_t i = 0; i < nr_vcpus; i++) {
		const int64_t t = READ_ONCE(active_ns[i]);

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

	for (size_t i = 0; i < nr_vcpus; i++) {
		if (ready_ns[i] < least) {
			least = ready_ns[i];
			v = &vcpus[i];
		}
	}
	return v;
}

/* Return the time that no vCPU may pass before the main loop has served its next timer. */
static int64_t horizon(void)
{
	return main_state == MAIN_WAITS ? main_deadline_ns : main_hold_ns;
}

/* Return the local time at which a turn of this vCPU ends. */
static int64_t turn_limit(const struct vcpu *v)
{
	const int64_t others = least_active(v), slice_end = host_slice_end(v);
	int64_t end = horizon();

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
	for (size_t i = 0; i < nr_vcpus; i++) {
		struct vcpu *v = &vcpus[i];

		if (v->state != VCPU_READY)
			continue;
		v->window_ns = perturb_window(v);
		if (v->local_ns < turn_limit(v) && (!next || perturb_rank(v) < perturb_rank(next)))
			next = v;
	}
	return next;
}

/* Return true if no vCPU may execute because the main loop works, or wants to. */
static bool main_has_precedence(void)
{
	return options.deterministic && main_state != MAIN_WAITS;
}

/* Advance now_ns as far as the vCPUs and the next timer allow. A due timer calls the main loop. */
static void advance_time(void)
{
	int64_t t = least_active(NULL);

	if (t == NEVER) {
		if (main_state != MAIN_WAITS || main_deadline_ns == NEVER)
			return;
		t = main_deadline_ns;
		if (t > now_ns)
			counters.jumps++;
	}
	if (t > horizon())
		t = horizon();
	if (t > now_ns)
		__atomic_store_n(&now_ns, t, __ATOMIC_RELEASE);

	if (main_state == MAIN_WAITS && now_ns >= main_deadline_ns) {
		counters.timer_calls++;
		main_state = MAIN_CALLED;
		main_hold_ns = now_ns;
		wakeup_call_main(main_eventfd);
	}
}

/* After any change: advance the time, and give the turns that are free. */
static void dispatch(void)
{
	struct vcpu *v;

	advance_time();
	while (!main_has_precedence() && running < options.turns) {
		int64_t limit;

		v = next_to_run();
		if (!v)
			break;
		limit = turn_limit(v);
		if (v->local_ns >= limit)
			break;
		WRITE_ONCE(v->limit_ns, limit);
		v->is_fresh = true;
		counters.turns++;
		perturb_note_turn(v);
		set_state(v, VCPU_RUNNING);
		let_look(v);
	}
	if (main_has_precedence() && main_asleep && !running)
		wakeup_change(&main_word, &main_asleep);
	WRITE_ONCE(wanted, main_has_precedence() || (running < options.turns && furthest_behind()));
}

/*
 * Count a vCPU that is beyond its turn by more than a block. Blocks are counted whole, with the
 * time that they wait for memory.
 */
static void check_window(const struct vcpu *v)
{
	const int64_t beyond = v->local_ns - v->limit_ns;
	const uint64_t block_ps = (uint64_t)MAX_BLOCK_INSNS * v->cost_ps + v->late_stall_ps;

	if (beyond > counters.beyond_max_ns)
		counters.beyond_max_ns = beyond;
	if (beyond > (int64_t)(block_ps / 1000))
		counters.broken++;
}

/* Return true once for each general release. */
static bool is_released(struct vcpu *v)
{
	if (v->seen_release == release)
		return false;
	v->seen_release = release;
	return true;
}

/*
 * The vCPU's own thread: wait for a turn, or for a general release. Return
 * true if the vCPU has a turn.
 */
static bool wait_for_turn(struct vcpu *v)
{
	dispatch();
	while (v->state != VCPU_RUNNING && !is_released(v))
		wakeup_sleep(&v->turn_word, &v->asleep);
	return v->state == VCPU_RUNNING;
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
	for (size_t i = 0; i < nr_vcpus; i++)
		shorten_turn(&vcpus[i], horizon());
}

/*
 * A vCPU that had no turn wants one from its local time on. The turns of the others are shortened,
 * because none may leave this one further behind than a window.
 */
static void make_ready(struct vcpu *v)
{
	set_state(v, VCPU_READY);
	for (size_t i = 0; i < nr_vcpus; i++)
		shorten_turn(&vcpus[i], v->local_ns + vcpus[i].window_ns);
}

/* A vCPU has no physical CPU. The turns of those that have one end with their slices from now on. */
static void wait_for_physical(struct vcpu *v)
{
	v->waits_since_ns = v->local_ns;
	set_state(v, VCPU_WAITING);
	for (size_t i = 0; i < nr_vcpus; i++) {
		const int64_t end = host_slice_end(&vcpus[i]), local = active_ns[i];

		shorten_turn(&vcpus[i], end > local ? end : local);
	}
}

/* A vCPU gives up its physical CPU, if it has one, to one that waits. */
static void leave_physical(struct vcpu *v)
{
	struct vcpu *next = host_leave(v);

	if (next)
		make_ready(next);
}

/* A vCPU without a turn wants to execute from that time on. */
static void become_ready(struct vcpu *v, int64_t at_ns)
{
	if (at_ns > v->waits_since_ns) {
		if (v->state == VCPU_IDLE)
			v->idle_ns += at_ns - v->waits_since_ns;
		if (v->state == VCPU_WORKING)
			v->work_ns += at_ns - v->waits_since_ns;
	}
	if (v->local_ns < at_ns)
		v->local_ns = at_ns;
	if (host_admit(v))
		make_ready(v);
	else
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
	leave_physical(v);
	wait_for_physical(v);
}

/* No vCPU has started, and every local time is the epoch. */
void turn_init(void)
{
	for (size_t i = 0; i < MAX_VCPUS; i++) {
		active_ns[i] = NEVER;
		ready_ns[i] = NEVER;
		vcpus[i].local_ns = EPOCH_NS;
		vcpus[i].window_ns = options.window_ns;
	}
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
	} else if (v->state != VCPU_READY && v->state != VCPU_WAITING) {
		become_ready(v, now_ns);
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
	bool has_turn;

	wakeup_lock();
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
	if (v->state != state)
		v->waits_since_ns = v->local_ns;
	set_state(v, state);
	leave_physical(v);
	/*
	 * Pairs with turn_wake(), which may have run before set_state() above:
	 * it left a running vCPU as it was, or made an idle one ready that was
	 * on its way here after a general release, and set_state() has just
	 * undone that. Only this thread clears the mark, so no kick is lost.
	 */
	if (__atomic_exchange_n(&v->kicked, false, __ATOMIC_SEQ_CST)) {
		become_ready(v, now_ns);
		dispatch();
		has_turn = v->state == VCPU_RUNNING;
		wakeup_unlock();
		return has_turn;
	}
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
		int64_t at = now_ns;

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

	WRITE_ONCE(active_ns[v - vcpus], v->local_ns);
	if (!READ_ONCE(wanted) && v->local_ns < READ_ONCE(v->limit_ns))
		return true;

	wakeup_lock();
	counters.slow_quanta++;
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
	return __atomic_load_n(&now_ns, __ATOMIC_ACQUIRE);
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
	end = now_ns + options.window_ns;
	main_state = MAIN_CALLED;
	main_hold_ns = main_deadline_ns < end ? main_deadline_ns : end;
	shorten_turns();
}

/*
 * The main loop is about to wait in ppoll() until @deadline_ns, or for
 * @eventfd. A turn that was given before may go on for longer than that: a vCPU
 * that executes alone has a turn until the timer that was next then, and may
 * have set an earlier one since. Its turn is shortened, or it would pass the
 * earlier timer by up to a tick.
 */
void turn_main_waits(int64_t deadline_ns, int eventfd)
{
	wakeup_lock();
	main_eventfd = eventfd;
	main_deadline_ns = deadline_ns + perturb_timer(deadline_ns);
	if (main_renotified) {
		/*
		 * A vCPU notified the main loop while the main loop was busy.
		 * Whether ppoll() sees that is a race, so make ppoll() return
		 * in any case.
		 */
		main_renotified = false;
		expect_main();
		wakeup_call_main(main_eventfd);
	} else {
		main_state = MAIN_WAITS;
	}
	shorten_turns();
	dispatch();
	wakeup_unlock();
}

/*
 * The main loop has returned from ppoll(), and works from here on. In
 * deterministic mode it first waits until no vCPU has a turn.
 */
void turn_main_woken(void)
{
	wakeup_lock();
	if (main_state == MAIN_WAITS) {
		counters.host_calls++;
		expect_main();
	}
	while (options.deterministic && running) {
		WRITE_ONCE(wanted, true);
		wakeup_sleep(&main_word, &main_asleep);
	}
	main_state = MAIN_BUSY;
	if (main_deadline_ns <= now_ns && now_ns - main_deadline_ns > counters.late_max_ns)
		counters.late_max_ns = now_ns - main_deadline_ns;
	clock_freeze_main(now_ns);
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
	if (main_state == MAIN_WAITS && mainloop_polls(fd)) {
		counters.notify_calls++;
		expect_main();
		WRITE_ONCE(wanted, true);
	} else if (main_state == MAIN_BUSY) {
		main_renotified = true;
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
	sleeps = least_active(NULL) == NEVER && main_state == MAIN_WAITS &&
		 main_deadline_ns == NEVER;
	wakeup_unlock();
	return sleeps;
}

static const char *const state_names[] = { "off", "idle", "waiting", "working", "ready", "running" };
static const char *const main_names[] = { "busy", "waits", "called" };

/* Print the machine's state, for the watchdog. Takes no lock: a thread that hangs may hold it. */
void turn_dump(void)
{
	const int64_t now = turn_now();

	fprintf(stderr, "magpie-vtime: virtual time %.9f s, %u of %u turns given, main loop %s",
		(now - EPOCH_NS) / 1e9, running, options.turns, main_names[main_state]);
	if (main_deadline_ns != NEVER)
		fprintf(stderr, ", next timer in %.3f us", (main_deadline_ns - now) / 1e3);
	fprintf(stderr, "\n");
	for (size_t i = 0; i < nr_vcpus; i++) {
		const struct vcpu *v = &vcpus[i];

		fprintf(stderr,
			"magpie-vtime: cpu %zu %s%s%s%s, local time %+.3f us, limit %+.3f us, %llu instructions\n",
			i, state_names[v->state], v->asleep ? ", waits for a turn" : "",
			v->yields ? ", yields" : "", v->kicked ? ", kicked" : "",
			(v->local_ns - now) / 1e3,
			v->limit_ns == NEVER ? 0.0 : (v->limit_ns - now) / 1e3,
			(unsigned long long)v->insns);
	}
}
