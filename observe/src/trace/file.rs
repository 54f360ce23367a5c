//! Traces on disk, in Perfetto's format.
//!
//! Switches, wakeups and migrations are ftrace events, because Perfetto makes its tables of
//! scheduling (`sched`, `thread_state`) of these alone. Decisions are instants on a track for each
//! CPU, beside a track that counts the tasks that wait for it.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::sys::utsname::uname;
use prost::Message;

use super::event::{Decision, Event, Step, Task, What};
use super::proto::{
    CounterDescriptor, Data, DebugAnnotation, Ftrace, FtraceCpuStats, FtraceEvent,
    FtraceEventBundle, FtraceStats, SchedMigrateTask, SchedSwitch, SchedWakeup, SystemInfo, Trace,
    TracePacket, TrackDescriptor, TrackEvent, Utsname,
};
use super::recorder::Recording;
use super::waits::{Preemption, Waiting};

/// So many ftrace events are in a packet.
const IN_BUNDLE: usize = 1024;

/// The packets of one writer have one number, and the first of them says that it is the first.
const SEQUENCE: u32 = 1;
const SEQUENCE_BEGINS: u32 = 1;

/// Names of tracks. Those of a CPU have numbers from these on.
const DECISIONS: u64 = 0x6d61_6770_0001_0000;
const WAITING: u64 = 0x6d61_6770_0002_0000;

/// Categories of the instants.
const DECISION: &str = "scx_magpie";
const PREEMPTION: &str = "preemption";
const AFFINITY: &str = "affinity";

/// Writes a recording to a file, in place of an older one.
///
/// # Errors
/// If it cannot be written, as when the disk is full.
pub fn write(path: &Path, recording: &Recording) -> Result<()> {
    let wrote = || -> Result<()> {
        let mut output = Output(BufWriter::new(File::create(path)?));
        output.write_all(recording)?;
        Ok(output.0.flush()?)
    };
    wrote().with_context(|| format!("write {}", path.display()))
}

struct Output(BufWriter<File>);

impl Output {
    fn write_all(&mut self, recording: &Recording) -> Result<()> {
        self.packet(None, Data::SystemInfo(system_info()))?;
        let cpus = 1 + recording
            .events
            .iter()
            .map(|event| event.cpu)
            .max()
            .unwrap_or(0);
        for cpu in 0..cpus {
            self.track(
                DECISIONS + u64::from(cpu),
                format!("CPU {cpu} decisions"),
                false,
            )?;
            self.track(
                WAITING + u64::from(cpu),
                format!("CPU {cpu} waiting tasks"),
                true,
            )?;
        }
        let mut bundles = vec![Vec::new(); cpus as usize];
        let mut waiting = Waiting::default();
        for event in &recording.events {
            if let Some(ftrace) = ftrace(event) {
                let bundle = &mut bundles[event.cpu as usize];
                bundle.push(ftrace);
                if bundle.len() == IN_BUNDLE {
                    self.bundle(event.cpu, std::mem::take(bundle))?;
                }
            } else if let Some((cpu, instant)) = instant(event) {
                self.instant(event.time, cpu, instant)?;
            }
            let change = waiting.note(event);
            if let Some(preemption) = change.preemption {
                self.instant(event.time, event.cpu, preempted(&preemption))?;
            }
            for (cpu, count) in change.counts {
                self.count(event.time, cpu, count)?;
            }
        }
        for (cpu, bundle) in (0..).zip(bundles) {
            self.bundle(cpu, bundle)?;
        }
        let stats = |(cpu, lost): (&u32, &u64)| FtraceCpuStats {
            cpu: Some(u64::from(*cpu)),
            overrun: Some(*lost),
        };
        let stats = FtraceStats {
            phase: Some(FtraceStats::END_OF_TRACE),
            cpu_stats: recording.lost.iter().map(stats).collect(),
        };
        self.packet(None, Data::FtraceStats(stats))
    }

    fn track(&mut self, uuid: u64, name: String, counts: bool) -> Result<()> {
        let track = TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name),
            parent_uuid: None,
            counter: counts.then_some(CounterDescriptor {}),
        };
        self.packet(None, Data::TrackDescriptor(track))
    }

    fn bundle(&mut self, cpu: u32, event: Vec<FtraceEvent>) -> Result<()> {
        if event.is_empty() {
            return Ok(());
        }
        let bundle = FtraceEventBundle {
            cpu: Some(cpu),
            event,
        };
        self.packet(None, Data::FtraceEvents(bundle))
    }

    fn instant(&mut self, time: u64, cpu: u32, instant: Instant) -> Result<()> {
        let event = TrackEvent {
            debug_annotations: instant.facts,
            r#type: Some(TrackEvent::INSTANT),
            track_uuid: Some(DECISIONS + u64::from(cpu)),
            categories: vec![instant.category.into()],
            name: Some(instant.name),
            counter_value: None,
        };
        self.packet(Some(time), Data::TrackEvent(event))
    }

    fn count(&mut self, time: u64, cpu: u32, count: usize) -> Result<()> {
        let event = TrackEvent {
            r#type: Some(TrackEvent::COUNTER),
            track_uuid: Some(WAITING + u64::from(cpu)),
            counter_value: Some(count as i64),
            ..TrackEvent::default()
        };
        self.packet(Some(time), Data::TrackEvent(event))
    }

    /// Writes a packet. A trace is a message of which packets are the only field, so packets one
    /// after the other are one.
    fn packet(&mut self, timestamp: Option<u64>, data: Data) -> Result<()> {
        let is_first = matches!(data, Data::SystemInfo(_));
        let trace = Trace {
            packet: vec![TracePacket {
                timestamp,
                trusted_packet_sequence_id: Some(SEQUENCE),
                sequence_flags: is_first.then_some(SEQUENCE_BEGINS),
                data: Some(data),
            }],
        };
        Ok(self.0.write_all(&trace.encode_to_vec())?)
    }
}

