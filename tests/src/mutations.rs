//! Mutations of the BPF side: small faults, each of which a test must find.
//!
//! [`MUTATIONS`] has them; the program `mutate` applies them to a copy of the tree, one at a time,
//! and runs the test that is named beside each (`make mutants`). A mutation that its test does not
//! find shows that the test is worth less than its name says. Only a test of this file runs in `make
//! test`: each mutation still fits the tree.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The test that must fail.
#[derive(Clone, Copy, Debug)]
pub enum Finder {
    /// A test of `magpie-native`: the file in `tests/native/tests/`, and a part of the test's name.
    Native(&'static str, &'static str),
    /// A test in a virtual machine: a part of its name.
    Machine(&'static str),
}

impl Finder {
    /// Returns the arguments with which cargo runs the test.
    pub fn cargo_arguments(&self) -> Vec<&'static str> {
        match self {
            Finder::Native(file, name) => {
                vec![
                    "test",
                    "--release",
                    "--package",
                    "magpie-native",
                    "--test",
                    file,
                    name,
                ]
            }
            Finder::Machine(name) => {
                vec![
                    "test",
                    "--release",
                    "--package",
                    "magpie-tests",
                    "--test",
                    "vm",
                    name,
                ]
            }
        }
    }
}

/// A fault: in a file of the tree, a text that occurs once is replaced by another one.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// The fault, in words.
    pub fault: &'static str,
    /// From the root of the tree.
    pub file: &'static str,
    /// The text of the tree.
    pub old: &'static str,
    /// The text of the mutant.
    pub new: &'static str,
    /// The test that must find the fault.
    pub finder: Finder,
}

impl Mutation {
    /// Applies the mutation to a tree. Returns the file's text as it was.
    ///
    /// # Errors
    /// When the file cannot be read or written, or does not have the text exactly once.
    pub fn apply(&self, tree: &Path) -> Result<String> {
        let path = tree.join(self.file);
        let before = self.read(tree)?;
        fs::write(&path, before.replacen(self.old, self.new, 1))
            .with_context(|| format!("write {}", path.display()))?;
        Ok(before)
    }

