//! Several guests on the physical CPUs of one host, in virtual time: what each has, and that a guest
//! which ends, idles or dies leaves the CPUs to the others.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use magpie_lab::vtime::host::{End, GuestOutcome, Had, Host, HostGuest, Running};
use magpie_lab::{GuestOptions, Machine};
use magpie_tests::scheduler::{PATIENCE, program};
use magpie_tests::{build_agent, share_of};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The machine of each guest: 2 vCPUs.
const MACHINE: &str = "vt2";

/// Two guests of 2 vCPUs each are twice as many vCPUs.
const PHYSICAL: u32 = 2;

/// Keeps both vCPUs of a guest busy for a second.
const BUSY: &str = "magpie-load hogs --count 2 --seconds 1 >/dev/null";

fn host() -> Host {
    Host {
        start_seconds: 15,
        ..Host::new(PHYSICAL)
    }
}

fn guest(name: &str, command: &str) -> Result<HostGuest> {
    Ok(HostGuest {
        name: name.to_string(),
        options: GuestOptions {
            machine: Machine::find(MACHINE)?,
            files: vec![program("magpie-load")?],
            ..GuestOptions::default()
        },
        scheduler: None,
        command: command.to_string(),
        background: false,
        weight: HostGuest::WEIGHT,
    })
}

/// Runs the guests on a host, once a part of this host is free.
fn run(guests: &[HostGuest]) -> Result<Vec<GuestOutcome>> {
    run_on(&host(), guests)
}

fn run_on(host: &Host, guests: &[HostGuest]) -> Result<Vec<GuestOutcome>> {
    build_agent()?;
    let _share = share_of(&guests[0].options.machine);
    let outcomes = magpie_lab::vtime::host::run(host, guests, PATIENCE)?;
    for outcome in &outcomes {
        println!("{}: {}, {:?}", outcome.name, outcome.end, outcome.had);
    }
    Ok(outcomes)
}

/// Returns what a guest had whose command ended with code 0.
fn had(outcome: &GuestOutcome) -> Result<Had> {
    let GuestOutcome {
        name, end, output, ..
    } = outcome;
    ensure!(*end == End::Exited(0), "{name}: {end:?}\n{output}");
    outcome
        .had
        .with_context(|| format!("{name} has no marks in its report"))
}

/// Fails unless a figure is within 5 % of what it should be.
fn is_near(what: &str, value: f64, wanted: f64) -> Result<()> {
    ensure!(
        (value - wanted).abs() < 0.05 * wanted,
        "{what}: {value:.3} s instead of {wanted} s"
    );
    Ok(())
}

#[test]
fn two_busy_guests_have_half_of_the_host_each() -> Result<()> {
    for outcome in &run(&[guest("one", BUSY)?, guest("two", BUSY)?])? {
        let had = had(outcome)?;
        // Of 2 s of vCPUs in each second, the host gives half.
        is_near("CPU time", had.cpu_seconds, had.seconds)?;
        ensure!(
            (0.9..1.2).contains(&had.steal_seconds),
            "steal time: {:.3} s",
            had.steal_seconds
        );
    }
    Ok(())
}

/// Returns the CPU time of two guests, as parts of the time that they took, on a host: one that keeps
/// one of its vCPUs busy, and one that keeps both busy.
fn parts_of_one_and_two(cgroups: bool) -> Result<[f64; 2]> {
    let hogs = |count| format!("magpie-load hogs --count {count} --seconds 1 >/dev/null");
    let guests = [guest("one", &hogs(1))?, guest("two", &hogs(2))?];
    let host = Host { cgroups, ..host() };
    let outcomes = run_on(&host, &guests)?;
    let part = |outcome| had(outcome).map(|had| had.cpu_seconds / had.seconds);
    Ok([part(&outcomes[0])?, part(&outcomes[1])?])
}

#[test]
fn a_guest_with_few_busy_cpus_gets_no_less_of_a_host_with_cgroups() -> Result<()> {
    let [one, two] = parts_of_one_and_two(true)?;
    is_near("one hog", one, 1.0)?;
    is_near("two hogs", two, 1.0)?;
    let [one, two] = parts_of_one_and_two(false)?;
    is_near("one hog of three", one, 2.0 / 3.0)?;
    is_near("two hogs of three", two, 4.0 / 3.0)
}

