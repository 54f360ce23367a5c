//! The queue: a task that a message wakes does not pass queued tasks that have the same vruntime.
//! More messages arrive before it runs, and it takes many at once, so two busy CPUs switch at most
//! twice as often as under the kernel's own scheduler.
//!
//! A task that wakes on a CPU where nothing else is runnable passes no queue.
//!
//! The timer that ends slices in time is left out: slices under the kernel's own scheduler end at
//! ticks. With the timer each sixth switch is a slice's end, which says nothing about messages.

use anyhow::{Result, ensure};
use magpie_bench::stats::median;
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    CYCLICTEST, MAGPIE, VT8, VT8_NODES, boot_for_magpie, counters, grown, shell, under,
};

/// Returns the context switches of the whole machine while 160 tasks pass messages on two of its
/// CPUs: the median of five runs.
fn switches_for_messages(guest: &mut Guest, cpus: &str) -> Result<f64> {
    let switches = (0..5)
        .map(|_| {
            let printed = shell(
                guest,
                &format!(
                    "switches() {{ sed -n 's/^ctxt //p' /proc/stat; }}\n\
                     before=$(switches)\n\
                     taskset -c {cpus} hackbench -g 4 -l 30 > /dev/null\n\
                     after=$(switches); echo $((after - before))"
                ),
            )?;
            Ok(printed.trim().parse()?)
        })
        .collect::<Result<Vec<f64>>>()?;
    println!("{switches:?} context switches");
    Ok(median(&switches))
}

/// Fails if two busy CPUs switch more than twice as often as under the kernel's own scheduler:
/// receivers then take the messages one by one.
fn takes_many_messages_at_once(machine: &str, cpus: &str) -> Result<()> {
    let mut guest = boot_for_magpie(machine, |_| {})?;
    let eevdf = switches_for_messages(&mut guest, cpus)?;
    let magpie = under(&mut guest, "scx_magpie --no-hrtick", |guest| {
        switches_for_messages(guest, cpus)
    })?;
    ensure!(
        magpie <= eevdf * 2.0,
        "{magpie} context switches, EEVDF {eevdf}"
    );
    guest.into_guest().shutdown()
}

#[test]
fn messages_are_taken_many_at_a_time_on_the_second_node() -> Result<()> {
    takes_many_messages_at_once(VT8_NODES, "4,5")
}

#[test]
fn messages_are_taken_many_at_a_time() -> Result<()> {
    takes_many_messages_at_once(VT8, "0,1")
}

/// Returns by how much two counters grow while a command runs: wakeups that ran at once, and tasks
/// that passed a queue.
fn direct_and_queued(guest: &mut Guest, command: &str) -> Result<(u64, u64)> {
    let before = counters(guest)?;
    shell(guest, command)?;
    let after = counters(guest)?;
    Ok((
        grown(&before, &after, "wake_idle")?,
        grown(&before, &after, "enqueue")?,
    ))
}

/// A pinned thread wakes 1000 times on a CPU that idles. The kernel asks no scheduler for its CPU.
///
/// Without the mechanism these wakeups are not among those that run at once, of which 100 to 200 are
/// of other tasks, and 1000 tasks more pass a queue. The counters are those of the whole machine, so
/// cyclictest's histogram goes nowhere: each 4 KiB that it prints wake the task that reads them, and
/// where both share a CPU, cyclictest is preempted and passes a queue some 350 times.
#[test]
fn a_task_alone_on_its_cpu_passes_no_queue() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    under(&mut guest, MAGPIE, |guest| {
        let command = format!("{CYCLICTEST} -a 3 -D 1 > /dev/null");
        let (direct, queued) = direct_and_queued(guest, &command)?;
        println!("{direct} wakeups ran at once, {queued} tasks passed a queue");
        ensure!(direct >= 900, "only {direct} of 1000 wakeups ran at once");
        ensure!(queued <= 100, "{queued} tasks passed a queue");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
