//! Frequency: each CPU asks for the performance that it uses. The guest has no frequencies, so the
//! targets themselves are measured, by a kprobe of `scx_bpf_cpuperf_set()`, with the switches of
//! each CPU beside them.

use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{VT8, add_tools, boot_for_magpie, json, shell, traced, under};

/// The target for the highest performance.
const ALL: u32 = 1024;

/// The guest's tick, in seconds, and what its work takes.
const TICK: f64 = 0.004;
const SLACK: f64 = 0.000_5;

/// Prepares the trace: each target, and each switch from or to the idle task, or to a load.
///
/// The guest's agent, and with it all that it starts, stays on CPU 0; loads name their CPUs. A shell
/// on another CPU would ask there for what it uses: a hog with a maximum of 256 seemed to ask for 567.
const PREPARE: &str = "mount -t tracefs none /sys/kernel/tracing 2>/dev/null; \
    cd /sys/kernel/tracing && echo 0 > tracing_on && \
    echo 'p:target scx_bpf_cpuperf_set cpu=%di:s32 perf=%si:u32' > kprobe_events && \
    echo 'prev_pid == 0 || next_pid == 0 || next_comm == \"magpie-load\"' \
        > events/sched/sched_switch/filter && \
    echo 1 > events/kprobes/target/enable && echo 1 > events/sched/sched_switch/enable && \
    taskset -pc 0 1";

/// An event on one CPU, in the order of time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    /// The CPU left idle.
    Busy,
    /// A load began to run.
    Load,
    /// The CPU went idle.
    Idle,
    /// A target was set.
    Target(u32),
}

/// The events of all CPUs while a load ran: when in seconds, which CPU, what.
struct Trace(Vec<(f64, u32, Event)>);

impl Trace {
    /// Runs a shell script and returns what was traced meanwhile.
    fn of(guest: &mut Guest, load: &str) -> Result<Trace> {
        let script = format!(
            "cd /sys/kernel/tracing; echo > trace; echo 1 > tracing_on; ({load}) >/dev/null 2>&1; \
             echo 0 > tracing_on; grep -v '^#' trace"
        );
        let text = shell(guest, &script)?;
        let events: Vec<_> = text.lines().map(parse).collect::<Result<_>>()?;
        Ok(Trace(events.concat()))
    }

    /// Returns the events of one CPU.
    fn on(&self, cpu: u32) -> impl DoubleEndedIterator<Item = (f64, Event)> {
        let events = self.0.iter().filter(move |(_, on, _)| *on == cpu);
        events.map(|(at, _, event)| (*at, *event))
    }

    /// Returns the targets of one CPU that were set from a time on.
    fn targets(&self, cpu: u32, from: f64) -> Vec<(f64, u32)> {
        self.on(cpu)
            .filter(|(at, _)| *at >= from)
            .filter_map(|(at, event)| match event {
                Event::Target(perf) => Some((at, perf)),
                _ => None,
            })
            .collect()
    }

    /// Returns which part of a time one CPU was busy.
    fn busy(&self, cpu: u32, from: f64, to: f64) -> f64 {
        let mut since = None;
        let mut sum = 0.0;
        for (at, event) in self.on(cpu) {
            let at = at.clamp(from, to);
            match event {
                Event::Busy => since = Some(at),
                Event::Idle => sum += since.take().map_or(0.0, |since| at - since),
                Event::Target(_) | Event::Load => {}
            }
        }
        sum / (to - from)
    }

    /// Returns the time of the last event.
    fn end(&self) -> f64 {
        self.0.iter().map(|(at, ..)| *at).fold(0.0, f64::max)
    }
}

/// Reads a number behind `name=`.
fn field<T: FromStr>(line: &str, name: &str) -> Option<T> {
    let (_, rest) = line.split_once(name)?;
    rest.split([' ', '\n']).next()?.parse().ok()
}

/// Reads a line of the trace: no event, one, or the end of idleness and the load that ends it.
fn parse(line: &str) -> Result<Vec<(f64, u32, Event)>> {
    let read = || {
        let (at, cpu) = traced(line)?;
        if line.contains(" target: ") {
            let target = Event::Target(field(line, "perf=")?);
            return Some(vec![(at, field(line, "cpu=")?, target)]);
        }
        if field::<u32>(line, "next_pid=")? == 0 {
            return Some(vec![(at, cpu, Event::Idle)]);
        }
        let was_idle = field::<u32>(line, "prev_pid=")? == 0;
        let is_load = line.contains("next_comm=magpie-load");
        let events = [(was_idle, Event::Busy), (is_load, Event::Load)];
        let events = events.into_iter().filter(|(is_so, _)| *is_so);
        Some(events.map(|(_, event)| (at, cpu, event)).collect())
    };
    match line.contains(" target: ") || line.contains(" sched_switch: ") {
        true => read().with_context(|| format!("read {line:?}")),
        false => Ok(Vec::new()),
    }
}

/// A line that is a CPU hog on a CPU for this long, and the CPU idles after it.
fn hog(before: &str, cpu: u32) -> String {
    format!("{before} taskset -c {cpu} timeout 0.3 magpie-load burn; sleep 0.5")
}

