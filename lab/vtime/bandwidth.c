// SPDX-License-Identifier: GPL-2.0-only
/*
 * Bandwidth: how many lines a core, an LLC or a node's memory serves in a time.
 *
 * Each of them is a *channel* with a rate. The turns of CPUs that use a channel at the
 * same virtual time are executed one after the other. A time at which the channel is
 * free again, pushed on by each request, would therefore let the CPU whose turn is first
 * go at any speed, and let those after it wait for a window of the first one's requests,
 * even if the channel is hardly used.
 *
 * So each CPU gets a rate of its own for a while. Virtual time is divided into *epochs*,
 * as long as a window. When the first CPU begins an epoch, no CPU can still be in the one
 * before the last, so what all wanted there is known:
 *
 *	epoch	e - 2		e - 1		e
 *		demands known	in progress	each CPU at most at rate(e)
 *
 *	a demand of an epoch	its lines; more than any rate, if the CPU had to wait
 *	rate(e)			the least rate that, with all demands of e - 2 cut to it,
 *				uses the whole channel
 *
 * A CPU that wants less than its share is not delayed by the others, and what it leaves is
 * theirs (max-min fairness). A CPU goes on at its rate by waiting at each line until the
 * one before has passed, but for SLACK of an epoch: its lines need not be evenly spread.
 *
 * For the first two epochs of an overload nobody has a share. What the channel served beyond
 * its rate is a debt, by which the next epochs' rates are lower. A CPU alone never exceeds
 * the channel's rate.
 *
 * The sum of all CPUs does not depend on the order of turns, and a rate only on epochs that
 * are over, so deterministic runs stay identical. Two CPUs on the host share only the
 * channel's lock, once in an epoch.
 */
#include <stdlib.h>

#include "memory.h"

#define NR_EPOCHS 8 /* remembered of each CPU: local times are less apart */
#define LAG 2 /* an epoch's demands are known so many epochs later */
#define SLACK 4 /* a CPU may be ahead of its rate by an epoch divided by this */
#define REPAID 8 /* of a debt, one part of so many in an epoch */
#define ROUNDS 8 /* of the search for a rate: each finds more CPUs below it */

/* The lines that a CPU wanted of a channel in one epoch. */
struct demand {
	int64_t epoch;
	uint32_t lines;
	bool is_cut; /* it had to wait, and would have asked for more */
};

struct user {
	int64_t epoch; /* for which gap_ps is the CPU's rate */
	int64_t gap_ps; /* from one line to the next */
	int64_t due_ps; /* the next line at this rate */
	bool is_known; /* among the channel's users */
	struct demand demands[NR_EPOCHS];
};

struct channel {
	uint32_t lock; /* of all but the entries in users, which are their CPU's */
	uint32_t nr_users;
	double capacity; /* lines in an epoch; 0: no limit */
	double debt; /* lines served beyond the capacity */
	int64_t epoch; /* the last one that began */
	struct {
		int64_t epoch, gap_ps;
	} rates[NR_EPOCHS];
	uint16_t *known;
	struct user *users;
};

static struct channel *of_core, *of_llc, *of_node;
static int64_t epoch_ps;

/* Return what the CPU wanted in that epoch, or NULL if nothing. */
static const struct demand *demand_of(const struct channel *ch, uint32_t user, int64_t epoch)
{
	const struct demand *d = &ch->users[ch->known[user]].demands[epoch % NR_EPOCHS];

	return READ_ONCE(d->epoch) == epoch && READ_ONCE(d->lines) ? d : NULL;
}

/* Return the lines that the channel served in an epoch. */
static double served(const struct channel *ch, int64_t epoch)
{
	double lines = 0;

	for (uint32_t i = 0; i < ch->nr_users; i++) {
		const struct demand *d = demand_of(ch, i, epoch);

		lines += d ? READ_ONCE(d->lines) : 0;
	}
	return lines;
}

/* Bring the debt up to date with the epochs whose demands are known at the begin of this one. */
static void account(struct channel *ch, int64_t epoch)
{
	int64_t from = ch->epoch + 1;

	if (epoch < from)
		return;
	/* Nobody began the epochs that are left out here, so nothing was served in them. */
	if (from < epoch - LAG) {
		ch->debt -= (epoch - LAG - from) * ch->capacity;
		from = epoch - LAG;
	}
	for (int64_t e = from; e <= epoch; e++) {
		ch->debt += served(ch, e - LAG) - ch->capacity;
		if (ch->debt < 0)
			ch->debt = 0;
	}
	ch->epoch = epoch;
}

/*
 * Return the rate, in lines of an epoch, that uses @lines up if each CPU's demand is cut to
 * it, or 0 if all demands together are less.
 */
