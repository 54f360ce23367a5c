/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by the self-checks: a clock, a median, and the CPU that a thread runs on.
 */
#ifndef MAGPIE_CHECK_H
#define MAGPIE_CHECK_H

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* For qsort(): compare two doubles. */
static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Return the median. Sorts the values. */
static double median(double *values, int nr)
{
	qsort(values, nr, sizeof(*values), compare);
	return values[nr / 2];
}

/* Let the calling thread run on this CPU only, or end the program. */
static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		fprintf(stderr, "%s: cannot run on CPU %d: %s\n", program_invocation_short_name,
			cpu, strerror(errno));
		exit(2);
	}
}

#endif
