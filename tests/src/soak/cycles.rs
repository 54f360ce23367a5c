//! Loads and unloads: the scheduler is loaded under load and ended, again and again in one boot, and
//! everything must then be as it was.
//!
//! ```text
//! cycle:  load, with the next options     |  hackbench is held to a part of a CPU
//!         run                             |  hackbench has all CPUs
//!         end: three by SIGINT, one by a kill
//! then:   objects, files, memory, the count of starts, the kernel's log
//! ```
//!
//! Hackbench is held back during a load, because it would take most of the loader's CPU and keep all
//! others busy. A load is 2.4 billion instructions, most of them in the verifier: on vt8 it took 22 to
//! 27 s of a busy host without a load, and longer than the 90 s that a start may take beside an
//! unlimited hackbench. The freezer holds it, not cpu.max: beside tasks that cpu.max throttled, the
//! kernel (7.2.13) crashed once in 52 loads, see docs/troubleshooting.md.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::{Guest, Machine, SchedulerExit};

use super::{Kept, boot_within, enablings, scenes, wait_for_end, warnings};
use crate::scheduler::{MAGPIE, PATIENCE, shell, words};

/// Starts hackbench in a cgroup, and has a line of /tmp/rounds for each of its rounds. While there is
/// a /tmp/held, hackbench has 10 ms of each 100.
const START_LOAD: &str = "\
rm -f /tmp/over /tmp/ended /tmp/held
cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control && mkdir load || exit
(while [ ! -e /tmp/over ]; do
[ -e /tmp/held ] && echo 1 > load/cgroup.freeze; usleep 90000
echo 0 > load/cgroup.freeze; usleep 10000; done &
echo 0 > load/cgroup.procs
while [ ! -e /tmp/over ]; do hackbench -g 1 -l 50 >/dev/null && echo; done > /tmp/rounds
echo 0 > cgroup.procs; wait; echo over > /tmp/ended) >/dev/null 2>&1 &";

/// Lets hackbench go, and the scheduler run with a load on all CPUs.
const RUN: &str = "rm /tmp/held; sleep 0.1";

/// One cycle in so many ends with a kill.
const KILL_EVERY: u32 = 4;

/// What the cycles of one machine did, and what the guest had before and after them.
#[derive(Debug)]
pub struct Cycles {
    /// Cycles that were run.
    pub done: u32,
    /// Rounds of hackbench meanwhile.
    pub rounds: usize,
    /// How often the kernel gave each reason for the end of a scheduler.
    pub reasons: BTreeMap<String, u32>,
    /// Time of the host for all cycles.
    pub took: Duration,
    /// What the guest had before the first cycle, and after the last.
    pub kept: [Kept; 2],
}

impl fmt::Display for Cycles {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [before, after] = self.kept;
        let seconds = self.took.as_secs_f64();
        write!(
            f,
            "{} loads in {seconds:.0} s, {:.1} s each; {} rounds of hackbench\nends:   {:?}\n\
             before: {before}\nafter:  {after}",
            self.done,
            seconds / f64::from(self.done.max(1)),
            self.rounds,
            self.reasons
        )
    }
}

/// Loads and ends the scheduler that often, or until the time is over.
///
/// The machine is in real time even if its preset is not. A count of what stays does not depend on
/// time, and the plugin of virtual time makes a load take three times as long (22 s on vt8, 7 s on smt8).
///
/// # Errors
/// When the scheduler does not start or end, starts by itself, or leaves something behind.
pub fn cycles(
    machine: &str,
    count: u32,
    until: Option<Instant>,
    say: &mut dyn FnMut(&str),
) -> Result<Cycles> {
    let mut machine = Machine::find(machine)?;
    machine.virtual_time = None;
    // A host that is busy is no fault of the scheduler.
    let mut guest = boot_within(machine, PATIENCE)?;
    // Beside the load too: tasks on all CPUs leave freed memory on lists of each CPU (11 MiB on smt8
    // after one cycle, 12 MiB after 24).
    shell(&mut guest, START_LOAD)?;
    for is_killed in [false, true] {
        cycle(&mut guest, "", is_killed).context("a cycle before the first count")?;
    }
    end_load(&mut guest)?;
    let before = Kept::of(&mut guest)?;
    let enabled = enablings(&mut guest)?;
    shell(&mut guest, START_LOAD)?;

    let began = Instant::now();
    let mut reasons = BTreeMap::new();
    let mut done = 0;
    while done < count && until.is_none_or(|until| Instant::now() < until) {
        let options = scenes::OPTIONS[done as usize % scenes::OPTIONS.len()];
        let exit = cycle(&mut guest, options, done % KILL_EVERY == KILL_EVERY - 1)
            .with_context(|| format!("cycle {} ({MAGPIE} {options})", done + 1))?;
        *reasons.entry(reason(&exit)?).or_default() += 1;
        done += 1;
        let seconds = began.elapsed().as_secs_f64();
        say(&format!(
            "cycle {done} after {seconds:.0} s: {MAGPIE} {options}"
        ));
    }
    let took = began.elapsed();
    ensure!(done > 0, "no time was left for a cycle: give more of it");

    let rounds = end_load(&mut guest)?;
    let log = warnings(&mut guest)?;
    ensure!(log.is_empty(), "the kernel says:\n{log}");
    let enabled = enablings(&mut guest)? - enabled;
    ensure!(
        enabled == u64::from(done),
        "the scheduler was started {enabled} times, not {done}"
    );
    let after = before.must_be_all(&mut guest)?;
    guest.into_guest().shutdown()?;
    Ok(Cycles {
        done,
        rounds,
        reasons,
        took,
        kept: [before, after],
    })
}

/// Loads the scheduler, lets it run and ends it.
fn cycle(guest: &mut Guest, options: &str, is_killed: bool) -> Result<SchedulerExit> {
    shell(guest, "touch /tmp/held")?;
    guest.start_scheduler(&words(&format!("{MAGPIE} {options}")))?;
    shell(guest, RUN)?;
    if is_killed {
        return scenes::kill(guest, "killall -9 scx_magpie");
    }
    scenes::end(guest)
}

/// Ends hackbench, and returns how many rounds it had.
fn end_load(guest: &mut Guest) -> Result<usize> {
    shell(guest, "touch /tmp/over")?;
    wait_for_end(guest)?;
    let rounds = shell(guest, "rmdir /sys/fs/cgroup/load && cat /tmp/rounds")?;
    let rounds = rounds.lines().count();
    ensure!(rounds > 0, "hackbench did not run");
    Ok(rounds)
}

/// Returns the kernel's reason for the end of a scheduler.
fn reason(exit: &SchedulerExit) -> Result<String> {
    let lines = exit.kernel_log.iter();
    let mut reasons = lines.filter_map(|line| line.split_once(" disabled (")?.1.strip_suffix(')'));
    match reasons.next_back() {
        Some(reason) => Ok(reason.to_string()),
        None => bail!("the kernel gave no reason for the end: {exit:?}"),
    }
}
