//! `idle-periods`: how long is a CPU idle, each time?
//!
//! Work comes to a CPU at known intervals, in one of several ways. The kernel's trace tells how
//! long each idle period was. A scheduler's own average of idle periods is held against that.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::Finding;
use crate::cpus::CpuSet;
use crate::idle_watch::event::Event;
use crate::idle_watch::trace::{Recorder, Trace};
use crate::sys::{self, Child};

/// The fewest idle periods of which a mean is printed.
const FEWEST: usize = 16;
const KIB_PER_CPU: usize = 4096;
/// The time of the work that ends an idle period.
const WORK: Duration = Duration::from_micros(200);

/// How work comes to the idle CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Arrival {
    /// A task that sleeps there is woken by its timer
    Wakeup,
    /// A task on another CPU forks, and the child starts there
    Fork,
    /// A program is started as a shell does: fork, then exec
    Exec,
    /// A task that waits on another CPU is allowed on the idle CPU, which steals it
    Steal,
}

/// Make a CPU idle again and again, and measure each time.
///
/// Needs root and a CPU that nothing else uses.
#[derive(clap::Args)]
pub struct Args {
    /// How work comes to the CPU
    #[arg(long, value_enum, default_value = "wakeup")]
    arrival: Arrival,
    /// The CPU that idles
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// The CPU from which work comes
    #[arg(long, default_value_t = 0)]
    from: usize,
    /// Length of an idle period
    #[arg(long, default_value = "0.0006", value_parser = sys::parse_seconds)]
    idle: Duration,
    /// About how many idle periods to measure, after as many that are not measured; fewer if it
    /// takes long to start the work
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(16..=100_000))]
    count: u32,
    /// Measure the idle periods while this command runs, which prints JSON objects
    #[arg(long, value_name = "COMMAND")]
    meanwhile: Option<String>,
    /// Do the work once and exit; `--arrival exec` starts this program so
    #[arg(long, hide = true)]
    work_only: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Makes idle periods and reports their lengths.
pub fn run(args: &Args) -> Result<Finding> {
    if args.work_only {
        work();
        let (text, json) = (String::new(), json!({}));
        return Ok(Finding {
            text,
            json,
            holds: true,
        });
    }
    let online = CpuSet::online()?;
    if args.cpu == args.from || !online.contains(args.cpu) || !online.contains(args.from) {
        bail!(
            "CPUs {} (--cpu) and {} (--from) must be two of the online CPUs {online}",
            args.cpu,
            args.from
        );
    }
    let recorder = Recorder::new(KIB_PER_CPU)?;
    let driver = Child::fork(|| match args.arrival {
        Arrival::Wakeup => sleep_and_work(args),
        Arrival::Fork => start_children(args, None),
        Arrival::Exec => {
            let program = std::env::current_exe().context("find this program, to start it")?;
            start_children(args, program.to_str())
        }
        Arrival::Steal => release_waiting_task(args),
    })?;
    let long_enough = args.count * (args.idle + WORK);
    std::thread::sleep(long_enough);
    recorder.start()?;
    let observed = args.meanwhile.as_deref().map(observe).transpose()?;
    if observed.is_none() {
        std::thread::sleep(long_enough);
    }
    recorder.stop()?;
    drop(driver);

    let periods = idle_periods(&recorder.collect()?, args.cpu);
    if periods.len() < FEWEST {
        bail!(
            "CPU {} was idle only {} times: give a larger --count, or something else uses it",
            args.cpu,
            periods.len()
        );
    }
    let us: Vec<f64> = periods.iter().map(|ns| *ns as f64 / 1e3).collect();
    let mean = us.iter().sum::<f64>() / us.len() as f64;
    Ok(Finding {
        text: format!(
            "CPU {}: {} idle periods, {mean:.1} us on average",
            args.cpu,
            us.len()
        ),
        json: json!({ "mean_us": mean, "periods_us": us, "observed": observed }),
        holds: true,
    })
}

/// Runs a command and returns the JSON values that it prints.
fn observe(command: &str) -> Result<Vec<Value>> {
    let output = Command::new("sh").args(["-c", command]).output();
    let output = output.with_context(|| format!("run `{command}`"))?;
    let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let values: Result<Vec<Value>, _> = values.collect();
    values.with_context(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("`{command}` printed no JSON ({}): {errors}", output.status)
    })
}

/// The work that ends an idle period.
fn work() {
    sys::spin_for(WORK);
}

/// Sleeps and works on the idle CPU.
fn sleep_and_work(args: &Args) -> Result<()> {
    sys::set_affinity(0, &CpuSet::of([args.cpu]))?;
    loop {
        work();
        std::thread::sleep(args.idle);
    }
}

/// Stays busy on its CPU, so that its children start on the idle one. This process is allowed on
/// the idle CPU only while it forks; otherwise the scheduler could migrate it there.
fn start_children(args: &Args, program: Option<&str>) -> Result<()> {
    let (home, both) = (CpuSet::of([args.from]), CpuSet::of([args.cpu, args.from]));
    let program = program.map(std::ffi::CString::new).transpose()?;
    loop {
        sys::set_affinity(0, &home)?;
        sys::spin_for(args.idle);
        sys::set_affinity(0, &both)?;
        let child = Child::fork(|| match &program {
            None => {
                work();
                Ok(())
            }
            Some(program) => {
                let arguments = [c"magpie-load", c"idle-periods", c"--work-only"];
                nix::unistd::execv(program, &arguments).context("start a program")?;
                Ok(())
            }
        })?;
        sys::set_affinity(0, &home)?;
        child.wait_busily()?;
    }
}

/// Allows a task that waits behind this one to use the idle CPU, again and again. The task works
/// there and comes back.
fn release_waiting_task(args: &Args) -> Result<()> {
    let (home, both) = (CpuSet::of([args.from]), CpuSet::of([args.cpu, args.from]));
    sys::set_affinity(0, &home)?;
    let child = Child::fork(|| {
        // Lower the weight, so that this task hardly ever runs beside the task that releases it.
        sys::set_nice(0, 19)?;
        loop {
            if sys::current_cpu() != args.from {
                work();
                sys::set_affinity(0, &home)?;
            }
        }
    })?;
    loop {
        sys::spin_for(args.idle + WORK);
        sys::set_affinity(child.pid(), &both)?;
    }
}

/// Nanoseconds of each complete idle period of a CPU.
fn idle_periods(trace: &Trace, cpu: usize) -> Vec<u64> {
    let mut periods = Vec::new();
    let mut since = None;
    for record in trace.records.iter().filter(|record| record.cpu == cpu) {
        if let Event::Switch { prev, next, .. } = record.event {
            if let Some(since) = since.take().filter(|_| prev == 0) {
                periods.push(record.time - since);
            }
            since = (next == 0).then_some(record.time);
        }
    }
    periods
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idle_watch::event::switch;
    use std::collections::HashMap;

    #[test]
    fn only_complete_periods_of_that_cpu_count() {
        let records = vec![
            switch(5, 1, 0, 7), // began before the trace
            switch(10, 1, 7, 0),
            switch(12, 0, 0, 8),
            switch(25, 1, 0, 9),
            switch(30, 1, 9, 7),
            switch(40, 1, 7, 0),
            switch(70, 1, 0, 7),
            switch(80, 1, 7, 0), // does not end
        ];
        let trace = Trace {
            records,
            names: HashMap::new(),
            complete_until: None,
        };
        assert_eq!(idle_periods(&trace, 1), [15, 30]);
    }
}
