/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * monitor.bpf.h - mechanism "preferred", part: how much the host gives, and which CPUs follow.
 *
 *   timer, LOOKS times a period:
 *   time that the host took of the preferred CPUs in this period so far
 *        |
 *   period over, or ALARM times too much taken
 *   since the last look?                        --no--> only act on settings and hotplug
 *        | yes
 *   governor (portable/governor.h): how many cores from now on
 *        |
 *   the first so many online cores of core_at_rank[] are preferred; that order takes cores evenly
 *   from all nodes
 *
 * Where no core is to be withheld for that, the load may say how many are preferred: see
 * power/power.bpf.h, which has another order. While it withholds cores the governor rests, because
 * few CPUs say little of what the host gives: of two, one whose ticks came late while processes
 * started was withheld, and nothing opened the others for a second. When tasks wait, all CPUs are
 * preferred for a second, and the governor sees what the host gives then.
 *
 * The kernel counts steal time where the hypervisor exposes it. Elsewhere late_ticks.bpf.h
 * estimates it.
 *
 * What it does not do: move tasks. preferred.bpf.h does.
 */
#ifndef __MAGPIE_MONITOR_BPF_H
#define __MAGPIE_MONITOR_BPF_H

const volatile u32 nr_cores = 1;

/* Place of the first CPU of each core, in the order in which cores become preferred. */
const volatile u16 core_at_rank[MAX_CPUS];

extern struct kernel_cpustat kernel_cpustat __ksym;

/* A host can take CPU time away. Where none can, a late tick says nothing. */
const volatile bool steal_governs = true;

/* User space may change these while the scheduler runs. */
struct preferred_settings preferred_settings = {
	.mode = PREFERRED_AUTO,
	.source = STEAL_SOURCE_AUTO,
	.governor = GOVERNOR_DIRECT,
	.period_ns = 1000000000,
	.high = 200,
	.low = 100,
};

/* PREFERRED_SET: the user's choice; PREFERRED_KERNEL: the kernel's mask. */
u64 requested_bits[MAX_CPUS / 64];

struct monitor_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct monitor_timer);
} monitor_timers SEC(".maps");

/*
 * How often the monitor looks in each period; and at how many times preferred_settings.high since
 * the last look it asks the governor before the period is over. Otherwise a load that begins
 * suddenly would run on too many vCPUs for a whole period. Since the last look, because the idle
 * time before the load began would hide the first tenths of a second in an average over the period.
 */
#define LOOKS 8
#define ALARM 10

struct governor_state governor;

u64 last_look; /* when the monitor last added up all CPUs, ns */

/* Return whether any of @size places from @first on has a usable CPU. */
static __always_inline bool is_core_online(u32 first, u32 size)
{
	bool online = false;
	u32 i;

	bpf_for(i, 0, size) {
		if (is_usable(place_to_cpu(first + i))) {
			online = true;
			break;
		}
	}

	return online;
}

/*
 * Return whether user space says which CPUs are preferred, so that no governor of ours does: those
 * of the user, or those of the kernel's mask, which user space reads.
 */
static __always_inline bool are_cpus_given(void)
{
	u32 mode = preferred_settings.mode;

	return mode == PREFERRED_SET || mode == PREFERRED_KERNEL;
}

static __always_inline bool is_requested(u32 cpu)
{
	return requested_bits[(cpu / 64) % (MAX_CPUS / 64)] & (1ULL << (cpu % 64));
}

/*
 * Set or clear a CPU's bit in both forms of the set of preferred CPUs. The RCU lock is for the
 * verifier, which takes the timer for a part of the sleepable ops.init().
 */
static __always_inline void set_preferred(u32 cpu, bool preferred)
{
	u64 *word = &preferred_bits[(cpu / 64) % (MAX_CPUS / 64)];
	struct bpf_cpumask *mask;

	bpf_rcu_read_lock();
	mask = preferred_mask;
	if (preferred) {
		*word |= 1ULL << (cpu % 64);
		if (mask)
			bpf_cpumask_set_cpu(cpu, mask);
	} else {
		*word &= ~(1ULL << (cpu % 64));
		if (mask)
			bpf_cpumask_clear_cpu(cpu, mask);
	}
	bpf_rcu_read_unlock();
}

/*
 * Sums of one look. In memory and not in registers, because the verifier follows a register through
 * every iteration of a loop and would not come to an end.
 */
