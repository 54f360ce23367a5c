// SPDX-License-Identifier: GPL-2.0-only
/*
 * The self-check of the virtual-time machine: measures, inside the guest,
 * whether the machine keeps the time that it promises. It is linked statically
 * and needs only a kernel.
 *
 *	vtime-check MIPS WINDOW_NS SMT_FACTOR
 *
 * Prints one JSON object. Exits with 0 if all checks hold, 1 if one does not, 2
 * for wrong usage. Each figure is a median, because the guest's kernel takes
 * time too (some ten microseconds for a tick at 500 MIPS), which is no error of
 * the machine. A CPU of less capacity than others, by the kernel's word, is slower
 * in proportion. The checks:
 *
 *	loop_alone	a loop of known length on one CPU
 *	loop_all	that loop on one thread of every core at once
 *	loop_siblings	that loop on all threads of all cores: the SMT model
 *	beside_work	that loop on a thread whose sibling is busy (work.c)
 *	sleep		by how much 20 ms of sleep are longer than 10 ms
 *	ipi		membarrier() while another CPU of the process is busy
 */
#define _GNU_SOURCE
#include <linux/membarrier.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define ROUNDS 51
#define LOOP_NS 600000.0 /* with a busy sibling, a quarter of the time between ticks */
#define LOOP_INSNS 300000.0 /* at most, because a fast CPU would take the host long */
#define WAKE_NS 3000.0 /* most time that a barrier takes to wake one of its threads */
#define SETTLE_S 5
#define FULL_CAPACITY 1024 /* of the fastest CPUs, in sysfs' cpu_capacity */
#define MAX_CPUS 1024
#define MAX_LIST 4096 /* characters of sysfs' thread_siblings_list */

struct runner {
	int cpu;
	uint64_t insns;
	uint64_t lead; /* instructions until all threads have been woken */
	double median_ns;
};

static pthread_barrier_t barrier;
static int online[MAX_CPUS], nr_online;
static int first_threads[MAX_CPUS], nr_cores;
static int sibling_of_first = -1;
static double loop_ns;

/* Execute a loop of that many instructions: two a round on both architectures. */
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

/* Pass the time until the next interrupt, see work.c. */
static void work(void)
{
#if defined(__x86_64__)
	__asm__ volatile("nopl 0x4d41574b(%rax)");
#else
	execute(1000);
#endif
}

/* A thread that takes the time of the loop on its CPU, in step with the threads of other CPUs. */
static void *run_loop(void *argument)
{
	struct runner *r = argument;
	double taken[ROUNDS];

	pin(r->cpu);
	for (int i = 0; i < ROUNDS; i++) {
		double start;

		pthread_barrier_wait(&barrier);
		/*
		 * Be busy before and after the measured loop, because beside a
		 * sibling that still sleeps, or is done, a thread runs faster.
		 * A barrier wakes one thread after the other: 160 loops were
		 * 4 % too fast without this.
		 */
		execute(r->lead);
		start = now_ns();
		execute(r->insns);
		taken[i] = now_ns() - start;
		/*
		 * Longer in each round, or the rounds could keep step with the
		 * tick and half of them contain one.
		 */
		execute(r->lead + r->insns / 2 + r->insns * i / ROUNDS);
	}
	r->median_ns = median(taken, ROUNDS);
	return NULL;
}

/* Return how much slower than the fastest CPUs of the machine the kernel says that a CPU is. */
static double slowdown_of(int cpu)
{
	char path[128];
	int capacity = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/cpu_capacity", cpu);
	f = fopen(path, "r");
	if (!f)
		return 1;
	if (fscanf(f, "%d", &capacity) != 1 || capacity <= 0)
		capacity = FULL_CAPACITY;
	fclose(f);
	return FULL_CAPACITY / (double)capacity;
}

/*
 * Return the greatest deviation of any CPU from the predicted time of the fastest CPUs, in percent.
 */
static double loop_deviation(const int *cpus, int nr, uint64_t insns, double predicted_ns)
{
	static struct runner runners[MAX_CPUS];
	static pthread_t threads[MAX_CPUS];
	double worst = 0;

	pthread_barrier_init(&barrier, NULL, nr);
	for (int i = 0; i < nr; i++) {
		runners[i] = (struct runner){
			.cpu = cpus[i],
			.insns = insns,
			.lead = insns / loop_ns * WAKE_NS * nr,
		};
		if (pthread_create(&threads[i], NULL, run_loop, &runners[i])) {
			perror("vtime-check: cannot start a thread");
			exit(2);
		}
	}
	for (int i = 0; i < nr; i++) {
		double deviation;

		pthread_join(threads[i], NULL);
		deviation = (runners[i].median_ns / slowdown_of(cpus[i]) / predicted_ns - 1) * 100;
		if (deviation * deviation > worst * worst)
			worst = deviation;
	}
	pthread_barrier_destroy(&barrier);
	return worst;
}

/* Return how long a sleep of that length takes. */
static double median_sleep(long ns)
{
	const struct timespec request = { .tv_nsec = ns };
	double taken[ROUNDS];

	for (int i = 0; i < ROUNDS; i++) {
		const double start = now_ns();

		nanosleep(&request, NULL);
		taken[i] = now_ns() - start;
	}
	return median(taken, ROUNDS);
}

static volatile bool stop_working;

/* A thread that keeps its CPU busy. */
static void *keep_working(void *argument)
{
	pin(*(int *)argument);
	pthread_barrier_wait(&barrier);
	while (!stop_working)
		work();
	return NULL;
}

