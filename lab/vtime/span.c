// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a guest of a shared host had between its two marks, which are around what is
 * measured: its report tells that apart from the boot.
 */
#include "vtime.h"

static bool has_begun, has_ended;
static struct span at_begin, at_end;

/* Return what the guest's vCPUs had until @now_ns. All but the caller's rest. */
static struct span until(int64_t now_ns)
{
	struct span sum = { .end_ns = now_ns };

	for (unsigned int i = 0; i < nr_vcpus; i++) {
		const struct vcpu *v = &vcpus[i];
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
	at_begin = until(self->local_ns);
	has_begun = true;
}

static void end(unsigned int index, void *userdata)
{
	(void)index;
	(void)userdata;
	if (!has_begun || has_ended)
		return;
	vcpu_count(self);
	at_end = until(self->local_ns);
	has_ended = true;
}

bool span_has_begun(void)
{
	return has_begun;
}

/* Return what the guest had since its begin mark, until its end mark or now. */
struct span span_so_far(void)
{
	struct span span = has_ended ? at_end : until(turn_now());

	span.begin_ns = at_begin.end_ns;
	span.insns -= at_begin.insns;
	span.idle_ns -= at_begin.idle_ns;
	span.steal_ns -= at_begin.steal_ns;
	return span;
}

/* Watch for the marks in this block. Without the option host= they are no marks. */
void span_watch(struct qemu_plugin_tb *tb)
{
	if (options.host)
		work_watch_marks(tb, begin, end);
}
