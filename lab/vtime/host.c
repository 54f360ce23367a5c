// SPDX-License-Identifier: GPL-2.0-only
/*
 * A host with fewer CPUs than the guest has vCPUs, in virtual time.
 *
 * Each vCPU that wants to execute needs one of the host's physical CPUs. If there is
 * none, the vCPU *waits*: it stands still in the middle of whatever it does, locks
 * held, while virtual time goes on. That is its steal time.
 *
 *	wakes, starts ──▶ a physical CPU is free? ──yes──▶ has it for a slice
 *	                        │ no                           │ halts ──▶ free
 *	                       waits ◀───another waits─────────┤
 *	                        │                              │ slice over, nobody
 *	                        └──────── one is free ──▶      └ waits: goes on
 *
 * Idea: the host's fair scheduler (Linux kernel/sched/fair.c), to which a vCPU is a
 * task. Of the vCPUs that wait, the one that has had least comes next. A vCPU that was
 * idle is owed a slice at most, so sleep earns no more than that. A physical CPU that
 * is free takes any vCPU, as after perfect balancing.
 *
 * Several guests (guests.c) share the physical CPUs, vCPU by vCPU: one with more busy
 * vCPUs gets more, as on a host whose guests are processes without cgroups.
 *
 * What it does not do: preempt a vCPU before its slice is over, weigh vCPUs or guests,
 * charge a switch between vCPUs, or tell the guest: it sees no steal time. The report
 * has the truth.
 *
 * All functions are called under the lock of wakeup.c.
 */
#include "vtime.h"

/* What a vCPU has had, physical time included since it has a physical CPU. */
static int64_t had_ns(const struct vcpu *v)
{
	return v->had_ns + (v->has_physical ? v->local_ns - v->began_ns : 0);
}

/* Return the number of physical CPUs that vCPUs have. */
static unsigned int in_use(void)
{
	unsigned int nr = 0;

	for (unsigned int i = 0; i < host->nr_vcpus; i++)
		nr += host->vcpus[i].has_physical;
	return nr;
}

/* Return the waiting vCPU that has had least, or NULL. */
static struct vcpu *next_waiting(void)
{
	struct vcpu *next = NULL;

	for (unsigned int i = 0; i < host->nr_vcpus; i++) {
		struct vcpu *v = &host->vcpus[i];

		if (v->state == VCPU_WAITING && (!next || v->had_ns < next->had_ns))
			next = v;
	}
	return next;
}

bool host_is_short(void)
{
	return options.physical_cpus && options.physical_cpus < host->nr_vcpus;
}

/*
 * A vCPU that waited has a physical CPU, which is free since @since_ns. even_ns is what the
 * vCPUs have had, as far as it is even: the most with which a vCPU has got a physical CPU. It
 * does not depend on the order in which vCPUs wake at one time.
 */
static void give(struct vcpu *v, int64_t since_ns)
{
	if (v->local_ns < since_ns)
		v->local_ns = since_ns;
	v->steal_ns += v->local_ns - v->waits_since_ns;
	v->has_physical = true;
	v->began_ns = v->local_ns;
	if (host->even_ns < v->had_ns)
		host->even_ns = v->had_ns;
}

/* A vCPU that was idle wants to execute. */
void host_wants(struct vcpu *v)
{
	if (v->had_ns < host->even_ns - options.host_slice_ns)
		v->had_ns = host->even_ns - options.host_slice_ns;
}

/* Return true if a vCPU waits. */
bool host_has_queue(void)
{
	return next_waiting();
}

/* If a physical CPU is free, give it to the next waiting vCPU, and return that one. Else NULL. */
struct vcpu *host_admit(void)
{
	struct vcpu *next = next_waiting();

	if (!next || in_use() == options.physical_cpus)
		return NULL;
	give(next, host->now_ns);
	return next;
}

/* A vCPU gives up its physical CPU, because it halts or because its slice is over. */
void host_leave(struct vcpu *v)
{
	v->had_ns = had_ns(v);
	v->has_physical = false;
}

/* Give the physical CPU that @v has just left to the next waiting vCPU. Return that one, or NULL. */
struct vcpu *host_pass_on(const struct vcpu *v)
{
	struct vcpu *next = next_waiting();

	if (next)
		give(next, v->local_ns);
	return next;
}

/* Return when the vCPU's slice is over, or NEVER if no vCPU waits. */
int64_t host_slice_end(const struct vcpu *v)
{
	if (!host_is_short() || !v->has_physical || !next_waiting())
		return NEVER;
	return v->began_ns + options.host_slice_ns;
}
