// SPDX-License-Identifier: GPL-2.0-only
/*
 * The machine as it is at a mark, run again and again: each time as a process of its
 * own, with another seed of perturb.c.
 *
 *	guest executes the begin mark
 *	  every thread stops, and the machine becomes a server
 *	  seed from the lab ----> fork ----> threads are made anew, perturb_start(seed)
 *	                           |           guest executes the end mark: report, exit 0
 *	                           |<----------------------------------------+
 *	  exit status to the lab
 *
 * So a seed costs neither a boot nor the start of a scheduler, and each begins with
 * the same state: the pages of the server are copied only where they are written.
 *
 * fork() keeps one thread, the vCPU's that executed the mark. The others have saved
 * their registers in the handler of a signal before, on stacks that fork() has copied.
 * In the child, a new thread with the old one's thread-local storage jumps back into
 * that handler, whose end restores what the signal interrupted, as if there had been
 * nothing but a signal. What a new thread has that the old one had not is its number,
 * which the C library keeps at the beginning of the thread-local storage.
 *
 * In deterministic mode this is safe at a mark: one vCPU executes, the others wait for
 * turns, and the main loop waits for time. The thread that frees memory of QEMU
 * may be anywhere, and goes on from there.
 *
 * Files stay open in the child at the same offset. Event counters are made anew,
 * because a child that ended early would leave its counts to the next one.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vtime.h"

/*
 * The signal that stops threads. The C library uses it for pthread_cancel(), which QEMU does
 * not use, and lets no thread block it. QEMU's threads block all others.
 */
#define SIGNAL_STOP 32

#define MAX_THREADS (MAX_VCPUS + 32)
#define MAX_FILES 1024

/* No number of a thread is found beyond this offset of the thread-local storage. */
#define THREAD_SIZE 2304

/* A stopped thread. */
struct stopped {
	pid_t tid;
	pthread_t thread; /* address of its thread-local storage */
	void *registers[5]; /* of __builtin_setjmp() */
	char stack[2048] __attribute__((aligned(64))); /* until the new thread has jumped */
};

static struct stopped threads[MAX_THREADS];
static unsigned int nr_threads;
static uint32_t nr_stopped; /* futex */
static uint32_t never;
static ptrdiff_t tid_offset; /* of a thread's number in its thread-local storage */
static bool is_begun;

/* The kernel returns from a signal's handler to this. The C library hides its own. */
__attribute__((naked)) static void end_of_handler(void)
{
	__asm__("mov $15, %eax\n\tsyscall"); /* rt_sigreturn */
}

/* A message, and the end: a machine that cannot be copied is of no use to the lab. */
__attribute__((noreturn)) static void give_up(const char *what)
{
	fprintf(stderr, "magpie-vtime: snapshot: %s (%s)\n", what, strerror(errno));
	_exit(1);
}

static pid_t own_tid(void)
{
	return syscall(SYS_gettid);
}

/* The handler of the signal: stop here for ever. In a child, a new thread leaves it. */
static void stop_here(int signal)
{
	const pid_t tid = own_tid();
	volatile int error = errno;
	struct stopped *t = threads;

	(void)signal;
	while (t->tid != tid)
		t++;
	t->thread = pthread_self();
	if (__builtin_setjmp(t->registers)) {
		errno = error;
		return;
	}
	__atomic_fetch_add(&nr_stopped, 1, __ATOMIC_SEQ_CST);
	futex_wake(&nr_stopped);
	for (;;)
		futex_wait(&never, 0);
}

/* Have the signal call stop_here(). The C library's function refuses this signal. */
static void install_handler(void)
{
	const struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		unsigned long mask;
	} action = {
		.handler = stop_here,
		.flags = SA_RESTART | 0x04000000 /* SA_RESTORER */,
		.restorer = end_of_handler,
		.mask = ~0UL,
	};

	if (syscall(SYS_rt_sigaction, SIGNAL_STOP, &action, NULL, sizeof(action.mask)))
		give_up("cannot install a handler");
}

