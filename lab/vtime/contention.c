// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lines that several CPUs write by locked instructions at the same time: a contended
 * lock, a shared counter.
 *
 * A turn is executed alone, so a CPU would take such a line once in a turn, and own it
 * for the rest. Of a real machine's many transfers one would be left, and the cost of a
 * fetch_add would not grow with the number of CPUs. To wait until a time at which the
 * line is free does not help: the CPU whose turn is first would find the line free at
 * any time, and those after it would wait for a whole window.
 *
 * So a line that CPUs take from each other is *contended*, and each locked instruction
 * on it is a request. Each CPU's *period*, the mean time from the end of a request to
 * the end of the next one, and which part of it the CPU *rests*, not wanting the line,
 * are known from the recent past. Between two requests of a CPU that rested for @rest,
 * each other CPU makes
 *
 *	n = its part of the time in which it wants the line + @rest / its period
 *
 * requests: one that waited already, or one that came meanwhile. It is at most one,
 * because the line goes round, and at most what the other's period allows: a CPU that
 * does nothing else makes many requests for one of a CPU that comes by seldom. The CPU
 * waits until these are served, for as far as it did not rest. Then it waits for the line,
 * if the line was taken now, or would have been on a real machine because others want it
 * for most of the time.
 *
 * With k CPUs that do nothing else each request takes k transfers. No CPU waits for what
 * others will do in the same window, so the order of turns hardly matters.
 *
 * While a line is contended, no front may write it, so that every request comes here.
 * A line's entry here has the lock of the line.
 */
#include <stdlib.h>

#include "memory.h"

/* Entries of the table. Lines of one entry have one line lock; the last one contended stays. */
#define NR_ENTRIES (16 * LINE_LOCKS)
#define MEAN_OF 8 /* a new period counts as one of so many */
/*
 * By how much a CPU's period may be below that of another one that does the same. With 1,
 * a CPU that begins while another one is slow would stay fast for long.
 */
#define SLACK 2.0
#define MOSTLY 0.5

/* The requests of one CPU for a line. */
struct contender {
	int64_t served_ps; /* end of its last request */
	int64_t period_ps; /* 0: it has made one request */
	int64_t rest_ps; /* of its period: from the end of a request to the next request */
	bool is_active; /* among those of the entry */
};

struct entry {
	uint32_t line; /* plus one; 0: none */
	uint32_t nr_active;
	int64_t served_ps; /* the last request of any CPU */
	uint16_t *active; /* the CPUs that make requests */
	struct contender *of_cpu;
};

static struct entry *entries;

static struct entry *entry_of(uint32_t line)
{
	/* Lines with the same offset in different pages are spread over the groups. */
	const uint32_t group = (line / LINE_LOCKS * 0x9e3779b1u) >> 28;

	return &entries[group * LINE_LOCKS + line % LINE_LOCKS];
}

/* Return how long after its last request a CPU with this period still counts. */
static int64_t patience_ps(int64_t period_ps)
{
	return 2 * (options.window_ns * 1000 + period_ps);
}

/*
 * Return true if a CPU still makes requests, as seen by an observing CPU whose period is
 * @period_ps. Local times differ. The observer waits for its period beyond its turn, and may be
 * ahead by as much; if it is behind, the last request is in the future. So the longer of the two
 * periods counts. By its own period alone, a CPU that had just joined, with a short period, was
 * forgotten before each of its turns and never waited: one CPU of 32 made nearly half of the
 * additions.
 */
static bool is_current(const struct contender *c, int64_t now_ps, int64_t period_ps)
{
	return now_ps - c->served_ps <
	       patience_ps(period_ps > c->period_ps ? period_ps : c->period_ps);
}

/*
 * Return true if no front may write this line. The caller does not hold the line's lock, so the
 * answer may be late by one access.
 */
bool contention_is_on(uint32_t line)
{
	const struct entry *e = entry_of(line);

	return memory_options.contention && READ_ONCE(e->line) == line + 1 &&
	       READ_ONCE(e->nr_active) > 1;
}

/* Return the line's entry, or NULL if it has none and is not taken from another CPU now. */
static struct entry *find_entry(uint32_t line, int64_t now_ps, bool is_taken)
{
	struct entry *e = entry_of(line);