/* Keep another CPU busy, until stop_working is set. */
static pthread_t start_working(int *cpu)
{
	pthread_t thread;

	pthread_barrier_init(&barrier, NULL, 2);
	stop_working = false;
	if (pthread_create(&thread, NULL, keep_working, cpu)) {
		perror("vtime-check: cannot start a thread");
		exit(2);
	}
	pthread_barrier_wait(&barrier);
	pthread_barrier_destroy(&barrier);
	execute(1000000);
	return thread;
}

/* loop_deviation() of one CPU while its sibling is busy. */
static double beside_work(int cpu, int sibling, uint64_t insns, double predicted_ns)
{
	pthread_t thread = start_working(&sibling);
	const double deviation = loop_deviation(&cpu, 1, insns, predicted_ns);

	stop_working = true;
	pthread_join(thread, NULL);
	return deviation;
}

/*
 * membarrier() interrupts a CPU that runs a thread of this process, and waits for its
 * answer. Return how long that takes. Without the flag it would look at the run queue of
 * every CPU for such threads, and take longer the more CPUs there are.
 */
static double median_ipi(int from, int to)
{
	double taken[101];
	pthread_t thread;
	bool failed = false;

	if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0)) {
		perror("vtime-check: membarrier");
		return -1;
	}
	pin(from);
	thread = start_working(&to);
	for (int i = 0; i < 101 && !failed; i++) {
		const double start = now_ns();

		failed = syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ,
				 MEMBARRIER_CMD_FLAG_CPU, to);
		taken[i] = now_ns() - start;
		execute(10000);
	}
	stop_working = true;
	pthread_join(thread, NULL);
	if (failed)
		perror("vtime-check: membarrier of one CPU");
	return failed ? -1 : median(taken, 101);
}

/*
 * Return true for the first thread of a core. Also keeps the second thread of
 * the first core.
 */
static bool is_first_thread(int cpu)
{
	char path[128], list[MAX_LIST];
	FILE *f;
	int first = cpu, second = -1;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
		 cpu);
	f = fopen(path, "r");
	if (!f)
		return true;
	if (fgets(list, sizeof(list), f) && sscanf(list, "%d%*[-,]%d", &first, &second) == 2 &&
	    first == online[0])
		sibling_of_first = second;
	fclose(f);
	return first == cpu;
}

/* Fill in the CPUs of this process, and the first thread of each core. */
static void read_topology(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set)) {
		perror("vtime-check: sched_getaffinity");
		exit(2);
	}
	for (int cpu = 0; cpu < CPU_SETSIZE && nr_online < MAX_CPUS; cpu++)
		if (CPU_ISSET(cpu, &set))
			online[nr_online++] = cpu;
	for (int i = 0; i < nr_online; i++)
		if (is_first_thread(online[i]))
			first_threads[nr_cores++] = online[i];
}

static bool is_near(double value, double bound)
{
	return value >= -bound && value <= bound;
}

int main(int argc, char **argv)
{
	const bool has_all = argc == 4;
	const double mips = has_all ? atof(argv[1]) : 0, window_ns = has_all ? atof(argv[2]) : 0;
	const double smt_factor = has_all ? atof(argv[3]) : 0;
	uint64_t insns;
	double alone, all, siblings, beside, sleep_error, ipi = 0;
	bool holds = true;

	if (mips <= 0 || window_ns <= 0 || smt_factor <= 0) {
		fprintf(stderr, "usage: vtime-check MIPS WINDOW_NS SMT_FACTOR\n");
		return 2;
	}
	insns = LOOP_NS * mips / 1000 < LOOP_INSNS ? LOOP_NS * mips / 1000 : LOOP_INSNS;
	loop_ns = insns * 1000.0 / mips;
	prctl(PR_SET_TIMERSLACK, 1);
	read_topology();
	/* The kernel puts off work until after the boot, and a busy worker slows its sibling. */
	sleep(SETTLE_S);

	printf("{\"cpus\": %d, \"cores\": %d", nr_online, nr_cores);
	alone = loop_deviation(first_threads, 1, insns, loop_ns);
	all = loop_deviation(first_threads, nr_cores, insns, loop_ns);
	holds = holds && is_near(alone, 1) && is_near(all, 1);
	printf(", \"loop_alone_percent\": %.3f, \"loop_all_percent\": %.3f", alone, all);
	if (sibling_of_first >= 0) {
		siblings = loop_deviation(online, nr_online, insns, loop_ns / smt_factor);
		beside = beside_work(online[0], sibling_of_first, insns, loop_ns / smt_factor);
		holds = holds && is_near(siblings, 1) && is_near(beside, 1);
		printf(", \"loop_siblings_percent\": %.3f, \"beside_work_percent\": %.3f", siblings,
		       beside);
	}
	sleep_error = median_sleep(20000000) - median_sleep(10000000) - 1e7;
	holds = holds && is_near(sleep_error, window_ns);
	printf(", \"sleep_error_ns\": %.0f", sleep_error);
	if (nr_cores > 1) {
		ipi = median_ipi(first_threads[0], first_threads[nr_cores - 1]);
		holds = holds && ipi >= 0 && ipi <= 2 * window_ns;
		printf(", \"ipi_round_trip_ns\": %.0f", ipi);
	}
	printf(", \"holds\": %s}\n", holds ? "true" : "false");
	return holds ? 0 : 1;
}
