/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The virtual-time machine: shared declarations.
 *
 * Each vCPU has a local virtual time: the instructions it has executed times
 * the cost of one. The machine's virtual time is the least local time of the
 * vCPUs that are not idle. Nobody may be further ahead of it than a window.
 *
 * How that is kept: a vCPU executes guest code only during a *turn*. There
 * are as many turns as the host has CPUs; turn.c gives them to the vCPUs that
 * are behind. A vCPU without a turn waits at a place where it holds no QEMU
 * lock and is not inside cpu_exec(): so it can neither block another vCPU's
 * exclusive section nor be blocked by it. The files:
 *
 *	main.c		options, installation, the report at exit
 *	turn.c		virtual time, windows, who runs next
 *	vcpu.c		counting instructions, a vCPU's life: run, halt, wake
 *	mainloop.c	QEMU's main loop: timers are served in virtual time
 *	clock.c		what the guest and QEMU read as the time
 *	breakpoint.c	breakpoints of the kernel's patching that are gone
 *	work.c		the instruction of programs that only keep a CPU busy
 *	smt.c		the speed of a CPU whose sibling is busy
 *	interpose.c	the C library functions that QEMU calls through us
 *	patch.c		the QEMU functions that are replaced
 *	report.c	the fidelity report
 *	watchdog.c	no progress in real time: say where everyone is, end
 *
 * Units: virtual times are nanoseconds in int64_t, suffix _ns; costs of an
 * instruction are picoseconds, suffix _ps.
 */
#ifndef MAGPIE_VTIME_H
#define MAGPIE_VTIME_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "qemu-api.h"

#define EXPORT __attribute__((visibility("default")))
#define NEVER INT64_MAX
#define MAX_VCPUS 1024
#define MAX_BLOCK_INSNS 512 /* QEMU's TCG_MAX_INSNS */

/* Virtual time starts here, not at 0: QEMU takes differences of clocks. */
#define EPOCH_NS 1000000000000LL

struct options {
	double mips; /* speed of one CPU, million instructions a second */
	int64_t window_ns; /* how far a CPU may be ahead of the last one */
	uint64_t quantum; /* instructions between two looks at the others */
	double smt_factor; /* speed of a CPU whose sibling is busy */
	unsigned int threads; /* hardware threads of a core */
	unsigned int turns; /* vCPUs that execute at once */
	bool deterministic; /* one turn, and the main loop takes turns too */
	unsigned int tsc_mhz; /* frequency of the x86 time stamp counter */
	unsigned int hang_s; /* real seconds without progress before we give up */
	const char *report; /* where the report goes; NULL: standard error */
};

enum vcpu_state {
	VCPU_OFF, /* not started */
	VCPU_IDLE, /* halted or stopped: does not hold back virtual time */
	VCPU_WORKING, /* busy until it is interrupted: the same, but not idle */
	VCPU_READY, /* wants a turn */
	VCPU_RUNNING, /* has a turn */
};

struct vcpu {
	/* Written by turn.c under its lock, read anywhere. */
	enum vcpu_state state;
	uint32_t turn_word; /* futex: changes when the vCPU should look again */
	uint32_t seen_release; /* the last general release that it obeyed */
	bool asleep; /* waits on turn_word */
	int64_t limit_ns; /* its turn ends here */

	/* Written by the vCPU's own thread; local_ns is read by the others. */
	int64_t local_ns; /* local time at the last count */
	uint32_t rest_ps; /* what local_ns is short of */
	uint32_t cost_ps; /* of one instruction in this quantum */
	uint64_t counted; /* the scoreboard's value at the last count */
	uint64_t *score; /* grows by each executed instruction */
	bool is_fresh; /* has a new turn, for which no quantum has begun */
	bool yields; /* left its turn, on its way out of cpu_exec() */
	bool halting; /* between QEMU's idle and resume callbacks */
	bool works; /* has nothing to execute until it is interrupted (work.c) */
	CPUState *cpu;

	/* Set by whoever kicks the vCPU. */
	bool kicked;

	/* For the report. */
	uint64_t insns;
	uint64_t quanta;
	uint64_t clock_reads;
	int64_t idle_ns;
	int64_t work_ns;
	int64_t shared_ns; /* time in which an SMT sibling was busy */
	int64_t waits_since_ns; /* idle or working */
} __attribute__((aligned(128)));

struct counters {
	uint64_t turns; /* turns given */
	uint64_t slow_quanta; /* quantum ends that took the lock */
	uint64_t jumps; /* all idle: time jumped to the next timer */
	uint64_t timer_calls; /* main loop called because a timer was due */
	uint64_t notify_calls; /* main loop called by a vCPU */
	uint64_t host_calls; /* main loop woken from outside */
	uint64_t stale_breakpoints; /* found gone, and not executed */
	uint64_t broken; /* a CPU was found beyond its window */
	int64_t beyond_max_ns; /* how far beyond the end of its turn at most */
	int64_t late_max_ns; /* a timer was served this late at most */
};

extern struct options options;
extern struct vcpu vcpus[MAX_VCPUS];
extern unsigned int nr_vcpus;
extern struct counters counters;
extern bool is_active; /* installed: time is virtual from here on */
extern __thread struct vcpu *self;

#define READ_ONCE(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_RELAXED)
#define COUNT(name) __atomic_fetch_add(&counters.name, 1, __ATOMIC_RELAXED)

/* turn.c */
void turn_init(void);
bool turn_take(struct vcpu *v);
bool turn_extend(struct vcpu *v);
bool turn_wait(struct vcpu *v, enum vcpu_state state);
void turn_wake(struct vcpu *v);
void turn_release_all(void);
int64_t turn_now(void);
void turn_main_waits(int64_t deadline_ns, int eventfd);
void turn_main_woken(void);
void turn_main_notified(int fd);
bool turn_machine_sleeps(void);
void turn_dump(void);

/* vcpu.c */
void vcpu_register(qemu_plugin_id_t id);
int vcpu_exec(CPUState *cpu);
int64_t vcpu_local_now(const struct vcpu *v);
void vcpu_count(struct vcpu *v);
void vcpu_start_quantum(struct vcpu *v);
void vcpu_end_quantum_early(struct vcpu *v);
void vcpu_idle_wait(struct vcpu *v, pthread_cond_t *cond, pthread_mutex_t *mutex);
struct vcpu *vcpu_by_cond(const pthread_cond_t *cond);
bool vcpu_is_big_lock(const pthread_mutex_t *mutex);

/* mainloop.c */
void mainloop_init(void);
bool mainloop_is_self(void);
bool mainloop_polls(int fd);

/* clock.c */
int64_t clock_now(void);
void clock_freeze_main(int64_t now_ns);
int64_t clock_ticks(void);
int64_t real_now(void);

/* breakpoint.c */
void breakpoint_watch(struct qemu_plugin_tb *tb);

/* work.c */
bool work_is_in(const struct qemu_plugin_tb *tb);

/* smt.c */
uint32_t smt_cost_ps(const struct vcpu *v);
bool smt_is_shared(const struct vcpu *v);
void smt_init(void);

/* patch.c */
bool patch_function(const char *name, void *replacement, char *why, size_t size);

/* report.c */
void report_start(const char *target);
void report_write(const char *end);

/* watchdog.c */
void watchdog_start(void);

/* interpose.c */
void futex_wait(uint32_t *word, uint32_t value);
void futex_wake(uint32_t *word);

#endif
