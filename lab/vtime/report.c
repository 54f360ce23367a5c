// SPDX-License-Identifier: GPL-2.0-only
/*
 * The fidelity report: a JSON object with the machine's parameters, what it did,
 * and how well it kept the promises of the method. Its fields are those of
 * `Fidelity` in lab/src/vtime/fidelity.rs.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "vtime.h"

static int64_t real_start_ns;
static const char *target_name;

/* At the machine's start: keep the real time and the guest's architecture for the report. */
void report_start(const char *target)
{
	real_start_ns = real_now();
	target_name = target;
}

/* Write the stalls of one vCPU or of all, by their cause: most often the source of a line. */
static void write_memory(FILE *f, const struct memory_counts *counts)
{
	const char *comma = "";

	fprintf(f, "{");
	for (int s = 0; memory_cause_names[s]; s++) {
		fprintf(f, "%s\"%s\": {\"count\": %" PRIu64 ", \"stall_ns\": %" PRIu64 "}", comma,
			memory_cause_names[s], counts->nr[s], counts->stall_ns[s]);
		comma = ", ";
	}
	fprintf(f, ", \"string_bytes\": %" PRIu64 ", \"string_ns\": %" PRIu64 "}",
		counts->string_bytes, counts->string_ns);
}

/*
 * One reading of each vCPU's counts, from which the sum and the vCPUs' entries are
 * both written: the vCPUs count on meanwhile, and the entries would not add up.
 */
static struct memory_counts vcpu_memory[MAX_VCPUS];

/* Read the counts of all vCPUs into vcpu_memory, and write their sum. */
static void write_all_memory(FILE *f)
{
	struct memory_counts all = { 0 };

	for (unsigned int i = 0; i < nr_vcpus; i++) {
		const struct memory_counts *counts = &vcpu_memory[i];

		vcpu_memory[i] = memory_counts(i);
		for (int s = 0; s < MAX_CAUSES; s++) {
			all.nr[s] += counts->nr[s];
			all.stall_ns[s] += counts->stall_ns[s];
		}
		all.string_bytes += counts->string_bytes;
		all.string_ns += counts->string_ns;
	}
	fprintf(f, "  \"memory\": ");
	write_memory(f, &all);
	fprintf(f, ",\n");
}

/* Write an entry for each vCPU. With memory, write_all_memory() has read the counts. */
static void write_vcpus(FILE *f)
{
	fprintf(f, "  \"vcpus\": [\n");
	for (unsigned int i = 0; i < nr_vcpus; i++) {
		const struct vcpu *v = &vcpus[i];

		fprintf(f,
			"    {\"instructions\": %" PRIu64 ", \"idle_ns\": %" PRId64
			", \"work_ns\": %" PRId64 ", \"shared_ns\": %" PRId64
			", \"steal_ns\": %" PRId64,
			v->insns, v->idle_ns, v->work_ns, v->shared_ns, v->steal_ns);
		if (memory_is_on()) {
			fprintf(f, ", \"memory\": ");
			write_memory(f, &vcpu_memory[i]);
		}
		if (frequency_is_on()) {
			fprintf(f, ", \"frequency\": ");
			frequency_write(f, i);
		}
		fprintf(f, "}%s\n", i + 1 < nr_vcpus ? "," : "");
	}
	fprintf(f, "  ]\n");
}

/* Write the seed, and what followed from it since the begin mark. */
static void write_perturbation(FILE *f)
{
	fprintf(f,
		"  \"perturbation\": {\"seed\": %" PRIu64 ", \"turns\": %" PRIu64
		", \"schedule\": \"%016" PRIx64 "\", \"stops\": %" PRIu64
		", \"stopped_ns\": %" PRId64 "},\n",
		perturbation.seed, perturbation.turns, perturbation.schedule, perturbation.stops,
		perturbation.stopped_ns);
}

