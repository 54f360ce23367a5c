//! Slices that a task asks for with sched_setattr(2). A CPU hog that asks for a long one runs for so
//! long at a time, and gets no other share for it, nor for a short one.

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{boot_for_magpie, shell, with_and_without};

/// The CPU time of a hog that asks for a slice, beside another one on its CPU.
struct Got {
    /// Its share of both hogs' CPU time, percent.
    share: f64,
    /// For how long it runs at a time, ms.
    slice_ms: f64,
}

/// Measures a CPU hog that asks for a slice: a thread that is never done with its first buffer.
fn beside_hog(guest: &mut Guest, scheduler: &str, slice_us: u64) -> Result<Got> {
    let said = shell(
        guest,
        &format!(
            "taskset -c 1 sh -c 'while :; do :; done' & hog=$!\n\
             taskset -c 1 magpie-load audio --slice-us {slice_us} --operations 4000000000 \
                 --beside none > /dev/null 2>&1 & asks=$!\n\
             read_both() {{\n\
                 for pid in $hog $asks; do\n\
                     cat /proc/$pid/task/*/sched |\n\
                         sed -n 's/^\\(se.sum_exec_runtime\\|nr_switches\\) *: *//p' |\n\
                         paste - - | sort -n | tail -n 1\n\
                 done\n\
             }}\n\
             sleep 0.5; read_both; sleep 2; read_both; kill -9 $hog $asks"
        ),
    )?;
    let numbers = said.split_whitespace().map(str::parse);
    let numbers: Vec<f64> = numbers.collect::<Result<_, _>>().context(said.clone())?;
    let &[hog_0, _, asks_0, switches_0, hog_1, _, asks_1, switches_1] = numbers.as_slice() else {
        anyhow::bail!("eight numbers were expected: {said}");
    };
    let (hog, asks) = (hog_1 - hog_0, asks_1 - asks_0);
    ensure!(hog > 0.0 && asks > 0.0, "the hogs did not run: {said}");
    let got = Got {
        share: 100.0 * asks / (hog + asks),
        slice_ms: asks / (switches_1 - switches_0),
    };
    let Got { share, slice_ms } = got;
    println!("{scheduler}, slice {slice_us} us: share {share:.2} %, {slice_ms:.3} ms at a time");
    Ok(got)
}

#[test]
fn a_hog_runs_for_the_slice_that_it_asks_for_and_gets_its_share() -> Result<()> {
    let mut guest = boot_for_magpie("vt2", |_| {})?;
    for slice_us in [1000, 10_000] {
        beside_hog(&mut guest, "EEVDF", slice_us)?;
    }
    let (with, without) = with_and_without(&mut guest, "--no-custom-slice", |guest, scheduler| {
        Ok([1000, 10_000].map(|slice_us| beside_hog(guest, scheduler, slice_us)))
    })?;
    let [short, long] = with;
    let (short, long) = (short?, long?);
    for got in [&short, &long] {
        ensure!(
            (got.share - 50.0).abs() <= 1.5,
            "a hog beside another one has {} %",
            got.share
        );
    }
    ensure!(
        (9.0..11.0).contains(&long.slice_ms),
        "a hog that asks for 10 ms runs for {} ms",
        long.slice_ms
    );
    for got in without {
        let slice_ms = got?.slice_ms;
        ensure!(
            (2.5..5.0).contains(&slice_ms),
            "without the slice a hog runs for {slice_ms} ms"
        );
    }
    guest.into_guest().shutdown()
}
