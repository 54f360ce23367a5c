//! `scx_magpie check`: whether the scheduler can run here, and which of its mechanisms would be
//! active, with the reason why one would not.
//!
//! Nothing is loaded. The answers come from the kernel's files, from the topology, and from the
//! configuration file, as they would at the next start without options.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use libbpf_rs::btf::Btf;
use scx_utils::compat;
use serde::Serialize;

use crate::check::Host;
use crate::frequency::{Frequency, FrequencyReport};
use crate::mechanisms::{Extent, MECHANISMS, Mechanism};
use crate::options::Settings;
use crate::power::PowerSource;
use crate::topology::{self, Tables};
use crate::unsupported::Unsupported;
use crate::virtual_machine::is_virtual_machine;

/// Returns whether this kernel tells sched_ext schedulers of the weights of cgroups.
pub fn knows_cpu_weight() -> bool {
    has_operation("cgroup_init")
}

/// Returns whether this kernel tells sched_ext schedulers of the limits of cgroups.
pub fn knows_cpu_max() -> bool {
    knows_cpu_weight() && has_operation("cgroup_set_bandwidth")
}

/// Returns whether the kernel calls this operation, from the BTF of its `struct sched_ext_ops`.
fn has_operation(name: &str) -> bool {
    // Without this question scx_utils would panic where libbpf finds no BTF, or a broken one.
    Btf::from_vmlinux().is_ok() && compat::struct_has_field("sched_ext_ops", name).unwrap_or(false)
}

/// The facts on which it depends whether a mechanism is active.
#[derive(Clone, Debug)]
struct Facts {
    nr_cpus: usize,
    nr_llcs: usize,
    has_smt: bool,
    knows_cpu_weight: bool,
    knows_cpu_max: bool,
    is_virtual_machine: bool,
    has_schedutil: bool,
    saves_power: bool,
}

impl Facts {
    /// Reads them from the kernel and from the topology.
    fn of_this_machine(settings: &Settings) -> Result<Facts> {
        let tables: Tables = topology::lay_out(&topology::describe_host()?)?;
        Ok(Facts {
            nr_cpus: tables.cpus.len(),
            nr_llcs: tables.llcs.len(),
            has_smt: tables.cpus.iter().any(|cpu| cpu.core_size > 1),
            knows_cpu_weight: knows_cpu_weight(),
            knows_cpu_max: knows_cpu_max(),
            is_virtual_machine: is_virtual_machine(Path::new("/")),
            has_schedutil: Frequency::of(Path::new("/")).has_schedutil(),
            saves_power: PowerSource::new(settings.power, Path::new("/"))
                .level()
                .0
                .saves(),
        })
    }

    /// Returns why a mechanism has nothing to do on this machine, if that is so.
    fn obstacle(&self, mechanism: &str, settings: &Settings) -> Option<&'static str> {
        let (is_met, obstacle) = match mechanism {
            "steal" | "wakeup" | "balance" | "push" => (self.nr_cpus > 1, "there is one CPU"),
            "fork" => (self.nr_llcs > 1, "there is one last-level cache"),
            "spread" => (self.has_smt, "no core has SMT siblings"),
            "cpu-weight" => (
                self.knows_cpu_weight,
                "this kernel has no CONFIG_EXT_GROUP_SCHED; boot one that has it",
            ),
            "cpu-max" => (
                self.knows_cpu_max,
                "this kernel does not tell sched_ext schedulers of cpu.max; boot one that does: 6.17 \
                 or later, and built with CONFIG_EXT_GROUP_SCHED",
            ),
            "preferred" => (
                settings.loads_preferred(self.is_virtual_machine),
                "this is no virtual machine, so no host takes CPU time away; --preferred loads it \
                 all the same",
            ),
            "power" => (
                self.saves_power && settings.may_save_power(),
                "the machine does not ask to save power, or the user says which CPUs are preferred; \
                 --power saver loads it without being asked",
            ),
            "frequency" => (
                settings.asks_for_performance(self.has_schedutil),
                "no CPU has the frequency governor schedutil, so nothing follows; --frequency on loads \
                 it all the same",
            ),
            _ => (true, ""),
        };
        (!is_met).then_some(obstacle)
    }
}