/* Write what the guest had between its marks, see span.c. */
static void write_span(FILE *f)
{
	const struct span span = span_so_far();

	fprintf(f,
		"  \"span\": {\"begin_ns\": %" PRId64 ", \"end_ns\": %" PRId64
		", \"instructions\": %" PRIu64 ", \"idle_ns\": %" PRId64 ", \"steal_ns\": %" PRId64
		"},\n",
		(int64_t)(span.begin_ns - EPOCH_NS), (int64_t)(span.end_ns - EPOCH_NS), span.insns,
		span.idle_ns, span.steal_ns);
}

/*
 * Write the report to the file of the option, or to standard error. @end says why: "running" (the
 * lab asked for it), "exit", "mark" (the end mark of a seed), "over" (the other guests of a host
 * have ended) or "hang".
 */
void report_write(const char *end)
{
	const double real_s = (real_now() - real_start_ns) / 1e9;
	const double virtual_s = (turn_now() - EPOCH_NS) / 1e9;
	uint64_t insns = 0, quanta = 0, clock_reads = 0;
	char unfinished[4096];
	FILE *f = stderr;

	/* Before the report, whose name tells the lab that both are complete. */
	profile_write();
	for (unsigned int i = 0; i < nr_vcpus; i++) {
		insns += vcpus[i].insns;
		quanta += vcpus[i].quanta;
		clock_reads += vcpus[i].clock_reads;
	}
	if (options.report) {
		snprintf(unfinished, sizeof(unfinished), "%s.new", options.report);
		f = fopen(unfinished, "w");
		if (!f) {
			fprintf(stderr, "magpie-vtime: cannot write the report to %s: %s\n",
				unfinished, strerror(errno));
			return;
		}
	}
	fprintf(f, "{\n  \"end\": \"%s\",\n  \"target\": \"%s\",\n  \"cpus\": %u,\n", end,
		target_name, nr_vcpus);
	fprintf(f,
		"  \"mips\": %g,\n  \"quantum\": %" PRIu64 ",\n  \"window_ns\": %" PRId64
		",\n  \"smt_factor\": %g,\n  \"threads_per_core\": %u,\n  \"turns\": %u,\n"
		"  \"deterministic\": %s,\n",
		options.mips, options.quantum, options.window_ns, options.smt_factor,
		options.threads, options.turns, options.deterministic ? "true" : "false");
	fprintf(f,
		"  \"real_seconds\": %.3f,\n  \"virtual_seconds\": %.9f,\n"
		"  \"instructions\": %" PRIu64 ",\n  \"real_mips\": %.1f,\n",
		real_s, virtual_s, insns, insns / real_s / 1e6);
	fprintf(f,
		"  \"windows_broken\": %" PRIu64 ",\n  \"beyond_turn_max_ns\": %" PRId64
		",\n  \"timer_late_max_ns\": %" PRId64 ",\n",
		counters->broken, counters->beyond_max_ns, counters->late_max_ns);
	fprintf(f,
		"  \"turns_given\": %" PRIu64 ",\n  \"quanta\": %" PRIu64
		",\n  \"slow_quanta\": %" PRIu64 ",\n  \"idle_jumps\": %" PRIu64
		",\n  \"timer_calls\": %" PRIu64 ",\n  \"notify_calls\": %" PRIu64
		",\n  \"host_calls\": %" PRIu64 ",\n  \"clock_reads\": %" PRIu64
		",\n  \"stale_breakpoints\": %" PRIu64 ",\n",
		counters->turns, quanta, counters->slow_quanta, counters->jumps,
		counters->timer_calls, counters->notify_calls, counters->host_calls, clock_reads,
		counters->stale_breakpoints);
	if (perturbation.is_on)
		write_perturbation(f);
	if (span_has_begun())
		write_span(f);
	if (memory_is_on())
		write_all_memory(f);
	write_vcpus(f);
	fprintf(f, "}\n");
	/* Renamed when complete, so that the lab never reads a part of it. */
	if (f != stderr && (fclose(f) || rename(unfinished, options.report)))
		fprintf(stderr, "magpie-vtime: cannot write the report to %s: %s\n", options.report,
			strerror(errno));
}
