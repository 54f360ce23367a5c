//! Helpers of scx_magpie's tests: the programs under test, machines without noise, and [`under`],
//! which loads a scheduler for a test and checks that it stayed loaded.
//!
//! Most of these tests run on [`VT8`], a machine in virtual time. Their results do not depend on
//! the load of the host, so one run can be held against a bar of 1 %, and a single task that waits
//! beside an idle CPU for longer than a tick is a fault of the scheduler.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::vtime::profile::Profile;
use magpie_lab::{Guest, GuestOptions, files, guest};
use serde_json::Value;

use crate::{TestGuest, boot, boot_alone, build_programs};

/// The scheduler under test.
pub const MAGPIE: &str = "scx_magpie";

/// Two LLCs of two cores of two threads, in virtual time.
pub const VT8: &str = "vt8";
/// The same with a node for each LLC, and without SMT.
pub const VT8_NODES: &str = "vt8nodes";

/// The limit, in real time, of a command that itself ends after a bounded virtual time. It is long,
/// because hosts can be slow.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The folder of the built programs. Every test reports the error if the build failed.
static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// Returns a program of this workspace, built from the current sources with users' settings.
/// `cargo test` builds no binaries of other packages, so the first call builds them.
pub fn program(name: &str) -> Result<PathBuf> {
    let folder = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    let file = match folder {
        Ok(folder) => folder.join(name),
        Err(error) => bail!("{error}"),
    };
    ensure!(file.is_file(), "there is no {}", file.display());
    Ok(file)
}

/// Builds all programs of the workspace, and returns their folder.
fn build() -> Result<PathBuf> {
    let tree = files::source_tree().context("the tests need the source tree")?;
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => PathBuf::from(target),
        None => tree.join("target"),
    };
    build_programs(true)?;
    Ok(target.join("release"))
}

/// Boots a machine with scx_magpie, magpie-load and hackbench.
pub fn boot_for_magpie(machine: &str, change: impl FnOnce(&mut GuestOptions)) -> Result<TestGuest> {
    let files = programs()?;
    boot(machine, |options| {
        add_magpie(options, files);
        change(options);
    })
}

/// Adds uclampset, chrt, and a timeout of less than a second to a guest, whose BusyBox has none.
pub fn add_tools(options: &mut GuestOptions) {
    let tools = ["util-linux", "coreutils"].map(String::from);
    options.packages.extend(tools);
}

/// As [`boot_for_magpie`], but no other guest runs meanwhile: for tests that measure real time.
pub fn boot_for_magpie_alone(machine: &str) -> Result<TestGuest> {
    let files = programs()?;
    boot_alone(machine, |options| add_magpie(options, files))
}

/// Returns the programs that every guest of these tests has.
fn programs() -> Result<Vec<PathBuf>> {
    Ok(vec![program(MAGPIE)?, program("magpie-load")?])
}

/// Adds these programs and hackbench to a guest.
fn add_magpie(options: &mut GuestOptions, files: Vec<PathBuf>) {
    options.files = files;
    options.packages = vec!["rt-tests".into()];
}

/// Splits a command at its spaces.
pub fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(String::from).collect()
}

/// Runs a shell script that must succeed, and returns its standard output.
pub fn shell(guest: &mut Guest, script: &str) -> Result<String> {
    guest.capture(&["sh", "-c", script], PATIENCE)
}

/// Returns when and on which CPU an event of ftrace was, by its line.
pub fn traced(line: &str) -> Option<(f64, u32)> {
    let (_, rest) = line.split_once('[')?;
    let (cpu, rest) = rest.split_once(']')?;
    let (at, _) = rest.split_once(": ")?;
    let at = at.split_whitespace().last()?;
    Some((at.parse().ok()?, cpu.parse().ok()?))
}

/// Runs a command. Returns its exit code, and all that it printed to standard output and error.
pub fn code_and_output(guest: &mut Guest, command: &str) -> Result<(i32, String)> {
    let mut output = Vec::new();
    let result = guest.exec(&words(command), PATIENCE, &mut |_, bytes| {
        output.extend_from_slice(bytes);
    })?;
    Ok((result.code, String::from_utf8_lossy(&output).into_owned()))
}

/// Takes a CPU offline or brings it back.
pub fn set_online(guest: &mut Guest, cpu: u32, online: bool) -> Result<()> {
    let digit = u8::from(online);
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    shell(guest, &format!("echo {digit} > {file}")).map(|_| ())
}

/// Runs a command that prints one JSON object, and returns it. Exit code 2 is no error: magpie-load
/// ends with it when a check does not hold, and the object says so as well.
pub fn json(guest: &mut Guest, command: &str) -> Result<Value> {
    let script = format!("{command} || [ $? = 2 ]");
    let text = shell(guest, &script)?;
    serde_json::from_str(&text).with_context(|| format!("{command} printed:\n{text}"))
}

/// Returns a number in a JSON object by its path, such as `/cpus/3/turns`.
pub fn number(value: &Value, pointer: &str) -> Result<f64> {
    value
        .pointer(pointer)
        .and_then(Value::as_f64)
        .with_context(|| format!("no number at {pointer} in {value}"))
}

/// A command: a thread of the fair class sleeps for a millisecond at a time, and the histogram of
/// its wakeup latencies is printed.
pub const CYCLICTEST: &str = "cyclictest -q -t 1 -i 1000 --policy=other -h 100000";