/// The kernel's version, by which a reader understands the states of tasks.
fn system_info() -> SystemInfo {
    let text = |text: &std::ffi::OsStr| Some(text.to_string_lossy().into_owned());
    let utsname = uname().ok().map(|name| Utsname {
        sysname: text(name.sysname()),
        version: text(name.version()),
        release: text(name.release()),
        machine: text(name.machine()),
    });
    SystemInfo { utsname }
}

/// The ftrace event of an event; none for a decision.
fn ftrace(event: &Event) -> Option<FtraceEvent> {
    let text = |task: &Task| Some(task.name.to_string());
    let number = |cpu: u32| Some(cpu as i32);
    let wakeup = |task: &Task, target: u32| SchedWakeup {
        comm: text(task),
        pid: Some(task.pid),
        prio: Some(task.prio),
        success: Some(1),
        target_cpu: number(target),
    };
    let what = match &event.what {
        What::Switch { prev, state, next } => Ftrace::Switch(SchedSwitch {
            prev_comm: text(prev),
            prev_pid: Some(prev.pid),
            prev_prio: Some(prev.prio),
            prev_state: Some(i64::from(*state)),
            next_comm: text(next),
            next_pid: Some(next.pid),
            next_prio: Some(next.prio),
        }),
        What::Waking { task, target } => Ftrace::Waking(wakeup(task, *target)),
        What::Wakeup { task, target } => Ftrace::Wakeup(wakeup(task, *target)),
        What::WakeupNew { task, target } => Ftrace::WakeupNew(wakeup(task, *target)),
        What::Migrate { task, from, to } => Ftrace::MigrateTask(SchedMigrateTask {
            comm: text(task),
            pid: Some(task.pid),
            prio: Some(task.prio),
            orig_cpu: number(*from),
            dest_cpu: number(*to),
        }),
        What::Decision(_) | What::Allowed { .. } => return None,
    };
    Some(FtraceEvent {
        timestamp: Some(event.time),
        pid: Some(event.current as u32),
        event: Some(what),
    })
}

/// An instant on a CPU's track of decisions.
struct Instant {
    category: &'static str,
    name: String,
    facts: Vec<DebugAnnotation>,
}

impl Instant {
    fn new<const N: usize>(
        category: &'static str,
        name: impl Into<String>,
        numbers: [(&str, i64); N],
    ) -> Instant {
        let fact = |(name, number): (&str, i64)| DebugAnnotation {
            name: Some(name.into()),
            int_value: Some(number),
            string_value: None,
        };
        Instant {
            category,
            name: name.into(),
            facts: numbers.map(fact).into(),
        }
    }
}

/// The instant of a decision or an affinity, and the CPU on whose track it is.
fn instant(event: &Event) -> Option<(u32, Instant)> {
    let simple = |name: &str, pid: i32, from: u32| {
        Instant::new(
            DECISION,
            name,
            [("pid", i64::from(pid)), ("from_cpu", i64::from(from))],
        )
    };
    let instant = match &event.what {
        What::Decision(Decision::Place {
            pid,
            step,
            from,
            to,
            looked,
        }) => Instant::new(
            DECISION,
            format!("wakeup: {}", step.name()),
            [
                ("pid", i64::from(*pid)),
                ("from_cpu", i64::from(*from)),
                ("to_cpu", i64::from(*to)),
                ("cpus_looked_at", i64::from(*looked)),
            ],
        ),
        What::Decision(Decision::Steal { pid, from, .. }) => simple("steal", *pid, *from),
        What::Decision(Decision::Balance { pid, from, .. }) => simple("balance", *pid, *from),
        What::Decision(Decision::Push { pid, from }) => simple("push", *pid, *from),
        What::Decision(Decision::Offer { pid, from }) => simple("offer", *pid, *from),
        What::Decision(Decision::Preferred { cores }) => {
            Instant::new(DECISION, "preferred cores", [("cores", i64::from(*cores))])
        }
        What::Allowed { pid, cpus } => {
            let mut instant = Instant::new(AFFINITY, "allowed CPUs", [("pid", i64::from(*pid))]);
            instant.facts.push(DebugAnnotation {
                name: Some("cpus".into()),
                int_value: None,
                string_value: Some(cpus.clone()),
            });
            instant
        }
        _ => return None,
    };
    Some((event.cpu, instant))
}

