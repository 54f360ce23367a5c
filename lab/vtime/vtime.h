/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The virtual-time machine: shared declarations.
 *
 * Each vCPU has a local time: the instructions that it has executed times the
 * cost of one. The machine's virtual time is the least local time of the vCPUs
 * that are not idle. No vCPU may be further ahead of it than a window.
 *
 * To keep that, a vCPU executes guest code only during a *turn*. There are as
 * many turns as the host has CPUs, and turn.c gives them to the vCPUs that are
 * furthest behind. A vCPU without a turn waits outside of cpu_exec() and holds
 * no lock of QEMU, so it does not block another vCPU's exclusive section and
 * none blocks it. The files:
 *
 *	main.c		options, installation, the report at exit
 *	turn.c		virtual time, windows, and which vCPU runs next
 *	wakeup.c	turn.c's lock, and wakeups of the threads that wait under it
 *	vcpu.c		a vCPU executes, is counted, halts, is kicked
 *	mainloop.c	QEMU's main loop serves timers in virtual time
 *	clock.c		the clocks that the guest and QEMU read
 *	breakpoint.c	breakpoints that the kernel has removed
 *	real-time.c	breakpoint.c alone, for machines in real time
 *	work.c		the instruction of programs that only keep a CPU busy
 *	perturb.c	another schedule of the vCPUs, by a seed
 *	snapshot.c	the machine at a mark, run again and again with other seeds
 *	host.c		physical CPUs, if there are fewer than vCPUs
 *	guests.c	several guests on one host: the state that they share
 *	span.c		what a guest of such a host had between two marks
 *	smt.c		the speed of a CPU whose sibling is busy
 *	frequency.c	the speed of a CPU as the guest's kernel sets it
 *	memory.c	what memory costs; memory.h names the files of the model
 *	interpose.c	the C library functions that are replaced
 *	patch.c		replaces functions of QEMU
 *	report.c	the fidelity report
 *	profile.c	where virtual time goes, by address
 *	tasks.c		where it goes, by task
 *	watchdog.c	ends a machine that makes no progress
 *
 * Units: virtual times are nanoseconds in int64_t, suffix _ns. Costs of an
 * instruction are picoseconds, suffix _ps.
 */
#ifndef MAGPIE_VTIME_H
#define MAGPIE_VTIME_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "qemu-api.h"

#define EXPORT __attribute__((visibility("default")))
#define NEVER INT64_MAX
#define MAX_VCPUS 1024 /* of all guests of a host */
#define MAX_GUESTS 16
#define MAX_BLOCK_INSNS 512 /* QEMU's TCG_MAX_INSNS */

/*
 * Displacements of the nopl instructions by which programs talk to the plugin. No compiler
 * pads code with them.
 */
#define NOPL_WORK 0x4d41574b /* work.c */
#define NOPL_BEGIN 0x4d41574c /* snapshot.c, span.c */
#define NOPL_END 0x4d41574d

/* Virtual time begins here, because QEMU subtracts from clocks. */
#define EPOCH_NS 1000000000000LL

struct options {
	double mips; /* speed of one CPU, million instructions a second */
	int64_t window_ns; /* how far the local times of two vCPUs may be apart */
	uint64_t quantum; /* instructions between two looks at the other vCPUs */
	double smt_factor; /* speed of a CPU whose sibling is busy, of its speed alone */
	unsigned int threads; /* hardware threads of a core */
	unsigned int turns; /* vCPUs that execute at once */
	unsigned int physical_cpus; /* of the host in virtual time; 0: one for each vCPU */
	int64_t host_slice_ns; /* for how long a vCPU has a physical CPU while others wait */
	unsigned int min_mhz, max_mhz; /* frequencies of a CPU; 0: they do not change */
	unsigned int slow_mhz; /* the highest frequency of the slow cores; 0: all are equal */
	unsigned int slow_from; /* the first vCPU that is a slow core */
	int64_t transition_ns; /* from a request for a frequency until it holds */
	bool deterministic; /* one vCPU or the main loop at a time: every run is the same */
	unsigned int tsc_mhz; /* frequency of the x86 time stamp counter */
	unsigned int hang_s; /* real seconds without progress until the machine is ended */
	const char *report; /* file for the report; NULL: standard error */
	const char *profile; /* file for the profile; NULL: none */
	const char *snapshot; /* socket of the lab that sends seeds; NULL: none are sent */
	const char *host; /* file of the state that the guests of a host share; NULL: one guest */
	unsigned int guests, guest; /* how many guests the host has, and which this is */
	unsigned int first_vcpu, host_vcpus; /* its first vCPU of all those of the host */
	bool background; /* the run is over without it */
	double host_weight; /* its weight on the host */
	bool host_cgroups; /* the weight is a guest's, not of each of its vCPUs */
};

