// SPDX-License-Identifier: GPL-2.0-only
/*
 * A vCPU executes, its instructions are counted, it halts, it is kicked.
 *
 * Translated code counts: each block adds its length to a scoreboard entry, and
 * calls quantum_end() once the entry has reached SCORE_END. QEMU compares with a
 * constant, so the entry begins a quantum's length below SCORE_END. The fast
 * path of a block is an add, a compare, and a branch that is not taken.
 *
 * At the end of a turn the vCPU leaves cpu_exec(), as it does when QEMU delivers
 * an interrupt, and waits in vcpu_exec(), which replaces QEMU's tcg_cpu_exec().
 * It does not wait in the callback, because QEMU would take it for executing
 * there: QEMU's exclusive sections would wait for it while it waits for the vCPU
 * that wants the section. (For arm64 guests every broadcast TLB invalidation is
 * an exclusive section.)
 */
#include <stdlib.h>

#include "vtime.h"

#define SCORE_END (1ULL << 62)

/* Of a vCPU's entry in the scoreboard: a pair of cache lines of its own. The front of code follows. */
#define COUNTS_BYTES 128

/* Slots of a hash table with open addressing. It holds at most MAX_VCPUS, none is removed. */
#define CONDS 4096

struct cond_of_vcpu {
	const pthread_cond_t *cond;
	struct vcpu *vcpu;
};

static struct cond_of_vcpu conds[CONDS];
static struct qemu_plugin_scoreboard *scoreboard;
static pthread_mutex_t *big_lock;

__thread struct vcpu *self;

/* Return the slot at which the search for this condition variable begins. */
static size_t cond_slot(const pthread_cond_t *cond)
{
	return ((uintptr_t)cond >> 4) * 0x9e3779b97f4a7c15ULL >> 52;
}

/* The vCPU that waits on this condition variable when it is halted, or NULL. */
struct vcpu *vcpu_by_cond(const pthread_cond_t *cond)
{
	for (size_t i = cond_slot(cond);; i = (i + 1) % CONDS) {
		const pthread_cond_t *key = __atomic_load_n(&conds[i].cond, __ATOMIC_ACQUIRE);

		if (key == cond)
			return conds[i].vcpu;
		if (!key)
			return NULL;
	}
}

/* The caller holds QEMU's big lock, so there is one writer. */
static void remember_cond(const pthread_cond_t *cond, struct vcpu *v)
{
	size_t i = cond_slot(cond);

	if (vcpu_by_cond(cond))
		return;
	while (conds[i].cond)
		i = (i + 1) % CONDS;
	conds[i].vcpu = v;
	__atomic_store_n(&conds[i].cond, cond, __ATOMIC_RELEASE);
}

/* Local time in picoseconds, of a vCPU that has executed. The vCPU's own thread only. */
int64_t vcpu_local_ps(const struct vcpu *v)
{
	return v->local_ns * 1000 + (int64_t)((*v->score - v->counted) * v->cost_ps + v->rest_ps);
}

/* Local time, with what was executed since the last count. The vCPU's own thread only. */
int64_t vcpu_local_now(const struct vcpu *v)
{
	if (!v->score)
		return v->local_ns;
	return vcpu_local_ps(v) / 1000;
}

/* Turn what was executed since the last count into local time. The vCPU's own thread only. */
void vcpu_count(struct vcpu *v)
{
	const uint64_t insns = *v->score - v->counted;
	const uint64_t ps = insns * v->cost_ps + v->rest_ps;

	v->insns += insns - v->stalled;
	v->stalled = 0;
	v->counted = *v->score;
	v->rest_ps = ps % 1000;
	if (v->is_shared)
		v->shared_ns += ps / 1000;
	v->local_ns += ps / 1000;
}

/*
 * After vcpu_count(): set the scoreboard so that quantum_end() is called after a
 * quantum, or where the turn ends if that is earlier.
 */
void vcpu_start_quantum(struct vcpu *v)
{
	const int64_t limit = READ_ONCE(v->limit_ns);
	const double slowdown = frequency_slowdown(v);
	/* At a lower frequency a quantum is fewer instructions, so that it is as long. */
	uint64_t budget = options.quantum / slowdown;

	v->cost_ps = smt_cost_ps(v) * slowdown;
	if (limit != NEVER) {
		const int64_t left_ns = limit > v->local_ns ? limit - v->local_ns : 0;
		const uint64_t left = (uint64_t)left_ns * 1000 / v->cost_ps + 1;

		if (left < budget)
			budget = left;
	}
	*v->score = SCORE_END - budget;
	v->counted = *v->score;
	v->late_stall_ps = 0;
}

/* Return true if the present block is the last one before quantum_end(). */
bool vcpu_is_beyond_quantum(const struct vcpu *v)
{
	return *v->score >= SCORE_END;
}

/* Let the next translated block call quantum_end(). */
void vcpu_end_quantum_early(struct vcpu *v)
{
	vcpu_count(v);
	*v->score = SCORE_END;
	v->counted = *v->score;
}

/* Translated code calls this at a quantum end: the turn goes on, or the vCPU yields. */
static void quantum_end(unsigned int index, void *userdata)
{
	struct vcpu *v = &vcpus[index];

	(void)userdata;
	v->quanta++;
	vcpu_count(v);
	tasks_sample(v);
	if (v->yields || !turn_extend(v)) {
		v->yields = true;
		/* Not again in this turn: a block more may be executed on the way out. */
		*v->score = 0;
		v->counted = 0;
		cpu_exit(v->cpu);
		return;
	}
	vcpu_start_quantum(v);
}

