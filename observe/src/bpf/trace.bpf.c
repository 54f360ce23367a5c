/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * trace.bpf.c - sends scheduling events and scx_magpie's decisions to `magpie trace`.
 *
 * Two groups of programs write records of one size to a ring buffer:
 *
 *   tracepoints of the kernel    switches, wakeups, migrations; under every scheduler
 *   functions of scx_magpie      decisions; only where a running scx_magpie has these functions
 *
 * The second group attaches to functions that the scheduler has anyway: the kernel patches a call
 * into a function's first instruction (fentry, fexit), and takes it out at the end. So the
 * scheduler needs no hook, and costs nothing while no one traces. User space names the programs to
 * attach to, see trace/scheduler.rs. The programs of a scheduler have no functions in common: each
 * has a copy.
 *
 * The functions of a decision run on one CPU with interrupts off. struct scratch collects what they
 * tell until the last of them returns.
 */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char _license[] SEC("license") = "GPL";

#define COMM_LENGTH 16

/* trace/record.rs has the same numbers and layout. */
enum record_kind {
	RECORD_SWITCH,
	RECORD_WAKING,
	RECORD_WAKEUP,
	RECORD_WAKEUP_NEW,
	RECORD_MIGRATE,
	RECORD_PLACE, /* ops.select_cpu() chose a CPU */
	RECORD_TAKE, /* a CPU took a waiting task of another one */
	RECORD_OFFER, /* a CPU kicked an idle one for a waiting task */
	RECORD_PREFERRED, /* the governor or the user set the number of preferred cores */
};

struct record {
	u64 time; /* CLOCK_BOOTTIME, which Perfetto takes for granted */
	u32 kind;
	u32 cpu;
	s32 pid,
		prio; /* the task: the previous one of a switch, else the one that is woken or moves */
	s32 other, other_prio; /* the next task of a switch, else the task that runs here */
	s32 from, to; /* CPUs */
	u32 detail; /* state of the previous task; step of a wakeup; enum take; enum offer; cores */
	u32 looked; /* at how many CPUs a wakeup looked */
	char comm[COMM_LENGTH], other_comm[COMM_LENGTH];
};

/* How a CPU took a task. */
enum take {
	TAKE_STEAL, /* it had nothing to run */
	TAKE_BALANCE, /* its tasks get more than the others' */
};

/* Why an idle CPU was kicked. */
enum offer {
	OFFER_PUSH, /* the task was requeued */
	OFFER_TICK, /* it waits at a tick */
};

/* The steps of enum wakeup_step in scheduler/src/bpf/portable/placement.h that are told apart here. */
enum step {
	STEP_PREVIOUS = 0,
	STEP_RECENT = 1,
	STEP_WAKER = 2,
	NO_STEP = 255, /* no step was taken: parked, or the kernel's own idle selection */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20); /* user space sets another size */
} records SEC(".maps");