/* Note all threads but this one and the watchdog's, which is started anew in each child. */
static void find_threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;

	if (!tasks)
		give_up("cannot read /proc/self/task");
	while ((entry = readdir(tasks))) {
		const pid_t tid = atoi(entry->d_name);

		if (tid <= 0 || tid == own_tid() || tid == watchdog_tid())
			continue;
		if (nr_threads == MAX_THREADS)
			give_up("too many threads");
		threads[nr_threads++].tid = tid;
	}
	closedir(tasks);
}

/* Return where a thread's number is, if it is at this offset. */
static pid_t *tid_at(pthread_t thread, ptrdiff_t offset)
{
	return (pid_t *)((char *)thread + offset);
}

/* Return true if every thread has its number at this offset. */
static bool is_tid_offset(ptrdiff_t offset)
{
	for (unsigned int i = 0; i < nr_threads; i++)
		if (*tid_at(threads[i].thread, offset) != threads[i].tid)
			return false;
	return *tid_at(pthread_self(), offset) == own_tid();
}

/* Stop all other threads, and find where the C library keeps their numbers. */
static void stop_threads(void)
{
	struct stat tasks;

	find_threads();
	install_handler();
	for (unsigned int i = 0; i < nr_threads; i++)
		if (syscall(SYS_tgkill, getpid(), threads[i].tid, SIGNAL_STOP))
			give_up("a thread has ended");
	for (;;) {
		const uint32_t now = __atomic_load_n(&nr_stopped, __ATOMIC_SEQ_CST);

		if (now == nr_threads)
			break;
		futex_wait(&nr_stopped, now);
	}
	/* This thread and the watchdog's; a folder has two links more than folders. */
	if (stat("/proc/self/task", &tasks) || tasks.st_nlink != nr_threads + 2 + 2)
		give_up("a thread was made meanwhile");
	while (!is_tid_offset(tid_offset)) {
		tid_offset += sizeof(pid_t);
		if (tid_offset >= THREAD_SIZE)
			give_up("this C library keeps no number of a thread");
	}
}

/* The first function of a new thread: jump to where the old one stopped. */
static int go_on(void *thread)
{
	struct stopped *t = thread;

	__builtin_longjmp(t->registers, 1);
}

/* In the child: make all threads anew. */
static void start_threads(void)
{
	const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
			  CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
	const unsigned long all = ~0UL;
	unsigned long mask;

	/* A new thread takes no signal before its handler has restored its mask. */
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &mask, sizeof(mask));
	for (unsigned int i = 0; i < nr_threads; i++) {
		struct stopped *t = &threads[i];
		pid_t *tid = tid_at(t->thread, tid_offset);

		if (clone(go_on, t->stack + sizeof(t->stack), flags, t, tid, (void *)t->thread,
			  tid) < 0)
			give_up("cannot make a thread");
	}
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof(mask));
}

/* Return the count of an event counter, or -1 if the file is none. Allocates no memory. */
static long long eventfd_count(int fd)
{
	char path[64], text[256];
	const char *found;
	ssize_t size;
	int info;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	info = open(path, O_RDONLY | O_CLOEXEC);
	if (info < 0)
		return -1;
	size = read(info, text, sizeof(text) - 1);
	close(info);
	text[size > 0 ? size : 0] = 0;
	found = strstr(text, "eventfd-count:");
	return found ? strtoll(found + 14, NULL, 16) : -1;
}

/* In the child: give each event counter a copy of its own, with the same count. */
static void renew_eventfds(void)
{
	for (int fd = 0; fd < MAX_FILES; fd++) {
		const long long count = eventfd_count(fd);
		const int flags = fcntl(fd, F_GETFL);
		int copy;

		if (count < 0 || flags < 0)
			continue;
		copy = eventfd(count, EFD_CLOEXEC | (flags & O_NONBLOCK ? EFD_NONBLOCK : 0));
		if (copy < 0 || dup3(copy, fd, O_CLOEXEC) < 0)
			give_up("cannot copy an event counter");
		close(copy);
	}
}

