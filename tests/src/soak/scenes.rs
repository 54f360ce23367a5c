//! What a scene of a soak does, chosen by a random number generator.

use std::fmt;

use anyhow::{Result, ensure};
use fastrand::Rng;
use magpie_lab::Guest;

use super::Report;
use crate::scheduler::{MAGPIE, shell, words};

/// Classes of stress-ng that schedule much. Those with a real-time policy are named below.
const CLASSES: &[&str] = &[
    "cpu",
    "affinity",
    "sched",
    "fork",
    "vfork",
    "exec",
    "clone",
    "pthread",
    "futex",
    "pipe",
    "switch",
    "cyclic",
    "numa",
    "cpu-sched",
    "sem",
    "sem-sysv",
    "mq",
    "msg",
    "sock",
    "eventfd",
    "poll",
    "yield",
    "nanosleep",
    "timer",
    "signal",
    "sigq",
    "ptrace",
    "wait",
    "zombie",
    "kill",
    "mutex",
    "schedpolicy",
    "softlockup",
    "hrtimers",
];
const REALTIME_CLASSES: &[&str] = &[
    "sched",
    "cyclic",
    "cpu-sched",
    "mutex",
    "schedpolicy",
    "softlockup",
    "hrtimers",
];

/// Options under which the scheduler is loaded in between.
const OPTIONS: &[&str] = &[
    "",
    "",
    "--no-steal",
    "--no-push",
    "--no-wakeup",
    "--no-hrtick",
    "--no-balance",
    "--no-spread",
    "--no-cpu-weight",
    "--no-cpu-max",
    "--no-patience",
    "--slice-us 1000",
    "--slice-us 10000",
    "--only steal",
    "--preferred 1",
    "--power saver",
    "--frequency on",
];

/// A disturbance: a function of `scene.sh` with its arguments.
pub struct Disturbance {
    name: &'static str,
    arguments: String,
}

impl Disturbance {
    /// The functions of `scene.sh`.
    #[cfg(test)]
    pub const NAMES: &[&str] = &[
        "stress",
        "hackbench_again",
        "churn",
        "hotplug",
        "cpusets",
        "cgroups",
        "freezer",
        "clamps",
        "realtime",
        "deadline",
        "memory",
        "clock",
    ];

    /// Returns the call in the words of a shell.
    pub fn call(&self) -> String {
        format!("{} {}", self.name, self.arguments)
    }

    /// Chooses a load.
    fn load(random: &mut Rng, cpus: u32) -> Self {
        let (name, arguments) = match random.u32(..5) {
            0 => ("hackbench_again", String::new()),
            1 => {
                let tasks = random.u32(1..=2 * cpus.min(8));
                ("churn", format!("{tasks} {}", random.u32(..)))
            }
            _ => {
                let class = CLASSES[random.usize(..CLASSES.len())];
                let count = random.u32(1..=cpus.min(8));
                ("stress", format!("{class} {count} {}", random.u32(..)))
            }
        };
        Disturbance { name, arguments }
    }

    /// Chooses something that happens to the load.
    fn event(random: &mut Rng, cpus: u32) -> Self {
        let hogs = random.u32(1..=cpus.min(8) + 1);
        let (name, arguments) = match random.u32(..10) {
            0 | 1 if cpus > 1 => {
                // Often all but one CPU.
                let mut order: Vec<u32> = (1..cpus).collect();
                random.shuffle(&mut order);
                let count = match random.bool() {
                    true => order.len().min(15),
                    false => random.usize(1..=order.len().min(4)),
                };
                ("hotplug", list(&order[..count]))
            }
            0 | 1 => ("clock", String::new()),
            2 => {
                let sets: Vec<String> = (0..8).map(|_| some_cpus(random, cpus)).collect();
                ("cpusets", format!("{hogs} \"{}\"", sets.join(" ")))
            }
            3 => ("freezer", hogs.to_string()),
            4 => {
                let weights = [1, 20, 100, 1000, 10_000].map(|weight| weight.to_string());
                let weight = random.choice(weights).unwrap_or_default();
                let limit = random.u32(1000..20_000);
                (
                    "cgroups",
                    format!("{hogs} \"{weight} 100\" \"max {limit}\""),
                )
            }
            5 => {
                let values: Vec<_> = (0..4).map(|_| random.u32(..1024).to_string()).collect();
                ("clamps", format!("{hogs} \"{}\"", values.join(" ")))
            }
            6 => ("realtime", some_cpus(random, cpus)),
            7 => ("deadline", random.u32(1..=cpus.min(4)).to_string()),
            8 => ("memory", String::new()),
            _ => ("clock", String::new()),
        };
        Disturbance { name, arguments }
    }

