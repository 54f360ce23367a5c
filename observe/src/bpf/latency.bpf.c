/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * latency.bpf.c - how long tasks are ready before they run, as histograms for `magpie top`.
 *
 *   a task wakes, or is new          ready since now, woken
 *   a CPU switches to another task   the previous one, if it is still running: ready since now,
 *                                    requeued; the next one was ready until now: count it
 *
 * The programs use tracepoints of the kernel, so they measure under every scheduler, and cost
 * nothing while no one watches. They count on the CPU's own line; user space adds the CPUs up. A task
 * that the kernel has no memory for at this moment is not counted.
 */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

/*
 * latency.rs has the same numbers. A histogram has SUBSLOTS slots for each power of two nanoseconds,
 * so a slot ends at most an eighth above its beginning. The last one begins at 16 s.
 */
#define SUBSLOT_BITS 3
#define SUBSLOTS (1 << SUBSLOT_BITS)
#define NR_SLOTS 256

#define TASK_RUNNING 0

/* Why a task became ready. */
enum ready_kind {
	READY_WOKEN,
	READY_REQUEUED, /* it was preempted, or its slice ended */
	NR_READY_KINDS,
};

struct ready {
	u64 since; /* 0: it runs, sleeps, or was not seen to become ready */
	u32 kind;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct ready);
} tasks SEC(".maps");

struct histograms {
	u64 slots[NR_READY_KINDS][NR_SLOTS];
};

/* By size: of a type, libbpf-cargo would make a Rust struct, for which its arrays are too long. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct histograms));
} histograms SEC(".maps");

static __always_inline void note_ready(struct task_struct *p, enum ready_kind kind)
{
	struct ready *ready = bpf_task_storage_get(&tasks, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!ready)
		return;

	ready->since = bpf_ktime_get_ns();
	ready->kind = kind;
}

/* The position of the highest bit that is set; 0 for 0 and 1. */
static __always_inline u32 log2_of(u64 value)
{
	u32 bit = 0;

	for (u32 half = 32; half; half /= 2) {
		if (value >> half) {
			value >>= half;
			bit += half;
		}
	}
	return bit;
}

/* The slot of a time: below SUBSLOTS each nanosecond has its own. */
static __always_inline u32 slot_of(u64 ns)
{
	u32 bit = log2_of(ns), slot;

	if (bit < SUBSLOT_BITS)
		return ns;

	slot = (bit - SUBSLOT_BITS + 1) * SUBSLOTS;
	slot += (ns >> (bit - SUBSLOT_BITS)) % SUBSLOTS;
	return slot < NR_SLOTS ? slot : NR_SLOTS - 1;
}

static __always_inline void count_wait(struct task_struct *p)
{
	struct ready *ready = bpf_task_storage_get(&tasks, p, NULL, 0);
	struct histograms *here;
	u32 zero = 0, slot, kind;

	if (!ready || !ready->since)
		return;

	slot = slot_of(bpf_ktime_get_ns() - ready->since);
	kind = ready->kind;
	ready->since = 0;
	here = bpf_map_lookup_elem(&histograms, &zero);
	if (here && kind < NR_READY_KINDS && slot < NR_SLOTS)
		here->slots[kind][slot]++;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	note_ready(p, READY_WOKEN);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	note_ready(p, READY_WOKEN);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	/* A CPU's idle task is never ready in this sense. */
	if (prev->pid && (preempt || prev_state == TASK_RUNNING))
		note_ready(prev, READY_REQUEUED);
	if (next->pid)
		count_wait(next);
	return 0;
}
