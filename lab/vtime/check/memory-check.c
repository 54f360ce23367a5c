// SPDX-License-Identifier: GPL-2.0-only
/*
 * Measures inside a guest what memory costs. The program is linked statically and
 * needs only a kernel. The lab compares the figures with the machine's table.
 *
 *	memory-check chase CPU HOME KIB...	a random walk through memory of each size
 *	memory-check move FROM TO KIB...	the same walk before and after the thread moves
 *						between two CPUs, for each size
 *	memory-check transfer A B		CPU B takes lines that CPU A has written,
 *						beyond what it takes for its own
 *	memory-check copy CPU BYTES...		repeated string stores into L1
 *	memory-check contend CPU CPU...		all add to one word at the same time
 *	memory-check triad KIB CPU...		all sweep through memory of that size each,
 *						as STREAM's triad does
 *
 *	memory-check pages CPU PAGES...		a random walk through one line of each page
 *	memory-check syscall CPU CALLS		the shortest system call
 *	memory-check code CPU random|straight KIB	a jump from line to line of code
 *
 * Each line of output is one figure in nanoseconds, in the order of the arguments: of one load, of
 * one compare-and-swap, of one string instruction, of one addition of each CPU, of one system call,
 * of one jump. The triad's is in bytes per nanosecond, of all CPUs together. Exits with 2 for wrong
 * usage.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

#define LINE 64
#define PAGE 4096
#define HUGE_PAGE (2UL << 20)
#define ROUNDS 51
#define HANDOVERS 1001 /* longer together than the kernel's other work, so a median is right */
#define LEAST_LOADS 32768
/* A tick takes a tenth of the shortest walk: the median of so many parts has none. */
#define PARTS 9
#define MOVES 3
#define LINES 64 /* of a transfer: few, so that L1 keeps them */
#define MAX_ADDERS 1024
#define ADDITIONS 200 /* of a CPU between two looks at the clock */
#define JUMPS (1 << 19)
#define SWEEPS 4 /* of the triad, after one that is not measured */

