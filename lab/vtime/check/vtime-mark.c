// SPDX-License-Identifier: GPL-2.0-only
/*
 * Marks the part of a run that `magpie lab fuzz` repeats with many seeds, or that the report of
 * `magpie lab host` is about.
 *
 *	vtime-mark begin	prints a number that differs from seed to seed
 *	vtime-mark begin S	waits until the guest has run for S seconds, then marks
 *	vtime-mark end		the seed's run is over
 *
 * On other machines a mark does nothing. See lab/vtime/snapshot.c and span.c.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/* Return a number below 10^9 that follows from the time stamp counter. */
static unsigned int number_of_now(void)
{
	uint64_t x = __builtin_ia32_rdtsc();

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return (x ^ x >> 31) % 1000000000;
}

/* Wait until the guest has run for that long. All guests of a host then begin at one time. */
static int begin_at(const char *seconds)
{
	const struct timespec start = { .tv_sec = atoi(seconds) };
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (now.tv_sec >= start.tv_sec) {
		fprintf(stderr,
			"vtime-mark: the guest was ready after %lld.%02ld s, later than the start after "
			"%lld s: raise start_seconds\n",
			(long long)now.tv_sec, now.tv_nsec / 10000000, (long long)start.tv_sec);
		return 1;
	}
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, NULL);
	__asm__ volatile("nopl 0x4d41574c(%%rax)" ::: "memory");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "begin")) {
		const struct timespec moment = { .tv_nsec = 100000 };

		__asm__ volatile("nopl 0x4d41574c(%%rax)" ::: "memory");
		/* The seed's first stop changes the time from here on. */
		nanosleep(&moment, NULL);
		printf("%u\n", number_of_now());
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "begin"))
		return begin_at(argv[2]);
	if (argc == 2 && !strcmp(argv[1], "end")) {
		/* The machine ends at the mark: have all output on the console before. */
		tcdrain(STDERR_FILENO);
		__asm__ volatile("nopl 0x4d41574d(%%rax)" ::: "memory");
		return 0;
	}
	fprintf(stderr, "usage: vtime-mark begin [SECONDS] | end\n");
	return 2;
}