struct scratch {
	u64 lost; /* records for which the ring buffer had no room */
	u32 takes; /* calls of take() in this wakeup */
	u32 looked;
	u32 step;
	s32 migrated, from; /* the last task that this CPU moved, to any CPU, and from where */
	bool pulls; /* find_busier_llc() was called in this dispatch */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline struct scratch *scratch_here(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

static __always_inline struct record *begin_record(enum record_kind kind)
{
	struct record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		struct scratch *scratch = scratch_here();

		if (scratch)
			scratch->lost++;
		return NULL;
	}

	__builtin_memset(record, 0, sizeof(*record));
	record->time = bpf_ktime_get_boot_ns();
	record->kind = kind;
	record->cpu = bpf_get_smp_processor_id();
	record->other = (u32)bpf_get_current_pid_tgid();
	return record;
}

/* User space looks by itself: to wake it would add wakeups to those that it records. */
static __always_inline void end_record(struct record *record)
{
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

static __always_inline void describe_task(struct record *record, const struct task_struct *p)
{
	record->pid = BPF_CORE_READ(p, pid);
	record->prio = BPF_CORE_READ(p, prio);
	BPF_CORE_READ_STR_INTO(&record->comm, p, comm);
}

/*
 * Return the state that a switch reports, as __trace_sched_switch_state() and
 * __task_state_index() of the kernel do: one bit, which perf and Perfetto know by its letter.
 */
static __always_inline u32 reported_state(bool preempted, u32 state, const struct task_struct *p)
{
	const u32 idle = 0x402, waits_for_rtlock = 0x1000, is_frozen = 0x8000, report = 0x7f;
	const u32 report_idle = 0x80, report_preempted = 0x100, report_uninterruptible = 0x2;
	u32 bits = (state | p->exit_state) & report;

	if (preempted)
		return report_preempted;
	if (state & (waits_for_rtlock | is_frozen))
		return report_uninterruptible;
	if ((state & idle) == idle)
		return report_idle;
	/* The highest bit alone. */
	while (bits & (bits - 1))
		bits &= bits - 1;
	return bits;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	struct record *record = begin_record(RECORD_SWITCH);

	if (!record)
		return 0;

	describe_task(record, prev);
	record->other = next->pid;
	record->other_prio = next->prio;
	BPF_CORE_READ_STR_INTO(&record->other_comm, next, comm);
	record->detail = reported_state(preempt, prev_state, prev);
	end_record(record);
	return 0;
}

/*
 * Record the task and its CPU at this moment: the previous one at sched_waking, before a CPU is
 * chosen, and the chosen one at sched_wakeup.
 */
static __always_inline int note_wakeup(enum record_kind kind, const struct task_struct *p)
{
	struct record *record = begin_record(kind);

	if (!record)
		return 0;

	describe_task(record, p);
	record->to = p->thread_info.cpu;
	end_record(record);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	return note_wakeup(RECORD_WAKING, p);
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	return note_wakeup(RECORD_WAKEUP, p);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	return note_wakeup(RECORD_WAKEUP_NEW, p);
}

/* Record a migration, and keep task and origin for note_take(). It runs on the CPU that moves. */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int dest_cpu)
{
	struct scratch *scratch = scratch_here();
	struct record *record = begin_record(RECORD_MIGRATE);

	if (scratch) {
		scratch->migrated = p->pid;
		scratch->from = p->thread_info.cpu;
	}
	if (!record)
		return 0;

	describe_task(record, p);
	record->from = p->thread_info.cpu;
	record->to = dest_cpu;
	end_record(record);
	return 0;
}

/*
 * The functions of scx_magpie. A helper reads their arguments by number, because the verifier does
 * not follow a pointer whose type is known to another program only.
 */
static __always_inline u64 argument(void *ctx, u32 n)
{
	u64 value = 0;

	bpf_get_func_arg(ctx, n, &value);
	return value;
}

/*
 * Return the function's result: its lower half, because all that are traced return an integer or
 * a bool. Of a bool only the lowest byte is defined, so callers cast it.
 */
static __always_inline u32 result(void *ctx)
{
	u64 value = 0;

	bpf_get_func_ret(ctx, &value);
	return value;
}

/*
 * bool take(struct placement *at, struct task_struct *task, u32 cpu) in ops.select_cpu()
 *
 * Infer the step from the order in which portable/placement.h takes: the previous CPU first, then
 * the recent one. If neither is taken the task stays with its waker, unless search_idle() follows,
 * whose result overwrites this.
 */
SEC("fexit")
int after_take(void *ctx)
{
	struct scratch *scratch = scratch_here();

	if (!scratch)
		return 0;

	if (!scratch->takes)
		scratch->step = STEP_WAKER;
	if ((u8)result(ctx))
		scratch->step = scratch->takes ? STEP_RECENT : STEP_PREVIOUS;
	scratch->takes++;
	scratch->looked++;
	return 0;
}

/* u32 visit_idle(struct sparsemask_visit *visit) in ops.select_cpu() */
SEC("fexit")
int after_visit_idle(void *ctx)
{
	const u32 no_cpu = ~0U;
	struct scratch *scratch = scratch_here();

	if (scratch && result(ctx) != no_cpu)
		scratch->looked++;
	return 0;
}

/*
 * int search_idle(struct placement *at, struct task_struct *task) in ops.select_cpu()
 *
 * Keep its result, an enum wakeup_step: the step that found an idle CPU, or that none did.
 */
SEC("fexit")
int after_search_idle(void *ctx)
{
	struct scratch *scratch = scratch_here();

	if (scratch)
		scratch->step = result(ctx);
	return 0;
}

/* s32 magpie_select_cpu(struct task_struct *p, s32 prev_cpu, u64 wake_flags) */
SEC("fexit")
int after_select_cpu(void *ctx)
{
	struct scratch *scratch = scratch_here();
	u64 arguments[2] = {};
	struct record *record;

	if (!scratch)
		return 0;

	record = begin_record(RECORD_PLACE);
	if (record) {
		/* The kernel calls an operation with a pointer to its arguments. */
		bpf_probe_read_kernel(arguments, sizeof(arguments), (void *)argument(ctx, 0));
		describe_task(record, (const struct task_struct *)arguments[0]);
		record->from = arguments[1];
		record->to = result(ctx);
		record->detail = scratch->takes ? scratch->step : NO_STEP;
		record->looked = scratch->looked;
		end_record(record);
	}

	scratch->takes = 0;
	scratch->looked = 0;
	return 0;
}

/*
 * Record that this CPU took a task. The function that took it returns no task, so the record has
 * the last one that this CPU moved: interrupts are off between the move and this.
 */
static __always_inline void note_take(enum take how)
{
	struct scratch *scratch = scratch_here();
	struct record *record;

	if (!scratch)
		return;

	record = begin_record(RECORD_TAKE);
	if (!record)
		return;

	record->pid = scratch->migrated;
	record->from = scratch->from;
	record->to = record->cpu;
	record->detail = how;
	end_record(record);
}

/*
 * u32 find_busier_llc(u32 own, bool may_rotate) in ops.dispatch()
 *
 * A steal and a balance across LLCs both end in steal_from_range(). After this call it is a
 * balance, until the next dispatch: a dispatch that balances has a task to keep, and one that
 * steals has none.
 */
SEC("fentry")
int before_find_busier_llc(void *ctx)
{
	struct scratch *scratch = scratch_here();

	if (scratch)
		scratch->pulls = true;
	return 0;
}

/* void magpie_dispatch(s32 cpu, struct task_struct *prev) */
SEC("fentry")
int before_dispatch(void *ctx)
{
	struct scratch *scratch = scratch_here();

	if (scratch)
		scratch->pulls = false;
	return 0;
}

/* bool steal_from_range(s32 thief, u32 first, u32 end, u32 start) in ops.dispatch() */
SEC("fexit")
int after_steal_from_range(void *ctx)
{
	struct scratch *scratch = scratch_here();

	if (scratch && (u8)result(ctx))
		note_take(scratch->pulls ? TAKE_BALANCE : TAKE_STEAL);
	return 0;
}

/* bool pull_near(s32 cpu, u64 vruntime) in ops.dispatch() */
SEC("fexit")
int after_pull_near(void *ctx)
{
	if ((u8)result(ctx))
		note_take(TAKE_BALANCE);
	return 0;
}

/* bool kick_idle_for(struct task_struct *p, s32 cpu), in several operations */
static __always_inline int note_offer(void *ctx, enum offer why)
{
	struct record *record;

	if (!(u8)result(ctx))
		return 0;

	record = begin_record(RECORD_OFFER);
	if (!record)
		return 0;

	describe_task(record, (const struct task_struct *)argument(ctx, 0));
	record->from = argument(ctx, 1);
	record->detail = why;
	end_record(record);
	return 0;
}

/* in ops.enqueue(): a push */
SEC("fexit")
int after_push(void *ctx)
{
	return note_offer(ctx, OFFER_PUSH);
}

/* in ops.tick(): a task that waits at a tick */
SEC("fexit")
int after_offer(void *ctx)
{
	return note_offer(ctx, OFFER_TICK);
}

/* int apply_to_core(u32 rank, u32 cores), once for each core, in the timer that ops.init() sets */
SEC("fentry")
int before_apply_to_core(void *ctx)
{
	struct record *record;

	if (argument(ctx, 0))
		return 0;

	record = begin_record(RECORD_PREFERRED);
	if (!record)
		return 0;

	record->detail = argument(ctx, 1);
	end_record(record);
	return 0;
}