struct preferred_sums {
	u64 busy, late, steal; /* of the preferred CPUs, ns */
	/* Since the last look, ns: its length, and of the preferred CPUs. */
	u64 span, busy_in_look, late_in_look, steal_in_look;
	u64 longest_busy; /* of the preferred CPU that was busy for longest */
	u32 wanted; /* average number of busy cores, 1/100 */
	u32 given; /* the same without the time that the host took */
	u32 counted; /* preferred CPUs */
	u32 threads, cores; /* online */
	u32 used; /* cores preferred */
	u32 chosen, withheld; /* online CPUs, preferred or not */
	bool is_frugal; /* cores are taken in the order that saves power */
} preferred_sums;

/* Set which CPUs of a core are preferred if the first @cores online ones are, and count the results. */
__noinline int apply_to_core(u32 rank, u32 cores)
{
	bool is_given = are_cpus_given();
	bool is_within = preferred_sums.used < cores;
	u32 at = rank & (MAX_CPUS - 1);
	u32 first = preferred_sums.is_frugal ? frugal_core_at_rank[at] : core_at_rank[at];
	u32 size = topology_of(place_to_cpu(first))->core_size;
	u32 i;

	bpf_for(i, 0, size) {
		u32 cpu = place_to_cpu(first + i);
		bool usable, preferred;

		if (cpu >= nr_cpus || cpu >= MAX_CPUS)
			continue;

		usable = is_usable(cpu);
		preferred = usable && (is_given ? is_requested(cpu) : is_within);
		set_preferred(cpu, preferred);
		if (preferred)
			preferred_sums.chosen++;
		else if (usable)
			preferred_sums.withheld++;
	}

	if (is_core_online(first, size))
		preferred_sums.used++;

	return 0;
}

/*
 * Make the first @cores online cores preferred, or the CPUs that user space gave. A wakeup at this
 * moment sees a mask without the cores that change, at worst, and takes the task's previous CPU.
 * @power: the level if that is to save power.
 */
static __always_inline void apply_preferred(u32 cores, u32 power)
{
	u32 rank;

	preferred_sums.is_frugal = power_enabled && power;
	preferred_sums.used = 0;
	preferred_sums.chosen = 0;
	preferred_sums.withheld = 0;

	bpf_for(rank, 0, nr_cores)
		apply_to_core(rank, cores);

	preferred_status.cores = are_cpus_given() ? 0 : cores;
	WRITE_ONCE(preferred_status.power, power);
	/* If all CPUs that user space gave are offline, none would be preferred: then all are. */
	WRITE_ONCE(preferred_status.withheld, preferred_sums.chosen ? preferred_sums.withheld : 0);
	WRITE_ONCE(preferred_status.applied, preferred_status.applied + 1);
}

/*
 * Find tasks that wait in a CPU's queue where nobody looks, because redirect() (preferred.bpf.h)
 * sent them there at the moment of its hotplug. If the CPU went offline, the task arrived after
 * ops.cpu_offline() had emptied the queue: this CPU then searches there. If the CPU came online and
 * idles, its kick was lost because the kernel did not yet let it dispatch: kick it again.
 */
static __always_inline void rescue_redirected(s32 cpu)
{
	s32 here = bpf_get_smp_processor_id();
	bool usable = is_usable(cpu);

	if (!scx_bpf_dsq_nr_queued(cpu) || (usable && !READ_ONCE(state_of(cpu)->idles)))
		return;

	count_event(state_of(here), EVENT_RESCUE, 1);
	if (usable)
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	else
		kick_searcher(here, 1 + cpu);
}

/*
 * Count an online CPU, and its core with the first of the core's online CPUs. Add its busy time and
 * what the host took only if it is preferred: tasks leave withheld CPUs, so these say nothing.
 */
