//! `magpie top` on a terminal, which tmux gives it: its screens beside loads of which is known what
//! they must show, its keys, and what it costs.

use anyhow::{Context, Result, ensure};
use magpie_lab::{Guest, GuestOptions};
use magpie_tests::TestGuest;
use magpie_tests::scheduler::{MAGPIE, VT8, boot_for_magpie, program, shell, under};

/// The screen that `tmux` reads, and what else it needs in a guest.
const TERMINAL: &str = "TERM=screen tmux -u -f /dev/null";

/// How often a screen is read until it shows what is expected; the screen changes once a second.
const LOOKS: u32 = 30;

/// Three tasks on one CPU, each of which runs for a slice of 3 ms and then waits for two others.
const HOGS: &str = "magpie-load hogs --count 3 --cpus 0 --seconds";

/// Tasks that wake each other, until there is a file /tmp/over.
const HACKBENCH: &str =
    "(while [ ! -e /tmp/over ]; do hackbench -g 1 -l 100; done) > /dev/null 2>&1 &";

/// The same in short bursts, so that CPUs mostly idle.
const BURSTS: &str = "(while :; do hackbench -g 1 -l 10; sleep 0.3; done) > /dev/null 2>&1 &";

/// The screen and its BPF program may take this part of one CPU's time.
const MOST_COST: f64 = 0.005;

/// Million instructions a second of a CPU, about those of a real one.
const MIPS: f64 = 3_000.0;

/// Prints the time of all threads of `magpie top` and of its BPF program, in nanoseconds, and how
/// often that program ran.
const COSTS: &str = "pid=$(pidof magpie); \
    cat /proc/$pid/task/*/schedstat | awk '{ns += $1} END {printf \"%.0f\\n\", ns}'; \
    cat /proc/$pid/fdinfo/* | awk '/run_time_ns/ {ns = $2} /run_cnt/ {runs = $2} \
        END {printf \"%.0f\\n%.0f\\n\", ns, runs}'";

/// Boots a guest with scx_magpie, `magpie`, and the packages of the terminal.
fn boot_with_terminal(machine: &str, change: impl FnOnce(&mut GuestOptions)) -> Result<TestGuest> {
    let magpie = program("magpie")?;
    boot_for_magpie(machine, |options| {
        change(options);
        options.files.push(magpie);
        // libc-bin has the locale C.UTF-8, without which tmux does not start.
        let packages = ["tmux", "ncurses-base", "libc-bin"].map(String::from);
        options.packages.extend(packages);
    })
}

/// Starts `magpie top` on a terminal of 80 columns and 24 lines.
fn start_top(guest: &mut Guest, options: &str) -> Result<()> {
    let start = format!("{TERMINAL} new-session -d -x 80 -y 24 'magpie top {options}'");
    shell(guest, &start).map(|_| ())
}

/// Sends a key to the terminal.
fn press(guest: &mut Guest, key: &str) -> Result<()> {
    shell(guest, &format!("{TERMINAL} send-keys '{key}'")).map(|_| ())
}

/// Reads the screen until it is as expected, and returns it; an error that says `what` was expected
/// if it never is.
fn screen(guest: &mut Guest, what: &str, is_right: impl Fn(&str) -> bool) -> Result<String> {
    let mut seen = String::new();
    for _ in 0..LOOKS {
        seen = shell(guest, &format!("sleep 0.5; {TERMINAL} capture-pane -p"))?;
        if is_right(&seen) {
            println!("{what}:\n{seen}");
            return Ok(seen);
        }
    }
    anyhow::bail!("the screen never showed {what}:\n{seen}")
}

/// Returns the number behind a word on a screen, without its unit.
fn number(screen: &str, word: &str) -> Option<f64> {
    let (_, behind) = screen.split_once(word)?;
    behind.split_whitespace().next()?.parse().ok()
}

/// Returns a time behind a word on a screen, in microseconds.
fn time(screen: &str, word: &str) -> Option<f64> {
    let (_, behind) = screen.split_once(word)?;
    let mut words = behind.split_whitespace();
    let value: f64 = words.next()?.parse().ok()?;
    match words.next()? {
        "us" => Some(value),
        "ms" => Some(1e3 * value),
        _ => None,
    }
}