/*
 * Keep this thread, and those that it makes, on the host's CPU that it runs on. One thread
 * executes at a time, and hands over most quickly on one CPU.
 */
static void stay_on_cpu(void)
{
	unsigned int cpu;
	cpu_set_t set;

	if (syscall(SYS_getcpu, &cpu, NULL, NULL))
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/* Copy the machine. Returns 0 in the child, whose threads run, else the child's number. */
static pid_t fork_machine(void)
{
	pid_t *tid = tid_at(pthread_self(), tid_offset);
	const pid_t child = syscall(SYS_clone, SIGCHLD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID,
				    0, NULL, tid, 0);

	if (child < 0)
		give_up("cannot fork");
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	stay_on_cpu();
	renew_eventfds();
	start_threads();
	watchdog_start();
	return 0;
}

/*
 * Wait for a child, at most for a time. Return its exit code, 128 more than the
 * signal that ended it, or -1 if it was killed because the time was over.
 */
static int wait_for(pid_t child, int limit_ms)
{
	struct pollfd file = { .fd = syscall(SYS_pidfd_open, child, 0), .events = POLLIN };
	bool is_over;
	int status;

	if (file.fd < 0)
		give_up("cannot watch a child");
	is_over = poll(&file, 1, limit_ms) == 0;
	if (is_over)
		kill(child, SIGKILL);
	close(file.fd);
	if (waitpid(child, &status, 0) < 0)
		give_up("cannot wait for a child");
	if (is_over)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Connect to the lab. */
static int connect_lab(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(address.sun_path, options.snapshot, sizeof(address.sun_path) - 1);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)))
		give_up("cannot connect to the lab's socket");
	return fd;
}

/* Read a line from the lab. Returns false if the lab has closed the socket. */
static bool read_line(int lab, char *text, size_t size)
{
	size_t length = 0;

	while (length + 1 < size && read(lab, text + length, 1) == 1) {
		if (text[length] == '\n') {
			text[length] = 0;
			return true;
		}
		length++;
	}
	return false;
}

/* The guest has reached the begin mark: serve seeds. Only a child returns. */
static void begin(unsigned int index, void *userdata)
{
	char text[128];
	int lab;

	(void)userdata;
	if (is_begun)
		return;
	is_begun = true;
	watchdog_pause();
	stop_threads();
	lab = connect_lab();
	for (;;) {
		unsigned long long seed;
		int limit_ms, status;
		pid_t child;

		/* The lab has closed the socket: it needs this machine no longer. */
		if (!read_line(lab, text, sizeof(text)))
			_exit(0);
		if (sscanf(text, "%llu %d", &seed, &limit_ms) != 2)
			give_up("the lab sent no seed");
		child = fork_machine();
		if (!child) {
			close(lab);
			perturb_start(seed);
			/* The turn ends at the next block, and the first stop follows. */
			vcpus[index].yields = true;
			vcpu_end_quantum_early(&vcpus[index]);
			return;
		}
		status = wait_for(child, limit_ms);
		snprintf(text, sizeof(text), "%d\n", status);
		if (send(lab, text, strlen(text), MSG_NOSIGNAL) < 0)
			_exit(0);
	}
}

/* The guest has reached the end mark: report, and end without the guest's shutdown. */
static void end(unsigned int index, void *userdata)
{
	(void)index;
	(void)userdata;
	report_write("mark");
	_exit(0);
}

/* Watch for the marks in this block. Off without the option. */
void snapshot_watch(struct qemu_plugin_tb *tb)
{
	if (options.snapshot)
		work_watch_marks(tb, begin, end);
}

/*
 * QEMU asks that its children do not get the guest's memory. Without that request the child of
 * a machine has no memory.
 */
EXPORT int madvise(void *address, size_t length, int advice)
{
	if (advice == MADV_DONTFORK && options.snapshot)
		return 0;
	return syscall(SYS_madvise, address, length, advice);
}