__noinline int observe_cpu(u32 cpu)
{
	struct cpu_state *state = state_of(cpu);
	struct kernel_cpustat *stat;
	u64 busy_ns, in_period, since, steal_ns = 0;

	if (!is_usable(cpu))
		return 0;

	preferred_sums.threads++;
	if (!is_core_online(topology_of(cpu)->core_first,
			    topology_of(cpu)->place - topology_of(cpu)->core_first))
		preferred_sums.cores++;

	stat = bpf_per_cpu_ptr(&kernel_cpustat, cpu);
	if (stat)
		steal_ns = stat->cpustat[CPUTIME_STEAL];

	/* If the CPU goes idle between the two reads, the busy period counts twice in this look. */
	since = READ_ONCE(state->busy_since);
	busy_ns = READ_ONCE(state->busy_ns) + (since ? scx_bpf_now() - since : 0);

	if (is_preferred(cpu)) {
		preferred_sums.counted++;
		if (!is_before(busy_ns, state->now_busy_ns))
			preferred_sums.busy_in_look +=
				at_full_speed(cpu, busy_ns - state->now_busy_ns);
		/* After such a look that ended a period the sum may be less than it was. */
		in_period = is_before(busy_ns, state->seen_busy_ns) ? 0
								    : busy_ns - state->seen_busy_ns;
		preferred_sums.busy += in_period;
		if (preferred_sums.longest_busy < in_period)
			preferred_sums.longest_busy = in_period;
		preferred_sums.late_in_look += state->late_ns - state->now_late_ns;
		preferred_sums.steal_in_look += steal_ns - state->now_steal_ns;
		if (is_late_repeatedly(state))
			preferred_sums.late += state->late_ns - state->seen_late_ns;
		preferred_sums.steal += steal_ns - state->seen_steal_ns;
	}

	state->now_busy_ns = busy_ns;
	state->now_late_ns = state->late_ns;
	state->now_steal_ns = steal_ns;
	if (steal_ns)
		preferred_status.kernel_steal_ns = steal_ns;

	return 0;
}

/*
 * Begin the next period with what was observed last. Every LATE_WINDOW_NS also begin to collect
 * delays anew (late_ticks.bpf.h).
 */
static __always_inline void end_period(u64 now)
{
	bool collects_anew = !time_before(now, late_window_end);
	u32 cpu;

	if (collects_anew)
		late_window_end = now + LATE_WINDOW_NS;

	bpf_for(cpu, 0, nr_cpus) {
		struct cpu_state *state = state_of(cpu);

		state->seen_busy_ns = state->now_busy_ns;
		if (collects_anew)
			begin_late_window(state);
		state->seen_late_ns = state->now_late_ns;
		state->seen_steal_ns = state->now_steal_ns;
	}
}

/* Return from where the steal time comes, now that the kernel may have counted some. */
static __always_inline u32 steal_source(void)
{
	if (preferred_settings.source != STEAL_SOURCE_AUTO)
		return preferred_settings.source;

	return preferred_status.kernel_steal_ns ? STEAL_SOURCE_KERNEL : STEAL_SOURCE_ESTIMATE;
}

/* Return whether a preferred CPU was busy for as long as a look. Less work tells little. */
static __always_inline bool has_worked_for_long(void)
{
	return preferred_sums.longest_busy >= preferred_settings.period_ns / LOOKS;
}

/*
 * Add up all CPUs for the governor. @elapsed: since the period began, ns. Return the steal time
 * since the last look, 1/100 of a percent.
 */
static __always_inline u32 observe(struct governor_input *input, u64 elapsed, u64 now)
{
	struct preferred_sums *sums = &preferred_sums;
	u64 taken, threads, core_ns, recent;
	bool is_told;
	u32 cpu;

	__builtin_memset(sums, 0, sizeof(*sums));
	bpf_for(cpu, 0, nr_cpus)
		observe_cpu(cpu);

	preferred_status.source = steal_source();
	is_told = preferred_status.source == STEAL_SOURCE_KERNEL;
	taken = is_told ? sums->steal : late_sum(sums->late, sums->busy, tick_interval());
	if (taken > sums->busy)
		taken = sums->busy;

	/* Late ticks that are chance in the period are in the look, too. */
	recent = is_told ? sums->steal_in_look : taken ? sums->late_in_look : 0;
	sums->span = now - last_look;
	last_look = now;

	/* The time that a core can give in this period, all its siblings together. */
	input->total = sums->cores ?: 1;
	threads = sums->threads;
	core_ns = elapsed * threads / input->total ?: 1;
	input->steal = taken * 10000 / (sums->counted * elapsed ?: 1);
	sums->wanted = sums->busy * 100 / core_ns;
	sums->given = (sums->busy - taken) * 100 / core_ns;

	/*
	 * The governor needs the cores that the host gives while there is work, so divide by the
	 * time for which there was work. Averaged over the whole period, a load that began in the
	 * middle of it got half of its two cores, and lost one of them for that.
	 */
	core_ns = sums->longest_busy * threads / input->total ?: 1;
	input->busy = has_worked_for_long() ? sums->busy * 100 / core_ns : 0;
	input->given = (sums->busy - taken) * 100 / core_ns;

	return recent * 10000 / (sums->counted * sums->span ?: 1);
}

/* Return whether not to wait for the end of the period: much was taken, and for as long as a look. */
static __always_inline bool is_alarming(u32 recent)
{
	return recent >= ALARM * preferred_settings.high && has_worked_for_long();
}