enum vcpu_state {
	VCPU_OFF, /* not started */
	VCPU_IDLE, /* halted or stopped: does not hold back virtual time */
	VCPU_WAITING, /* for a physical CPU, see host.c: does not hold back virtual time */
	VCPU_WORKING, /* in a loop of work.c: busy, but does not hold back virtual time */
	VCPU_READY, /* wants a turn */
	VCPU_RUNNING, /* has a turn */
};

struct vcpu {
	unsigned int guest; /* whose vCPU it is */

	/* Written by turn.c under its lock, read anywhere. */
	enum vcpu_state state;
	uint32_t turn_word; /* futex: changes when the vCPU must look at its state again */
	uint32_t seen_release; /* the last general release that it followed */
	bool asleep; /* sleeps on turn_word */
	int64_t limit_ns; /* its turn ends here */
	int64_t window_ns; /* how far its turn may be ahead of the other vCPUs */
	bool has_physical; /* a physical CPU; the fields from here on are host.c's */
	bool is_preempted; /* gives it up at once */
	bool takes_part; /* wanted to execute when the lags were brought up to date */
	bool has_woken; /* since it was last looked for one to preempt */
	unsigned int physical; /* which one */
	int64_t began_ns; /* what it has had of it is charged until then */
	int64_t lag_ns, left_ns; /* what it is owed, and what is left of its request */
	int64_t left_at_ns; /* when it stopped wanting to execute */

	/* Written by the vCPU's own thread; local_ns is read by the others. */
	int64_t local_ns; /* local time at the last count */
	uint32_t rest_ps; /* picoseconds beyond local_ns, less than one nanosecond */
	uint32_t cost_ps; /* cost of one instruction in this quantum */
	bool is_shared; /* a sibling was busy when this quantum began */
	uint64_t counted; /* the scoreboard's value at the last count */
	uint64_t *score; /* grows by each executed instruction, and by stalls */
	uint64_t *place; /* of its present block in the profile, if there is one */
	uint64_t stalled; /* of the score since the last count: not instructions, but stalls */
	uint64_t late_stall_ps; /* stalls in the last block of the quantum, which goes beyond it */
	bool is_fresh; /* no quantum of its turn has begun */
	bool yields; /* its turn is over, and it is leaving cpu_exec() */
	bool halting; /* between QEMU's idle and resume callbacks: waits for an interrupt */
	bool works; /* in a loop of work.c, until it is interrupted */
	CPUState *cpu;

	/* Set by the thread that kicks the vCPU, cleared by the vCPU's own. */
	bool kicked;

	/* For the report. */
	uint64_t insns;
	uint64_t quanta;
	uint64_t clock_reads;
	int64_t idle_ns;
	int64_t work_ns;
	int64_t shared_ns; /* time in which an SMT sibling was busy */
	int64_t steal_ns; /* time in which it wanted to execute and had no physical CPU */
	int64_t waits_since_ns; /* when it became idle, waiting or working */
} __attribute__((aligned(128)));

struct counters {
	uint64_t turns; /* turns given */
	uint64_t slow_quanta; /* quantum ends at which a vCPU looked at the others */
	uint64_t jumps; /* all vCPUs were idle, and time jumped to the next timer */
	uint64_t timer_calls; /* a due timer called the main loop */
	uint64_t notify_calls; /* a vCPU called the main loop */
	uint64_t host_calls; /* the host woke the main loop */
	uint64_t stale_breakpoints; /* breakpoints that were gone, and not executed */
	uint64_t broken; /* a vCPU was found more than a block beyond the end of its turn */
	int64_t beyond_max_ns; /* how far beyond the end at most, blocks included */
	int64_t late_max_ns; /* how late a timer was served at most */
};