/// The answer of `scx_magpie check`.
#[derive(Debug, Serialize)]
pub struct Readiness {
    /// Whether the scheduler can be started here and now.
    pub can_run: bool,
    /// Everything that keeps it from starting, each with its remedy.
    obstacles: Vec<String>,
    /// The sched_ext scheduler that runs now, as the kernel names it.
    running_scheduler: Option<String>,
    /// Driver and governors of the CPUs' frequencies.
    frequency: FrequencyReport,
    /// One entry for each mechanism.
    mechanisms: Vec<Activity>,
    /// Features of this kernel that only its own scheduler has.
    unsupported: Vec<Unsupported>,
}

/// Whether a mechanism would be active.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Activity {
    name: &'static str,
    purpose: &'static str,
    /// Its files below `scheduler/src/bpf/`.
    files: &'static [&'static str],
    active: bool,
    /// Why it would not be active.
    reason: Option<String>,
    /// The options of the configuration file that leave parts of an active mechanism out.
    parts_left_out_by: Vec<String>,
}

impl Activity {
    /// Judges one mechanism. A switch is named before an obstacle, because the user can change it.
    fn new(mechanism: &Mechanism, settings: &Settings, facts: &Facts) -> Activity {
        let left_out = |extent: Extent| {
            let switches = mechanism.switches.iter();
            switches
                .filter(move |switch| switch.extent == extent)
                .filter_map(|switch| settings.switches.left_out_by(switch, settings.only))
        };
        let reason = left_out(Extent::Whole)
            .next()
            .map(|option| format!("the configuration leaves it out: {option}"))
            .or_else(|| {
                let obstacle = facts.obstacle(mechanism.name, settings);
                obstacle.map(str::to_string)
            });
        Activity {
            name: mechanism.name,
            purpose: mechanism.purpose,
            files: mechanism.files,
            active: reason.is_none(),
            reason,
            parts_left_out_by: left_out(Extent::Part).collect(),
        }
    }
}

impl Readiness {
    /// Examines this machine, for a start with these settings.
    ///
    /// # Errors
    /// When the topology cannot be read.
    pub fn examine(settings: &Settings) -> Result<Readiness> {
        let host = Host::default();
        let obstacles: Vec<_> = host.obstacles().iter().map(ToString::to_string).collect();
        let facts = Facts::of_this_machine(settings)?;
        Ok(Readiness {
            can_run: obstacles.is_empty(),
            obstacles,
            running_scheduler: host.running_scheduler(),
            frequency: FrequencyReport::new(Frequency::of(&host.root), settings),
            mechanisms: activities(settings, &facts),
            unsupported: Unsupported::all(&host.root),
        })
    }

    /// Writes the answer as text: what is in the way, a line for each mechanism, and what is not
    /// supported.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn tell<W: Write>(&self, output: &mut W) -> io::Result<()> {
        match self.can_run {
            true => writeln!(output, "scx_magpie can run here.")?,
            false => writeln!(output, "scx_magpie cannot run here:")?,
        }
        for obstacle in &self.obstacles {
            writeln!(output, "- {}", obstacle.replace('\n', "\n  "))?;
        }
        writeln!(output, "\nIts mechanisms, if it starts:")?;
        for one in &self.mechanisms {
            let name = one.name;
            match &one.reason {
                Some(reason) => writeln!(output, "{name:<10} not active: {reason}")?,
                None if one.parts_left_out_by.is_empty() => writeln!(output, "{name:<10} active")?,
                None => {
                    let options = one.parts_left_out_by.join(", ");
                    writeln!(output, "{name:<10} active, but for {options}")?;
                }
            }
        }
        let frequency = &self.frequency;
        let names = frequency.found.names();
        writeln!(output, "\nCPU frequency: {names}{}", frequency.note)?;
        writeln!(output, "\nNot supported:")?;
        for one in &self.unsupported {
            let in_use = one.in_use.as_ref();
            let here = in_use.map_or(String::new(), |what| format!(" [here: {what}]"));
            writeln!(output, "- {}{here}: {}", one.feature, one.effect)?;
        }
        Ok(())
    }
}

