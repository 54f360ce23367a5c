// SPDX-License-Identifier: GPL-2.0-only
/*
 * A fixed load, to see whether the same work takes the same virtual time twice.
 *
 *	vtime-load LOOPS ROUND_TRIPS
 *
 * The first half of the CPUs each execute LOOPS million pinned instructions;
 * the second half are pairs, each pinned, that pass a byte through pipes
 * ROUND_TRIPS times. Prints one JSON object: the virtual nanoseconds until the
 * last loop and the last pair are done, and the sum over all of them.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MAX_CPUS 1024

struct worker {
	int cpu;
	int in, out; /* pipe ends; both -1: a loop */
	int begins; /* the one of a pair that sends first */
	long amount;
	int64_t taken_ns;
};

static pthread_barrier_t barrier;

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void execute(uint64_t insns)
{
	uint64_t rounds = insns / 2;

#if defined(__x86_64__)
	__asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(rounds));
#elif defined(__aarch64__)
	__asm__ volatile("1: subs %0, %0, #1\n\tb.ne 1b" : "+r"(rounds) : : "cc");
#else
#error "no loop of known length for this architecture"
#endif
}

static void pass_byte(const struct worker *w)
{
	char byte = 0;

	if (w->begins && write(w->out, &byte, 1) != 1)
		exit(1);
	if (read(w->in, &byte, 1) != 1)
		exit(1);
	if (!w->begins && write(w->out, &byte, 1) != 1)
		exit(1);
}

static void *work(void *argument)
{
	struct worker *w = argument;
	cpu_set_t set;
	int64_t start;

	CPU_ZERO(&set);
	CPU_SET(w->cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
	pthread_barrier_wait(&barrier);
	start = now_ns();
	if (w->in < 0)
		execute(w->amount * 1000000);
	else
		for (long i = 0; i < w->amount; i++)
			pass_byte(w);
	w->taken_ns = now_ns() - start;
	return NULL;
}

int main(int argc, char **argv)
{
	static struct worker workers[MAX_CPUS];
	static pthread_t threads[MAX_CPUS];
	const int cpus = sysconf(_SC_NPROCESSORS_ONLN), loops = cpus / 2;
	const int nr = loops + (cpus - loops) / 2 * 2;
	int64_t last_loop = 0, last_pair = 0, sum = 0;

	if (argc != 3 || atol(argv[1]) <= 0 || atol(argv[2]) <= 0) {
		fprintf(stderr, "usage: vtime-load LOOPS ROUND_TRIPS\n");
		return 2;
	}
	for (int i = 0; i < nr; i++)
		workers[i] = (struct worker){ i, -1, -1, 0, atol(argv[1]), 0 };
	for (int i = loops; i < nr; i += 2) {
		int there[2], back[2];

		if (pipe(there) || pipe(back)) {
			perror("vtime-load: pipe");
			return 1;
		}
		workers[i] = (struct worker){ i, back[0], there[1], 1, atol(argv[2]), 0 };
		workers[i + 1] = (struct worker){ i + 1, there[0], back[1], 0, atol(argv[2]), 0 };
	}
	sleep(5);
	pthread_barrier_init(&barrier, NULL, nr);
	for (int i = 0; i < nr; i++) {
		if (pthread_create(&threads[i], NULL, work, &workers[i])) {
			perror("vtime-load: cannot start a thread");
			return 1;
		}
	}
	for (int i = 0; i < nr; i++) {
		int64_t *last = workers[i].in < 0 ? &last_loop : &last_pair;

		pthread_join(threads[i], NULL);
		if (workers[i].taken_ns > *last)
			*last = workers[i].taken_ns;
		sum += workers[i].taken_ns;
	}
	printf("{\"loops_ns\": %lld, \"pairs_ns\": %lld, \"sum_ns\": %lld}\n", (long long)last_loop,
	       (long long)last_pair, (long long)sum);
	return 0;
}
