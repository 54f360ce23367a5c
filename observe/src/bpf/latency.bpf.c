/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * latency.bpf.c - how long tasks are ready before they run, as histograms for `magpie top`.
 *
 *   a CPU switches from @prev to @next:
 *     prev    remember how long it has waited in its life, and whether it stays ready
 *     next    how much longer has it waited by now? count that
 *
 * The kernel itself adds up how long each task waits, also across migrations. So one program on one
 * tracepoint is enough, and it measures under every scheduler. It costs nothing while no one
 * watches, and little on a busy machine: of all waits, one in (mask + 1) is measured, and user
 * space chooses the mask. It counts on the CPU's own line; user space adds the CPUs up. A task that
 * the kernel has no memory for at this moment is not counted.
 */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

/*
 * latency.rs has the same numbers. A histogram has SUBSLOTS slots for each power of two
 * nanoseconds, so a slot ends at most an eighth above its beginning. The last one begins at 16 s.
 */
#define SUBSLOT_BITS 3
#define SUBSLOTS (1 << SUBSLOT_BITS)
#define NR_SLOTS 256

#define TASK_RUNNING 0

/* Why a task became ready. */
enum ready_kind {
	READY_WOKEN, /* it slept, or is new */
	READY_REQUEUED, /* it was preempted, or its slice ended */
	NR_READY_KINDS,
};

/* Low bits of a wait's hash that must be clear for it to be measured: a power of two, less one. */
volatile u32 mask;

/* The task's last switch to another one that was chosen. */
struct left {
	u64 waited;
	u64 switches;
	u32 kind;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct left);
} tasks SEC(".maps");

extern const struct rq runqueues __ksym;

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

/*
 * How often the task has left a CPU. This is the same from the moment at which it leaves until it
 * runs again, so it is also the number of the wait in between.
 */
static __always_inline u64 nr_switches(struct task_struct *p)
{
	return p->nvcsw + p->nivcsw;
}

/* Return whether a wait is measured. A hash, because tasks may alternate long and short waits. */
static __always_inline bool is_chosen(struct task_struct *p)
{
	u32 number = nr_switches(p) + p->pid;

	return !((number * 0x9e3779b1U >> 16) & mask);
}

/* How long the task has waited in its life, until now if it waits. */
static __always_inline u64 total_wait(struct task_struct *p)
{
	const struct rq *rq = bpf_this_cpu_ptr(&runqueues);
	u64 now = rq->clock, since = p->sched_info.last_queued;

	return p->sched_info.run_delay + (since && now > since ? now - since : 0);
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

static __always_inline void count(u64 ns, u32 kind)
{
	struct histograms *here;
	u32 zero = 0, slot = slot_of(ns);

	here = bpf_map_lookup_elem(&histograms, &zero);
	if (here && kind < NR_READY_KINDS && slot < NR_SLOTS)
		here->slots[kind][slot]++;
}

static __always_inline void leave(struct task_struct *p, enum ready_kind kind)
{
	struct left *left = bpf_task_storage_get(&tasks, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!left)
		return;

	left->waited = total_wait(p);
	left->switches = nr_switches(p);
	left->kind = kind;
}

static __always_inline void run(struct task_struct *p)
{
	struct left *left;
	u64 waited;

	if (!p->sched_info.pcount) {
		/* It never ran. */
		count(total_wait(p), READY_WOKEN);
		return;
	}

	left = bpf_task_storage_get(&tasks, p, NULL, 0);
	/* Its last switch was not chosen, if the mask was another one. */
	if (!left || left->switches != nr_switches(p))
		return;

	waited = total_wait(p);
	count(waited > left->waited ? waited - left->waited : 0, left->kind);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	bool stays_ready = preempt || prev_state == TASK_RUNNING;

	/* A CPU's idle task is never ready in this sense. */
	if (prev->pid && is_chosen(prev))
		leave(prev, stays_ready ? READY_REQUEUED : READY_WOKEN);
	if (next->pid && is_chosen(next))
		run(next);
	return 0;
}
