// SPDX-License-Identifier: GPL-2.0-only
/*
 * The clock that the guest and QEMU read.
 *
 * There is one clock. A vCPU reads its own local time, exact to the block, or
 * the latest time that another has read if that is later. So time never runs
 * backwards between CPUs, and a reading is at most a window ahead of the
 * reader's local time.
 *
 * For the main loop, time stands still from one ppoll() to the next. QEMU
 * reads the clock to compute how long ppoll() may wait, and ppoll() reads it again
 * to turn that into a deadline, which is exact only if both readings agree.
 */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vtime.h"

static int64_t latest_ns = EPOCH_NS;
static int64_t main_ns = EPOCH_NS;

/* Return the time that the calling thread reads. */
int64_t clock_now(void)
{
	int64_t latest, t;

	if (mainloop_is_self())
		return main_ns;

	t = turn_now();
	if (self) {
		const int64_t local = vcpu_local_now(self);

		self->clock_reads++;
		if (local > t)
			t = local;
	}
	latest = READ_ONCE(latest_ns);
	while (t > latest) {
		if (__atomic_compare_exchange_n(&latest_ns, &latest, t, false, __ATOMIC_ACQ_REL,
						__ATOMIC_RELAXED))
			return t;
	}
	return latest;
}

/* The main loop begins to work: set its time until it waits again. */
void clock_freeze_main(int64_t now_ns)
{
	const int64_t latest = READ_ONCE(latest_ns);

	main_ns = latest > now_ns ? latest : now_ns;
}

/* Replaces QEMU's cpu_get_ticks(), the x86 time stamp counter. */
int64_t clock_ticks(void)
{
	return (clock_now() - EPOCH_NS) * options.tsc_mhz / 1000;
}

/* Return the host's time. Makes the system call, because the C library's clock is replaced. */
int64_t real_now(void)
{
	struct timespec t;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
