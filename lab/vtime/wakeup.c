// SPDX-License-Identifier: GPL-2.0-only
/*
 * The lock of turn.c, and the wakeups of threads that wait for a change of the state under it.
 *
 * Each wakeup is a system call, so the thread that holds the lock only notes which threads to wake,
 * and makes the calls after the unlock.
 */
#include <stdio.h>
#include <unistd.h>

#include "vtime.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The wakeups that this thread has noted. */
static __thread uint32_t *to_wake[MAX_VCPUS + 1];
static __thread unsigned int nr_to_wake;
static __thread int fd_to_write = -1;

void wakeup_lock(void)
{
	pthread_mutex_lock(&lock);
}

/* Release the lock, then make the wakeups that were noted under it. */
void wakeup_unlock(void)
{
	const unsigned int nr = nr_to_wake;
	const int fd = fd_to_write;

	nr_to_wake = 0;
	fd_to_write = -1;
	pthread_mutex_unlock(&lock);

	for (unsigned int i = 0; i < nr; i++)
		futex_wake(to_wake[i]);
	if (fd >= 0) {
		const uint64_t one = 1;

		if (write(fd, &one, sizeof(one)) < 0)
			perror("magpie-vtime: cannot wake QEMU's main loop");
	}
}

/* Under the lock: change @word, and note a wakeup if its one thread is asleep. */
void wakeup_change(uint32_t *word, bool *asleep)
{
	(*word)++;
	if (*asleep) {
		*asleep = false;
		to_wake[nr_to_wake++] = word;
	}
}

/* Under the lock: have the main loop return from ppoll(), which waits for this eventfd. */
void wakeup_call_main(int eventfd)
{
	fd_to_write = eventfd;
}

/*
 * Release the lock, sleep until @word changes, take the lock. @asleep tells the
 * thread that changes the word that a wakeup is needed.
 */
void wakeup_sleep(uint32_t *word, bool *asleep)
{
	const uint32_t value = *word;

	*asleep = true;
	wakeup_unlock();
	futex_wait(word, value);
	wakeup_lock();
	*asleep = false;
}
