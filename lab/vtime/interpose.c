// SPDX-License-Identifier: GPL-2.0-only
/*
 * Functions of the C library that are replaced in QEMU: the clock and condition
 * variables. (mainloop.c has ppoll and write.) In other processes, and before
 * the plugin is installed, they do what the C library does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vtime.h"

static int (*libc_cond_wait)(pthread_cond_t *cond, pthread_mutex_t *mutex);
static int (*libc_cond_broadcast)(pthread_cond_t *cond);
static int (*libc_cond_signal)(pthread_cond_t *cond);

/* Return that function. dlsym() alone would find the old, incompatible condition variables. */
static void *libc_cond(const char *name)
{
	void *function = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");

	if (!function) {
		fprintf(stderr,
			"magpie-vtime: the C library has no %s of version GLIBC_2.3.2: "
			"an x86-64 glibc is needed\n",
			name);
		_exit(1);
	}
	return function;
}

__attribute__((constructor)) static void find_libc_functions(void)
{
	libc_cond_wait = libc_cond("pthread_cond_wait");
	libc_cond_broadcast = libc_cond("pthread_cond_broadcast");
	libc_cond_signal = libc_cond("pthread_cond_signal");
}

void futex_wait(uint32_t *word, uint32_t value)
{
	syscall(SYS_futex, word, options.host ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value, NULL, NULL,
		0);
}

void futex_wake(uint32_t *word)
{
	syscall(SYS_futex, word, options.host ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The monotonic clock is virtual, the others stay the host's. */
EXPORT int clock_gettime(clockid_t id, struct timespec *t)
{
	int64_t now;
	long failed;

	if (!is_active || id != CLOCK_MONOTONIC) {
		/* Slower than the vDSO, but QEMU asks seldom outside of virtual time. */
		failed = syscall(SYS_clock_gettime, id, t);
		return failed ? -1 : 0;
	}
	now = clock_now();
	t->tv_sec = now / 1000000000LL;
	t->tv_nsec = now % 1000000000LL;
	return 0;
}

EXPORT int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	/* A halted vCPU: turn.c decides when it goes on. */
	if (is_active && self && self->halting) {
		vcpu_idle_wait(self, cond, mutex);
		return 0;
	}
	/*
	 * A thread that waits with QEMU's big lock waits until vCPUs stop or run
	 * a work item, so let the vCPUs that wait for a turn pass through QEMU's
	 * loop. A thread that waits for an exclusive section waits only for
	 * vCPUs that execute, and these go on by themselves.
	 */
	if (is_active && vcpu_is_big_lock(mutex))
		turn_release_all();
	return libc_cond_wait(cond, mutex);
}

/* Tell turn.c if a halted vCPU waits on this condition variable, which is about to be signalled. */
static void tell_vcpu(const pthread_cond_t *cond)
{
	struct vcpu *v = is_active ? vcpu_by_cond(cond) : NULL;

	if (v)
		turn_wake(v);
}

EXPORT int pthread_cond_broadcast(pthread_cond_t *cond)
{
	tell_vcpu(cond);
	return libc_cond_broadcast(cond);
}

EXPORT int pthread_cond_signal(pthread_cond_t *cond)
{
	tell_vcpu(cond);
	return libc_cond_signal(cond);
}