fn preempted(preemption: &Preemption) -> Instant {
    Instant::new(
        PREEMPTION,
        format!("{} preempts {}", preemption.by.name, preemption.task.name),
        [
            ("pid", i64::from(preemption.by.pid)),
            ("preempted_pid", i64::from(preemption.task.pid)),
        ],
    )
}

/// Reads a trace that [`write`] wrote. Other traces of Perfetto give their switches, wakeups and
/// migrations.
///
/// # Errors
/// If it cannot be read, or is no trace of Perfetto.
pub fn read(path: &Path) -> Result<Recording> {
    let bytes = fs::read(path).with_context(|| {
        let path = path.display();
        format!("read {path}; `magpie trace --seconds 5 -o {path}` records one")
    })?;
    let trace = Trace::decode(bytes.as_slice())
        .with_context(|| format!("{} is no trace in Perfetto's format", path.display()))?;
    let mut recording = Recording {
        events: Vec::new(),
        lost: Default::default(),
    };
    for packet in trace.packet {
        let time = packet.timestamp.unwrap_or(0);
        match packet.data {
            Some(Data::FtraceEvents(bundle)) => {
                let cpu = bundle.cpu.unwrap_or(0);
                let events = bundle.event.into_iter();
                recording
                    .events
                    .extend(events.filter_map(|event| scheduling(cpu, event)));
            }
            Some(Data::TrackEvent(event)) => {
                recording.events.extend(decision(time, &event));
            }
            Some(Data::FtraceStats(stats)) if stats.phase == Some(FtraceStats::END_OF_TRACE) => {
                let lost = stats.cpu_stats.iter();
                recording.lost.extend(
                    lost.map(|cpu| (cpu.cpu.unwrap_or(0) as u32, cpu.overrun.unwrap_or(0))),
                );
            }
            _ => {}
        }
    }
    recording.events.sort_by_key(|event| event.time);
    if recording.events.is_empty() {
        bail!("{} has no scheduling events", path.display());
    }
    Ok(recording)
}

/// The event of an ftrace event; none for one of another kind.
fn scheduling(cpu: u32, ftrace: FtraceEvent) -> Option<Event> {
    let task = |pid: Option<i32>, prio: Option<i32>, name: Option<String>| Task {
        pid: pid.unwrap_or(0),
        prio: prio.unwrap_or(0),
        name: name.unwrap_or_default().into(),
    };
    let woken = |event: SchedWakeup| {
        (
            task(event.pid, event.prio, event.comm),
            event.target_cpu.unwrap_or(0) as u32,
        )
    };
    let what = match ftrace.event? {
        Ftrace::Switch(event) => What::Switch {
            prev: task(event.prev_pid, event.prev_prio, event.prev_comm),
            state: event.prev_state.unwrap_or(0) as u32,
            next: task(event.next_pid, event.next_prio, event.next_comm),
        },
        Ftrace::Waking(event) => {
            let (task, target) = woken(event);
            What::Waking { task, target }
        }
        Ftrace::Wakeup(event) => {
            let (task, target) = woken(event);
            What::Wakeup { task, target }
        }
        Ftrace::WakeupNew(event) => {
            let (task, target) = woken(event);
            What::WakeupNew { task, target }
        }
        Ftrace::MigrateTask(event) => What::Migrate {
            from: event.orig_cpu.unwrap_or(0) as u32,
            to: event.dest_cpu.unwrap_or(0) as u32,
            task: task(event.pid, event.prio, event.comm),
        },
    };
    Some(Event {
        time: ftrace.timestamp?,
        cpu,
        current: ftrace.pid.unwrap_or(0) as i32,
        what,
    })
}

/// The decision or affinity of an instant; none for any other event on a track.
fn decision(time: u64, event: &TrackEvent) -> Option<Event> {
    let facts = &event.debug_annotations;
    let fact = |name: &str| facts.iter().find(|fact| fact.name.as_deref() == Some(name));
    let number = |name: &str| fact(name)?.int_value;
    let cpu = event.track_uuid?.checked_sub(DECISIONS)? as u32;
    let pid = number("pid").unwrap_or(0) as i32;
    let from = number("from_cpu").unwrap_or(0) as u32;
    let what = match event.name.as_deref()? {
        "allowed CPUs" => What::Allowed {
            pid,
            cpus: fact("cpus")?.string_value.clone()?,
        },
        "steal" => What::Decision(Decision::Steal { pid, from, to: cpu }),
        "balance" => What::Decision(Decision::Balance { pid, from, to: cpu }),
        "push" => What::Decision(Decision::Push { pid, from }),
        "offer" => What::Decision(Decision::Offer { pid, from }),
        "preferred cores" => What::Decision(Decision::Preferred {
            cores: number("cores")? as u32,
        }),
        name => What::Decision(Decision::Place {
            pid,
            step: Step::of_name(name.strip_prefix("wakeup: ")?)?,
            from,
            to: number("to_cpu")? as u32,
            looked: number("cpus_looked_at")? as u32,
        }),
    };
    Some(Event {
        time,
        cpu,
        current: 0,
        what,
    })
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