/// A line that is a light load on CPU 1: each 10 ms it runs for about 1 ms.
fn light(before: &str) -> String {
    format!(
        "{before} taskset -c 1 magpie-load audio --period-us 10000 --operations 32000 --seconds 2; \
         sleep 0.5"
    )
}

/// Fails if the last target of a CPU, which idles at the end of the trace, is not 0.
fn ensure_idle_asks_for_nothing(trace: &Trace, cpu: u32) -> Result<()> {
    let set = trace.targets(cpu, 0.0);
    ensure!(
        set.last().is_some_and(|(_, perf)| *perf == 0),
        "the idle CPU {cpu} still asks: {set:?}"
    );
    Ok(())
}

fn a_hog_asks_for_all_within_two_ticks(guest: &mut Guest) -> Result<()> {
    let trace = Trace::of(guest, &hog("", 6))?;
    let all = trace
        .on(6)
        .position(|(_, event)| event == Event::Target(ALL));
    let all = all.with_context(|| format!("no hog asked for all: {:?}", trace.targets(6, 0.0)))?;
    let events: Vec<_> = trace.on(6).take(all + 1).collect();
    let busy = events.iter().rfind(|(_, event)| *event == Event::Busy);
    let (busy, _) = busy.context("the CPU never left idle")?;
    let took = events[all].0 - busy;
    println!("a hog asked for all after {:.3} ms", took * 1e3);
    ensure!(took <= 2.0 * TICK + SLACK, "it took {took} s");
    ensure_idle_asks_for_nothing(&trace, 6)
}

fn a_light_load_asks_for_what_it_uses(guest: &mut Guest) -> Result<()> {
    let trace = Trace::of(guest, &light(""))?;
    let to = trace.end() - 0.6;
    let from = to - 1.0;
    let uses = trace.busy(1, from, to) * f64::from(ALL);
    let before = trace.targets(1, 0.0);
    let before = before.iter().rfind(|(at, _)| *at < from);
    let (_, standing) = before.context("the load asked for nothing")?;
    let set = trace.targets(1, from);
    let within = set.iter().filter(|(at, _)| *at < to);
    let most = within.map(|(_, perf)| *perf).fold(*standing, u32::max);
    println!(
        "a load that uses {uses:.0} of 1024 asked for {most} at most, {} times",
        set.len()
    );
    ensure!((50.0..200.0).contains(&uses), "it uses {uses}");
    ensure!(
        f64::from(most) <= 1.25 * uses,
        "it asks for {most} and uses {uses}"
    );
    ensure!(f64::from(most) >= 0.75 * uses, "it asks for {most} only");
    ensure_idle_asks_for_nothing(&trace, 1)
}

fn a_busy_machine_asks_seldom(guest: &mut Guest) -> Result<()> {
    let trace = Trace::of(
        guest,
        "taskset -c 0-7 timeout 0.7 hackbench -g 2 -l 100000; sleep 0.3",
    )?;
    for cpu in 0..8 {
        let set = trace.targets(cpu, 0.0);
        let in_half_a_second = |from: f64| {
            let within = set
                .iter()
                .filter(|(at, _)| (from..=from + 0.5).contains(at));
            within.count()
        };
        let most = set.iter().map(|(at, _)| in_half_a_second(*at)).max();
        println!("CPU {cpu} asked {} times, {most:?} in 0.5 s", set.len());
        ensure!(
            most.unwrap_or(0) <= 50,
            "CPU {cpu} asked {most:?} times in 0.5 s"
        );
    }
    ensure!(!trace.0.is_empty());
    Ok(())
}

/// The least target with which a load ran on a CPU between two times.
fn least_while_it_ran(trace: &Trace, cpu: u32, from: f64, to: f64) -> Option<u32> {
    let mut standing = 0;
    let mut least = None;
    for (at, event) in trace.on(cpu) {
        match event {
            Event::Target(perf) => standing = perf,
            Event::Load if (from..to).contains(&at) => {
                least = Some(least.map_or(standing, |least: u32| least.min(standing)));
            }
            _ => {}
        }
    }
    least
}

fn uclamp_bounds_the_target(guest: &mut Guest) -> Result<()> {
    let trace = Trace::of(guest, &hog("uclampset -M 256", 6))?;
    let set = trace.targets(6, 0.0);
    println!("with a maximum of 256: {set:?}");
    let most = set.iter().map(|(_, perf)| *perf).max();
    // A target that is less than an eighth off is kept.
    ensure!(
        most.is_some_and(|most| (224..=256).contains(&most)),
        "the hog asked for {most:?}"
    );

    let trace = Trace::of(guest, &light("uclampset -m 512"))?;
    let to = trace.end() - 0.6;
    let least = least_while_it_ran(&trace, 1, to - 1.0, to);
    println!("with a minimum of 512 the load ran with {least:?} at least");
    ensure!(least >= Some(512), "the load ran with {least:?}");
    Ok(())
}

