//! What the tests of scx_magpie share: the programs under test, a machine without noise, and a
//! scheduler that is watched while a test uses it.
//!
//! Most of these tests run on [`VT8`], a machine in virtual time: what they measure does not depend
//! on what else the host does, so that a bar of 1 % can be held against one run, and a single task
//! that waits beside an idle CPU for longer than a tick is a fault of the scheduler.

use crate::{TestGuest, boot, boot_alone};
use anyhow::{Context, Result, bail, ensure};
use magpie_lab::{Guest, GuestOptions, guest, place};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Two LLCs of two cores of two threads, in virtual time.
pub const VT8: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/machines/vt8.toml");
/// The same with a node for each LLC, and without SMT.
pub const VT8_NODES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/machines/vt8nodes.toml");

/// Real time that a command may take whose own, virtual, time is bounded: hosts can be slow.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// What is built once per test program: the error, if it failed, is told by every test.
static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// A program of this workspace, of the current sources, as users build it: `cargo test` builds no
/// binaries of other packages.
pub fn program(name: &str) -> Result<PathBuf> {
    let folder = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    let file = match folder {
        Ok(folder) => folder.join(name),
        Err(error) => bail!("{error}"),
    };
    ensure!(file.is_file(), "there is no {}", file.display());
    Ok(file)
}

fn build() -> Result<PathBuf> {
    let tree = place::source_tree().context("the tests need the source tree")?;
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => PathBuf::from(target),
        None => tree.join("target"),
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // All of the workspace: a choice of packages would choose other features of what they share, and
    // build it again.
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--workspace", "--bins"])
        .current_dir(&tree)
        .status()
        .context("cannot run cargo to build what is tested")?;
    ensure!(status.success(), "cannot build what is tested");
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

/// The same, but nothing else runs meanwhile: for what measures real time.
pub fn boot_for_magpie_alone(machine: &str) -> Result<TestGuest> {
    let files = programs()?;
    boot_alone(machine, |options| add_magpie(options, files))
}

fn programs() -> Result<Vec<PathBuf>> {
    Ok(vec![program("scx_magpie")?, program("magpie-load")?])
}

fn add_magpie(options: &mut GuestOptions, files: Vec<PathBuf>) {
    options.files = files;
    options.packages = vec!["rt-tests".into()];
}

/// Words as the arguments of a command.
pub fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(String::from).collect()
}

/// Runs a shell script that must succeed; its standard output.
pub fn shell(guest: &mut Guest, script: &str) -> Result<String> {
    guest.capture(&["sh", "-c", script], PATIENCE)
}

/// Takes a CPU offline or brings it back.
pub fn set_online(guest: &mut Guest, cpu: u32, online: bool) -> Result<()> {
    let digit = u8::from(online);
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    shell(guest, &format!("echo {digit} > {file}")).map(|_| ())
}

/// Runs a command that prints one JSON object. An exit code of 2 means that what it checked does not
/// hold; the object says so as well.
pub fn json(guest: &mut Guest, command: &str) -> Result<Value> {
    let script = format!("{command} || [ $? = 2 ]");
    let text = shell(guest, &script)?;
    serde_json::from_str(&text).with_context(|| format!("{command} printed:\n{text}"))
}

/// A number in a JSON object, by its path.
pub fn number(value: &Value, pointer: &str) -> Result<f64> {
    value
        .pointer(pointer)
        .and_then(Value::as_f64)
        .with_context(|| format!("no number at {pointer} in {value}"))
}

/// A thread of the fair class that sleeps a millisecond at a time, and the histogram of how late it was.
pub const CYCLICTEST: &str = "cyclictest -q -t 1 -i 1000 --policy=other -h 100000";

/// How late the thread was each time, in the histogram's unit (microseconds, with `-N` nanoseconds) in
/// ascending order, from [`CYCLICTEST`]'s output.
pub fn late_by_cyclictest(histogram: &str) -> Result<Vec<f64>> {
    let mut late = Vec::new();
    let lines = histogram.lines().filter(|line| !line.starts_with('#'));
    for (time, times) in lines.filter_map(|line| line.split_once(' ')) {
        let times = times.trim().parse().context("a number of times")?;
        late.extend(std::iter::repeat_n(time.parse::<f64>()?, times));
    }
    let count = late.len();
    ensure!(count >= 100, "{count} samples: {histogram}");
    Ok(late)
}

/// Runs `test` under a scheduler, which must still be the same one afterwards, and end well.
///
/// The kernel counts how often a scheduler was enabled since boot; were that more than once, the
/// scheduler would have been thrown out or have restarted in between.
pub fn under<T>(
    guest: &mut Guest,
    command: &str,
    test: impl FnOnce(&mut Guest) -> Result<T>,
) -> Result<T> {
    let before = enablings(guest)?;
    guest.start_scheduler(&words(command))?;
    let outcome = test(guest);
    // A guest that hangs cannot be asked; then what the test found is all there is to tell.
    let died = match (guest.scheduler_died(), &outcome) {
        (Ok(died), _) => died,
        (Err(_), Err(_)) => return outcome,
        (Err(error), Ok(_)) => return Err(error),
    };
    if let Some(exit) = died {
        let report = format!("`{command}` ended meanwhile: {}", guest::explain(&exit));
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
        "`{command}` was asked to stop: {exit:?}"
    );
    Ok(outcome)
}

/// Measures under scx_magpie as it is, then with a mechanism switched off.
pub fn with_and_without<T>(
    guest: &mut Guest,
    switch: &str,
    measure: impl Fn(&mut Guest, &str) -> Result<T>,
) -> Result<(T, T)> {
    let [with, without] = ["scx_magpie".to_string(), format!("scx_magpie {switch}")]
        .map(|scheduler| under(guest, &scheduler, |guest| measure(guest, &scheduler)));
    Ok((with?, without?))
}

fn enablings(guest: &mut Guest) -> Result<u64> {
    let text = shell(guest, "cat /sys/kernel/sched_ext/enable_seq")?;
    let count = text.trim().parse();
    count.with_context(|| format!("not a number of times: {text:?}"))
}

/// scx_magpie's counters since it started.
pub fn counters(guest: &mut Guest) -> Result<Value> {
    json(guest, "scx_magpie --stats-json")
}

/// How much a counter grew.
pub fn grown(before: &Value, after: &Value, counter: &str) -> Result<u64> {
    let read = |counters: &Value| {
        counters
            .get(counter)
            .and_then(Value::as_u64)
            .with_context(|| format!("there is no counter {counter} in {counters}"))
    };
    Ok(read(after)? - read(before)?)
}

/// CPU time that cgroups have used, in ms, from what a script prints of their `cpu.stat`.
pub fn usage_ms(text: &str) -> Result<Vec<f64>> {
    text.lines()
        .filter_map(|line| line.strip_prefix("usage_usec "))
        .map(|digits| {
            let us: f64 = digits.parse().with_context(|| format!("in {text}"))?;
            Ok(us / 1000.0)
        })
        .collect()
}