#[test]
fn guests_have_parts_of_the_host_by_their_weights() -> Result<()> {
    let mut guests = [guest("heavy", BUSY)?, guest("light", BUSY)?];
    guests[0].weight = 3 * HostGuest::WEIGHT;
    let outcomes = run(&guests)?;
    for (outcome, part) in outcomes.iter().zip([1.5, 0.5]) {
        let had = had(outcome)?;
        is_near("CPU time", had.cpu_seconds / had.seconds, part)?;
    }
    Ok(())
}

#[test]
fn a_guest_that_idles_or_ends_leaves_the_host_to_the_other() -> Result<()> {
    // Idle for half of the time, then off.
    let guests = [guest("busy", BUSY)?, guest("idle", "sleep 0.5")?];
    let outcomes = run(&guests)?;
    let (busy, idle) = (had(&outcomes[0])?, had(&outcomes[1])?);
    is_near("CPU time", busy.cpu_seconds, 2.0)?;
    ensure!(
        busy.steal_seconds < 0.1,
        "steal time: {:.3} s",
        busy.steal_seconds
    );
    ensure!(
        idle.cpu_seconds < 0.1 && idle.seconds > 0.5,
        "the idle guest: {idle:?}"
    );
    Ok(())
}

/// Guests boot, start CPUs, and wake tasks on others, in two processes of this host each: what one of
/// them does may not depend on when the other one is scheduled here.
#[test]
fn two_runs_of_several_guests_are_the_same() -> Result<()> {
    let job =
        "for i in 1 2 3 4; do (seq 2000 | sort -n | md5sum) & done; wait; grep cpu /proc/stat";
    let guests = [guest("one", job)?, guest("two", job)?];
    let [first, second] = [run(&guests)?, run(&guests)?];
    for (first, second) in first.iter().zip(&second) {
        assert_eq!(first.output, second.output);
        assert_eq!(had(first)?, had(second)?);
    }
    Ok(())
}

/// Returns two guests of a machine, ours under scx_magpie, and what each runs.
fn ours_and_a_neighbour(machine: &str, ours: &str, neighbour: &str) -> Result<[HostGuest; 2]> {
    let mut guests = [guest("ours", ours)?, guest("neighbour", neighbour)?];
    for guest in &mut guests {
        guest.options.machine = Machine::find(machine)?;
    }
    guests[0].options.files.push(program("scx_magpie")?);
    guests[0].scheduler = Some(vec!["/bin/scx_magpie".to_string()]);
    Ok(guests)
}

/// Without cgroups a guest that uses fewer CPUs gets less of the host, so a guest that gives way to its
/// neighbour would get less and less: one CPU of nine, where all of them had half of the host.
#[test]
fn scx_magpie_does_not_give_way_where_that_costs_it_its_share() -> Result<()> {
    let busy = "magpie-load hogs --count 8 --seconds 4 >/dev/null";
    let guests = ours_and_a_neighbour("vt8on2", busy, busy)?;
    let host = Host {
        cgroups: false,
        start_seconds: Host::START_SECONDS,
        ..host()
    };
    let outcomes = run_on(&host, &guests)?;
    let part = had(&outcomes[0])?.cpu_seconds / had(&outcomes[0])?.seconds / f64::from(PHYSICAL);
    println!("our part of the host: {part:.3}");
    ensure!(part > 0.3, "our guest had {part:.3} of the host");
    Ok(())
}

/// A guest of two vCPUs that is given 1.6 physical CPUs would lose more with one of them than a host of
/// two takes from both.
#[test]
fn a_guest_of_two_cpus_that_is_given_most_of_them_uses_both() -> Result<()> {
    let ours = "magpie-load hogs --count 2 --seconds 3 >/dev/null; scx_magpie preferred";
    let busy = "magpie-load hogs --count 2 --seconds 30 >/dev/null";
    let mut guests = ours_and_a_neighbour(MACHINE, ours, busy)?;
    guests[0].weight = 4 * HostGuest::WEIGHT;
    guests[1].background = true;
    let host = Host {
        start_seconds: Host::START_SECONDS,
        ..host()
    };
    let outcomes = run_on(&host, &guests)?;
    let output = &outcomes[0].output;
    ensure!(output.contains("preferred CPUs  0-1 of 0-1"), "{output}");
    Ok(())
}

