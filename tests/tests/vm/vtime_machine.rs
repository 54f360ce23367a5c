//! The virtual-time machine keeps time, repeats a deterministic run, ends when it is told to, and
//! reports a hang with the state of each vCPU.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use magpie_lab::vtime::Fidelity;
use magpie_lab::vtime::batch::Outcome;
use magpie_lab::{Guest, Machine, selfcheck};
use magpie_tests::scheduler::{
    MAGPIE, PATIENCE, boot_for_magpie, late_by_cyclictest, shell, under,
};
use magpie_tests::{boot, run_batch, shell_argv};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Fails unless the self-check holds on a machine, and no timer was late by more than a window.
fn keeps_time(name: &str) -> Result<()> {
    let mut guest = boot(name, |_| {})?;
    let check = selfcheck::run(&mut guest, &Machine::find(name)?, PATIENCE)?;
    ensure!(check.holds, "{name}: {check:?}");
    let fidelity = guest.fidelity()?.context("a machine in virtual time")?;
    ensure!(
        fidelity.timer_late_max_ns <= fidelity.window_ns as i64,
        "{name}: a timer was {} ns late",
        fidelity.timer_late_max_ns
    );
    ensure!(
        fidelity.instructions > 0 && fidelity.vcpus.len() == fidelity.cpus as usize,
        "{name}: {fidelity:?}"
    );
    guest.into_guest().shutdown()
}

#[test]
fn a_small_machine_keeps_time() -> Result<()> {
    keeps_time("vt4")
}

#[test]
fn a_machine_with_smt_keeps_time() -> Result<()> {
    keeps_time("vt16")
}

/// A vCPU that executes alone is given a turn until the machine's next timer. If its guest then sets
/// an earlier timer, the turn must end there: otherwise the interrupt comes up to a tick late.
#[test]
fn a_timer_is_in_time_while_one_cpu_alone_is_busy() -> Result<()> {
    let mut guest = boot("vt2", |options| {
        options.files.push("/usr/bin/cyclictest".into());
    })?;
    let histogram = shell(
        &mut guest,
        "taskset -c 1 sh -c 'while :; do :; done' & hog=$!\n\
         taskset -c 1 cyclictest -q -t 1 -i 700 -p 80 -D 1 -h 100000; kill $hog",
    )?;
    let late_us = late_by_cyclictest(&histogram)?;
    let worst = late_us.last().context("a wakeup")?;
    println!(
        "{} real-time wakeups beside a hog, {worst} us late at most",
        late_us.len()
    );
    ensure!(*worst <= 200.0, "a wakeup was {worst} us late");
    guest.into_guest().shutdown()
}

/// Fails unless a count of the profile is between two of the report, up to what `rounding` adds.
fn is_between(what: &str, count: u64, [least, most]: [u64; 2], rounding: u64) -> Result<()> {
    println!("{what}: {count}, in the report {least} to {most}");
    ensure!(
        (least.saturating_sub(rounding)..=most + rounding).contains(&count),
        "{what}: {count} in the profile, {least} to {most} in the report"
    );
    Ok(())
}

/// Returns the report of a machine in virtual time.
fn report(guest: &Guest) -> Result<Fidelity> {
    guest.fidelity()?.context("a machine in virtual time")
}

/// Returns the instructions that a machine reports, and the nanoseconds of its stalls.
fn counted(guest: &Guest) -> Result<(u64, u64)> {
    let fidelity = report(guest)?;
    let memory = fidelity.memory.as_ref().context("a machine with memory")?;
    let causes = memory.causes();
    let stalls: u64 = causes.iter().map(|(_, served)| served.stall_ns).sum();
    let instructions = fidelity.vcpus.iter().map(|vcpu| vcpu.instructions).sum();
    Ok((instructions, stalls + memory.string_ns))
}