static double fair_rate(const struct channel *ch, int64_t epoch, double lines)
{
	double rate = 0;

	for (int round = 0; round < ROUNDS; round++) {
		double left = lines;
		uint32_t nr_above = 0;

		for (uint32_t i = 0; i < ch->nr_users; i++) {
			const struct demand *d = demand_of(ch, i, epoch);

			if (!d)
				continue;
			if (READ_ONCE(d->is_cut) || READ_ONCE(d->lines) > rate)
				nr_above++;
			else
				left -= READ_ONCE(d->lines);
		}
		if (!nr_above)
			return 0;
		if (left / nr_above <= rate)
			break;
		rate = left / nr_above;
	}
	return rate;
}

/* Return the time from line to line of each CPU in this epoch. The caller has the channel's lock. */
static int64_t gap_of(struct channel *ch, int64_t epoch)
{
	const int at = epoch % NR_EPOCHS;
	double lines, rate;

	if (ch->rates[at].epoch == epoch)
		return ch->rates[at].gap_ps;
	account(ch, epoch);
	lines = ch->capacity - ch->debt / REPAID;
	if (lines < ch->capacity / 2)
		lines = ch->capacity / 2;
	rate = fair_rate(ch, epoch - LAG, lines);
	if (!rate || rate > ch->capacity)
		rate = ch->capacity;
	ch->rates[at].epoch = epoch;
	ch->rates[at].gap_ps = epoch_ps / rate;
	return ch->rates[at].gap_ps;
}

/* This CPU uses the channel in a new epoch: find its rate. */
static void begin_epoch(struct channel *ch, unsigned int cpu, int64_t epoch)
{
	struct user *u = &ch->users[cpu];
	struct demand *d = &u->demands[epoch % NR_EPOCHS];

	memory_lock(&ch->lock);
	if (!u->is_known) {
		u->is_known = true;
		ch->known[ch->nr_users++] = cpu;
	}
	u->gap_ps = gap_of(ch, epoch);
	memory_unlock(&ch->lock);
	u->epoch = epoch;
	WRITE_ONCE(d->lines, 0);
	WRITE_ONCE(d->is_cut, false);
	WRITE_ONCE(d->epoch, epoch);
}

/* A CPU gets a line through the channel now. Return how long the line waits for others. */
static uint64_t pass(struct channel *ch, unsigned int cpu, int64_t now_ps)
{
	const int64_t epoch = now_ps / epoch_ps;
	struct user *u = &ch->users[cpu];
	struct demand *d = &u->demands[epoch % NR_EPOCHS];
	int64_t wait_ps;

	if (!ch->capacity)
		return 0;
	if (u->epoch != epoch)
		begin_epoch(ch, cpu, epoch);
	WRITE_ONCE(d->lines, d->lines + 1);
	wait_ps = u->due_ps - now_ps - epoch_ps / SLACK;
	u->due_ps = (u->due_ps > now_ps ? u->due_ps : now_ps) + u->gap_ps;
	if (wait_ps <= 0)
		return 0;
	WRITE_ONCE(d->is_cut, true);
	return wait_ps;
}

/* Return how long a line that the CPU's LLC serves waits for the LLC's other lines. */
uint64_t bandwidth_of_llc(unsigned int cpu, unsigned int llc, int64_t now_ps)
{
	return pass(&of_llc[llc], cpu, now_ps);
}

/* Return how long a line from memory waits for the other lines of that node's memory. */
uint64_t bandwidth_of_node(unsigned int cpu, unsigned int node, int64_t now_ps)
{
	return pass(&of_node[node], cpu, now_ps);
}

/* Return how long a line from memory waits for the core's other lines. */
uint64_t bandwidth_of_core(unsigned int cpu, unsigned int core, int64_t now_ps)
{
	return pass(&of_core[core], cpu, now_ps);
}

/* Make channels with a rate in bytes per nanosecond; 0: no limit. */
static struct channel *make_channels(unsigned int nr, double bytes_per_ns)
{
	struct channel *all = memory_zeroed(nr * sizeof(*all));

	for (unsigned int i = 0; i < nr && bytes_per_ns; i++) {
		all[i].capacity = bytes_per_ns * options.window_ns / LINE_BYTES;
		all[i].known = memory_zeroed(nr_vcpus * sizeof(*all[i].known));
		all[i].users = memory_zeroed(nr_vcpus * sizeof(*all[i].users));
	}
	return all;
}

void bandwidth_init(void)
{
	const struct memory_options *o = &memory_options;

	epoch_ps = options.window_ns * 1000;
	of_core = make_channels(nr_cores, o->core_bytes_per_ns);
	of_llc = make_channels(o->nr_llcs, o->llc_bytes_per_ns);
	of_node = make_channels(o->nr_nodes, o->node_bytes_per_ns);
}