    /// Whether real-time tasks take CPU time from others.
    fn is_realtime(&self) -> bool {
        let class = self.arguments.split(' ').next().unwrap_or_default();
        match self.name {
            "stress" => REALTIME_CLASSES.contains(&class),
            name => ["realtime", "deadline"].contains(&name),
        }
    }
}

/// What happens to the scheduler itself during a scene.
#[derive(Debug)]
pub struct Turn {
    /// Kill it first, instead of asking it to end.
    is_killed: bool,
    /// Options of its next start.
    options: &'static str,
}

impl Turn {
    /// Ends the scheduler and starts it again.
    pub fn play(&self, guest: &mut Guest, report: &mut Report) -> Result<()> {
        shell(guest, "sleep 0.1")?;
        let command = format!("{MAGPIE} {}", self.options);
        if !self.is_killed {
            return start_anew(guest, &command, report);
        }
        shell(
            guest,
            "killall -9 scx_magpie; for i in $(seq 600); do \
             [ $(cat /sys/kernel/sched_ext/state) = disabled ] && exit; sleep 0.1; done; exit 1",
        )?;
        guest.stop_scheduler()?;
        report.add("kills of the scheduler", 1);
        // A real machine's service does this.
        shell(guest, "scx_magpie restore")?;
        guest.start_scheduler(&words(&command))?;
        report.add("loads", 1);
        Ok(())
    }
}

/// Asks the scheduler to end, and starts it with other options.
pub fn start_anew(guest: &mut Guest, command: &str, report: &mut Report) -> Result<()> {
    let exit = guest.stop_scheduler()?;
    ensure!(
        exit.code == 0 && exit.state == "disabled",
        "the scheduler did not end as it should: {exit:?}"
    );
    guest.start_scheduler(&words(command))?;
    report.add("loads", 1);
    Ok(())
}

/// A scene.
pub struct Scene {
    /// How long its disturbances go on, in seconds of the guest.
    pub seconds: u32,
    /// What happens, all at once.
    pub disturbances: Vec<Disturbance>,
    /// What happens to the scheduler meanwhile.
    pub turns: Vec<Turn>,
    /// The loads of idle-watch after the scene, and their seed.
    pub idle_loads: &'static str,
    /// See `idle_loads`.
    pub seed: u32,
}

impl Scene {
    /// Chooses a scene for a machine.
    pub fn choose(random: &mut Rng, cpus: u32) -> Self {
        let mut disturbances = vec![Disturbance::load(random, cpus)];
        for _ in 0..random.usize(1..=3) {
            let next = Disturbance::event(random, cpus);
            // Two of one kind would share a cgroup.
            if disturbances.iter().all(|other| other.name != next.name) {
                disturbances.push(next);
            }
        }
        let turns = match random.u32(..4) {
            0 => random.usize(1..=3),
            _ => 0,
        };
        let turns = (0..turns).map(|_| Turn {
            is_killed: random.bool(),
            options: OPTIONS[random.usize(..OPTIONS.len())],
        });
        let turns = turns.collect();
        let loads: &[&str] = match cpus {
            1 => &["hackbench", "hackbench,affinity", "hackbench,forks"],
            _ => &[
                "hackbench",
                "hackbench,affinity",
                "hackbench,forks,hotplug",
                "hogs,hotplug",
                "hogs,forks,affinity",
            ],
        };
        Scene {
            seconds: 1,
            disturbances,
            turns,
            idle_loads: loads[random.usize(..loads.len())],
            seed: random.u32(..),
        }
    }

    /// Returns the options of `magpie-load starvation`.
    pub fn watch(&self) -> &'static str {
        let realtime = self.disturbances.iter().any(Disturbance::is_realtime);
        // The deadline server leaves 5 % of a CPU to others, in periods of a second.
        match realtime {
            true => "--share 0.05 --extra-ms 200",
            false => "",
        }
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let calls: Vec<String> = self.disturbances.iter().map(Disturbance::call).collect();
        write!(f, "{}", calls.join(" + "))?;
        for turn in &self.turns {
            let how = if turn.is_killed { "killed" } else { "ended" };
            write!(f, "; {how}, started: {MAGPIE} {}", turn.options)?;
        }
        write!(f, "; then {}", self.idle_loads)
    }
}

/// Returns a list of CPUs in the kernel's notation: one, a few, or all.
fn some_cpus(random: &mut Rng, cpus: u32) -> String {
    let mut chosen: Vec<u32> = match random.u32(..4) {
        0 => (0..cpus.min(8)).collect(),
        1 => vec![random.u32(..cpus)],
        _ => (0..1 + cpus.min(8) / 2)
            .map(|_| random.u32(..cpus))
            .collect(),
    };
    chosen.sort_unstable();
    chosen.dedup();
    list(&chosen)
}

fn list(cpus: &[u32]) -> String {
    let words: Vec<String> = cpus.iter().map(u32::to_string).collect();
    words.join(",")
}
