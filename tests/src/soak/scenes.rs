//! What a scene of a soak does, chosen by a random number generator.

use std::fmt;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use magpie_lab::{Guest, SchedulerExit};

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

/// The most tasks of a crowd. On a machine in virtual time each costs time of the host.
const MOST_TASKS_PER_CPU: u32 = 160;

/// Options under which the scheduler is loaded in between.
pub const OPTIONS: &[&str] = &[
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
        "crowd",
        "many_cgroups",
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
        let (name, arguments) = match random.u32(..12) {
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
            9 => {
                let most = random.choice([400, 1000, 10_000]).unwrap_or(400);
                ("crowd", most.min(MOST_TASKS_PER_CPU * cpus).to_string())
            }
            10 => {
                let count = random.choice([20, 100, 1000]).unwrap_or(20);
                ("many_cgroups", count.to_string())
            }
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
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turn {
    /// It is asked to end.
    End,
    /// It is killed.
    Kill,
    /// The kernel is out of memory and chooses it.
    OutOfMemory,
    /// It is stopped for a moment and goes on, as under a debugger. The kernel does not need it.
    Stop,
}

impl Turn {
    const ALL: [Turn; 4] = [Turn::End, Turn::Kill, Turn::OutOfMemory, Turn::Stop];
}

/// A [`Turn`], with the options of the scheduler's next start, if it ends.
#[derive(Debug)]
pub struct Act {
    turn: Turn,
    options: &'static str,
}

impl Act {
    /// Plays the turn. If it ends the scheduler, the kernel's own scheduler has the tasks for a
    /// moment. Returns how often the scheduler was started.
    pub fn play(&self, guest: &mut Guest, report: &mut Report) -> Result<u64> {
        shell(guest, "sleep 0.1")?;
        match self.turn {
            Turn::Stop => {
                shell(
                    guest,
                    "killall -STOP scx_magpie; sleep 0.3; killall -CONT scx_magpie",
                )?;
                report.add("stops of the scheduler", 1);
                return Ok(0);
            }
            Turn::End => {
                end(guest)?;
                report.add("ends of the scheduler", 1);
            }
            Turn::Kill => {
                kill(guest, "killall -9 scx_magpie")?;
                report.add("kills of the scheduler", 1);
            }
            Turn::OutOfMemory => {
                // SysRq-F has the kernel kill the task with the largest score.
                kill(
                    guest,
                    "echo 1000 > /proc/$(pidof scx_magpie)/oom_score_adj && echo f > /proc/sysrq-trigger",
                )?;
                report.add("out-of-memory kills of the scheduler", 1);
            }
        }
        shell(guest, "sleep 0.1")?;
        guest.start_scheduler(&words(&format!("{MAGPIE} {}", self.options)))?;
        report.add("loads", 1);
        Ok(1)
    }
}

/// Kills the scheduler by a script, and waits until the kernel has disabled it.
pub fn kill(guest: &mut Guest, script: &str) -> Result<SchedulerExit> {
    shell(
        guest,
        &format!(
            "{script}; for i in $(seq 600); do [ $(cat /sys/kernel/sched_ext/state) = disabled ] && \
             exit; sleep 0.1; done; echo the scheduler does not go; exit 1"
        ),
    )?;
    let exit = guest.stop_scheduler()?;
    // A real machine's service does this.
    shell(guest, "scx_magpie restore")?;
    Ok(exit)
}

/// Asks the scheduler to end.
pub fn end(guest: &mut Guest) -> Result<SchedulerExit> {
    let exit = guest.stop_scheduler()?;
    ensure!(
        exit.code == 0 && exit.state == "disabled",
        "the scheduler did not end as it should: {exit:?}"
    );
    Ok(exit)
}

/// Asks the scheduler to end, and starts it with other options.
pub fn start_anew(guest: &mut Guest, command: &str, report: &mut Report) -> Result<()> {
    end(guest)?;
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
    pub acts: Vec<Act>,
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
        let acts = match random.u32(..4) {
            0 => random.usize(1..=3),
            _ => 0,
        };
        let acts = (0..acts).map(|_| Act {
            turn: Turn::ALL[random.usize(..Turn::ALL.len())],
            options: OPTIONS[random.usize(..OPTIONS.len())],
        });
        let acts = acts.collect();
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
            acts,
            idle_loads: loads[random.usize(..loads.len())],
            seed: random.u32(..),
        }
    }

    /// Returns a scene of these calls of `scene.sh` and turns of the scheduler, such as "hotplug 1,2 +
    /// crowd 1000 + Kill".
    ///
    /// # Errors
    /// When there is no such function or turn.
    pub fn of(calls: &str) -> Result<Self> {
        let mut scene = Scene {
            seconds: 1,
            disturbances: Vec::new(),
            acts: Vec::new(),
            idle_loads: "hackbench",
            seed: 1,
        };
        for call in calls.split('+').map(str::trim) {
            let (name, arguments) = call.split_once(' ').unwrap_or((call, ""));
            if let Some(turn) = Turn::ALL.iter().find(|turn| format!("{turn:?}") == name) {
                let options = OPTIONS.iter().find(|options| **options == arguments);
                scene.acts.push(Act {
                    turn: *turn,
                    options: options.with_context(|| format!("not an option of scenes: {call}"))?,
                });
                continue;
            }
            let name = Disturbance::NAMES.iter().find(|known| **known == name);
            scene.disturbances.push(Disturbance {
                name: name.with_context(|| format!("no disturbance and no turn: {call}"))?,
                arguments: arguments.to_string(),
            });
        }
        Ok(scene)
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
        for Act { turn, options } in &self.acts {
            write!(f, "; {turn:?}")?;
            if *turn != Turn::Stop {
                write!(f, ", then {MAGPIE} {options}")?;
            }
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