/* Have the monitor look at settings and online CPUs before its next look is due. */
static __always_inline int apply_after(u64 delay_ns)
{
	struct monitor_timer *timer;
	u32 key = 0;

	timer = bpf_map_lookup_elem(&monitor_timers, &key);
	return timer ? bpf_timer_start(&timer->timer, delay_ns, 0) : -ENOENT;
}

/* User space calls this after it has changed the settings. */
SEC("syscall")
int apply_settings(void *ctx)
{
	return apply_after(0);
}

/* The kernel lets a new CPU dispatch only some microseconds after ops.cpu_online(). */
#define ONLINE_DELAY_NS 10000000

/* CPUs came or went: let the monitor choose anew which ones are preferred. */
static __always_inline void note_hotplug(u64 delay_ns)
{
	if (preferred_enabled)
		apply_after(delay_ns);
}

/*
 * Make as many cores preferred as the governor says, or, where it withholds none, as the load needs
 * to save power.
 */
static __always_inline void apply_decision(u32 cores, u32 power_wants)
{
	bool saves = power_enabled && power_level && power_wants &&
		     preferred_settings.mode == PREFERRED_AUTO && cores >= preferred_sums.cores;

	if (saves)
		apply_preferred(power_wants, power_level);
	else
		apply_preferred(cores, 0);
}

/* The timer's callback: look how much the host takes, and set which CPUs are preferred. */
static int monitor(void *map, int *key, struct monitor_timer *timer)
{
	struct governor_config config = {
		.kind = preferred_settings.governor,
		.high = preferred_settings.high,
		.low = preferred_settings.low,
	};
	struct governor_input input = {};
	u64 now = scx_bpf_now();
	u32 before = governor.cores;
	bool is_auto = preferred_settings.mode == PREFERRED_AUTO;
	bool steers = is_auto && steal_governs && !withholds_to_save();
	bool ended = false, alarm = false;
	u32 cpu, cores;
	u64 elapsed;

	bpf_for(cpu, 0, nr_cpus)
		rescue_redirected(cpu);

	elapsed = now - preferred_status.last_period;
	bpf_timer_start(&timer->timer, preferred_settings.period_ns / LOOKS, 0);

	/* After apply_after(), the time since the last look may be too short to judge by. */
	if (now - last_look >= preferred_settings.period_ns / (2 * LOOKS)) {
		u32 recent = observe(&input, elapsed, now);

		if (power_enabled)
			power_cores(preferred_sums.busy_in_look, preferred_sums.threads,
				    input.total, preferred_sums.span);
		ended = elapsed >= preferred_settings.period_ns * (2 * LOOKS - 1) / (2 * LOOKS);
		alarm = !ended && steers && !governor.stay && is_alarming(recent);
		if (alarm)
			input.doubt = governor_doubt(&input);
	}

	if (!ended && !alarm) {
		if (!steers)
			governor.cores = nr_cores;
		apply_decision(governor.cores, power.state.cores);
		return 0;
	}

	end_period(now);
	preferred_status.last_period = now;
	preferred_status.steal = input.steal;
	preferred_status.wanted = preferred_sums.wanted;
	preferred_status.given = preferred_sums.given;
	preferred_status.total = input.total;

	/*
	 * If no online core is withheld, a core that comes online later is not, either. Otherwise
	 * it would idle beside tasks that wait, until a probe.
	 */
	if (!steers || governor_next(&config, &governor, &input) >= input.total)
		governor.cores = nr_cores;

	cores = governor.cores;
	if (cores != before)
		preferred_status.changes++;
	preferred_status.direction = cores < before ? -1 : cores > before;
	apply_decision(cores, power.state.cores);
	return 0;
}

/* Create the mask of preferred CPUs and start the monitor's timer. */
static __always_inline int start_monitor(void)
{
	struct bpf_cpumask *mask;
	struct monitor_timer *timer;
	u32 key = 0;
	int err;

	mask = bpf_cpumask_create();
	if (!mask)
		return -ENOMEM;
	mask = bpf_kptr_xchg(&preferred_mask, mask);
	if (mask)
		bpf_cpumask_release(mask);

	timer = bpf_map_lookup_elem(&monitor_timers, &key);
	if (!timer)
		return -ENOENT;

	governor.cores = nr_cores;
	preferred_status.last_period = scx_bpf_now();

	err = prepare_timer(&monitor_timers, key, monitor);
	return err ?: bpf_timer_start(&timer->timer, preferred_settings.period_ns / LOOKS, 0);
}

#endif /* __MAGPIE_MONITOR_BPF_H */