enum main_state {
	MAIN_BUSY, /* serves timers or I/O, may set new timers */
	MAIN_WAITS, /* in ppoll() until main_deadline_ns */
	MAIN_CALLED, /* has a reason to return from ppoll(), but has not returned */
};

/* What the vCPUs of a guest have had so far, or between its marks. */
struct span {
	int64_t begin_ns, end_ns;
	uint64_t insns;
	int64_t idle_ns, steal_ns;
};

/*
 * A guest: a QEMU process, with its main loop. Under turn.c's lock, but for what span.c writes:
 * only the vCPU that executes does.
 */
struct guest {
	pid_t pid; /* 0: has not joined */
	bool is_gone; /* has ended */
	bool is_background; /* the run is over once all others have ended */
	double weight, share; /* on the host, see host.c */
	unsigned int first_vcpu, nr_vcpus;
	struct counters counters;
	enum main_state main_state;
	int64_t main_deadline_ns;
	int64_t main_hold_ns; /* no turn goes beyond it unless MAIN_WAITS */
	bool main_renotified; /* a vCPU notified the main loop while it was busy */
	bool main_asleep; /* sleeps on main_word */
	uint32_t main_word; /* futex: changes when the main loop may go on */
	bool has_begun, has_ended; /* its command: see span.c */
	bool is_closed; /* in the background, and the command of another one has ended */
	struct span at_begin, at_end;
};

/*
 * The state of turn.c and host.c. All guests of a host share it, see guests.c. Every turn scans
 * all vCPUs. The two arrays are dense, 2 KiB each for 256 vCPUs, so a scan reads fewer cache lines
 * than the vCPUs themselves have.
 */
struct host {
	bool is_ready;
	bool is_over; /* time stands still, and the background guests end */
	pthread_mutex_t lock;
	unsigned int nr_guests, nr_vcpus;
	int64_t now_ns;
	unsigned int running; /* turns given */
	/*
	 * A vCPU wants a turn, or a main loop wants to work: each running vCPU looks at the others
	 * at its next quantum end.
	 */
	bool wanted;
	int64_t fair_ns; /* until when the lags of host.c are up to date */
	int64_t free_since_ns[MAX_VCPUS]; /* of each physical CPU that is free */
	int64_t active_ns[MAX_VCPUS]; /* local time if ready or running, else NEVER */
	int64_t ready_ns[MAX_VCPUS]; /* local time if ready, else NEVER */
	struct guest guests[MAX_GUESTS];
	struct vcpu vcpus[MAX_VCPUS];
};

/* The perturbation since the begin mark. Written under turn.c's lock. */
struct perturbation {
	bool is_on;
	bool has_begun; /* the first stop was made */
	uint64_t seed;
	uint64_t turns; /* turns given since */
	uint64_t schedule; /* fingerprint of these turns */
	uint64_t stops; /* of vCPUs */
	int64_t stopped_ns;
};

/* An option of the plugin whose value is a number. */
struct number_option {
	const char *name;
	double least, most;
	double *value;
};

/* Sources of lines and other causes of stalls: enum source of memory.h. */
#define MAX_CAUSES 20

/* The memory model's counts of a vCPU. */
struct memory_counts {
	uint64_t nr[MAX_CAUSES], stall_ns[MAX_CAUSES];
	uint64_t string_bytes, string_ns;
};

extern struct options options;
extern struct host *host;
extern struct guest *own; /* the guest of this process */
extern struct vcpu *vcpus; /* its vCPUs */
extern unsigned int nr_vcpus;
extern struct counters *counters; /* its counters */
extern bool is_active; /* the plugin is installed: time is virtual */
extern __thread struct vcpu *self;

#define READ_ONCE(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_RELAXED)
#define COUNT(name) __atomic_fetch_add(&counters->name, 1, __ATOMIC_RELAXED)

/* Add to a sum that this thread alone writes, and others read. */
static inline void add_once(uint64_t *sum, uint64_t n)
{
	WRITE_ONCE(*sum, *sum + n);
}

/* turn.c */
void turn_init(struct vcpu *v);
bool turn_take(struct vcpu *v);
bool turn_extend(struct vcpu *v);
bool turn_wait(struct vcpu *v, enum vcpu_state state);
void turn_wake(struct vcpu *v);
void turn_release_all(void);
int64_t turn_now(void);
void turn_main_waits(int64_t deadline_ns);
void turn_main_woken(void);
void turn_main_notified(int fd);
bool turn_machine_sleeps(void);
void turn_leave(struct guest *g);