/// A guest gives way to a busy neighbour, and takes the host back once the neighbour is done, although
/// its own work comes in bursts from then on: each is shorter than the governor's period, and uses all
/// of the one CPU that is preferred.
#[test]
fn work_in_bursts_takes_back_a_host_that_is_free_again() -> Result<()> {
    let busy = "magpie-load hogs --count 8 --seconds 4 >/dev/null";
    let bursts = format!(
        "{busy}; scx_magpie preferred; for i in 1 2 3 4 5 6; do sleep 2; \
         magpie-load hogs --count 8 --seconds 0.4 >/dev/null; done; scx_magpie preferred"
    );
    let guests = ours_and_a_neighbour("vt8on2", &bursts, busy)?;
    let host = Host {
        start_seconds: Host::START_SECONDS,
        ..host()
    };
    let outcomes = run_on(&host, &guests)?;
    let output = &outcomes[0].output;
    let preferred: Vec<_> = output
        .lines()
        .filter_map(|line| line.strip_prefix("preferred CPUs "))
        .collect();
    println!("{preferred:?}");
    ensure!(preferred.len() == 2, "{output}");
    ensure!(
        preferred[0].contains(" 0 of 0-7"),
        "beside a busy neighbour: {}",
        preferred[0]
    );
    ensure!(
        preferred[1].contains(" 0-1 of 0-7"),
        "on a host that is free again: {}",
        preferred[1]
    );
    Ok(())
}

#[test]
fn a_guest_in_the_background_ends_with_the_others() -> Result<()> {
    let mut background = guest("background", &format!("while :; do {BUSY}; done"))?;
    background.background = true;
    let outcomes = run(&[guest("measured", BUSY)?, background])?;
    let measured = had(&outcomes[0])?;
    is_near("CPU time", measured.cpu_seconds, 1.0)?;
    let beside = &outcomes[1];
    ensure!(beside.end == End::Over, "{:?}", beside.end);
    let beside = beside.had.context("what the background guest had")?;
    // Not the time in which the other powers off, and leaves it the host.
    is_near("its time", beside.seconds, measured.seconds)?;
    is_near("its CPU time", beside.cpu_seconds, 1.0)
}

#[test]
fn a_guest_that_dies_leaves_the_others_running() -> Result<()> {
    build_agent()?;
    let _share = share_of(&Machine::find(MACHINE)?);
    // The second guest keeps its vCPUs busy for ever: as long as it lives, a thousand seconds take
    // longer than this test may.
    let guests = [
        guest("lives", "sleep 1000; seq 2000 | sort -n | md5sum")?,
        guest(
            "dies",
            "echo about to die; (while :; do :; done) & while :; do :; done",
        )?,
    ];
    let running = Running::start(&host(), &guests)?;
    let deadline = Instant::now() + PATIENCE;
    while !running.console(1).contains("about to die") {
        ensure!(
            Instant::now() < deadline,
            "the second guest does not begin:\n{}",
            running.console(1)
        );
        thread::sleep(Duration::from_millis(20));
    }
    kill(Pid::from_raw(running.qemu_pid(1) as i32), Signal::SIGKILL)?;
    let outcomes = running.wait(PATIENCE)?;
    let lives = had(&outcomes[0])?;
    println!("{lives:?}");
    ensure!(lives.seconds > 1000.0, "it slept for {} s", lives.seconds);
    ensure!(
        matches!(outcomes[1].end, End::Died(_)),
        "{:?}",
        outcomes[1].end
    );
    Ok(())
}

#[test]
fn a_start_that_is_too_early_is_an_error_that_says_so() -> Result<()> {
    build_agent()?;
    let _share = share_of(&Machine::find(MACHINE)?);
    let early = Host {
        start_seconds: 1,
        ..host()
    };
    let guests = [guest("early", "true")?];
    let outcomes = magpie_lab::vtime::host::run(&early, &guests, PATIENCE)?;
    let GuestOutcome { end, output, .. } = &outcomes[0];
    ensure!(
        *end == End::Exited(125) && output.contains("raise start_seconds"),
        "{end:?}\n{output}"
    );
    Ok(())
}
