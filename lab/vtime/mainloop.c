// SPDX-License-Identifier: GPL-2.0-only
/*
 * QEMU's main loop, which serves the guest's timers, in virtual time.
 *
 * The main loop waits in ppoll() for its files or for the next timer. The
 * ppoll() here waits without a time limit, and for one file more, which turn.c
 * writes when virtual time has reached the timer.
 *
 * The write() here sees when a vCPU thread wants the main loop to look at its
 * timers again.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vtime.h"

#define MAX_POLLED 256

static pthread_t main_thread;
static int wake_fd = -1;
/* Files of the last ppoll(). The main loop changes them only while it does not wait. */
static int polled[MAX_POLLED];
static size_t nr_polled;

/* Called in the thread that becomes QEMU's main loop. */
void mainloop_init(void)
{
	main_thread = pthread_self();
	wake_fd = guests_wake_fd(own);
}

bool mainloop_is_self(void)
{
	return is_active && pthread_equal(pthread_self(), main_thread);
}

/* Return true if the main loop waits for this file. */
bool mainloop_polls(int fd)
{
	for (size_t i = 0; i < nr_polled; i++)
		if (polled[i] == fd)
			return true;
	return false;
}

/* The system call, in real time. */
static int real_ppoll(struct pollfd *fds, nfds_t nr, const struct timespec *timeout,
		      const sigset_t *mask)
{
	struct timespec copy;
	int found;

	/* The system call changes its timeout, and the C library's function does not. */
	if (timeout)
		copy = *timeout;
	/* The signal of snapshot.c must not wake the main loop. */
	do
		found = syscall(SYS_ppoll, fds, nr, timeout ? &copy : NULL, mask, mask ? 8 : 0);
	while (found < 0 && errno == EINTR && options.snapshot);
	return found;
}

/* Replaces the C library's. In other threads, and without a wait, it is the system call. */
EXPORT int ppoll(struct pollfd *fds, nfds_t nr, const struct timespec *timeout,
		 const sigset_t *mask)
{
	struct pollfd all[MAX_POLLED + 1];
	const struct timespec at_once = { 0 };
	int64_t deadline_ns = NEVER;
	int found;

	if (!mainloop_is_self() || nr > MAX_POLLED ||
	    (timeout && !timeout->tv_sec && !timeout->tv_nsec))
		return real_ppoll(fds, nr, timeout, mask);

	memcpy(all, fds, nr * sizeof(*fds));
	all[nr] = (struct pollfd){ .fd = wake_fd, .events = POLLIN };
	for (size_t i = 0; i < nr; i++)
		polled[i] = fds[i].fd;
	nr_polled = nr;
	if (timeout)
		deadline_ns = clock_now() + timeout->tv_sec * 1000000000LL + timeout->tv_nsec;

	/* Serve the files that are ready before any vCPU goes on. */
	if (options.deterministic) {
		found = real_ppoll(fds, nr, &at_once, mask);
		if (found)
			return found;
	}
	turn_main_waits(deadline_ns);
	found = real_ppoll(all, nr + 1, NULL, mask);
	turn_main_woken();
	/* vCPUs may have written to the files until now. No vCPU executes any more: look again. */
	if (options.deterministic)
		found = real_ppoll(all, nr + 1, &at_once, mask);

	if (found > 0 && all[nr].revents) {
		char calls[512];

		if (read(wake_fd, calls, sizeof(calls)) < 0)
			perror("magpie-vtime: cannot read the main loop's calls");
		found--;
	}
	memcpy(fds, all, nr * sizeof(*fds));
	return found;
}

EXPORT ssize_t write(int fd, const void *data, size_t size)
{
	/*
	 * Event notifiers of QEMU and GLib are eventfds, and take 8 bytes. Tell
	 * turn.c before the write: afterwards the main loop may already have
	 * returned, and would count as woken by the host.
	 */
	if (is_active && self && size == sizeof(uint64_t))
		turn_main_notified(fd);
	return syscall(SYS_write, fd, data, size);
}