/// Returns the wakeup latencies that [`CYCLICTEST`] printed, in ascending order. They are in the
/// histogram's unit: microseconds, or with `-N` nanoseconds.
pub fn late_by_cyclictest(histogram: &str) -> Result<Vec<f64>> {
    let mut late = Vec::new();
    let lines = histogram.lines().filter(|line| !line.starts_with('#'));
    for (time, times) in lines.filter_map(|line| line.split_once(' ')) {
        let times = times
            .trim()
            .parse()
            .context("read the count of a latency")?;
        late.extend(std::iter::repeat_n(time.parse::<f64>()?, times));
    }
    // Those that are later than the histogram goes are in a comment, one number for each thread.
    let later = histogram
        .lines()
        .filter_map(|line| line.strip_prefix("# Histogram Overflows:"))
        .flat_map(str::split_whitespace)
        .map(str::parse::<usize>)
        .sum::<Result<usize, _>>()
        .context("read how many latencies are not in the histogram")?;
    late.extend(std::iter::repeat_n(f64::INFINITY, later));
    let count = late.len();
    ensure!(count >= 100, "{count} samples: {histogram}");
    Ok(late)
}

/// Runs a shell script that must succeed, and returns what it cost, by function. The guest is in
/// virtual time, and was booted with [`GuestOptions::profile`].
pub fn profile_of(guest: &mut Guest, script: &str) -> Result<Profile> {
    let mips = guest.fidelity()?.context("virtual time")?.mips;
    let before = guest.counts()?;
    shell(guest, script)?;
    let counts = guest.counts()?.since(&before);
    guest.profile(&counts, mips)
}

/// Loads a scheduler, runs `test`, and stops the scheduler, which must have stayed loaded and must
/// exit with 0.
///
/// The kernel counts how often a scheduler was enabled since boot. A count that grew by more than
/// one shows that the kernel ended the scheduler and that it restarted.
pub fn under<T>(
    guest: &mut Guest,
    command: &str,
    test: impl FnOnce(&mut Guest) -> Result<T>,
) -> Result<T> {
    let before = enablings(guest)?;
    guest.start_scheduler(&words(command))?;
    let outcome = test(guest);
    // A guest that hangs does not answer. Then the error of the test itself is the one to report.
    let died = match (guest.scheduler_died(), &outcome) {
        (Ok(died), _) => died,
        (Err(_), Err(_)) => return outcome,
        (Err(error), Ok(_)) => return Err(error),
    };
    if let Some(exit) = died {
        let report = format!(
            "`{command}` ended during the test: {}",
            guest::explain(&exit)
        );
        return match outcome {
            Ok(_) => bail!(report),
            Err(error) => Err(error.context(report)),
        };
    }
    let outcome = outcome?;
    let after = enablings(guest)?;
    ensure!(
        after == before + 1,
        "`{command}` was restarted: enabled {before} times before it started, {after} after"
    );
    let exit = guest.stop_scheduler()?;
    ensure!(
        exit.code == 0 && exit.state == "disabled",
        "`{command}` did not stop as it should: {exit:?}"
    );
    Ok(outcome)
}

/// Measures under scx_magpie, then under scx_magpie with `switch`, which leaves a mechanism out.
/// Returns both results, in this order.
pub fn with_and_without<T>(
    guest: &mut Guest,
    switch: &str,
    measure: impl Fn(&mut Guest, &str) -> Result<T>,
) -> Result<(T, T)> {
    let [with, without] = [MAGPIE.to_string(), format!("{MAGPIE} {switch}")]
        .map(|scheduler| under(guest, &scheduler, |guest| measure(guest, &scheduler)));
    Ok((with?, without?))
}

/// Returns how often the kernel has enabled a scheduler since boot.
fn enablings(guest: &mut Guest) -> Result<u64> {
    let text = shell(guest, "cat /sys/kernel/sched_ext/enable_seq")?;
    let count = text.trim().parse();
    count.with_context(|| format!("no count in {text:?}"))
}

/// Returns the counters of the running scx_magpie since its start.
pub fn counters(guest: &mut Guest) -> Result<Value> {
    json(guest, "scx_magpie --stats-json")
}

/// Returns by how much a counter grew between two readings.
pub fn grown(before: &Value, after: &Value, counter: &str) -> Result<u64> {
    let read = |counters: &Value| {
        counters
            .get(counter)
            .and_then(Value::as_u64)
            .with_context(|| format!("there is no counter {counter} in {counters}"))
    };
    Ok(read(after)? - read(before)?)
}

/// Returns a line of a script that starts CPU hogs in a cgroup, whose path is from the current
/// folder. The hogs run for a minute, or until the cgroup is killed.
pub fn hogs_in(cgroup: &str, count: u32) -> String {
    hogs_with(cgroup, &format!("--count {count}"))
}

/// As [`hogs_in`], with any options of `magpie-load hogs`.
pub fn hogs_with(cgroup: &str, options: &str) -> String {
    format!(
        "(echo 0 > {cgroup}/cgroup.procs; exec magpie-load hogs {options} --seconds 60) \
         >/dev/null 2>&1 &\n"
    )
}

/// Returns the CPU time of cgroups, in ms, from the `usage_usec` lines of their `cpu.stat`.
pub fn usage_ms(text: &str) -> Result<Vec<f64>> {
    text.lines()
        .filter_map(|line| line.strip_prefix("usage_usec "))
        .map(|digits| {
            let us: f64 = digits.parse().with_context(|| format!("in {text}"))?;
            Ok(us / 1000.0)
        })
        .collect()
}
