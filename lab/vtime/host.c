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
 * What it does not do: preempt a vCPU before its slice is over, weigh vCPUs, charge a
 * switch between vCPUs, or tell the guest: it sees no steal time. The report has the
 * truth.
 *
 * All functions are called under the lock of wakeup.c.
 */
#include "vtime.h"

/* What a vCPU has had, physical time included since it has a physical CPU. */
static int64_t had_ns(const struct vcpu *v)
{
	return v->had_ns + (v->has_physical ? v->local_ns - v->began_ns : 0);
}

/*
 * What the vCPUs have had, as far as it is even: the most with which a vCPU has got a
 * physical CPU. It does not depend on the order in which vCPUs wake at one time.
 */
static int64_t clock_ns;

/* Return the number of physical CPUs that vCPUs have. */
static unsigned int in_use(void)
{
	unsigned int nr = 0;

	for (unsigned int i = 0; i < nr_vcpus; i++)
		nr += vcpus[i].has_physical;
	return nr;
}

/* Return the waiting vCPU that has had least, or NULL. */
static struct vcpu *next_waiting(void)
{
	struct vcpu *next = NULL;

	for (unsigned int i = 0; i < nr_vcpus; i++) {
		struct vcpu *v = &vcpus[i];

		if (v->state == VCPU_WAITING && (!next || v->had_ns < next->had_ns))
			next = v;
	}
	return next;
}

bool host_is_short(void)
{
	return options.physical_cpus && options.physical_cpus < nr_vcpus;
}

/* A vCPU has a physical CPU from its local time on. */
static void give(struct vcpu *v)
{
	v->has_physical = true;
	v->began_ns = v->local_ns;
	if (clock_ns < v->had_ns)
		clock_ns = v->had_ns;
}

/* A vCPU that was idle wants to execute. Return false if it must wait. */
bool host_admit(struct vcpu *v)
{
	if (!host_is_short())
		return true;
	if (v->had_ns < clock_ns - options.host_slice_ns)
		v->had_ns = clock_ns - options.host_slice_ns;
	if (in_use() == options.physical_cpus)
		return false;
	give(v);
	return true;
}

/*
 * A vCPU gives up its physical CPU, because it halts or because its slice is over. Return
 * the waiting vCPU that has the physical CPU now, from the same time on, or NULL.
 */
struct vcpu *host_leave(struct vcpu *v)
{
	struct vcpu *next;

	if (!v->has_physical)
		return NULL;
	v->had_ns = had_ns(v);
	v->has_physical = false;
	next = next_waiting();
	if (!next)
		return NULL;
	if (next->local_ns < v->local_ns)
		next->local_ns = v->local_ns;
	next->steal_ns += next->local_ns - next->waits_since_ns;
	give(next);
	return next;
}

/* Return when the vCPU's slice is over, or NEVER if no vCPU waits. */
int64_t host_slice_end(const struct vcpu *v)
{
	if (!host_is_short() || !v->has_physical || !next_waiting())
		return NEVER;
	return v->began_ns + options.host_slice_ns;
}
