//! A soak: scenes that follow from a seed try to break scx_magpie in a guest, for as long as there
//! is time.
//!
//! ```text
//! scene:  loads + disturbances (scene.sh)  |  starvation watches     for a second or two
//!         some reload the scheduler, kill it, change its options
//! then:   idle-watch with loads of its own |  no task beside an idle CPU for more than a tick
//! then:   is the scheduler loaded, and did it start as often as it was told to? what says the
//!         kernel's log?
//! ```
//!
//! idle-watch knows each change of an affinity and of a CPU only if it makes the change itself, so
//! it follows each scene instead of running beside it. It finds what a scene leaves behind: a bit
//! that was not cleared, a CPU that is forgotten.

mod cycles;
mod leaks;
mod scenes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::{Guest, GuestOptions, Machine, guest};
use serde_json::Value;

use crate::scheduler::{MAGPIE, VT8, code_and_output, program, shell, words};
use crate::{TestGuest, boot_machine};
pub use cycles::{Cycles, cycles};
pub use leaks::Kept;
use scenes::Scene;

/// The machines of a soak: 1 CPU, 2, 8 in two LLCs, 12 in uneven LLCs, two nodes, 64.
pub const MACHINES: &[&str] = &["one1", "vt2", VT8, "uneven12", "vt8nodes", "vt64"];

/// Words of the kernel's log that no scene may leave there.
const WARNINGS: &str =
    "WARNING:|BUG:|Oops|rcu: INFO|soft lockup|hung_task|possible recursive|sched_ext:.*error";

/// Waits until a scene has ended, for at least half a minute of the guest's time. Scenes take
/// a few seconds; for a task that is never run again one would wait for ever.
const WAIT: &str = "for i in $(seq 300); do [ -s /tmp/ended ] && exit; sleep 0.1; done; echo it takes too long; exit 1";

/// Prints which disturbances have not ended, the tasks, and in the kernel's log those that are blocked.
const WHAT_HANGS: &str =
    "ls /tmp/running; cat /tmp/scene; ps -o pid,ppid,stat,comm,args | grep -v ']$'
echo w > /proc/sysrq-trigger; dmesg | tail -n 100; cat /tmp/stress; true";

/// When a soak of one machine ends: at the first limit that it reaches. Without limits it goes on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Time of the guest in scenes and watches, in seconds.
    pub seconds: Option<f64>,
    /// Number of scenes.
    pub scenes: Option<u32>,
    /// Time of the host.
    pub until: Option<Instant>,
}

