//! The mechanisms of the BPF side: their names, files and switches.
//!
//! The table in this file is the only list of them. One line of a switch makes its option
//! (`--no-...`, with the text above it as the help) and clears its BPF variable. The counters of a
//! mechanism are the group of its name in `counters.rs`, its page is `docs/mechanisms/NAME.md`, and
//! `mechanisms_tests.rs` fails when one of the five is missing, or when a switch has no line in
//! `packaging/scx_magpie.toml`.

use clap::ValueEnum;

use crate::bpf_skel::types;
use crate::flags::flags;

/// A mechanism: a group of counters, a page, and what is written here.
#[derive(Debug)]
pub struct Mechanism {
    /// The name of its counter group and of its page.
    pub name: &'static str,
    /// Its purpose, in one line.
    pub purpose: &'static str,
    /// Its files or folders below `src/bpf/`. The first has the essay, the others are its parts.
    pub files: &'static [&'static str],
    /// Its switches.
    pub switches: &'static [Switch],
}

/// A switch that leaves a mechanism or a part of it out.
#[derive(Debug)]
pub struct Switch {
    /// Its field in [`Switches`].
    field: &'static str,
    /// How much it leaves out.
    pub extent: Extent,
    /// The BPF variable that it clears.
    #[cfg(test)]
    variable: &'static str,
}

/// How much of a mechanism a switch leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// A part, named on the mechanism's page.
    Part,
}

impl Switch {
    /// The option without its two dashes, such as `no-steal`.
    pub fn option(&self) -> String {
        option_of(self.field)
    }
}

fn option_of(field: &str) -> String {
    field.replace('_', "-")
}

/// The mechanisms that `--only` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Only {
    /// An idle CPU searches other CPUs' queues when the search is worth its cost
    Steal,
    /// A woken task runs on an idle core, its previous one first
    Wakeup,
    /// A requeued task wakes an idle CPU at once
    Push,
    /// A guest uses only as many CPUs as its host gives
    Preferred,
}

