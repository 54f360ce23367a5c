// SPDX-License-Identifier: GPL-2.0-only
/*
 * The lock of turn.c, and the wakeups of threads that wait for a change of the state under it.
 *
 * Each wakeup is a system call, so the thread that holds the lock only notes which threads to wake,
 * and makes the calls after the unlock.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "vtime.h"

/* The wakeups that this thread has noted. */
static __thread uint32_t *to_wake[MAX_VCPUS + MAX_GUESTS];
static __thread unsigned int nr_to_wake;
static __thread const struct guest *to_call[MAX_GUESTS];
static __thread unsigned int nr_to_call;

/* A guest may have died with the lock. Its state is what guests_bury() mends. */
void wakeup_lock(void)
{
	if (pthread_mutex_lock(&host->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&host->lock);
}

/* Release the lock, then make the wakeups that were noted under it. */
void wakeup_unlock(void)
{
	const unsigned int nr = nr_to_wake, calls = nr_to_call;
	const uint64_t one = 1;

	nr_to_wake = 0;
	nr_to_call = 0;
	pthread_mutex_unlock(&host->lock);

	for (unsigned int i = 0; i < nr; i++)
		futex_wake(to_wake[i]);
	for (unsigned int i = 0; i < calls; i++)
		if (write(guests_wake_fd(to_call[i]), &one, sizeof(one)) < 0)
			perror("magpie-vtime: cannot wake QEMU's main loop");
}

/*
 * Wake the threads of all guests, which look at their states again. A guest that died between a
 * change under the lock and the wakeups that it had noted for it made none of them.
 */
void wakeup_all(void)
{
	wakeup_lock();
	for (unsigned int i = 0; i < host->nr_vcpus; i++)
		host->vcpus[i].turn_word++;
	for (unsigned int i = 0; i < host->nr_guests; i++) {
		host->guests[i].main_word++;
		if (host->guests[i].main_state == MAIN_CALLED)
			wakeup_call_main(&host->guests[i]);
	}
	wakeup_unlock();
	for (unsigned int i = 0; i < host->nr_vcpus; i++)
		futex_wake(&host->vcpus[i].turn_word);
	for (unsigned int i = 0; i < host->nr_guests; i++)
		futex_wake(&host->guests[i].main_word);
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

/* Under the lock: have the guest's main loop return from ppoll(), once for each change of its state. */
void wakeup_call_main(const struct guest *g)
{
	to_call[nr_to_call++] = g;
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
