// SPDX-License-Identifier: GPL-2.0-only
/*
 * Marks the part of a run that `magpie lab fuzz` repeats with many seeds.
 *
 *	vtime-mark begin	prints a number that differs from seed to seed
 *	vtime-mark end		the seed's run is over
 *
 * On other machines both do nothing. See lab/vtime/snapshot.c.
 */
#include <stdint.h>
#include <stdio.h>
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
	if (argc == 2 && !strcmp(argv[1], "end")) {
		/* The machine ends at the mark: have all output on the console before. */
		tcdrain(STDERR_FILENO);
		__asm__ volatile("nopl 0x4d41574d(%%rax)" ::: "memory");
		return 0;
	}
	fprintf(stderr, "usage: vtime-mark begin | end\n");
	return 2;
}
