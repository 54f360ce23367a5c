// SPDX-License-Identifier: GPL-2.0-only
/*
 * A host with fewer CPUs than the guests have vCPUs, in virtual time.
 *
 * Each vCPU that wants to execute needs one of the host's physical CPUs. If there is
 * none, the vCPU *waits*: it stands still in the middle of whatever it does, locks
 * held, while virtual time goes on. That is its steal time.
 *
 *	wakes, starts ──▶ a physical CPU is free? ──yes──▶ has it for a request
 *	                        │ no                           │ halts ──▶ free
 *	                       waits ◀───another comes first───┤
 *	                        │                              │ request over, or preempted,
 *	                        └──────── one is free ──▶      └ and no other comes first: goes on
 *
 * Idea: EEVDF, the host's fair scheduler (Linux kernel/sched/fair.c), to which a vCPU is a
 * task. Of each vCPU that wants to execute the host knows two things:
 *
 *	share	which part of a physical CPU is fair
 *	lag	what it would have had by its share until now, minus what it has had
 *
 * A vCPU may come next if its lag is not negative, and of those the one with the earliest deadline
 * does: the time at which its request, a slice, would be done if it executed by its share alone. A
 * vCPU that wakes and would come next preempts one that has had more than its share. The lags of
 * all that want to execute are zero together, so nobody owes for time that nobody else wanted. A
 * vCPU that sleeps keeps what it is owed, up to a slice, and does not get more by that. What it
 * owes shrinks as if it waited.
 *
 * Shares: each guest has a weight, as a virtual machine in a cgroup of its own has in cpu.weight.
 * The vCPUs of a guest that want to execute divide it, so a guest with few of them gets no less
 * than one with many, up to a physical CPU for each. Without cgroups= each vCPU has the whole
 * weight.
 *
 * What it does not do: say which physical CPU wakes or preempts (all vCPUs are in one queue, as
 * after perfect balancing), charge a switch between vCPUs, or tell the guest: it sees no steal
 * time. The report has the truth.
 *
 * All functions are called under the lock of wakeup.c. vCPUs that leave or wake while a main loop
 * works do so in any order, so nothing here but settle() depends on what the others do.
 */
#include "vtime.h"

bool host_is_short(void)
{
	return options.physical_cpus && options.physical_cpus < host->nr_vcpus;
}

static bool wants(const struct vcpu *v)
{
	return v->has_physical || v->state == VCPU_WAITING;
}

/* Return which part of a physical CPU is fair for the vCPU. */
static double share(const struct vcpu *v)
{
	return host->guests[v->guest].share;
}

/* Return when the vCPU's request would be done, if it executed by its share alone, from now, ns. */
static double deadline(const struct vcpu *v)
{
	return (v->left_ns - v->lag_ns) / share(v);
}

/*
 * Divide the physical CPUs among the vCPUs that take part, by the weights of their guests. No vCPU
 * can use more than one: what it leaves is the others'.
 */
static void divide(void)
{
	unsigned int nr[MAX_GUESTS] = { 0 };
	double left = options.physical_cpus, sum;
	bool is_whole[MAX_GUESTS] = { false }, is_done;

	for (unsigned int i = 0; i < host->nr_vcpus; i++)
		nr[host->vcpus[i].guest] += host->vcpus[i].takes_part;
	do {
		sum = 0;
		is_done = true;
		for (unsigned int i = 0; i < host->nr_guests; i++)
			if (nr[i] && !is_whole[i])
				sum += host->guests[i].weight * (options.host_cgroups ? 1 : nr[i]);
		for (unsigned int i = 0; i < host->nr_guests; i++) {
			struct guest *g = &host->guests[i];
			double part;

			if (!nr[i] || is_whole[i])
				continue;
			part = left * g->weight / sum / (options.host_cgroups ? nr[i] : 1);
			g->share = part;
			if (part < 1)
				continue;
			g->share = 1;
			is_whole[i] = true;
			is_done = false;
		}
		left = options.physical_cpus;
		for (unsigned int i = 0; i < host->nr_guests; i++)
			left -= is_whole[i] ? nr[i] : 0;
	} while (!is_done && left > 0);
}

/* A vCPU's request is over: it asks for the next slice. */
static void renew(struct vcpu *v)
{
	if (v->left_ns <= 0)
		v->left_ns = options.host_slice_ns;
}

/* Charge the vCPU for what it has had of its physical CPU. */
static void charge(struct vcpu *v)
{
	const int64_t had = v->local_ns - v->began_ns;

	v->lag_ns -= had;
	v->left_ns -= had;
	v->began_ns = v->local_ns;
}

/* A vCPU begins to take part. */
static void join(struct vcpu *v)
{
	v->takes_part = true;
	v->has_woken = true;
	v->left_ns = options.host_slice_ns;
}

/* A vCPU has stopped wanting to execute. */
static void sleep_with_lag(struct vcpu *v)
{
	v->takes_part = false;
	v->left_at_ns = host->fair_ns;
	if (v->lag_ns > options.host_slice_ns)
		v->lag_ns = options.host_slice_ns;
	if (v->lag_ns < -options.host_slice_ns)
		v->lag_ns = -options.host_slice_ns;
}

/* What a vCPU owed when it fell asleep has shrunk since. */
static void forgive(struct vcpu *v)
{
	if (v->lag_ns < 0) {
		v->lag_ns += (host->fair_ns - v->left_at_ns) * share(v);
		if (v->lag_ns > 0)
			v->lag_ns = 0;
	}
	v->left_at_ns = 0;
}