/* Translated code calls this before a loop of work.c: leave, and wait for an interrupt instead. */
static void work_begins(unsigned int index, void *userdata)
{
	struct vcpu *v = &vcpus[index];

	(void)userdata;
	/* A vCPU that is not executed would keep its physical CPU beyond its slice. */
	if (host_is_short())
		return;
	v->works = true;
	cpu_exit(v->cpu);
}

/* Replaces QEMU's tcg_cpu_exec(). Does the same, but only with a turn. */
int vcpu_exec(CPUState *cpu)
{
	struct vcpu *v = self;
	int reason;

	if (v) {
		v->cpu = cpu;
		if (v->works && !turn_wait(v, VCPU_WORKING))
			return EXCP_INTERRUPT;
		v->works = false;
		if (!turn_take(v))
			return EXCP_INTERRUPT;
		/* After a kick the vCPU may still have its turn: then the quantum goes on. */
		if (v->is_fresh) {
			v->is_fresh = false;
			vcpu_count(v);
			vcpu_start_quantum(v);
		}
	}
	cpu_exec_start(cpu);
	reason = cpu_exec(cpu);
	cpu_exec_end(cpu);
	return reason;
}

/*
 * Replaces pthread_cond_wait() of a halted vCPU, which waits for a turn instead.
 * For each signal to the condition variable interpose.c calls turn_wake(), so no
 * kick is lost. The vCPU neither holds QEMU's big lock while it waits, nor waits
 * for that lock before it has a turn.
 */
void vcpu_idle_wait(struct vcpu *v, pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	remember_cond(cond, v);
	WRITE_ONCE(big_lock, mutex);
	pthread_mutex_unlock(mutex);
	turn_wait(v, VCPU_IDLE);
	pthread_mutex_lock(mutex);
	/* QEMU looks for work next, under the lock, so it sees the reason of every earlier kick. */
	__atomic_store_n(&v->kicked, false, __ATOMIC_SEQ_CST);
}

/* Return true for QEMU's big lock, as far as a vCPU has halted and shown which one that is. */
bool vcpu_is_big_lock(const pthread_mutex_t *mutex)
{
	return mutex == READ_ONCE(big_lock);
}

/*
 * QEMU has translated a block: add the counting, and what memory.c, breakpoint.c,
 * snapshot.c, span.c, profile.c, tasks.c, work.c and frequency.c need.
 */
static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	const qemu_plugin_u64 entry = { scoreboard, 0 };
	const qemu_plugin_u64 place = { scoreboard, sizeof(uint64_t) };
	const qemu_plugin_u64 code_front = { scoreboard, COUNTS_BYTES };

	(void)id;
	profile_watch(tb, place);
	tasks_watch(tb);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, entry,
							  qemu_plugin_tb_n_insns(tb));
	qemu_plugin_register_vcpu_tb_exec_cond_cb(tb, quantum_end, QEMU_PLUGIN_CB_NO_REGS,
						  QEMU_PLUGIN_COND_GE, entry, SCORE_END, NULL);
	memory_watch(tb, code_front);
	breakpoint_watch(tb);
	snapshot_watch(tb);
	span_watch(tb);
	frequency_watch(tb);
	if (work_has_nopl(tb, NOPL_WORK))
		qemu_plugin_register_vcpu_tb_exec_cb(tb, work_begins, QEMU_PLUGIN_CB_NO_REGS, NULL);
}

/* A vCPU's own thread, before it executes: QEMU has made the vCPU. */
static void vcpu_init(qemu_plugin_id_t id, unsigned int index)
{
	(void)id;
	if (index >= nr_vcpus)
		abort();
	self = &vcpus[index];
	/* QEMU may move the scoreboard for each new vCPU. No vCPU executes meanwhile. */
	for (unsigned int i = 0; i <= index; i++) {
		vcpus[i].score = qemu_plugin_scoreboard_find(scoreboard, i);
		vcpus[i].place = vcpus[i].score + 1;
		memory_set_code_front(i, vcpus[i].score + COUNTS_BYTES / sizeof(uint64_t));
	}
	profile_start(index);
	self->counted = *self->score;
	self->cost_ps = smt_cost_ps(self);
}

/* Until vcpu_resumes(), pthread_cond_wait() in this thread is the wait of a halted vCPU. */
static void vcpu_halts(qemu_plugin_id_t id, unsigned int index)
{
	(void)id;
	vcpus[index].halting = true;
}

static void vcpu_resumes(qemu_plugin_id_t id, unsigned int index)
{
	(void)id;
	vcpus[index].halting = false;
}

/* Have QEMU call this file when a vCPU starts, halts and resumes, and for each translated block. */
void vcpu_register(qemu_plugin_id_t id)
{
	scoreboard = qemu_plugin_scoreboard_new(COUNTS_BYTES + fetch_front_bytes());
	profile_register();
	qemu_plugin_register_vcpu_init_cb(id, vcpu_init);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	qemu_plugin_register_vcpu_idle_cb(id, vcpu_halts);
	qemu_plugin_register_vcpu_resume_cb(id, vcpu_resumes);
}
