// SPDX-License-Identifier: GPL-2.0-only
/*
 * SMT: a CPU whose sibling is busy runs at a fraction of its speed alone.
 *
 * QEMU numbers the threads of a core one after the other. A vCPU looks at its
 * sibling at each quantum end, so each change of the sibling's state is noticed
 * at most a quantum late. Busy means not halted: a guest that polls while idle
 * slows its siblings, as on a real machine.
 */
#include "vtime.h"

static uint32_t alone_ps, shared_ps;

/* Compute the two costs of an instruction from the options. */
void smt_init(void)
{
	alone_ps = 1e6 / options.mips + 0.5;
	shared_ps = 1e6 / options.mips / options.smt_factor + 0.5;
}

/* Return true for a vCPU that is not halted. */
bool smt_is_busy(const struct vcpu *v)
{
	const enum vcpu_state state = READ_ONCE(v->state);

	return state == VCPU_RUNNING || state == VCPU_READY || state == VCPU_WORKING;
}

/* Return true if another thread of the vCPU's core is busy. */
static bool has_busy_sibling(const struct vcpu *v)
{
	const unsigned int index = v - vcpus;
	const unsigned int first = index - index % options.threads;

	for (unsigned int i = first; i < first + options.threads && i < nr_vcpus; i++)
		if (i != index && smt_is_busy(&vcpus[i]))
			return true;
	return false;
}

/* A quantum of this vCPU begins: return the cost of an instruction at its highest frequency. */
uint32_t smt_cost_ps(struct vcpu *v)
{
	v->is_shared = options.threads > 1 && has_busy_sibling(v);
	return v->is_shared ? shared_ps : alone_ps;
}