    /// Returns the file's text, which must have the text to be replaced exactly once.
    fn read(&self, tree: &Path) -> Result<String> {
        let path = tree.join(self.file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let count = text.matches(self.old).count();
        ensure!(
            count == 1,
            "{}: {} has {count} times {:?}",
            self.fault,
            self.file,
            self.old
        );
        Ok(text)
    }
}

use Finder::{Machine, Native};

/// All mutations: those that native tests find come first.
pub const MUTATIONS: &[Mutation] = &[
    Mutation {
        fault: "a set bit is written again",
        file: "scheduler/src/bpf/portable/sparsemask.h",
        old: "\tif (READ_ONCE(line->bits) & bit)\n\t\treturn false;\n",
        new: "",
        finder: Native("stores", "only_changes_store"),
    },
    Mutation {
        fault: "a clear bit is written again",
        file: "scheduler/src/bpf/portable/sparsemask.h",
        old: "\tif (!(READ_ONCE(line->bits) & bit))\n\t\treturn false;\n",
        new: "",
        finder: Native("stores", "only_changes_store"),
    },
    Mutation {
        fault: "a search leaves the last line out",
        file: "scheduler/src/bpf/portable/sparsemask.h",
        old: "if (!bits && line + 1 < last) {",
        new: "if (!bits && line + 2 < last) {",
        finder: Native("sparsemask", "every_visit_of_every_small_map"),
    },
    Mutation {
        fault: "a search goes beyond its end",
        file: "scheduler/src/bpf/portable/sparsemask.h",
        old: "return place < end ? place : end;",
        new: "return place;",
        finder: Native("sparsemask", "every_history_is_that_of_a_set"),
    },
    Mutation {
        fault: "a search leaves its first place out",
        file: "scheduler/src/bpf/portable/sparsemask.h",
        old: "& ~0ULL << (from",
        new: "& ~1ULL << (from",
        finder: Native("sparsemask", "every_history_is_that_of_a_set"),
    },
    Mutation {
        fault: "a visit does not wrap around",
        file: "scheduler/src/bpf/portable/sparsemask.h",
        old: "\t\tvisit->end = visit->start;\n",
        new: "\t\tvisit->end = visit->first;\n",
        finder: Native("sparsemask", "a_visit_goes_once_around"),
    },
    Mutation {
        fault: "a bit is not set atomically",
        file: "scheduler/src/bpf/portable/sparsemask.h",
        old: "return !(__sync_fetch_and_or(&line->bits, bit) & bit);",
        new: "line->bits |= bit;\n\treturn true;",
        finder: Native("stress", "no_lost_update"),
    },
    Mutation {
        fault: "an idle CPU counts twice",
        file: "scheduler/src/bpf/portable/idle_map.h",
        old: "if (__sync_fetch_and_add(&llc->cpus, 1))",
        new: "if (__sync_fetch_and_add(&llc->cpus, 2))",
        finder: Native("placement", "counts_follow_the_bits"),
    },
    Mutation {
        fault: "the last idle CPU of an LLC leaves the LLC counted",
        file: "scheduler/src/bpf/portable/idle_map.h",
        old: "-1) != 1)",
        new: "-1) != 0)",
        finder: Native("placement", "counts_follow_the_bits"),
    },
    Mutation {
        fault: "an offline sibling keeps a core busy",
        file: "scheduler/src/bpf/portable/idle_map.h",
        old: "word == IDLE_OFFLINE || ",
        new: "",
        finder: Native("placement", "siblings_that_are_offline_or_run_idle_tasks"),
    },
    Mutation {
        fault: "a fresh claim counts as one that was made anew",
        file: "scheduler/src/bpf/portable/idle_map.h",
        old: "now | 1 : now & ~1ULL",
        new: "now | 1 : now | 1",
        finder: Native("placement", "a_cpu_is_late_if_its_claim_is_old"),
    },
    Mutation {
        fault: "a search that nobody claimed the CPU for ends a waker's claim",
        file: "scheduler/src/bpf/portable/idle_map.h",
        old: "(claimed_to_search || word <= IDLE_LAST || is_word_late(word, now))",
        new: "(claimed_to_search || word <= IDLE_LAST || now)",
        finder: Native("placement", "a_search_that_nobody_claimed_the_cpu_for"),
    },
    Mutation {
        fault: "a CPU that was only asked whether it is there stays claimed",
        file: "scheduler/src/bpf/portable/idle_map.h",
        old: " || word <= IDLE_LAST || is_word_late(word, now))",
        new: " || (now && word <= IDLE_LAST))",
        finder: Native("placement", "a_search_that_nobody_claimed_the_cpu_for"),
    },
    Mutation {
        fault: "a claim does not claim",
        file: "scheduler/src/bpf/portable/idle_map.h",
        old: "return __sync_val_compare_and_swap(word, old, claim) == old;",
        new: "return *word == old && claim;",
        finder: Native("placement", "the_previous_cpu_comes_first"),
    },
    Mutation {
        fault: "a second task is sent to a vCPU that the host took",
        file: "scheduler/src/bpf/portable/placement.h",
        old: "\tcall_idle(cpu);\n\treturn false;\n",
        new: "\tcall_idle(cpu);\n\treturn true;\n",
        finder: Native("placement", "a_vcpu_that_the_host_took"),
    },
    Mutation {
        fault: "the affinity is not tested",
        file: "scheduler/src/bpf/portable/placement.h",
        old: "if (!is_free(at, cpu) || !may_place(task, cpu) ||",
        new: "if (!is_free(at, cpu) || (!may_place(task, cpu) && !at) ||",
        finder: Native("placement", "what_is_found_is_allowed_and_idle"),
    },
    Mutation {
        fault: "the core of the previous CPU may be busy",
        file: "scheduler/src/bpf/portable/placement.h",
        old: "!is_perfect(at, cpu) ||\n\t    !claim_cpu",
        new: "\n\t    !claim_cpu",
        finder: Native("placement", "then_the_recent_one_near_the_waker"),
    },
    Mutation {
        fault: "the recent CPU may be far from the waker",
        file: "scheduler/src/bpf/portable/placement.h",
        old: "cpu_to_llc(at->recent) == cpu_to_llc(at->waker) && ",
        new: "",
        finder: Native("placement", "then_the_recent_one_near_the_waker"),
    },
    Mutation {
        fault: "a waker that stays gets the task",
        file: "scheduler/src/bpf/portable/placement.h",
        old: "!at->is_sync || !leaves_cpu(at)",
        new: "!at->is_sync",
        finder: Native("placement", "then_the_wakers_if_it_leaves"),
    },
    Mutation {
        fault: "a search in vain is not noted",
        file: "scheduler/src/bpf/portable/placement.h",
        old: "\tif (none_there)\n\t\tnote_no_idle_core(llc);\n",
        new: "",
        finder: Native("placement", "all_are_asked_for_an_idle_core"),
    },
    Mutation {
        fault: "every task may go far",
        file: "scheduler/src/bpf/portable/placement.h",
        old: "return at->may_go_far ? search_beyond(at, task, llc) : STEP_QUEUE;",
        new: "return search_beyond(at, task, llc);",
        finder: Native("placement", "then_an_idle_core_an_idle_cpu"),
    },
    Mutation {
        fault: "all visits of another LLC begin at its first place",
        file: "scheduler/src/bpf/portable/llc_order.h",
        old: "return first + (core_first - own_first) % (size ?: 1);",
        new: "return core_first < first || core_first >= first + size ? first : core_first;",
        finder: Native("placement", "the_wakers_of_an_llc_begin"),
    },
    Mutation {
        fault: "an LLC of the node is left out",
        file: "scheduler/src/bpf/portable/llc_order.h",
        old: "if (i < nr)",
        new: "if (i <= nr)",
        finder: Native("placement", "every_other_llc_once"),
    },
    Mutation {
        fault: "a sleeper's debt may be twice as large",
        file: "scheduler/src/bpf/portable/fair.h",
        old: "clamp_lag(lag, -2 * (s64)",
        new: "clamp_lag(lag, -4 * (s64)",
        finder: Native("fair", "lag_stays_within_its_bounds"),
    },
    Mutation {
        fault: "sleep earns lag",
        file: "scheduler/src/bpf/portable/fair.h",
        old: "(s64)virtual_time(slice, rate), 0);",
        new: "(s64)virtual_time(slice, rate), slice);",
        finder: Native("fair", "lag_stays_within_its_bounds"),
    },
    Mutation {
        fault: "a CPU-bound task asks for one slice",
        file: "scheduler/src/bpf/portable/fair.h",
        old: "is_cpu_bound ? 2 * slice : slice",
        new: "is_cpu_bound ? slice : slice",
        finder: Native("fair", "a_request_is_a_slice_or_two"),
    },
    Mutation {
        fault: "lag is caught up for ever",
        file: "scheduler/src/bpf/portable/fair.h",
        old: "\t*catch_up -= free;\n",
        new: "",
        finder: Native("fair", "what_is_to_be_caught_up"),
    },
    Mutation {
        fault: "virtual times are compared without the wrap",
        file: "scheduler/src/bpf/portable/fair.h",
        old: "return (s64)(time - other) < 0;",
        new: "return time < other;",
        finder: Native("fair", "virtual_times_are_ordered_across_the_wrap"),
    },
    Mutation {
        fault: "a sample weighs a sixteenth",
        file: "scheduler/src/bpf/portable/average.h",
        old: "#define AVERAGE_SHIFT 3",
        new: "#define AVERAGE_SHIFT 4",
        finder: Native("arithmetic", "a_sample_weighs_an_eighth"),
    },
    Mutation {
        fault: "a weight differs from the kernel's",
        file: "scheduler/src/bpf/portable/weight.h",
        old: "\t335,   272,",
        new: "\t336,   272,",
        finder: Native("arithmetic", "the_table_is_the_kernels"),
    },
    Mutation {
        fault: "virtual time loses its fraction",
        file: "scheduler/src/bpf/portable/weight.h",
        old: "return whole * rate + ((part * rate) >> WEIGHT_SHIFT);",
        new: "return whole * rate + (part >> WEIGHT_SHIFT);",
        finder: Native("arithmetic", "virtual_time_is_exact"),
    },
    Mutation {
        fault: "a period too few is over",
        file: "scheduler/src/bpf/portable/bandwidth.h",
        old: "return 1 + (now - end) / period;",
        new: "return (now - end) / period;",
        finder: Native("bandwidth", "the_period_that_now_is_in"),
    },
    Mutation {
        fault: "a budget grows without bound",
        file: "scheduler/src/bpf/portable/bandwidth.h",
        old: "\tif (sum > most)\n\t\tsum = most;\n",
        new: "\t(void)most;\n",
        finder: Native("bandwidth", "a_burst_is_saved_up"),
    },
    Mutation {
        fault: "half of what the host gave counts as a loss",
        file: "scheduler/src/bpf/portable/governor.h",
        old: "#define LOST 45",
        new: "#define LOST 55",
        finder: Native("governor", "a_neighbour_that_begins_to_work_is_no_loss"),
    },
    Mutation {
        fault: "no core may be left",
        file: "scheduler/src/bpf/portable/governor.h",
        old: "\tif (cores < 1)\n\t\treturn 1;\n",
        new: "",
        finder: Native("governor", "there_is_always_a_core"),
    },
    Mutation {
        fault: "an alarm believes its estimate",
        file: "scheduler/src/bpf/portable/governor.h",
        old: "\treturn taken / DOUBTED < 100 ? taken / DOUBTED : 100;\n",
        new: "\treturn 0;\n",
        finder: Native("governor", "an_alarm_leaves_as_many_cores"),
    },
    Mutation {
        fault: "steal time at the threshold is too much",
        file: "scheduler/src/bpf/portable/governor.h",
        old: "if (input->steal > config->high && (state->cores > 1 || state->more))",
        new: "if (input->steal >= config->high && (state->cores > 1 || state->more))",
        finder: Native("governor", "the_thresholds_decide"),
    },
    Mutation {
        fault: "a few late ticks are believed",
        file: "scheduler/src/bpf/portable/steal.h",
        old: "return busy < LEAST_TICKS * interval ? 0 : late;",
        new: "return late;",
        finder: Native("arithmetic", "few_ticks_say_nothing"),
    },
    Mutation {
        fault: "two vCPUs become one where the host gives one and a half",
        file: "scheduler/src/bpf/portable/governor.h",
        old: "part >= WORTH_KEEPING || part > given / WORTH_SHARING",
        new: "part >= WORTH_KEEPING",
        finder: Native("governor", "a_part_of_a_core_is_kept"),
    },
    Mutation {
        fault: "a late timer is unknown at first",
        file: "scheduler/src/bpf/portable/steal.h",
        old: "punctual ? punctual + punctual / 8 + 1 : most;",
        new: "punctual + punctual / 8 + 1;",
        finder: Native("arithmetic", "a_timer_that_is_always_late"),
    },
    Mutation {
        fault: "failed probes do not become rare",
        file: "scheduler/src/bpf/portable/governor.h",
        old: "\t\tstate->backoff *= 2;\n",
        new: "",
        finder: Native("governor", "failed_probes_become_rare"),
    },
    Mutation {
        fault: "a sibling's own weight counts twice",
        file: "scheduler/src/bpf/portable/shares.h",
        old: "sum > own ? sum - own : 0;",
        new: "sum > own ? sum : 0;",
        finder: Native("shares", "siblings_share_by_weight"),
    },
    Mutation {
        fault: "an idle CPU visits every LLC for nothing",
        file: "scheduler/src/bpf/queue/overloaded.bpf.h",
        old: "\t\tif (READ_ONCE(overloaded[line].bits))\n\t\t\treturn true;\n\t}\n\n\treturn false;",
        new: "\t\tif (READ_ONCE(overloaded[line].bits))\n\t\t\treturn true;\n\t}\n\n\treturn true;",
        finder: Machine("an_idle_machine_visits_no_other_llc"),
    },
    Mutation {
        fault: "a late task is not looked for on an idle CPU that a real-time task takes",
        file: "scheduler/src/bpf/balance/patience.bpf.h",
        old: "\tif (!was_claimed && !nr_runnable(cpu))\n\t\treturn;\n",
        new: "\treturn;\n",
        finder: Machine("no_task_waits_for_a_realtime_task"),
    },
    Mutation {
        fault: "a searcher is not kicked",
        file: "scheduler/src/bpf/queue/queue.bpf.h",
        old: "\tWRITE_ONCE(state_of(idle)->must_search, hint);\n\tscx_bpf_kick_cpu(idle, SCX_KICK_IDLE);\n",
        new: "\tWRITE_ONCE(state_of(idle)->must_search, hint);\n",
        finder: Machine("a_task_that_loses_its_cpu_migrates_at_once"),
    },
    Mutation {
        fault: "a slice does not end in time",
        file: "scheduler/src/bpf/queue/hrtick.bpf.h",
        old: "\tscx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);\n",
        new: "",
        finder: Machine("a_slice_ends_in_time"),
    },
    Mutation {
        fault: "a task alone on its CPU passes the queue",
        file: "scheduler/src/bpf/base/runqueue.bpf.h",
        old: "rq->nr_running == 1 && rq->scx.nr_running == 1;",
        new: "rq->nr_running == 0;",
        finder: Machine("a_task_alone_on_its_cpu_passes_no_queue"),
    },
    Mutation {
        fault: "an interruption by a real-time task begins the idle hold anew",
        file: "scheduler/src/bpf/power/frequency.bpf.h",
        old: "\tu64 idled = READ_ONCE(state->idled) - READ_ONCE(state->idled_when_looked);",
        new: "\tu64 idled = 0;",
        finder: Machine("each_cpu_asks_for_the_performance"),
    },
    Mutation {
        fault: "a task waits for a CPU that does not come",
        file: "scheduler/src/bpf/place/queue_choice.bpf.h",
        old: "\tif (is_late(previous, now))\n\t\tprevious = leave_late(p, previous, now);\n",
        new: "",
        finder: Machine("an_idle_cpu_that_the_host_took_gets_no_second_task"),
    },
    Mutation {
        fault: "a task that leaves its throttled cgroup is owed the time for which it was parked",
        file: "scheduler/src/bpf/cgroup/parking.bpf.h",
        old: "\t\tleave_parking(ts, scx_bpf_task_cpu(p));\n",
        new: "",
        finder: Machine("throttled_tasks_follow_every_change"),
    },
];

#[cfg(test)]
mod tests {
    use magpie_lab::files;

    use super::*;

    #[test]
    fn every_mutation_fits_the_tree_and_names_a_test() -> Result<()> {
        let tree = files::source_tree().context("the tests need the source tree")?;
        ensure!(MUTATIONS.len() >= 30, "{} mutations", MUTATIONS.len());
        for mutation in MUTATIONS {
            let before = mutation.read(&tree)?;
            let after = before.replacen(mutation.old, mutation.new, 1);
            ensure!(before != after, "{} changes nothing", mutation.fault);
            let (folder, name) = match mutation.finder {
                Native(file, name) => (format!("tests/native/tests/{file}.rs"), name),
                Machine(name) => ("tests/tests/vm".to_string(), name),
            };
            let sources = sources(&tree.join(&folder))?;
            ensure!(
                sources.contains(&format!("fn {name}")),
                "{folder} has no test {name}"
            );
        }
        Ok(())
    }

    /// Returns the text of a file, or of all files of a folder.
    fn sources(path: &Path) -> Result<String> {
        if path.is_file() {
            return Ok(fs::read_to_string(path)?);
        }
        let mut text = String::new();
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            if path.is_file() {
                text += &fs::read_to_string(path)?;
            }
        }
        Ok(text)
    }
}