/// The plugin counts instructions and stalls without the profile, too: the sums must be those. The
/// guest's time goes on while the host reads, so each reading of the profile has the report before
/// it and after it: the profile counts at least what is between the two readings.
#[test]
fn a_profile_names_the_functions_that_take_the_time() -> Result<()> {
    let mut guest = boot_for_magpie("vt8-mem", |options| options.profile = true)?;
    under(&mut guest, MAGPIE, |guest| {
        let mips = report(guest)?.mips;
        let (before, counts, began) = (counted(guest)?, guest.counts()?, counted(guest)?);
        shell(guest, "magpie-load pipe --loops 10000")?;
        let (ended, counts, after) = (
            counted(guest)?,
            guest.counts()?.since(&counts),
            counted(guest)?,
        );
        let profile = guest.profile(&counts, mips)?;
        println!("{profile}");
        let instructions = [ended.0 - began.0, after.0 - before.0];
        // The report has each of the 8 CPUs as its last quantum of 1,000 instructions ended.
        is_between("instructions", profile.instructions, instructions, 8000)?;
        let stalls = [ended.1 - began.1, after.1 - before.1];
        // Each cause of each CPU is cut to whole nanoseconds.
        is_between("stalls, ns", profile.stall_ns, stalls, 1000)?;
        let tasks = profile.tasks.iter();
        let by_task = tasks.fold((0, 0), |sum, task| {
            (sum.0 + task.instructions, sum.1 + task.stall_ns)
        });
        is_between("instructions of tasks", by_task.0, instructions, 20_000)?;
        is_between("stalls of tasks, ns", by_task.1, stalls, 1000)?;
        let pipe = profile.tasks.iter().find(|t| t.name == "magpie-load");
        let pipe = pipe.context("magpie-load is not among the tasks")?;
        // Of 10,000 round trips each is a system call, a sleep and a wakeup.
        ensure!(
            pipe.instructions > instructions[0] / 4 && pipe.stall_ns > 0,
            "{pipe:?} of {instructions:?}"
        );
        for name in [
            "anon_pipe_read",
            "anon_pipe_write",
            "__schedule",
            "magpie_select_cpu [bpf]",
            "magpie_running [bpf]",
            "(user space)",
        ] {
            let found = profile
                .function(name)
                .with_context(|| format!("{name} is not in the profile"))?;
            // 20,000 sleeps, wakeups and switches.
            ensure!(found.instructions > 200_000, "{found:?}");
        }
        let elsewhere = profile.function("(elsewhere)").map_or(0.0, |f| f.percent);
        ensure!(elsewhere < 1.0, "{elsewhere} % of the time is nowhere");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

#[test]
fn idle_time_costs_nothing() -> Result<()> {
    let mut guest = boot("vt4", |_| {})?;
    let began = Instant::now();
    guest.capture(&["sleep", "600"], PATIENCE)?;
    let real = began.elapsed();
    ensure!(
        real < Duration::from_secs(200),
        "600 s of virtual sleep took {real:?}"
    );
    guest.into_guest().shutdown()
}

#[test]
fn a_deterministic_machine_repeats_itself() -> Result<()> {
    let mut machine = Machine::find("vt4")?;
    machine
        .virtual_time
        .as_mut()
        .context("vt4 is in virtual time")?
        .deterministic = true;
    // Forks, pipes and wakeups on all CPUs; the statistics show the clock to the nanosecond.
    let job = "for i in 1 2 3 4 5 6; do (seq 2000 | sort -n | md5sum) & done; wait; \
               grep cpu /proc/stat; cat /proc/schedstat; grep . /proc/uptime";
    let first = run_batch(&machine, job)?;
    let second = run_batch(&machine, job)?;
    assert_eq!(first.code, 0, "{}", first.output);
    ensure!(first.output.lines().count() > 10, "{}", first.output);
    assert_eq!(first.output, second.output);
    assert_eq!(first.fidelity.instructions, second.fidelity.instructions);
    // The number of turns may differ: vCPUs get the last ones while QEMU, which is not in virtual
    // time, shuts down.
    let each = |outcome: &Outcome| -> Vec<u64> {
        let vcpus = outcome.fidelity.vcpus.iter();
        vcpus.map(|vcpu| vcpu.instructions).collect()
    };
    assert_eq!(each(&first), each(&second));
    Ok(())
}

#[test]
fn a_batch_job_has_an_exit_code() -> Result<()> {
    let machine = Machine::find("vt4")?;
    let outcome = run_batch(&machine, "echo out; echo err >&2; exit 3")?;
    assert_eq!(outcome.code, 3);
    assert_eq!(outcome.output, "out\nerr\n");
    assert_eq!(outcome.fidelity.end, "exit");
    Ok(())
}

#[test]
fn sigterm_ends_it_while_all_cpus_work() -> Result<()> {
    let mut guest = boot("vt16", |_| {})?;
    let hogs = "for i in $(seq 32); do (while :; do :; done) & done; echo started";
    guest.exec(&shell_argv(hogs), PATIENCE, &mut |_, _| {})?;
    let pid = guest.qemu_pid();
    kill(Pid::from_raw(pid as i32), Signal::SIGTERM)?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let gone = || {
        // A zombie has ended: its parent, this process, reaps it a moment later.
        std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |s| s.contains(") Z "))
    };
    while !gone() {
        ensure!(
            Instant::now() < deadline,
            "QEMU did not end within 60 s of SIGTERM"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn a_hang_is_reported_with_each_cpu() -> Result<()> {
    let mut guest = boot("vt4", |options| {
        if let Some(time) = options.machine.virtual_time.as_mut() {
            time.hang_seconds = 3;
        }
    })?;
    // Stops the thread of one vCPU, as a fault of the plugin would. Only ptrace can stop a single
    // thread, and this process may use it, because QEMU is its child.
    let thread = Pid::from_raw(guest.qemu_threads()?[1] as i32);
    ensure!(
        Path::new(&format!("/proc/{}/task/{thread}", guest.qemu_pid())).exists(),
        "QEMU has no thread {thread}"
    );
    let (stopped, is_stopped) = mpsc::channel();
    let tracer = std::thread::spawn(move || -> Result<()> {
        ptrace::seize(thread, ptrace::Options::empty()).context("ptrace a vCPU's thread")?;
        ptrace::interrupt(thread).context("stop a vCPU's thread")?;
        stopped.send(()).context("tell that it is stopped")?;
        // Waits until the thread has ended: QEMU's parent cannot reap QEMU before this tracer has
        // seen the thread's end.
        while let Ok(status) = waitpid(thread, Some(WaitPidFlag::__WALL)) {
            if matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..)) {
                break;
            }
        }
        Ok(())
    });
    is_stopped.recv().context("the vCPU could not be stopped")?;
    let hogs = shell_argv("for i in 0 1 2 3; do taskset -c $i sh -c ': $((1+1))'; done");
    let error = guest
        .exec(&hogs, Duration::from_secs(120), &mut |_, _| {})
        .expect_err("one vCPU of four does not run");
    let error = format!("{error:#}");
    for part in [
        "no progress for 3 s",
        "cpu 0 ",
        "cpu 1 ",
        "cpu 2 ",
        "cpu 3 ",
    ] {
        ensure!(error.contains(part), "\"{part}\" is missing in:\n{error}");
    }
    tracer.join().expect("the tracer does not panic")
}