/// Makes [`MECHANISMS`] and [`Switches`] from the table below.
///
/// A switch is a line `Whole(no_NAME) clears VARIABLE;`, or `Part(...)` if it leaves out only a
/// part of the mechanism. `, needs no_OTHER` behind the variable says that the part works only with
/// another one: the other's switch clears the variable, too. `, only NAME` says that a plain
/// scheduler does without the part: any other `--only` clears the variable.
macro_rules! mechanisms {
    ($(
        #[doc = $purpose:literal]
        $name:literal in [$($file:literal),+] {
            $($(#[$help:meta])+ $extent:ident($field:ident) clears $variable:ident $(, needs $needs:ident)* $(, only $only:ident)?;)*
        }
    )*) => {
        /// All mechanisms, in the order in which the BPF side is read.
        pub const MECHANISMS: &[Mechanism] = &[$(
            Mechanism {
                name: $name,
                purpose: $purpose.trim_ascii(),
                files: &[$($file),+],
                switches: &[$(
                    Switch {
                        field: stringify!($field),
                        extent: Extent::$extent,
                        #[cfg(test)]
                        variable: stringify!($variable),
                    },
                )*],
            },
        )*];

        flags! {
            /// The switches of all mechanisms.
            Switches { $($($(#[$help])+ $field,)*)* }
        }

        impl Switches {
            /// Sets the BPF variable of each switch: clears it where the switch is given or `only`
            /// names another mechanism.
            pub fn configure(&self, only: Option<Only>, rodata: &mut types::rodata) {
                let keeps = |mechanism| only.is_none_or(|only| only == mechanism);
                $($(rodata.$variable =
                    !self.$field $(&& !self.$needs)* $(&& keeps(Only::$only))?;)*)*
            }

            /// Returns the option that leaves the part of a switch out, if one does: the switch,
            /// that of a part that it needs, or `only`.
            pub fn left_out_by(&self, switch: &Switch, only: Option<Only>) -> Option<String> {
                let keeps = |mechanism| only.is_none_or(|only| only == mechanism);
                $($(if switch.field == stringify!($field) {
                    if self.$field {
                        return Some(switch.option());
                    }
                    $(if self.$needs {
                        return Some(option_of(stringify!($needs)));
                    })*
                    let is_kept = true $(&& keeps(Only::$only))?;
                    return (!is_kept).then(|| "only".into());
                })*)*
                None
            }
        }
    };
}

mechanisms! {
    /// A fair queue for each CPU: the earliest deadline runs first
    "queue" in ["queue/queue.bpf.h", "queue/fair.bpf.h", "queue/overloaded.bpf.h", "queue/hrtick.bpf.h", "queue/overdue.bpf.h"] {
        /// Leave out wakeup preemption: a woken task waits for the end of the running task's slice
        Part(no_preempt) clears preempt_enabled;
        /// Leave out that the much shorter task runs first where no other waits: deadlines decide
        Part(no_shorter_first) clears shorter_first_enabled;
        /// Leave out the timer that ends a request in time: a waiting task then waits for a tick
        Part(no_hrtick) clears hrtick_enabled;
        /// Ignore slices that were asked for with sched_setattr(2): every task has the same slice
        Part(no_custom_slice) clears custom_slice_enabled;
    }

    /// An idle CPU takes a waiting task of another CPU
    "steal" in ["balance/steal.bpf.h", "balance/avg_idle.bpf.h"] {
        /// Leave out stealing: an idle CPU does not search other CPUs' queues for waiting tasks
        ///
        /// An idle CPU still takes a task when a busy CPU kicks it for that task, at a tick or when
        /// the task is requeued. Busy CPUs do not balance their queues either.
        Whole(no_steal) clears steal_enabled;
        /// Leave out the gate of stealing: an idle CPU searches even if it will idle for less than
        /// the search costs
        Part(no_steal_gate) clears steal_gate_enabled, only Steal;
    }

    /// A woken task runs on an idle core, its previous one first
    "wakeup" in ["place/wakeup.bpf.h", "place/search.bpf.h", "place/idle_map.bpf.h", "place/queue_choice.bpf.h", "place/move_cost.bpf.h"] {
        /// Leave out wakeup placement: the kernel's own idle selection places woken and new tasks
        ///
        /// The kernel then keeps one mask of idle CPUs for the whole machine, and writes it at
        /// every entry to and exit from idle. Fork placement and spreading search Magpie's map of
        /// idle CPUs, so they are left out, too.
        Whole(no_wakeup) clears idle_map_enabled, only Wakeup;
        /// Leave out the search for idle cores: a woken task takes any idle CPU
        ///
        /// Spreading searches for idle cores, so it is left out, too: a running task stays on a
        /// core that it shares.
        Part(no_wakeup_idle_core) clears wakeup_idle_core;
        /// Leave out what moves cost: a task leaves its LLC for an idle CPU, whatever that costs it
        Part(no_move_cost) clears move_cost_enabled;
        /// Leave out the choice of a queue: a woken task that finds no idle CPU waits for its
        /// previous CPU, although another one of its LLC would run it sooner
        Part(no_wakeup_queue_choice) clears queue_choice_enabled, needs no_wakeup, only Wakeup;
    }

    /// A new task starts in the LLC where the fewest tasks were forked lately
    "fork" in ["place/fork.bpf.h"] {
        /// Leave out the choice of an LLC for new tasks: a new task starts in its parent's LLC
        ///
        /// The task runs elsewhere only if that LLC has no idle CPU.
        Whole(no_fork) clears fork_enabled, needs no_wakeup, only Wakeup;
    }

    /// A running task leaves a core that it shares for an idle one
    "spread" in ["place/spread.bpf.h"] {
        /// Leave out spreading: a running task stays on a core that it shares
        Whole(no_spread) clears spread_enabled, needs no_wakeup, needs no_wakeup_idle_core, only Wakeup;
    }

    /// Busy CPUs even out what idle CPUs cannot
    "balance" in ["balance/balance.bpf.h"] {
        /// Leave out balancing: a busy CPU pulls no task from a CPU whose tasks get less
        ///
        /// With more CPU hogs than CPUs, some hogs then have a CPU alone and others share one.
        Whole(no_balance) clears balance_enabled, needs no_steal;
    }

    /// A requeued task wakes an idle CPU at once
    "push" in ["balance/push.bpf.h", "balance/patience.bpf.h"] {
        /// Leave out pushing: a requeued task does not wake an idle CPU at once
        ///
        /// The task waits until an idle CPU searches for work, or until the next tick.
        Whole(no_push) clears push_enabled, only Push;
        /// Leave out that a task waits a moment for its CPU: it leaves at once, with cold caches
        ///
        /// Each short kernel thread and each interrupt's thread may then move the task whose CPU it
        /// takes.
        Part(no_patience) clears patience_enabled;
    }

    /// A cgroup gets its share of CPU time (cpu.weight, cpu.idle)
    "cpu-weight" in ["cgroup/shares.bpf.h", "cgroup/tree.bpf.h"] {
        /// Leave out the weights of cgroups: cpu.weight and cpu.idle have no effect
        ///
        /// All tasks share the CPUs by their nice values alone, so a container with many tasks gets
        /// more CPU time than a container with few.
        Whole(no_cpu_weight) clears cpu_weight_enabled;
    }

    /// A cgroup stays within its limit of CPU time (cpu.max)
    "cpu-max" in ["cgroup/bandwidth.bpf.h", "cgroup/parking.bpf.h", "cgroup/tree.bpf.h"] {
        /// Leave out the limits of cgroups: cpu.max has no effect
        ///
        /// A container then gets as much CPU time as its weight gives it.
        Whole(no_cpu_max) clears cpu_max_enabled;
    }

    /// Each CPU asks for the performance that it uses
    "frequency" in ["power/frequency.bpf.h"] {
        /// Leave out performance targets: under the governor schedutil each CPU keeps its highest
        /// frequency
        ///
        /// Where no CPU has that governor, targets are left out without this option, too.
        Whole(no_frequency) clears frequency_enabled;
    }

    /// With little load, work stays on few cores, and the others idle deeply
    "power" in ["power/power.bpf.h"] {
        /// Leave out power saving: work runs on all cores, whatever the power profile says
        Whole(no_power) clears power_enabled, needs no_preferred, only Preferred;
    }

    /// A guest uses only as many CPUs as its host gives
    "preferred" in ["guest/preferred.bpf.h", "guest/monitor.bpf.h", "guest/late_ticks.bpf.h"] {
        /// Leave out preferred CPUs altogether, so that they cannot be set later either
        Whole(no_preferred) clears preferred_enabled, only Preferred;
    }
}

#[cfg(test)]
#[path = "mechanisms_tests.rs"]
mod tests;
