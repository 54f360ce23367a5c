// SPDX-License-Identifier: GPL-2.0-only
/*
 * Several guests on one host: each is a QEMU process, and all share one clock, one set
 * of physical CPUs and one order of turns.
 *
 *	QEMU of guest 0 ──┐                       ┌── vCPUs, by turns of turn.c
 *	QEMU of guest 1 ──┼── host= FILE, mapped ─┼── physical CPUs of host.c
 *	QEMU of guest 2 ──┘   struct host         └── main loops, one after the other
 *
 * So a host is to turn.c and host.c what one guest is, with more vCPUs and more main
 * loops. The vCPU that is furthest behind has the next turn, whichever process it belongs
 * to; of several it is the one of the first guest. Virtual time stands still until all
 * guests have started, since a main loop that has not started counts as busy. No rule
 * asks which process comes first.
 *
 * A process wakes the main loop of another one by a named pipe, FILE.0 for guest 0, and
 * its vCPUs by futexes in the file.
 *
 * A guest that powers off leaves at that moment of virtual time. A process that dies is
 * found by the watchdogs of the others, after up to a twentieth of a real second: when
 * that is in virtual time depends on what had its turn, but the others go on.
 *
 * A guest of the option background= runs beside the others. When all others have ended,
 * time stands still, and it ends. The span of its report is closed before that, when the
 * last of the others reaches its end mark (span.c).
 *
 * Without the option host= the state is this process's own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vtime.h"

struct host *host;
struct guest *own;
struct vcpu *vcpus;
unsigned int nr_vcpus;
struct counters *counters;

/* By which the main loops are woken. */
static int wake_fds[MAX_GUESTS];

/* A message, and the end: QEMU has not made the machine yet. */
__attribute__((noreturn)) static void give_up(const char *what)
{
	fprintf(stderr, "magpie-vtime: %s (%s)\n", what, strerror(errno));
	exit(1);
}

/* Make the state as it is before any guest has started. */
static void init_state(void)
{
	pthread_mutexattr_t kind;

	pthread_mutexattr_init(&kind);
	if (options.host) {
		pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
	}
	pthread_mutex_init(&host->lock, &kind);
	host->nr_guests = options.guests;
	host->nr_vcpus = options.host_vcpus ? options.host_vcpus : nr_vcpus;
	host->now_ns = EPOCH_NS;
	host->fair_ns = EPOCH_NS;
	for (unsigned int i = 0; i < options.guests; i++) {
		host->guests[i].main_deadline_ns = NEVER;
		host->guests[i].main_hold_ns = EPOCH_NS;
	}
	for (unsigned int i = 0; i < host->nr_vcpus; i++)
		turn_init(&host->vcpus[i]);
	host->is_ready = true;
}

/* Map the file. The process that is first makes the state. */
static void map_file(void)
{
	const int fd = open(options.host, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0 || flock(fd, LOCK_EX) || ftruncate(fd, sizeof(*host)))
		give_up("cannot open the file of host=");
	host = mmap(NULL, sizeof(*host), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (host == MAP_FAILED)
		give_up("cannot map the file of host=");
	if (!host->is_ready)
		init_state();
	/* The mapping keeps the file open, and with it the lock. */
	flock(fd, LOCK_UN);
	close(fd);
}

/* Open the pipe by which this guest's main loop is woken. The process that is first makes it. */
static int open_pipe(unsigned int guest)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s.%u", options.host, guest);
	if (mkfifo(path, 0600) && errno != EEXIST)
		give_up("cannot make a pipe beside the file of host=");
	/* Opened to read as well, so that there is always a reader. */
	fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		give_up("cannot open a pipe beside the file of host=");
	return fd;
}

/* Become one of the host's guests. Called once nr_vcpus and the options are known. */
void guests_init(void)
{
	if (options.host) {
		map_file();
		for (unsigned int i = 0; i < options.guests; i++)
			wake_fds[i] = open_pipe(i);
	} else {
		host = mmap(NULL, sizeof(*host), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (host == MAP_FAILED)
			give_up("no memory");
		init_state();
		wake_fds[0] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		if (wake_fds[0] < 0)
			give_up("cannot make an event counter");
	}
	own = &host->guests[options.guest];
	vcpus = &host->vcpus[options.first_vcpu];
	counters = &own->counters;
	for (unsigned int i = 0; i < nr_vcpus; i++)
		vcpus[i].guest = options.guest;
	own->first_vcpu = options.first_vcpu;
	own->nr_vcpus = nr_vcpus;
	own->is_background = options.background;
	own->weight = options.host_weight;
	own->pid = getpid();
}

/* A guest has ended. Without those that only run beside others, the run may be over. */
void guests_note_end(void)
{
	for (unsigned int i = 0; i < host->nr_guests; i++)
		if (!host->guests[i].is_gone && !host->guests[i].is_background)
			return;
	host->is_over = true;
}

/* Return the file by which this guest's main loop is woken. */
int guests_wake_fd(const struct guest *g)
{
	return wake_fds[g - host->guests];
}

/* Have the guests whose processes have died leave. */
void guests_bury(void)
{
	for (unsigned int i = 0; options.host && i < host->nr_guests; i++) {
		struct guest *g = &host->guests[i];

		if (!g->pid || g->is_gone || !kill(g->pid, 0) || errno != ESRCH)
			continue;
		wakeup_lock();
		if (!g->is_gone)
			turn_leave(g);
		wakeup_unlock();
		wakeup_all();
	}
}

/* Return the time that no vCPU may pass before the main loops have served their next timers. */
int64_t guests_horizon(void)
{
	int64_t end = NEVER;

	for (unsigned int i = 0; i < host->nr_guests; i++) {
		const struct guest *g = &host->guests[i];
		const int64_t t = g->main_state == MAIN_WAITS ? g->main_deadline_ns
							      : g->main_hold_ns;

		if (t < end)
			end = t;
	}
	return end;
}

/* Return true if a main loop works, or is about to. */
bool guests_main_is_active(void)
{
	for (unsigned int i = 0; i < host->nr_guests; i++)
		if (host->guests[i].main_state != MAIN_WAITS)
			return true;
	return false;
}

/* In deterministic mode: return true if this main loop, which was called, may work now. */
bool guests_main_may_work(const struct guest *g)
{
	if (host->running)
		return false;
	for (unsigned int i = 0; i < host->nr_guests; i++) {
		const struct guest *other = &host->guests[i];

		if (other == g)
			continue;
		if (other->main_state == MAIN_BUSY ||
		    (other < g && other->main_state == MAIN_CALLED))
			return false;
	}
	return true;
}