fn a_real_time_task_gets_all(guest: &mut Guest) -> Result<()> {
    let load = "uclampset -M 256 taskset -c 6 timeout 0.3 magpie-load burn & sleep 0.15; \
                timeout 0.05 chrt -f 10 taskset -c 6 magpie-load burn; wait; sleep 0.5";
    let trace = Trace::of(guest, load)?;
    let set = trace.targets(6, 0.0);
    println!("beside a real-time task: {set:?}");
    ensure!(
        set.iter().any(|(_, perf)| *perf == ALL),
        "no real-time task got all"
    );
    Ok(())
}

/// A real-time thread looks at no load, as that of a sound server. It must not keep the target that
/// a hog has left on its CPU: between its wakeups that CPU never idles for long.
fn a_waking_real_time_task_keeps_no_target(guest: &mut Guest) -> Result<()> {
    let load = "timeout 3 cyclictest -q -t 1 -a 6 --mainaffinity 0 -p 50 -i 5000 & sleep 1; \
                taskset -c 6 timeout 1 magpie-load burn; wait";
    let trace = Trace::of(guest, load)?;
    let set = trace.targets(6, 0.0);
    println!("as a real-time task wakes: {set:?}");
    let all = set.iter().rposition(|(_, perf)| *perf == ALL);
    let all = all.with_context(|| format!("no hog asked for all: {set:?}"))?;
    let lower = set[all..].iter().find(|(_, perf)| *perf < ALL);
    let zero = set[all..].iter().find(|(_, perf)| *perf == 0);
    let (Some((lower, _)), Some((zero, _))) = (lower, zero) else {
        bail!("the CPU kept a target: {set:?}");
    };
    let wakeups = trace
        .on(6)
        .filter(|(at, event)| at > zero && *event == Event::Busy);
    let wakeups = wakeups.count();
    ensure!(wakeups > 50, "the thread woke {wakeups} times after {zero}");
    // Two visits of the timer, and as much again. Where each wakeup began the wait anew, it took
    // 0.56 s until the looks of other tasks had lowered the target.
    ensure!(zero - lower < 0.16, "the CPU kept a target: {set:?}");
    Ok(())
}

#[test]
fn each_cpu_asks_for_the_performance_that_it_uses() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, add_tools)?;
    shell(&mut guest, PREPARE)?;
    under(&mut guest, "scx_magpie --frequency on", |guest| {
        a_hog_asks_for_all_within_two_ticks(guest)?;
        a_light_load_asks_for_what_it_uses(guest)?;
        a_busy_machine_asks_seldom(guest)?;
        uclamp_bounds_the_target(guest)?;
        a_real_time_task_gets_all(guest)?;
        a_waking_real_time_task_keeps_no_target(guest)
    })?;
    // Off by itself, because no driver of the guest follows, and off by its switch.
    for off in ["scx_magpie", "scx_magpie --frequency on --no-frequency"] {
        under(&mut guest, off, |guest| {
            let trace = Trace::of(guest, &hog("", 6))?;
            ensure!(trace.busy(6, 0.0, trace.end()) > 0.0, "no hog ran");
            let set = trace.targets(6, 0.0);
            ensure!(set.is_empty(), "{off} asked: {set:?}");
            Ok(())
        })?;
    }
    guest.into_guest().shutdown()
}

/// Returns the name of each loaded program of the scheduler, with how many instructions the verifier
/// processed. A mechanism that is left out is cut off there, before it sees the instructions.
fn programs(guest: &mut Guest, command: &str) -> Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    under(guest, command, |guest| {
        let list = json(guest, "magpie-load programs --json")?;
        let programs = list["programs"].as_array().context("programs")?;
        for program in programs {
            let name = program["name"].as_str().context("a name")?;
            let verified = program["verified_instructions"].as_u64();
            found.push((name.to_string(), verified.context("a number")?));
        }
        Ok(())
    })?;
    ensure!(found.len() > 10, "{command}: {found:?}");
    Ok(found)
}

/// Where no CPU has schedutil and nothing asks to save power, what is loaded is what is loaded without
/// the two mechanisms, so they cost nothing: on a machine without frequencies, and under the governor
/// performance.
#[test]
fn what_has_no_use_is_not_loaded() -> Result<()> {
    let without = "scx_magpie --no-frequency --no-power";
    for machine in [VT8, "vt8hybrid"] {
        let mut guest = boot_for_magpie(machine, |_| {})?;
        shell(
            &mut guest,
            "for file in /sys/devices/system/cpu/cpufreq/policy*/scaling_governor; do \
             [ ! -e $file ] || echo performance > $file || exit 1; done",
        )?;
        let bare = programs(&mut guest, without)?;
        for command in ["scx_magpie", "scx_magpie --power performance"] {
            let found = programs(&mut guest, command)?;
            ensure!(
                found == bare,
                "{machine}, {command}: {found:?}, not {bare:?}"
            );
        }
        if machine == VT8 {
            // Either of them would show.
            for command in ["scx_magpie --frequency on", "scx_magpie --power balanced"] {
                let found = programs(&mut guest, command)?;
                ensure!(found != bare, "{command}: {found:?}");
            }
        }
        guest.into_guest().shutdown()?;
    }
    Ok(())
}
