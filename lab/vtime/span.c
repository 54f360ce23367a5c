// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a guest of a shared host had between its two marks, which are around what is
 * measured: its report tells that apart from the boot. A guest in the background, which
 * runs until it is ended, is measured until the last other guest reaches its end mark:
 * the others still stop their schedulers and power off then, which leaves it the host.
 */
#include "vtime.h"

/* Return what the vCPUs of @g had until @now_ns. All but the caller's rest. */
static struct span until(const struct guest *g, int64_t now_ns)
{
	struct span sum = { .end_ns = now_ns };

	for (unsigned int i = 0; i < g->nr_vcpus; i++) {
		const struct vcpu *v = &host->vcpus[g->first_vcpu + i];
		const int64_t waited = now_ns - v->waits_since_ns;

		sum.insns += v->insns;
		sum.idle_ns += v->idle_ns + (v->state == VCPU_IDLE && waited > 0 ? waited : 0);
		sum.steal_ns += v->steal_ns + (v->state == VCPU_WAITING && waited > 0 ? waited : 0);
	}
	return sum;
}

static void begin(unsigned int index, void *userdata)
{
	(void)index;
	(void)userdata;
	vcpu_count(self);
	own->at_begin = until(own, self->local_ns);
	own->has_begun = true;
}

static void end(unsigned int index, void *userdata)
{
	(void)index;
	(void)userdata;
	if (!own->has_begun || own->has_ended)
		return;
	vcpu_count(self);
	own->at_end = until(own, self->local_ns);
	own->has_ended = true;
	for (unsigned int i = 0; !own->is_background && i < host->nr_guests; i++) {
		struct guest *g = &host->guests[i];

		if (g->is_background && !g->has_ended) {
			g->at_end = until(g, self->local_ns);
			g->is_closed = true;
		}
	}
}

bool span_has_begun(void)
{
	return own->has_begun;
}

/* Return what the guest had since its begin mark, until its end mark or now. */
struct span span_so_far(void)
{
	const bool is_known = own->has_ended || own->is_closed;
	struct span span = is_known ? own->at_end : until(own, turn_now());

	span.begin_ns = own->at_begin.end_ns;
	span.insns -= own->at_begin.insns;
	span.idle_ns -= own->at_begin.idle_ns;
	span.steal_ns -= own->at_begin.steal_ns;
	return span;
}

/* Watch for the marks in this block. Without the option host= they are no marks. */
void span_watch(struct qemu_plugin_tb *tb)
{
	if (options.host)
		work_watch_marks(tb, begin, end);
}