/* wakeup.c */
void wakeup_lock(void);
void wakeup_unlock(void);
void wakeup_change(uint32_t *word, bool *asleep);
void wakeup_all(void);
void wakeup_call_main(const struct guest *g);
void wakeup_sleep(uint32_t *word, bool *asleep);

/* vcpu.c */
void vcpu_register(qemu_plugin_id_t id);
int vcpu_exec(CPUState *cpu);
int64_t vcpu_local_now(const struct vcpu *v);
int64_t vcpu_local_ps(const struct vcpu *v);
void vcpu_count(struct vcpu *v);
void vcpu_start_quantum(struct vcpu *v);
void vcpu_end_quantum_early(struct vcpu *v);
bool vcpu_is_beyond_quantum(const struct vcpu *v);
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
bool work_has_nopl(const struct qemu_plugin_tb *tb, uint32_t displacement);
void work_watch_marks(struct qemu_plugin_tb *tb, exec_cb begin, exec_cb end);

/* perturb.c */
extern struct perturbation perturbation;
void perturb_start(uint64_t seed);
int64_t perturb_window(const struct vcpu *v);
uint64_t perturb_rank(const struct vcpu *v);
int64_t perturb_stop(const struct vcpu *v);
int64_t perturb_wakeup(const struct vcpu *v, int64_t at_ns);
int64_t perturb_timer(int64_t deadline_ns);
void perturb_note_turn(const struct vcpu *v);

/* snapshot.c */
void snapshot_watch(struct qemu_plugin_tb *tb);

/* host.c */
bool host_is_short(void);
struct vcpu *host_admit(void);
void host_preempt(void);
void host_leave(struct vcpu *v);
bool host_has_queue(void);
int64_t host_slice_end(const struct vcpu *v);

/* guests.c */
void guests_init(void);
int guests_wake_fd(const struct guest *g);
void guests_bury(void);
void guests_note_end(void);
int64_t guests_horizon(void);
bool guests_main_is_active(void);
bool guests_main_may_work(const struct guest *g);

/* span.c */
struct span span_so_far(void);
bool span_has_begun(void);
void span_watch(struct qemu_plugin_tb *tb);

/* smt.c */
bool smt_is_busy(const struct vcpu *v);
uint32_t smt_cost_ps(struct vcpu *v);
void smt_init(void);

/* frequency.c */
const char *frequency_init(void);
bool frequency_is_on(void);
double frequency_slowdown(const struct vcpu *v);
void frequency_watch(struct qemu_plugin_tb *tb);
void frequency_write(FILE *f, unsigned int index);

/* memory.c */
extern const struct number_option memory_number_options[];
extern const char *const memory_cause_names[];
bool memory_set_nodes(const char *text);
const char *memory_fault(void);
void memory_init(void);
bool memory_is_on(void);
size_t fetch_front_bytes(void);
void memory_set_code_front(unsigned int index, uint64_t *front);
void memory_watch(struct qemu_plugin_tb *tb, qemu_plugin_u64 code_front);
struct memory_counts memory_counts(unsigned int index);

/* patch.c */
bool patch_function(const char *name, void *replacement, char *why, size_t size);

/* report.c */
void report_start(const char *target);
void report_write(const char *end);

/* profile.c */
bool profile_is_on(void);
void profile_watch(struct qemu_plugin_tb *tb, qemu_plugin_u64 entry);
void profile_stall(const struct vcpu *v, uint64_t ps);
void profile_transfer(const struct vcpu *v, bool is_write);
void profile_start(unsigned int index);
void profile_write(void);
void profile_register(void);

/* tasks.c */
void tasks_watch(struct qemu_plugin_tb *tb);
void tasks_sample(const struct vcpu *v);
void tasks_stall(const struct vcpu *v, uint64_t ps);
void tasks_write(FILE *f);

/* watchdog.c */
void watchdog_start(void);
void watchdog_pause(void);
pid_t watchdog_tid(void);

/* interpose.c */
void futex_wait(uint32_t *word, uint32_t value);
void futex_wake(uint32_t *word);

#endif
