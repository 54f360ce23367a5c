// SPDX-License-Identifier: GPL-2.0-only
/*
 * Perturbation by seed: another schedule of the vCPUs, as legal as the usual one.
 *
 *	turn begins	its window is shorter or longer
 *	turn is free	it goes to any ready vCPU within its window, not to the one furthest behind
 *	turn ends	now and then the vCPU is stopped, as a host that preempts it would
 *	kick		the idle vCPU wakes a little later
 *	timer		is served a little late
 *
 * Every decision is a hash of the seed, of what is decided, and of the moment: the
 * vCPU and its local time. There is no state, so a decision does not depend on how
 * many others came before it, and a machine that is deterministic remains so.
 *
 * All delays are bounded, and lengthen what a real machine's interrupts and hosts
 * delay as well. The clocks stay true: a stopped vCPU has lost the time, as steal time.
 *
 * Off until snapshot.c sets a seed. Then the functions return what the machine does
 * without them.
 */
#include "vtime.h"

/* The kinds of decisions: each has hashes of its own. */
enum decision {
	WINDOW = 1,
	RANK,
	STOP,
	WAKEUP,
	TIMER,
};

/* A vCPU is stopped at the end of one turn of so many. */
#define TURNS_PER_STOP 256

/* Longest stop and shortest window, in windows of the machine. */
#define LONGEST_STOP 128
#define SHORTEST_WINDOW (1.0 / 64)

struct perturbation perturbation;

/* The finalizer of splitmix64: each bit of the result depends on each bit of @x. */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static uint64_t hash(enum decision what, uint64_t which, int64_t at_ns)
{
	return mix(mix(mix(perturbation.seed + what) ^ which) ^ (uint64_t)at_ns);
}

static uint64_t hash_vcpu(enum decision what, const struct vcpu *v)
{
	return hash(what, v - vcpus, v->local_ns);
}

/*
 * Return a number from @least to nearly twice @most, in which small numbers are as frequent as large.
 * @most is @least, doubled some times.
 */
static int64_t spread(uint64_t random, double least, double most)
{
	double x = least;

	/* A random number of doublings, then a random part of the last one. */
	for (uint64_t steps = random >> 56; x < most && steps & 1; steps >>= 1)
		x *= 2;
	return (int64_t)(x * (1 + (double)(random & 0xffffff) / 0x1000000));
}

/* From now on, decide by this seed. */
void perturb_start(uint64_t seed)
{
	perturbation = (struct perturbation){ .is_on = true, .seed = seed };
}

/* Return how far the turn that this vCPU begins now may be ahead of the other vCPUs. */
int64_t perturb_window(const struct vcpu *v)
{
	const double window_ns = options.window_ns;
	uint64_t random;

	if (!perturbation.is_on)
		return options.window_ns;
	random = hash_vcpu(WINDOW, v);
	switch (random & 3) {
	case 0: /* a few instructions: others see what this vCPU does half-way */
		return spread(random, window_ns * SHORTEST_WINDOW, window_ns / 2);
	case 1: /* this vCPU sees late what others do */
		return spread(random, window_ns, 2 * window_ns);
	default:
		return options.window_ns;
	}
}

/* Return the rank of a ready vCPU: of those within their window, the least has the next turn. */
uint64_t perturb_rank(const struct vcpu *v)
{
	return hash_vcpu(RANK, v);
}

/* The turn of this vCPU has ended. Return for how long it is stopped, most often 0. */
int64_t perturb_stop(const struct vcpu *v)
{
	uint64_t random;
	int64_t stop_ns;

	if (!perturbation.is_on)
		return 0;
	random = hash_vcpu(STOP, v);
	/* The vCPU that marked the start is always stopped, so that clocks differ at once. */
	if (perturbation.has_begun && random % TURNS_PER_STOP)
		return 0;
	perturbation.has_begun = true;
	stop_ns = spread(mix(random), options.window_ns, options.window_ns * LONGEST_STOP / 2.0);
	perturbation.stops++;
	perturbation.stopped_ns += stop_ns;
	return stop_ns;
}

/* Return how much later than @at_ns an idle vCPU wakes that is kicked then. */
int64_t perturb_wakeup(const struct vcpu *v, int64_t at_ns)
{
	uint64_t random;

	if (!perturbation.is_on)
		return 0;
	random = hash(WAKEUP, v - vcpus, at_ns);
	return random & 1 ? (int64_t)((random >> 8) % (2 * (uint64_t)options.window_ns)) : 0;
}

/* Return how late the timer that is due then is served. */
int64_t perturb_timer(int64_t deadline_ns)
{
	uint64_t random;

	if (!perturbation.is_on || deadline_ns == NEVER)
		return 0;
	random = hash(TIMER, 0, deadline_ns);
	return random & 1 ? (int64_t)((random >> 8) % (4 * (uint64_t)options.window_ns)) : 0;
}

/* A turn is given: add it to the schedule's fingerprint. */
void perturb_note_turn(const struct vcpu *v)
{
	if (!perturbation.is_on)
		return;
	perturbation.turns++;
	perturbation.schedule =
		mix(mix(perturbation.schedule ^ (uint64_t)(v - vcpus)) ^ (uint64_t)v->local_ns);
}
