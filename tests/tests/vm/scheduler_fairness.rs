//! Fair queues: CPU time is shared by weight. The bars: equal CPU hogs get the same within 1 % over
//! 10 s, and ratios of nice levels are right within 5 %.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{
    MAGPIE, VT8, VT8_NODES, boot_for_magpie, counters, json, number, shell, under, with_and_without,
};
use serde_json::Value;

/// Runs hogs, and returns the CPU time of each in seconds and the object that magpie-load printed.
fn hogs(guest: &mut Guest, arguments: &str) -> Result<(Vec<f64>, Value)> {
    let found = json(guest, &format!("magpie-load hogs --json {arguments}"))?;
    let hogs = found["hogs"].as_array().map_or(&[][..], Vec::as_slice);
    let times = hogs
        .iter()
        .map(|hog| number(hog, "/cpu_s"))
        .collect::<Result<_>>()?;
    println!(
        "hogs {arguments}: {times:.3?} s, spread {:.3} %, worst deviation {:.3} %",
        number(&found, "/spread_percent")?,
        number(&found, "/deviation_percent")?
    );
    Ok((times, found))
}

#[test]
fn hogs_of_one_queue_share_by_weight() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    under(&mut guest, MAGPIE, |guest| {
        let (_, equal) = hogs(guest, "--count 5 --cpus 0 --seconds 10")?;
        let spread = number(&equal, "/spread_percent")?;
        ensure!(spread <= 1.0, "equal hogs differ by {spread} %");

        let (_, nice) = hogs(guest, "--count 3 --nice 0,5,-3 --cpus 0 --seconds 10")?;
        let deviation = number(&nice, "/deviation_percent")?;
        ensure!(deviation <= 5.0, "nice levels: {deviation} % from fair");

        // Weights 1024 and 3: the light task must not disturb the other, and must not starve.
        let (times, _) = hogs(guest, "--count 2 --policy other,idle --cpus 0 --seconds 10")?;
        let share = 100.0 * times[1] / (times[0] + times[1]);
        ensure!(
            (0.1..1.0).contains(&share),
            "SCHED_IDLE got {share} % beside a normal task, its weight gives it 0.29 %"
        );
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

#[test]
fn hogs_of_several_cpus_share_by_weight() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    under(&mut guest, MAGPIE, |guest| {
        let (_, equal) = hogs(guest, "--count 8 --cpus 0-3 --seconds 10")?;
        let spread = number(&equal, "/spread_percent")?;
        ensure!(spread <= 1.0, "equal hogs differ by {spread} %");

        let (_, nice) = hogs(guest, "--count 6 --nice 0,5 --cpus 0-1 --seconds 5")?;
        let deviation = number(&nice, "/deviation_percent")?;
        ensure!(deviation <= 5.0, "nice levels: {deviation} % from fair");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// Returns how far the CPU times of twelve hogs on eight CPUs are apart, in percent: the mean of
/// three runs, because single runs differ much (EEVDF's were between 9 % and 50 %).
fn spread_of_twelve(guest: &mut Guest) -> Result<f64> {
    let mut sum = 0.0;
    for _ in 0..3 {
        let (_, found) = hogs(guest, "--count 12 --seconds 2")?;
        sum += number(&found, "/spread_percent")?;
    }
    Ok(sum / 3.0)
}

/// At any time four of the CPUs have two hogs and four have one. If hogs never changed places, some
/// would have a CPU to themselves and the others half of one.
#[test]
fn hogs_that_do_not_divide_evenly_fare_no_worse_than_under_eevdf() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    let eevdf = spread_of_twelve(&mut guest)?;
    let magpie = under(&mut guest, MAGPIE, spread_of_twelve)?;
    println!("spread of 12 hogs on 8 CPUs: EEVDF {eevdf:.2} %, scx_magpie {magpie:.2} %");
    ensure!(
        magpie <= eevdf,
        "12 hogs on 8 CPUs: spread {magpie} %, under EEVDF {eevdf} %"
    );
    guest.into_guest().shutdown()
}

/// Returns the largest of ten spreads of twelve hogs, in percent. Before each run, a nice-19 hog has
/// a CPU to itself: virtual time passes 68 times as fast there.
fn largest_spread_after_a_light_hog(guest: &mut Guest) -> Result<f64> {
    let mut largest: f64 = 0.0;
    for _ in 0..10 {
        hogs(guest, "--count 1 --nice 19 --seconds 1.5")?;
        let (_, found) = hogs(guest, "--count 12 --seconds 2")?;
        largest = largest.max(number(&found, "/spread_percent")?);
    }
    Ok(largest)
}

fn must_be_even_after_a_light_hog(machine: &str) -> Result<()> {
    let mut guest = boot_for_magpie(machine, |_| {})?;
    let eevdf = largest_spread_after_a_light_hog(&mut guest)?;
    let magpie = under(&mut guest, MAGPIE, largest_spread_after_a_light_hog)?;
    println!("{machine}: largest spread: EEVDF {eevdf:.2} %, scx_magpie {magpie:.2} %");
    ensure!(magpie < 5.0, "after a light hog: spread {magpie} %");
    guest.into_guest().shutdown()
}

/// What a light task alone did to the clock and the pace of its CPU must not count against the tasks
/// that run there next.
#[test]
fn hogs_share_evenly_after_a_light_hog_ran_alone() -> Result<()> {
    must_be_even_after_a_light_hog(VT8)
}

#[test]
fn hogs_share_evenly_on_two_nodes_after_a_light_hog_ran_alone() -> Result<()> {
    must_be_even_after_a_light_hog(VT8_NODES)
}

/// Returns which part of a CPU a nice-0 hog has beside sixteen of nice 5.
fn part_of_the_heavy_hog(guest: &mut Guest) -> Result<f64> {
    const SECONDS: f64 = 3.0;
    let nice = format!("0{}", ",5".repeat(16));
    let (times, _) = hogs(
        guest,
        &format!("--count 17 --nice {nice} --seconds {SECONDS}"),
    )?;
    Ok(times[0] / SECONDS)
}

fn must_leave_a_cpu_to_the_heavy_hog(machine: &str) -> Result<()> {
    let mut guest = boot_for_magpie(machine, |_| {})?;
    let eevdf = part_of_the_heavy_hog(&mut guest)?;
    let (with, without) = with_and_without(&mut guest, "--no-balance", |guest, scheduler| {
        // Without balancing, chance may give it a CPU for itself.
        let is_control = scheduler.contains("--no-balance");
        let mut part = part_of_the_heavy_hog(guest)?;
        let mut tries = 1;
        while is_control && part >= 0.9 && tries < 4 {
            part = part_of_the_heavy_hog(guest)?;
            tries += 1;
        }
        Ok(part)
    })?;
    println!("{machine}: EEVDF {eevdf:.3}, scx_magpie {with:.3}, --no-balance {without:.3}");
    ensure!(with >= 0.95, "the heavy hog had {with} of a CPU");
    ensure!(without < 0.9, "without balancing it had {without} of a CPU");
    guest.into_guest().shutdown()
}

/// By its weight the hog should have 1.28 of 8 CPUs, which no task can have. So it has one for itself,
/// although the queues of its neighbours are longer and its clock is behind theirs for good.
#[test]
fn a_heavy_hog_has_a_cpu_for_itself_beside_many_light_ones() -> Result<()> {
    must_leave_a_cpu_to_the_heavy_hog(VT8)
}

#[test]
fn a_heavy_hog_has_a_cpu_for_itself_on_two_nodes() -> Result<()> {
    must_leave_a_cpu_to_the_heavy_hog(VT8_NODES)
}

/// A script: a nice-19 hog and a SCHED_IDLE one among a hundred others, for 25 s. Prints every 0.1 s
/// the uptime in seconds and the CPU time of these two in ns.
const LIGHT_HOGS_AMONG_A_HUNDRED: &str = "\
    nice=19,0; policy=other,idle; \
    for i in $(seq 100); do nice=$nice,0; policy=$policy,other; done; \
    magpie-load hogs --count 102 --nice $nice --policy $policy --cpus CPUS --seconds 25 >&2 & \
    load=$!; sleep 0.5; set -- $(cat /proc/$load/task/$load/children); \
    while read up x </proc/uptime && read a x </proc/$1/schedstat && read b x </proc/$2/schedstat; \
    do echo $up $a $b; sleep 0.1; done 2>/dev/null; wait $load";

/// Returns the longest time for which one of the two light hogs did not run, in seconds.
fn longest_wait_of_light_hogs(guest: &mut Guest, cpus: &str) -> Result<f64> {
    let printed = shell(guest, &LIGHT_HOGS_AMONG_A_HUNDRED.replace("CPUS", cpus))?;
    let samples = printed
        .lines()
        .map(|line| Ok(line.split(' ').map(str::parse).collect::<Result<_, _>>()?))
        .collect::<Result<Vec<Vec<f64>>>>()?;
    ensure!(samples.len() > 100, "{} samples", samples.len());
    let longest = |hog: usize| {
        let (mut since, mut longest) = (&samples[0], 0.0_f64);
        for sample in &samples {
            if sample[hog] != since[hog] {
                since = sample;
            }
            longest = longest.max(sample[0] - since[0]);
        }
        longest
    };
    let (nice, idle) = (longest(1), longest(2));
    println!("CPUs {cpus}: longest wait: nice 19 {nice:.1} s, SCHED_IDLE {idle:.1} s");
    Ok(nice.max(idle))
}

/// The kernel's watchdog ends a scheduler that lets a task wait for 30 s.
#[test]
fn light_hogs_among_a_hundred_run_every_ten_seconds() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    for cpus in ["0", "0-7"] {
        longest_wait_of_light_hogs(&mut guest, cpus)?;
    }
    under(&mut guest, MAGPIE, |guest| {
        for cpus in ["0", "0-7"] {
            let longest = longest_wait_of_light_hogs(guest, cpus)?;
            ensure!(longest < 10.0, "CPUs {cpus}: {longest} s without running");
        }
        let counted = counters(guest)?;
        ensure!(number(&counted, "/overdue")? > 0.0, "{counted}");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// Each of hundreds of light hogs is overdue after some seconds. If those that have just run came
/// before those that wait for longer, the rest would wait until the watchdog ends the scheduler.
#[test]
fn of_hundreds_of_light_hogs_none_waits_for_the_watchdog() -> Result<()> {
    let mut guest = boot_for_magpie(VT8, |_| {})?;
    let policies = vec!["other"; 20].into_iter().chain(vec!["idle"; 300]);
    let policies = policies.collect::<Vec<_>>().join(",");
    under(&mut guest, MAGPIE, |guest| {
        let options = format!("--count 320 --policy {policies} --cpus 0 --seconds 38");
        let (times, _) = hogs(guest, &options)?;
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        println!("320 hogs: the least CPU time is {least} s");
        ensure!(least > 0.0, "a hog never ran");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
