/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * timer.bpf.h - BPF timers are prepared before they are started.
 *
 * A timer is the first field of a map's value. bpf_timer_init() must name the map that the value is
 * in, and the verifier must see both as constants: so these functions are always inlined.
 *
 * What it does not do: start a timer. Each mechanism starts its own.
 */
#ifndef __MAGPIE_TIMER_BPF_H
#define __MAGPIE_TIMER_BPF_H

/*
 * Prepare the timer at a key of an array map, and set the function that it will call. @callback:
 * NULL if another program sets it (set_cpu_callbacks()). The verifier holds the function to the
 * rules of the program that sets it: if that may sleep, the function may not search for CPUs.
 */
static __always_inline int prepare_timer(void *map, u32 key, void *callback)
{
	struct bpf_timer *timer = bpf_map_lookup_elem(map, &key);
	int err;

	if (!timer)
		return -ENOENT;

	err = bpf_timer_init(timer, map, CLOCK_MONOTONIC);
	if (!err && callback)
		err = bpf_timer_set_callback(timer, callback);
	return err;
}

/* Prepare the timer of each possible CPU, in a map with one timer per CPU. */
static __always_inline int prepare_cpu_timers(void *map, void *callback)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		int err = prepare_timer(map, cpu, callback);

		if (err)
			return err;
	}

	return 0;
}

/*
 * Set the function that the timer of each possible CPU will call. Until then none can be started.
 */
static __always_inline void set_cpu_callbacks(void *map, void *callback)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		u32 key = cpu;
		struct bpf_timer *timer = bpf_map_lookup_elem(map, &key);

		if (timer)
			bpf_timer_set_callback(timer, callback);
	}
}

#endif /* __MAGPIE_TIMER_BPF_H */