#[test]
fn screens_say_what_happens_and_keys_work() -> Result<()> {
    let mut guest = boot_with_terminal(VT8, |_| {})?;
    under(&mut guest, MAGPIE, |guest| {
        start_top(guest, "--record /tmp/session")?;
        shell(guest, &format!("{HOGS} 60 > /dev/null 2>&1 &"))?;
        let busy = |screen: &str| number(screen, "L0") == Some(100.0);
        let seen = screen(guest, "CPU 0 busy all the time", |screen| {
            // Each waits for two slices of 3 ms, and there is no other load.
            let waits = time(screen, "requeue p99").is_some_and(|us| us > 3e3 && us < 2e4);
            busy(screen) && waits
        })?;
        ensure!(
            seen.contains("8 CPUs") && seen.contains("wakeup p99"),
            "{seen}"
        );

        press(guest, "m")?;
        screen(guest, "two tasks that wait for CPU 0", |screen| {
            let waiting = number(screen, "L0").is_some_and(|tasks| (1.8..2.2).contains(&tasks));
            screen.contains("tasks that waited") && waiting
        })?;
        press(guest, "m")?;
        screen(guest, "steal time", |screen| {
            screen.contains("steal time that")
        })?;
        press(guest, "m")?;
        screen(guest, "frequency", |screen| {
            screen.contains("CPUs: frequency")
        })?;
        press(guest, "?")?;
        screen(guest, "the keys", |screen| {
            screen.contains("keys and signs")
        })?;
        press(guest, "x")?;
        screen(guest, "no keys", |screen| {
            screen.contains("CPUs: frequency")
        })?;

        shell(guest, "killall magpie-load")?;
        shell(guest, HACKBENCH)?;
        screen(guest, "hackbench's wakeups", |screen| {
            let wakes = number(screen, "wakeups ").is_some_and(|rate| rate > 100.0);
            wakes && time(screen, "wakeup p99").is_some_and(|us| us > 0.0)
        })?;
        press(guest, "q")?;
        let ended = format!(
            "touch /tmp/over; for i in $(seq 100); do {TERMINAL} ls 2> /dev/null || exit 0; sleep 0.2; \
             done; exit 1"
        );
        shell(guest, &ended).context("`magpie top` has not ended")?;
        let replayed = shell(guest, "magpie top --screens 4 --replay /tmp/session")?;
        ensure!(replayed.contains("requeue p99"), "{replayed}");
        let without = shell(guest, "magpie top --screens 1 --no-latency")?;
        ensure!(
            without.contains("wakeup p99  latencies are not measured"),
            "{without}"
        );
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

#[test]
fn it_costs_a_two_hundredth_of_one_of_sixteen_cpus_at_most() -> Result<()> {
    const SECONDS: f64 = 5.0;
    let mut guest = boot_with_terminal("vt16", |options| {
        if let Some(time) = &mut options.machine.virtual_time {
            time.mips = MIPS;
        }
    })?;
    under(&mut guest, MAGPIE, |guest| {
        shell(guest, "echo 1 > /proc/sys/kernel/bpf_stats_enabled")?;
        shell(guest, BURSTS)?;
        start_top(guest, "")?;
        screen(guest, "latencies", |screen| {
            time(screen, "wakeup p99").is_some_and(|us| us > 0.0)
        })?;
        let before = costs(guest)?;
        shell(guest, &format!("sleep {SECONDS}"))?;
        let [process, programs, runs] = costs(guest)?;
        let process = (process - before[0]) / 1e9 / SECONDS;
        let runs = (runs - before[2]) / SECONDS;
        let programs = (programs - before[1]) / 1e9 / SECONDS;
        let said = format!(
            "of one CPU of {MIPS} MIPS: process {:.3} %, BPF program {:.3} % at {runs:.0} switches/s",
            100.0 * process,
            100.0 * programs
        );
        println!("{said}");
        ensure!(process + programs < MOST_COST, "{said}");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// Returns the nanoseconds of the process and of its BPF program, and the number of its runs.
fn costs(guest: &mut Guest) -> Result<[f64; 3]> {
    let text = shell(guest, COSTS)?;
    let numbers = text
        .lines()
        .map(str::parse)
        .collect::<Result<Vec<f64>, _>>()?;
    let numbers: Result<[f64; 3], _> = numbers.try_into();
    numbers.map_err(|_| anyhow::anyhow!("three numbers are expected:\n{text}"))
}