/* Bring the lags up to date: those that took part until now, and then those that do from now on. */
static void settle(void)
{
	int64_t now_ns = host->fair_ns > host->now_ns ? host->fair_ns : host->now_ns;
	double lags = 0, shares = 0;
	bool is_contested = false;

	for (unsigned int i = 0; i < host->nr_vcpus; i++) {
		const struct vcpu *v = &host->vcpus[i];

		if (!v->takes_part)
			continue;
		is_contested |= v->state == VCPU_WAITING;
		if (v->local_ns > now_ns)
			now_ns = v->local_ns;
	}
	for (unsigned int i = 0; i < host->nr_vcpus; i++) {
		struct vcpu *v = &host->vcpus[i];

		if (v->takes_part)
			v->lag_ns += (now_ns - host->fair_ns) * share(v);
		if (v->has_physical)
			charge(v);
		/* Nobody asks whether it is over while nobody waits. */
		if (!is_contested)
			renew(v);
	}
	host->fair_ns = now_ns;
	for (unsigned int i = 0; i < host->nr_vcpus; i++) {
		struct vcpu *v = &host->vcpus[i];

		if (v->takes_part && !wants(v))
			sleep_with_lag(v);
		else if (!v->takes_part && wants(v))
			join(v);
	}
	divide();
	for (unsigned int i = 0; i < host->nr_vcpus; i++) {
		struct vcpu *v = &host->vcpus[i];

		if (!v->takes_part)
			continue;
		if (v->left_at_ns)
			forgive(v);
		lags += v->lag_ns;
		shares += share(v);
	}
	for (unsigned int i = 0; i < host->nr_vcpus; i++)
		if (host->vcpus[i].takes_part)
			host->vcpus[i].lag_ns -= lags * share(&host->vcpus[i]) / shares;
}

/* Return the physical CPU that is free for longest, or -1. */
static int free_physical(void)
{
	bool is_used[MAX_VCPUS] = { false };
	int physical = -1;

	for (unsigned int i = 0; i < host->nr_vcpus; i++)
		if (host->vcpus[i].has_physical)
			is_used[host->vcpus[i].physical] = true;
	for (unsigned int i = 0; i < options.physical_cpus; i++)
		if (!is_used[i] &&
		    (physical < 0 || host->free_since_ns[i] < host->free_since_ns[physical]))
			physical = i;
	return physical;
}

/* Return the waiting vCPU that comes next, or NULL. One that has had too much does if no other waits. */
static struct vcpu *next_waiting(void)
{
	struct vcpu *next = NULL;

	for (unsigned int i = 0; i < host->nr_vcpus; i++) {
		struct vcpu *v = &host->vcpus[i];

		if (v->state != VCPU_WAITING)
			continue;
		if (!next || (v->lag_ns >= 0) > (next->lag_ns >= 0) ||
		    ((v->lag_ns >= 0) == (next->lag_ns >= 0) && deadline(v) < deadline(next)))
			next = v;
	}
	return next;
}

/* Return true if a vCPU waits. */
bool host_has_queue(void)
{
	for (unsigned int i = 0; i < host->nr_vcpus; i++)
		if (host->vcpus[i].state == VCPU_WAITING)
			return true;
	return false;
}

/* If a physical CPU is free, give it to the next waiting vCPU, and return that one. Else NULL. */
struct vcpu *host_admit(void)
{
	struct vcpu *v;
	int64_t since_ns;
	int physical;

	if (!host_has_queue())
		return NULL;
	physical = free_physical();
	if (physical < 0)
		return NULL;
	settle();
	v = next_waiting();
	since_ns = host->free_since_ns[physical];
	if (since_ns < host->now_ns)
		since_ns = host->now_ns;
	if (v->local_ns < since_ns)
		v->local_ns = since_ns;
	v->steal_ns += v->local_ns - v->waits_since_ns;
	v->has_physical = true;
	v->physical = physical;
	v->is_preempted = false;
	v->began_ns = v->local_ns;
	return v;
}

/* Have a vCPU that has woken and comes next preempt the one that has had most beyond its share. */
void host_preempt(void)
{
	struct vcpu *next, *most = NULL;
	bool has_woken;

	settle();
	next = next_waiting();
	has_woken = next && next->has_woken && next->lag_ns >= 0;
	for (unsigned int i = 0; i < host->nr_vcpus; i++) {
		struct vcpu *v = &host->vcpus[i];

		v->has_woken = false;
		if (v->has_physical && v->lag_ns < 0 && !v->is_preempted &&
		    (!most || v->lag_ns / share(v) < most->lag_ns / share(most)))
			most = v;
	}
	if (has_woken && most)
		most->is_preempted = true;
}

/* A vCPU gives up its physical CPU, because it halts or because its request is over. */
void host_leave(struct vcpu *v)
{
	charge(v);
	renew(v);
	v->has_physical = false;
	host->free_since_ns[v->physical] = v->local_ns;
}

/* Return when the vCPU's slice is over, or NEVER if no vCPU waits. */
int64_t host_slice_end(const struct vcpu *v)
{
	if (!host_is_short() || !v->has_physical || !host_has_queue())
		return NEVER;
	return v->is_preempted ? v->local_ns : v->began_ns + v->left_ns;
}