/// Judges all mechanisms, in the order of their table.
fn activities(settings: &Settings, facts: &Facts) -> Vec<Activity> {
    let mechanisms = MECHANISMS.iter();
    mechanisms
        .map(|mechanism| Activity::new(mechanism, settings, facts))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::Options;

    fn large() -> Facts {
        Facts {
            nr_cpus: 16,
            nr_llcs: 2,
            has_smt: true,
            knows_cpu_weight: true,
            knows_cpu_max: true,
            is_virtual_machine: true,
            has_schedutil: true,
            saves_power: true,
        }
    }

    /// The mechanisms that are not active, with the reason.
    fn idle(arguments: &[&str], facts: &Facts) -> Vec<(&'static str, String)> {
        let options = Options::parse_from(["scx_magpie"].iter().chain(arguments));
        let activities = activities(&options.settings, facts);
        let idle = activities.into_iter();
        idle.filter_map(|one| Some((one.name, one.reason?)))
            .collect()
    }

    fn names(idle: &[(&'static str, String)]) -> Vec<&'static str> {
        idle.iter().map(|(name, _)| *name).collect()
    }

    #[test]
    fn on_a_large_guest_everything_is_active() {
        assert_eq!(idle(&[], &large()), []);
    }

    #[test]
    fn a_small_machine_has_no_use_for_some() {
        let one = Facts {
            nr_cpus: 1,
            nr_llcs: 1,
            has_smt: false,
            is_virtual_machine: false,
            has_schedutil: false,
            saves_power: false,
            ..large()
        };
        let found = idle(&[], &one);
        let expected = [
            "steal",
            "wakeup",
            "fork",
            "spread",
            "balance",
            "push",
            "frequency",
            "power",
            "preferred",
        ];
        assert_eq!(names(&found), expected);
        assert!(found.iter().all(|(_, reason)| !reason.is_empty()));
    }

    #[test]
    fn the_configuration_is_named_as_the_reason() {
        let found = idle(&["--no-push", "--no-steal-gate"], &large());
        assert_eq!(names(&found), ["push"]);
        assert!(found[0].1.contains("no-push"), "{found:?}");

        let found = idle(&["--only=steal"], &large());
        assert!(names(&found).contains(&"push"), "{found:?}");
        assert!(
            found.iter().all(|(_, reason)| reason.contains("only")),
            "{found:?}"
        );
    }

    #[test]
    fn a_mechanism_that_needs_another_names_its_switch() {
        let found = idle(&["--no-wakeup"], &large());
        assert_eq!(names(&found), ["wakeup", "fork", "spread"]);
        assert!(
            found
                .iter()
                .all(|(_, reason)| reason.ends_with("no-wakeup")),
            "{found:?}"
        );
        assert_eq!(
            names(&idle(&["--no-steal"], &large())),
            ["steal", "balance"]
        );
    }

    #[test]
    fn a_part_that_is_left_out_is_told_and_the_kernel_is_asked() {
        let old = Facts {
            knows_cpu_max: false,
            ..large()
        };
        let options = Options::parse_from(["scx_magpie", "--no-steal-gate"]);
        let readiness = Readiness {
            can_run: false,
            obstacles: vec!["first\nsecond".into()],
            running_scheduler: None,
            frequency: FrequencyReport::new(
                Frequency::of(Path::new("/no-such-folder")),
                &options.settings,
            ),
            mechanisms: activities(&options.settings, &old),
            unsupported: Unsupported::all(Path::new("/no-such-folder")),
        };
        let mut text = Vec::new();
        readiness.tell(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "scx_magpie cannot run here:",
            "- first",
            "  second",
            "steal      active, but for no-steal-gate",
            "push       active",
            "CPU frequency: the kernel has no driver for it; the host or the firmware decides",
            "Not supported:",
            "- nohz_full: the tick does not stop while a single task runs",
        ] {
            assert!(
                text.lines().any(|one| one == line),
                "no {line:?} in\n{text}"
            );
        }
        assert!(
            text.contains("cpu-max    not active: this kernel"),
            "{text}"
        );
    }
}