impl Limits {
    fn are_reached(&self, report: &Report) -> bool {
        self.seconds.is_some_and(|most| report.guest_s >= most)
            || self.scenes.is_some_and(|most| report.scenes >= most)
            || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// What a soak of one machine did and saw.
#[derive(Debug, Default)]
pub struct Report {
    /// Preset of the machine.
    pub machine: String,
    /// Scenes that were run.
    pub scenes: u32,
    /// Time of the guest in scenes and watches, in seconds. Between them a guest in virtual time
    /// idles, and its clock runs ahead.
    pub guest_s: f64,
    /// Time of the host, in seconds.
    pub host_s: f64,
    /// How often each thing was done.
    pub counts: BTreeMap<String, u64>,
    /// The longest wait of a runnable task, in ms.
    pub longest_wait_ms: f64,
    /// The largest part of its bound for which a task waited.
    pub worst_share: f64,
    /// The longest time for which a task waited beside an idle CPU, in ms.
    pub longest_stranded_ms: f64,
}

impl Report {
    fn add(&mut self, what: &str, count: u64) {
        *self.counts.entry(what.into()).or_default() += count;
    }
}

/// Runs scenes on a machine until a limit is reached: those that follow from the seed, or one of the
/// calls of `scene.sh` that are named, such as "hotplug 1,2 + crowd 1000".
///
/// # Errors
/// At the first violation: the seed, the scene, and what was seen.
pub fn soak(
    machine: &str,
    seed: u64,
    calls: Option<&str>,
    limits: Limits,
    say: &mut dyn FnMut(&str),
) -> Result<Report> {
    let began = Instant::now();
    let named = calls.map(Scene::of).transpose()?;
    let mut guest = boot(in_virtual_time(machine)?)?;
    let kept = kept_after_a_load(&mut guest)?;
    let cpus = Machine::find(machine)?.cpus();
    let mut report = Report {
        machine: machine.into(),
        ..Report::default()
    };
    let mut random = fastrand::Rng::with_seed(seed);
    guest.start_scheduler(&words(MAGPIE))?;
    report.add("loads", 1);
    while !limits.are_reached(&report) {
        let chosen;
        let scene = match &named {
            Some(named) => named,
            None => {
                chosen = Scene::choose(&mut random, cpus);
                &chosen
            }
        };
        say(&format!(
            "{machine}, seed {seed}, after {:.1} s, scene {}: {scene}",
            report.guest_s,
            report.scenes + 1
        ));
        let played = play(&mut guest, scene, &mut report);
        // The kernel's reason comes first, because it explains what a watch or a program saw.
        judge_scheduler(&mut guest, &played).with_context(|| {
            let number = report.scenes + 1;
            format!(
                "soak of {machine}, seed {seed}, scene {number} ({scene}), after {:.1} s; repeat with \
                 `make soak MAGPIE_MACHINE={machine} MAGPIE_SEED={seed}{}`",
                report.guest_s,
                calls.map_or(String::new(), |calls| format!(" MAGPIE_SCENE='{calls}'"))
            )
        })?;
        report.scenes += 1;
        report.host_s = began.elapsed().as_secs_f64();
    }
    scenes::end(&mut guest)?;
    kept.must_be_all(&mut guest)?;
    guest.into_guest().shutdown()?;
    Ok(report)
}

/// Loads the scheduler once and ends it, and returns what the guest has then: the first load takes what
/// stays, such as the kernel's caches.
fn kept_after_a_load(guest: &mut TestGuest) -> Result<Kept> {
    guest.start_scheduler(&words(MAGPIE))?;
    scenes::end(guest)?;
    Kept::of(guest)
}

/// Returns a machine, in virtual time also if its preset is in real time: a host that is busy would
/// otherwise look like a scheduler that lets tasks wait.
fn in_virtual_time(name: &str) -> Result<Machine> {
    let mut machine = Machine::find(name)?;
    if machine.virtual_time.is_none() {
        machine.virtual_time = Machine::find(VT8)?.virtual_time;
    }
    Ok(machine)
}

/// Boots a machine in virtual time with the programs of the scenes. A guest in which everything waits
/// answers no question: its kernel says on the console who waits for what, and panics.
fn boot(machine: Machine) -> Result<TestGuest> {
    let mut guest = boot_within(machine, GuestOptions::default().scheduler_timeout)?;
    shell(
        &mut guest,
        "cd /proc/sys/kernel && echo 120 >hung_task_timeout_secs && echo 1 >hung_task_panic",
    )?;
    Ok(guest)
}

/// As [`boot`]. The scheduler may take that long, in real time, to start or to end.
fn boot_within(machine: Machine, scheduler_timeout: Duration) -> Result<TestGuest> {
    // stress-ng is the host's, as Debian's packages for guests are of another release. The guest's own
    // timeout ends a program after whole seconds only.
    let host = ["stress-ng", "chrt", "uclampset", "timeout"]
        .map(|name| PathBuf::from("/usr/bin").join(name));
    let scene = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/soak/scene.sh");
    boot_machine(GuestOptions {
        machine,
        files: [program(MAGPIE)?, program("magpie-load")?, scene]
            .into_iter()
            .chain(host)
            .collect(),
        packages: vec!["rt-tests".into()],
        scheduler_timeout,
        ..GuestOptions::default()
    })
}

/// Plays a scene, then watches for stranded tasks.
fn play(guest: &mut Guest, scene: &Scene, report: &mut Report) -> Result<()> {
    let enablings = enablings(guest)?;
    let arguments: Vec<String> = scene
        .disturbances
        .iter()
        .map(|disturbance| format!("'{}'", disturbance.call()))
        .collect();
    let start = format!(
        "(sh /bin/scene.sh {} '{}' {} > /tmp/scene 2>&1; echo $? > /tmp/ended) >/dev/null 2>&1 &",
        scene.seconds,
        scene.watch(),
        arguments.join(" ")
    );
    shell(guest, &format!("rm -f /tmp/ended\n{start}"))?;
    let mut loads = 0;
    for act in &scene.acts {
        loads += act.play(guest, report)?;
    }
    wait_for_end(guest)?;
    let said = shell(guest, "cat /tmp/scene; echo code $(cat /tmp/ended)")?;
    read_scene(&said, report)?;
    if loads > 0 {
        // The next scene shall begin with the defaults.
        scenes::start_anew(guest, MAGPIE, report)?;
        loads += 1;
    }
    let after = self::enablings(guest)?;
    ensure!(
        after == enablings + loads,
        "the scheduler was started {} times, not {loads}",
        after - enablings
    );
    watch_idle(guest, scene, report)
}

/// Waits for the file that a scene makes at its end.
fn wait_for_end(guest: &mut Guest) -> Result<()> {
    let Err(error) = shell(guest, WAIT) else {
        return Ok(());
    };
    let hangs = shell(guest, WHAT_HANGS).unwrap_or_else(|unknown| format!("{unknown:#}"));
    bail!("{error:#}\nstill running: {hangs}")
}

/// Takes in the lines that a scene printed.
fn read_scene(said: &str, report: &mut Report) -> Result<()> {
    for line in said.lines() {
        if let Some((what, count)) = line
            .strip_prefix("count ")
            .and_then(|line| line.rsplit_once(' '))
        {
            let count = count.parse().unwrap_or(0);
            match what {
                "ms of scenes" => report.guest_s += count as f64 / 1e3,
                _ => report.add(what, count),
            }
        } else if line.starts_with('{') {
            let seen: Value = serde_json::from_str(line).context("read what starvation printed")?;
            let number = |path: &str| seen.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
            report.longest_wait_ms = report.longest_wait_ms.max(number("/longest_ms"));
            let bound = number("/worst/bound_ms");
            if bound > 0.0 {
                let share = number("/worst/waited_ms") / bound;
                report.worst_share = report.worst_share.max(share);
            }
        }
    }
    ensure!(said.lines().last() == Some("code 0"), "{said}");
    // What a program says of itself is printed, but is no fault of the scheduler.
    for line in said.lines().filter(|line| line.contains("failed")) {
        println!("{line}");
    }
    Ok(())
}

/// Watches for tasks that wait beside an idle CPU.
fn watch_idle(guest: &mut Guest, scene: &Scene, report: &mut Report) -> Result<()> {
    let command = format!(
        "magpie-load idle-watch --json --trace-mib 16 --seconds 0.1 --seed {} --with {}",
        scene.seed, scene.idle_loads
    );
    let (code, said) = code_and_output(guest, &command)?;
    ensure!(code == 0, "`{command}` ended with {code}:\n{said}");
    let seen: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let watch = seen.pointer("/watches/0").context("a watch")?;
    let number = |name: &str| watch[name].as_f64().unwrap_or(0.0);
    report.longest_stranded_ms = report.longest_stranded_ms.max(number("longest_ns") / 1e6);
    report.guest_s += number("seconds");
    report.add("switches watched", number("switches") as u64);
    report.add("waits watched", number("waits") as u64);
    Ok(())
}

/// Returns the warnings in the kernel's log since the last call, and the log's end if there are any.
fn warnings(guest: &mut Guest) -> Result<String> {
    // grep ends with 1 if it finds nothing, and with 2 if it fails.
    let command = format!(
        "dmesg -c > /tmp/log && {{ grep -E '{WARNINGS}' /tmp/log && tail -n 60 /tmp/log || \
         [ $? = 1 ]; }}"
    );
    shell(guest, &command)
}

/// Holds the scheduler against what a scene saw: it runs, and the kernel has not complained.
fn judge_scheduler(guest: &mut Guest, played: &Result<()>) -> Result<()> {
    let died = guest.scheduler_died();
    if let Ok(Some(exit)) = &died {
        bail!("the scheduler ended: {}\n{played:?}", guest::explain(exit));
    }
    let log =
        warnings(guest).with_context(|| format!("cannot search the kernel's log\n{played:?}"))?;
    ensure!(log.is_empty(), "the kernel says:\n{log}\n{played:?}");
    match played {
        Ok(()) => died.map(|_| ()),
        Err(error) => bail!("{error:#}"),
    }
}

/// Returns how often the kernel has enabled a scheduler.
fn enablings(guest: &mut Guest) -> Result<u64> {
    let text = shell(guest, "cat /sys/kernel/sched_ext/enable_seq")?;
    text.trim().parse().with_context(|| text.clone())
}

/// Returns a table of what was done on each machine.
pub fn table(reports: &[Report]) -> String {
    let names: std::collections::BTreeSet<&String> = reports
        .iter()
        .flat_map(|report| report.counts.keys())
        .collect();
    type Row = (&'static str, fn(&Report) -> String);
    let fixed: [Row; 6] = [
        ("scenes", |report| report.scenes.to_string()),
        ("seconds of the guest", |report| {
            format!("{:.1}", report.guest_s)
        }),
        ("seconds of the host", |report| {
            format!("{:.0}", report.host_s)
        }),
        ("longest wait, ms", |report| {
            format!("{:.0}", report.longest_wait_ms)
        }),
        ("worst share of a bound", |report| {
            format!("{:.2}", report.worst_share)
        }),
        ("longest beside an idle CPU, ms", |report| {
            format!("{:.3}", report.longest_stranded_ms)
        }),
    ];
    let mut lines = vec![line(
        "",
        reports.iter().map(|report| report.machine.clone()),
    )];
    for (name, value) in fixed {
        lines.push(line(name, reports.iter().map(value)));
    }
    for name in names {
        let counts = reports
            .iter()
            .map(|report| report.counts.get(name).copied().unwrap_or(0).to_string());
        lines.push(line(name, counts));
    }
    lines.join("\n")
}

fn line(name: &str, values: impl Iterator<Item = String>) -> String {
    let values: String = values.map(|value| format!("{value:>11}")).collect();
    format!("{name:<30}{values}")
}

#[cfg(test)]
mod tests {
    use super::scenes::Disturbance;
    use super::*;

    #[test]
    fn what_a_scene_prints_is_counted() {
        let mut report = Report::default();
        let said = "count hotplug 7\ncount real-time hogs 3\n\
                    {\"longest_ms\":80.0,\"worst\":{\"waited_ms\":50.0,\"bound_ms\":200.0}}\ncode 0\n";
        read_scene(said, &mut report).unwrap();
        read_scene("count hotplug 1\ncode 0\n", &mut report).unwrap();
        assert_eq!(report.counts["hotplug"], 8);
        assert_eq!(report.counts["real-time hogs"], 3);
        assert_eq!((report.longest_wait_ms, report.worst_share), (80.0, 0.25));
        for end in [
            "starved\ncode 2\n",
            "code 0\ncode 2\n",
            "code 01\n",
            "code \n",
            "",
        ] {
            assert!(read_scene(end, &mut report).is_err(), "{end:?}");
        }
        assert!(table(&[report]).contains("hotplug"));
    }

    #[test]
    fn a_soak_ends_at_its_first_limit() {
        let report = Report {
            scenes: 2,
            guest_s: 3.0,
            ..Report::default()
        };
        let are_reached = |seconds, scenes| {
            let limits = Limits {
                seconds,
                scenes,
                until: None,
            };
            limits.are_reached(&report)
        };
        assert!(!are_reached(None, None) && !are_reached(Some(3.1), Some(3)));
        assert!(are_reached(Some(3.0), Some(3)) && are_reached(Some(3.1), Some(2)));
        let limits = Limits {
            until: Some(Instant::now()),
            ..Limits::default()
        };
        assert!(limits.are_reached(&report));
    }

    #[test]
    fn a_seed_has_the_same_scenes_each_time_and_all_disturbances_are_used() {
        let scenes = |cpus| {
            let mut random = fastrand::Rng::with_seed(3);
            let scenes = (0..200).map(|_| Scene::choose(&mut random, cpus).to_string());
            scenes.collect::<Vec<_>>()
        };
        assert_eq!(scenes(8), scenes(8));
        let all = scenes(8).join("\n");
        for name in Disturbance::NAMES {
            assert!(all.contains(name), "no {name}");
        }
        // One CPU cannot go offline.
        assert!(!scenes(1).join("\n").contains("hotplug"));
    }
}
