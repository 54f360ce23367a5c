// SPDX-License-Identifier: GPL-2.0-only
/*
 * Marks the part of a run that `magpie lab fuzz` repeats with many seeds, or that the report of
 * `magpie lab host` is about.
 *
 *	vtime-mark begin	prints a number that differs from seed to seed
 *	vtime-mark begin S	waits until the run is S seconds old, then marks
 *	vtime-mark now		prints how old the run is, in nanoseconds
 *	vtime-mark end		the seed's run is over
 *
 * On other machines a mark does nothing, and `now` means nothing. See lab/vtime/snapshot.c and
 * span.c.
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

/* The rate of the time stamp counter, which all guests of a host read alike. */
#define TICKS_PER_NS 2

/* Return how old the run is: the same in all guests of a host. */
static uint64_t run_ns(void)
{
	return __builtin_ia32_rdtsc() / TICKS_PER_NS;
}

/*
 * Wait until the run is that old. All guests of a host then begin at one time. Their own clocks
 * differ by what each had of the host before its kernel set its clock.
 */
static int begin_at(const char *seconds)
{
	const uint64_t start_ns = strtod(seconds, NULL) * 1e9;
	uint64_t now_ns = run_ns();

	if (now_ns >= start_ns) {
		fprintf(stderr,
			"vtime-mark: the guest was ready %.2f s after the beginning of the run, later "
			"than the start after %s s: raise start_seconds\n",
			now_ns / 1e9, seconds);
		return 1;
	}
	while (now_ns < start_ns) {
		const uint64_t left_ns = start_ns - now_ns;
		const struct timespec pause = { .tv_sec = left_ns / 1000000000,
						.tv_nsec = left_ns % 1000000000 };

		nanosleep(&pause, NULL);
		now_ns = run_ns();
	}
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
	if (argc == 2 && !strcmp(argv[1], "now")) {
		printf("%llu\n", (unsigned long long)run_ns());
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "end")) {
		/* The machine ends at the mark: have all output on the console before. */
		tcdrain(STDERR_FILENO);
		__asm__ volatile("nopl 0x4d41574d(%%rax)" ::: "memory");
		return 0;
	}
	fprintf(stderr, "usage: vtime-mark begin [SECONDS] | now | end\n");
	return 2;
}