/* The next number of a fixed sequence (xorshift), so that each run walks the same way. */
static uint64_t random_number(void)
{
	static uint64_t state = 88172645463325252ULL;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Memory in huge pages, so that its lines fill the sets of all caches evenly. */
static char *allocate(size_t bytes)
{
	const size_t size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	char *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);

	if (p == MAP_FAILED) {
		perror("memory-check: cannot allocate memory");
		exit(2);
	}
	p = (char *)(((uintptr_t)p + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
	madvise(p, size, MADV_HUGEPAGE);
	memset(p, 0, size);
	return p;
}

/* The first numbers, in random order. */
static void shuffle(uint32_t *order, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		order[i] = i;
	for (size_t i = nr - 1; i > 0; i--) {
		const size_t j = random_number() % i;
		const uint32_t other = order[i];

		order[i] = order[j];
		order[j] = other;
	}
}

/* One cycle through all lines, in random order: each has the address of the next. */
static void **make_cycle(char *memory, size_t lines)
{
	uint32_t *order = malloc(lines * sizeof(*order));

	shuffle(order, lines);
	for (size_t i = 0; i < lines; i++)
		*(void **)(memory + (size_t)order[i] * LINE) =
			memory + (size_t)order[(i + 1) % lines] * LINE;
	free(order);
	return (void **)memory;
}

/* The line of a page that is used: the next one in the next page. */
static void **line_in_page(char *memory, size_t page)
{
	return (void **)(memory + page * PAGE + page * LINE % PAGE);
}

#define LOAD "mov (%0), %0\n\t"
#define LOADS LOAD LOAD LOAD LOAD LOAD LOAD LOAD LOAD

/* Eight loads at a time, so that the loop's own instructions cost little. */
static void **walk(void **p, size_t loads)
{
	for (size_t i = 0; i < loads; i += 8)
#if defined(__x86_64__)
		__asm__ volatile(LOADS : "+r"(p) : : "memory");
#else
		for (int n = 0; n < 8; n++)
			p = *(void *volatile *)p;
#endif
	return p;
}

/* Print the time of a load, for each number of small pages, of which each has one line. */
static int pages(int cpu, int nr, char **numbers)
{
	pin(cpu);
	for (int i = 0; i < nr; i++) {
		const size_t count = strtoull(numbers[i], NULL, 10), loads = 32 * count;
		uint32_t *order = malloc(count * sizeof(*order));
		char *memory = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		double start;
		void **p;

		if (memory == MAP_FAILED || madvise(memory, count * PAGE, MADV_NOHUGEPAGE)) {
			perror("memory-check: cannot allocate memory");
			return 2;
		}
		shuffle(order, count);
		/* Another line in each page, so that they fill the sets of all caches. */
		for (size_t n = 0; n < count; n++)
			*line_in_page(memory, order[n]) =
				line_in_page(memory, order[(n + 1) % count]);
		p = walk(line_in_page(memory, order[0]), 2 * count);
		start = now_ns();
		p = walk(p, loads);
		printf("%.3f\n", (now_ns() - start) / loads);
		munmap(memory, count * PAGE);
		free(order);
	}
	return 0;
}

/* Print the time of a load, for each size. The memory's home is the node of the CPU @home. */
static int chase(int cpu, int home, int nr, char **kib)
{
	for (int i = 0; i < nr; i++) {
		const size_t bytes = strtoull(kib[i], NULL, 10) * 1024, lines = bytes / LINE;
		const size_t loads = (lines > LEAST_LOADS ? lines : LEAST_LOADS) / PARTS / 8 * 8;
		double taken[PARTS];
		char *memory;
		void **p;

		/* The kernel takes the memory of the node of the CPU that touches it first. */
		pin(home);
		memory = allocate(bytes);
		p = make_cycle(memory, lines);
		pin(cpu);
		p = walk(p, 2 * lines);
		for (int n = 0; n < PARTS; n++) {
			const double start = now_ns();

			p = walk(p, loads);
			taken[n] = (now_ns() - start) / loads;
		}
		printf("%.3f\n", median(taken, PARTS));
		munmap(memory, bytes);
	}
	return 0;
}

/*
 * Print the time of a load on CPU @from, to which the lines belong, and then on CPU @to, for each
 * size.
 */
static int move(int from, int to, int nr, char **kib)
{
	for (int i = 0; i < nr; i++) {
		const size_t bytes = strtoull(kib[i], NULL, 10) * 1024, lines = bytes / LINE;
		double before[MOVES], after[MOVES];
		char *memory;
		void **p;

		pin(from);
		memory = allocate(bytes);
		p = make_cycle(memory, lines);
		for (int n = 0; n < MOVES; n++) {
			double start;

			/* Written, because a line that was only read stays on both CPUs. */
			for (size_t line = 0; line < lines; line++)
				((volatile uint64_t *)(memory + line * LINE))[1] = n;
			p = walk(p, lines);
			start = now_ns();
			p = walk(p, lines);
			before[n] = (now_ns() - start) / lines;
			pin(to);
			start = now_ns();
			p = walk(p, lines);
			after[n] = (now_ns() - start) / lines;
			pin(from);
		}
		printf("%.3f\n%.3f\n", median(before, MOVES), median(after, MOVES));
		munmap(memory, bytes);
	}
	return 0;
}

static uint64_t *shared;
static int giver_cpu;
/* How often the lines were handed over. Even: the giver writes them next. */
static uint64_t handovers __attribute__((aligned(2 * LINE)));

/* Write every line once, in an order that no prefetcher follows. */
static void swap_all(void)
{
	for (unsigned int i = 0; i < LINES; i++) {
		uint64_t *word = &shared[i * 37 % LINES * (LINE / sizeof(*shared))];
		uint64_t value = 0;

		__atomic_compare_exchange_n(word, &value, 0, false, __ATOMIC_SEQ_CST,
					    __ATOMIC_SEQ_CST);
	}
}

/*
 * Return the time of one write. The giver does not read the clock, because a reading
 * here is never before one that another CPU has made.
 */
static double timed_swap(void)
{
	const double start = now_ns();

	swap_all();
	return (now_ns() - start) / LINES;
}

/* Spin, because the kernel of a CPU whose thread sleeps would push the lines out of L1. */
static void await_handover(uint64_t which)
{
	while (__atomic_load_n(&handovers, __ATOMIC_ACQUIRE) != which)
		;
}

static void hand_over(void)
{
	__atomic_fetch_add(&handovers, 1, __ATOMIC_RELEASE);
}

/* The giver's thread: write the lines, so that the taker finds them in this CPU's L1. */
static void *give(void *unused)
{
	(void)unused;
	pin(giver_cpu);
	for (uint64_t i = 0; i < HANDOVERS; i++) {
		await_handover(2 * i);
		swap_all();
		hand_over();
	}
	return NULL;
}

/* Print the time of a write to a line that another CPU has, beyond that of a write in L1. */
static int transfer(int from, int to)
{
	double taken[HANDOVERS], own[HANDOVERS];
	pthread_t giver;

	shared = (uint64_t *)allocate(LINES * LINE);
	giver_cpu = from;
	pin(to);
	if (pthread_create(&giver, NULL, give, NULL)) {
		perror("memory-check: cannot start a thread");
		return 2;
	}
	for (uint64_t i = 0; i < HANDOVERS; i++) {
		await_handover(2 * i + 1);
		taken[i] = timed_swap();
		/* Again, now that the lines are here: what the loop and the clock cost. */
		own[i] = timed_swap();
		hand_over();
	}
	pthread_join(giver, NULL);
	printf("%.3f\n", median(taken, HANDOVERS) - median(own, HANDOVERS));
	return 0;
}

/* Clear memory by one string instruction. */
static void clear(char *to, size_t bytes)
{
#if defined(__x86_64__)
	__asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(0) : "memory");
#else
	memset(to, 0, bytes);
#endif
}

/* Print the time of a string instruction, for each number of bytes. */
static int copy(int cpu, int nr, char **sizes)
{
	pin(cpu);
	for (int i = 0; i < nr; i++) {
		const size_t bytes = strtoull(sizes[i], NULL, 10);
		char *to = allocate(bytes);
		double taken[ROUNDS], clock[ROUNDS];

		for (int r = 0; r < ROUNDS; r++) {
			const double start = now_ns(), between = now_ns();

			clear(to, bytes);
			taken[r] = now_ns() - between;
			clock[r] = between - start;
		}
		printf("%.3f\n", median(taken, ROUNDS) - median(clock, ROUNDS));
		munmap(to, bytes);
	}
	return 0;
}

/* Each has a line of its own. */
static uint64_t counter __attribute__((aligned(2 * LINE)));
static uint64_t nr_ready __attribute__((aligned(2 * LINE)));
static bool has_measured __attribute__((aligned(2 * LINE)));

/* A thread that adds to the counter until the figure is there. */
static void *add_as_well(void *cpu)
{
	pin(*(int *)cpu);
	__atomic_fetch_add(&nr_ready, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&has_measured, __ATOMIC_RELAXED))
		__atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED);
	return NULL;
}

