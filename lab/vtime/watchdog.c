// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ends a machine that makes no progress for options.hang_s seconds of real time,
 * and prints the state of each vCPU first. Also writes the report of a running
 * machine on SIGUSR2.
 *
 * A machine makes progress if virtual time or a counter moves. The watchdog
 * counts seconds by sleeping for one at a time, so that it does not take a
 * suspended host for a hang.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vtime.h"

/* Differs from QEMU's own exit code 1, so that a log shows which of the two it was. */
#define EXIT_HANG 86

#define LOOKS_PER_SECOND 20

static volatile sig_atomic_t report_wanted;
static volatile bool is_paused;
static pid_t tid;

/* On SIGUSR2. A signal's handler cannot write the report: sleep_second() does. */
static void want_report(int signal)
{
	(void)signal;
	report_wanted = 1;
}

/*
 * Sleep for a second. Meanwhile write the report if SIGUSR2 asked for it, look for guests whose
 * processes have died, and end this process once the run is over.
 */
static void sleep_second(void)
{
	const struct timespec pause = { .tv_nsec = 1000000000 / LOOKS_PER_SECOND };

	for (int i = 0; i < LOOKS_PER_SECOND; i++) {
		syscall(SYS_nanosleep, &pause, NULL);
		if (report_wanted) {
			report_wanted = 0;
			report_write("running");
		}
		guests_bury();
		if (host->is_over && !own->is_gone) {
			report_write("over");
			_exit(0);
		}
	}
}

/* Return a number that changes when the machine makes progress. */
static uint64_t progress(void)
{
	uint64_t sum = turn_now() + READ_ONCE(counters->turns) + READ_ONCE(counters->host_calls);

	for (unsigned int i = 0; i < nr_vcpus; i++)
		sum += READ_ONCE(vcpus[i].quanta);
	return sum;
}

static const char *const state_names[] = { "off", "idle", "waiting", "working", "ready", "running" };
static const char *const main_names[] = { "busy", "waits", "called" };

/* Print the machine's state, for the watchdog. Takes no lock: a thread that hangs may hold it. */
static void dump(void)
{
	const int64_t now = turn_now();

	fprintf(stderr, "magpie-vtime: virtual time %.9f s, %u of %u turns given, main loop %s",
		(now - EPOCH_NS) / 1e9, host->running, options.turns, main_names[own->main_state]);
	if (own->main_deadline_ns != NEVER)
		fprintf(stderr, ", next timer in %.3f us", (own->main_deadline_ns - now) / 1e3);
	fprintf(stderr, "\n");
	for (size_t i = 0; i < host->nr_guests; i++)
		if (!host->guests[i].pid)
			fprintf(stderr, "magpie-vtime: guest %zu has not started\n", i);
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

/*
 * The watchdog's thread: end QEMU once nothing has moved for hang_s seconds. A
 * machine that only the host can wake, as before the lab sends a command, is no
 * hang.
 */
static void *watch(void *unused)
{
	unsigned int stalled_s = 0;
	uint64_t last = 0;

	(void)unused;
	__atomic_store_n(&tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
	for (;;) {
		const uint64_t now = progress();

		sleep_second();
		if (now != last || is_paused) {
			last = now;
			stalled_s = 0;
			continue;
		}
		if (++stalled_s < options.hang_s)
			continue;
		if (turn_machine_sleeps()) {
			stalled_s = 0;
			continue;
		}
		fprintf(stderr,
			"magpie-vtime: no progress for %u s, giving up. Either this host is stopped "
			"(raise hang=SECONDS), or this is a fault of magpie-vtime: please report "
			"it with these lines.\n",
			stalled_s);
		dump();
		report_write("hang");
		_exit(EXIT_HANG);
	}
	return NULL;
}

/* The machine stands still from here on, and that is no hang. A new watchdog watches again. */
void watchdog_pause(void)
{
	is_paused = true;
}

/* Return the number of the watchdog's thread. */
pid_t watchdog_tid(void)
{
	return __atomic_load_n(&tid, __ATOMIC_ACQUIRE);
}

/* Start the watchdog's thread, and take SIGUSR2. */
void watchdog_start(void)
{
	struct sigaction action = { .sa_handler = want_report, .sa_flags = SA_RESTART };
	sigset_t all, old;
	pthread_t thread;

	is_paused = false;
	sigaction(SIGUSR2, &action, NULL);
	/* The watchdog's thread inherits this mask: signals go to QEMU's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, watch, NULL))
		perror("magpie-vtime: cannot start the watchdog");
	else
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