	if (e->line == line + 1)
		return e;
	if (!is_taken || (e->line && now_ps - e->served_ps < patience_ps(0)))
		return NULL;
	if (!e->active) {
		e->active = memory_zeroed(nr_vcpus * sizeof(*e->active));
		e->of_cpu = memory_zeroed(nr_vcpus * sizeof(*e->of_cpu));
	}
	for (uint32_t i = 0; i < e->nr_active; i++)
		e->of_cpu[e->active[i]].is_active = false;
	WRITE_ONCE(e->nr_active, 0);
	WRITE_ONCE(e->line, line + 1);
	return e;
}

/* The other CPUs between two requests of one. */
struct others {
	double requests;
	double transfers_ps; /* of their requests */
	double want; /* for which part of the time each wants the line; their sum */
};

/* Return for which part of its period a CPU wants the line. */
static double want(const struct contender *c)
{
	return c->period_ps ? (double)(c->period_ps - c->rest_ps) / c->period_ps : 0;
}

/* Return how many requests a CPU makes between two of another one, which has rested for so long. */
static double requests(const struct contender *other, const struct contender *me, int64_t rest_ps)
{
	const double period_ps = other->period_ps ? other->period_ps : patience_ps(0);
	/* This period is longer or shorter than the mean one by as much as its rest is. */
	const double my_period_ps = me->period_ps + rest_ps - me->rest_ps;
	const double most = SLACK * my_period_ps / period_ps;
	double nr = want(other) + rest_ps / period_ps;

	if (nr > most)
		nr = most;
	return nr < 1 ? nr : 1;
}

/* Return the requests of the other CPUs. Forget the CPUs that make none any more. */
static struct others count_others(struct entry *e, unsigned int cpu, int64_t now_ps,
				  int64_t rest_ps)
{
	struct others o = { 0 };

	for (uint32_t i = e->nr_active; i-- > 0;) {
		const unsigned int other = e->active[i];
		struct contender *c = &e->of_cpu[other];
		double n;

		if (other == cpu)
			continue;
		if (!is_current(c, now_ps, e->of_cpu[cpu].period_ps)) {
			c->is_active = false;
			e->active[i] = e->active[e->nr_active - 1];
			WRITE_ONCE(e->nr_active, e->nr_active - 1);
			continue;
		}
		n = requests(c, &e->of_cpu[cpu], rest_ps);
		o.requests += n;
		o.transfers_ps += n * memory_transfer_ps(cpu, other);
		o.want += want(c);
	}
	return o;
}

/* A first request: the CPU is one of the contenders from now on. */
static void join(struct entry *e, unsigned int cpu, int64_t served_ps)
{
	if (!e->of_cpu[cpu].is_active) {
		e->active[e->nr_active] = cpu;
		WRITE_ONCE(e->nr_active, e->nr_active + 1);
	}
	e->of_cpu[cpu] = (struct contender){ .served_ps = served_ps, .is_active = true };
}

/* Return a mean that takes a new value into account. Its first value is the mean. */
static int64_t mean_with(int64_t mean, int64_t value)
{
	return mean ? mean + (value - mean) / MEAN_OF : value;
}

/*
 * A locked instruction of this CPU, which has the line now. Return how long it waits for
 * other CPUs, beyond the @latency_ps that it is charged anyway. @is_taken: another CPU
 * had the line. The caller holds the line's lock.
 */
uint64_t contention_wait(unsigned int cpu, uint32_t line, int64_t now_ps, bool is_taken,
			 uint64_t latency_ps)
{
	struct entry *e = find_entry(line, now_ps, is_taken);
	struct contender *me;
	struct others others;
	int64_t rest_ps;
	double wait_ps = 0;

	if (!e)
		return 0;
	me = &e->of_cpu[cpu];
	e->served_ps = now_ps + latency_ps;
	if (!me->is_active || !is_current(me, now_ps, me->period_ps)) {
		join(e, cpu, now_ps + latency_ps);
		return 0;
	}
	rest_ps = now_ps - me->served_ps;
	others = count_others(e, cpu, now_ps, rest_ps);
	if (others.transfers_ps > rest_ps)
		wait_ps = others.transfers_ps - rest_ps;
	if (!is_taken && others.want > MOSTLY)
		wait_ps += others.transfers_ps / (others.requests > 1 ? others.requests : 1);

	me->served_ps = now_ps + latency_ps + wait_ps;
	me->period_ps = mean_with(me->period_ps, rest_ps + latency_ps + wait_ps);
	me->rest_ps = mean_with(me->rest_ps, rest_ps);
	return wait_ps;
}

void contention_init(void)
{
	entries = memory_zeroed(NR_ENTRIES * sizeof(*entries));
}