/*
 * Return what an addition takes each of the threads. A median of the rounds in which
 * others added, because a CPU is alone with the counter while the others are interrupted.
 */
static double add(int nr_threads)
{
	double taken[ROUNDS];
	int nr = 0;

	for (int tries = 0; nr < ROUNDS && tries < 1000 * ROUNDS; tries++) {
		const double start = now_ns();
		const uint64_t before = counter;

		for (int i = 0; i < ADDITIONS; i++)
			__atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED);
		if (counter - before > ADDITIONS)
			taken[nr++] = (now_ns() - start) * nr_threads / (counter - before);
	}
	return nr ? median(taken, nr) : 0;
}

/* Print the time of an addition to a word to which all these CPUs add. */
static int contend(int nr, char **arguments)
{
	static int cpus[MAX_ADDERS];
	static pthread_t threads[MAX_ADDERS];

	if (nr > MAX_ADDERS)
		nr = MAX_ADDERS;
	pin(atoi(arguments[0]));
	for (int i = 1; i < nr; i++) {
		cpus[i] = atoi(arguments[i]);
		if (pthread_create(&threads[i], NULL, add_as_well, &cpus[i])) {
			perror("memory-check: cannot start a thread");
			return 2;
		}
	}
	while (__atomic_load_n(&nr_ready, __ATOMIC_ACQUIRE) < (uint64_t)nr - 1)
		;
	printf("%.3f\n", add(nr));
	__atomic_store_n(&has_measured, true, __ATOMIC_RELAXED);
	for (int i = 1; i < nr; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

/* Two words at once, as compilers make of STREAM's loops. */
typedef uint64_t pair __attribute__((vector_size(16)));

/* A thread of the triad: its CPU, its memory, and when it has measured. */
struct sweeper {
	int cpu;
	size_t pairs; /* of each of its three arrays */
	double start_ns, end_ns;
};

static unsigned int nr_sweepers;

/* Wait until all threads of the triad are here, for the first, second, ... time. */
static void meet(unsigned int time)
{
	__atomic_fetch_add(&nr_ready, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&nr_ready, __ATOMIC_ACQUIRE) < (uint64_t)nr_sweepers * time)
		;
}

/* a = b + 4 * c. Integers, because the emulator's are faster; the bytes count. */
__attribute__((noinline)) static void sweep(pair *a, const pair *b, const pair *c, size_t pairs)
{
	for (size_t i = 0; i < pairs; i += 4) {
		a[i] = b[i] + (c[i] << 2);
		a[i + 1] = b[i + 1] + (c[i + 1] << 2);
		a[i + 2] = b[i + 2] + (c[i + 2] << 2);
		a[i + 3] = b[i + 3] + (c[i + 3] << 2);
	}
}

static void *sweep_all(void *argument)
{
	struct sweeper *s = argument;
	pair *a;

	/* The kernel takes the memory of the node of the CPU that touches it first. */
	pin(s->cpu);
	a = (pair *)allocate(3 * s->pairs * sizeof(*a));
	sweep(a, a + s->pairs, a + 2 * s->pairs, s->pairs);
	meet(1);
	s->start_ns = now_ns();
	for (int i = 0; i < SWEEPS; i++)
		sweep(a, a + s->pairs, a + 2 * s->pairs, s->pairs);
	s->end_ns = now_ns();
	meet(2);
	return NULL;
}

/* Print the bytes that all CPUs together read and write in a nanosecond. */
static int triad(size_t kib, int nr, char **cpus)
{
	static struct sweeper sweepers[MAX_ADDERS];
	static pthread_t threads[MAX_ADDERS];
	/* Whole lines, as many of each array. */
	const size_t pairs = kib * 1024 / 3 / LINE * LINE / sizeof(pair);
	double start_ns, end_ns;

	nr_sweepers = nr = nr > MAX_ADDERS ? MAX_ADDERS : nr;
	for (int i = 0; i < nr; i++) {
		sweepers[i] = (struct sweeper){ .cpu = atoi(cpus[i]), .pairs = pairs };
		if (pthread_create(&threads[i], NULL, sweep_all, &sweepers[i])) {
			perror("memory-check: cannot start a thread");
			return 2;
		}
	}
	for (int i = 0; i < nr; i++)
		pthread_join(threads[i], NULL);
	start_ns = sweepers[0].start_ns;
	end_ns = sweepers[0].end_ns;
	for (int i = 1; i < nr; i++) {
		start_ns = sweepers[i].start_ns < start_ns ? sweepers[i].start_ns : start_ns;
		end_ns = sweepers[i].end_ns > end_ns ? sweepers[i].end_ns : end_ns;
	}
	printf("%.3f\n", 3.0 * SWEEPS * nr * pairs * sizeof(pair) / (end_ns - start_ns));
	return 0;
}

/* Print the time of a system call that does next to nothing. */
static int system_call(int cpu, unsigned long calls)
{
	double start;

	pin(cpu);
	start = now_ns();
	for (unsigned long i = 0; i < calls; i++)
		syscall(SYS_gettid);
	printf("%.3f\n", (now_ns() - start) / calls);
	return 0;
}

#if defined(__x86_64__)
/* Write a jump at *@code to @to, and advance. */
static void put_jump(char **code, const char *to)
{
	const int32_t distance = to - (*code + 5);

	*(*code)++ = (char)0xe9;
	memcpy(*code, &distance, sizeof(distance));
	*code += sizeof(distance);
}

/* Code that jumps through all lines as often as its argument says: the first line counts. */
static void make_code(char *memory, const uint32_t *order, size_t lines)
{
	static const unsigned char count[] = {
		0x48, 0xff, 0xcf, /* dec %rdi */
		0x75, 0x01, /* jnz beyond the ret */
		0xc3, /* ret */
	};

	for (size_t i = 0; i < lines; i++) {
		char *at = memory + (size_t)order[i] * LINE;

		if (order[i] == 0) {
			memcpy(at, count, sizeof(count));
			at += sizeof(count);
		}
		put_jump(&at, memory + (size_t)order[(i + 1) % lines] * LINE);
	}
}

/* Print the time of a jump through code of that size. Each line of it has one. */
static int code(int cpu, bool is_random, size_t kib)
{
	const size_t lines = kib * 1024 / LINE, rounds = JUMPS / lines + 1;
	uint32_t *order = malloc(lines * sizeof(*order));
	char *memory = allocate(lines * LINE);
	void (*run)(uint64_t rounds) = (void (*)(uint64_t))memory;
	double start;

	if (mprotect(memory, lines * LINE, PROT_READ | PROT_WRITE | PROT_EXEC)) {
		perror("memory-check: cannot make code");
		return 2;
	}
	pin(cpu);
	shuffle(order, lines);
	for (size_t i = 0; !is_random && i < lines; i++)
		order[i] = i;
	make_code(memory, order, lines);
	run(3);
	start = now_ns();
	run(rounds);
	printf("%.3f\n", (now_ns() - start) / (rounds * lines));
	return 0;
}
#else
static int code(int cpu, bool is_random, size_t kib)
{
	fprintf(stderr, "memory-check: no code for this processor\n");
	return 2;
}
#endif

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "chase") && argc > 4)
		return chase(atoi(argv[2]), atoi(argv[3]), argc - 4, argv + 4);
	if (!strcmp(what, "move") && argc > 4)
		return move(atoi(argv[2]), atoi(argv[3]), argc - 4, argv + 4);
	if (!strcmp(what, "transfer") && argc == 4)
		return transfer(atoi(argv[2]), atoi(argv[3]));
	if (!strcmp(what, "copy") && argc > 3)
		return copy(atoi(argv[2]), argc - 3, argv + 3);
	if (!strcmp(what, "contend") && argc > 3)
		return contend(argc - 2, argv + 2);
	if (!strcmp(what, "triad") && argc > 3)
		return triad(strtoull(argv[2], NULL, 10), argc - 3, argv + 3);
	if (!strcmp(what, "code") && argc == 5)
		return code(atoi(argv[2]), !strcmp(argv[3], "random"), strtoull(argv[4], NULL, 10));
	if (!strcmp(what, "pages") && argc > 3)
		return pages(atoi(argv[2]), argc - 3, argv + 3);
	if (!strcmp(what, "syscall") && argc == 4)
		return system_call(atoi(argv[2]), strtoul(argv[3], NULL, 10));
	fprintf(stderr,
		"usage: memory-check chase CPU HOME KIB... | move FROM TO KIB... | "
		"transfer A B | copy CPU BYTES... | contend CPU CPU... | triad KIB CPU... | "
		"syscall CPU CALLS | pages CPU PAGES... | code CPU random|straight KIB\n");
	return 2;
}
