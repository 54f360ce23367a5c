//! `magpie export` and `magpie top` beside a running scheduler: its counters rise from scrape to
//! scrape, after its end the exporter stays up and says so, and a recorded screen is shown again as
//! it was.

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{MAGPIE, boot_for_magpie, program, shell, under};

/// Returns the metrics that the exporter serves inside the guest.
fn scrape(guest: &mut Guest) -> Result<String> {
    shell(guest, "wget -q -O - http://127.0.0.1:9790/metrics")
}

/// Returns the value of a series by its name and labels.
fn value(metrics: &str, series: &str) -> Result<f64> {
    let found = metrics
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .find(|(name, _)| *name == series);
    let (_, value) = found.with_context(|| format!("no {series} in\n{metrics}"))?;
    value.parse().context("a number")
}

/// Prints a screen of the running scheduler, and the same one from the recording of it.
fn watch(guest: &mut Guest) -> Result<()> {
    let screen = shell(guest, "magpie top --screens 1 --record /tmp/session")?;
    println!("{screen}");
    for part in ["magpie_", "2 CPUs", " of 2 (direct)", "wakeups", "steals"] {
        ensure!(screen.contains(part), "no {part:?} in\n{screen}");
    }
    let replayed = shell(guest, "magpie top --screens 1 --replay /tmp/session")?;
    // The last line says what is shown: each second, or a replay.
    let body = |screen: &str| {
        let lines: Vec<String> = screen.lines().map(str::to_string).collect();
        lines.split_last().map(|(_, body)| body.to_vec())
    };
    ensure!(body(&screen) == body(&replayed), "{screen}\n{replayed}");
    let down = shell(guest, "magpie top --screens 1 --socket /tmp/none")?;
    ensure!(down.contains("scx_magpie is not running"), "{down}");
    Ok(())
}

#[test]
fn the_exporter_follows_the_scheduler() -> Result<()> {
    let magpie = program("magpie")?;
    let mut guest = boot_for_magpie("tiny2", |options| options.files.push(magpie))?;
    shell(
        &mut guest,
        "magpie export --timeout 600 > /tmp/export 2>&1 & \
         for i in $(seq 600); do wget -q -O - http://127.0.0.1:9790/ && exit; sleep 0.1; done; exit 1",
    )?;
    let before = scrape(&mut guest)?;
    ensure!(value(&before, "magpie_up")? == 0.0, "{before}");
    let ended = value(&before, "magpie_sched_ext_exits_total")?;

    under(&mut guest, MAGPIE, |guest| {
        let load = "hackbench -g 1 -l 20";
        shell(guest, load)?;
        let first = scrape(guest)?;
        shell(guest, load)?;
        let second = scrape(guest)?;
        ensure!(value(&first, "magpie_up")? == 1.0, "{first}");
        for counter in [
            "magpie_enqueue_total",
            "magpie_dispatch_total",
            "magpie_wake_idle_total",
            "magpie_idle_enter_total",
        ] {
            let (first, second) = (value(&first, counter)?, value(&second, counter)?);
            ensure!(
                0.0 < first && first < second,
                "{counter}: {first}, {second}"
            );
        }
        for series in ["magpie_preferred_loaded", "magpie_online_cpus"] {
            ensure!(value(&second, series)? >= 1.0, "{series} in\n{second}");
        }
        let sources = ["kernel", "estimate", "none"].map(|source| {
            value(
                &second,
                &format!("magpie_steal_time_source{{source=\"{source}\"}}"),
            )
        });
        let known: f64 = sources.into_iter().sum::<Result<f64>>()?;
        ensure!(known == 1.0, "one source of steal time:\n{second}");
        watch(guest)
    })?;

    let after = scrape(&mut guest)?;
    ensure!(value(&after, "magpie_up")? == 0.0, "{after}");
    ensure!(
        value(&after, "magpie_sched_ext_exits_total")? == ended + 1.0,
        "{after}"
    );
    let told = shell(&mut guest, "killall -INT magpie; cat /tmp/export")?;
    ensure!(
        told.contains("magpie_up 1") && told.matches("scx_magpie is not running").count() == 2,
        "{told}"
    );
    guest.into_guest().shutdown()
}
