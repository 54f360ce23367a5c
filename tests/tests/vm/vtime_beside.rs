//! `magpie bench --host`: each guest runs the scheduler of its pair, its figures are its own, and two
//! rounds are two samples.

use std::ops::Range;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use magpie_bench::report::Report;
use magpie_lab::Machine;
use magpie_tests::scheduler::program;
use magpie_tests::{build_agent, share_of};

/// The measured guest has three quarters of the host.
const HOST: &str = "
physical_cpus = 2
[[guest]]
name = 'heavy'
machine = 'vt2'
host_weight = 300
command = 'false'
[[guest]]
name = 'light'
machine = 'vt2'
background = true
command = 'false'
";

/// Keeps both CPUs of a guest busy with the same work each time, and says whether a scheduler is
/// loaded.
const WORK: &str = r#"
[[workload]]
name = 'loops'
about = ''
command = """sh -c 'for j in 1 2; do (i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done) & done; wait
    echo loaded: $(grep -c enabled /sys/kernel/sched_ext/state)'"""
label = 'two'
timeout_s = 60
metric = [
    { name = 'time', unit = 's', better = 'lower', time = true },
    { name = 'loaded', unit = '', better = 'lower', after = 'loaded:' },
]
"#;

#[test]
fn guests_of_a_host_are_measured_in_pairs_of_schedulers() -> Result<()> {
    build_agent()?;
    let _share = share_of(&Machine::find("vt2")?);
    let folder = tempfile::tempdir().context("a folder")?;
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("host.toml"), HOST)?;
    std::fs::write(path("loops.toml"), WORK)?;
    let output = Command::new(program("magpie")?)
        .arg("bench")
        .arg("--host")
        .arg(path("host.toml"))
        .arg("--workloads")
        .arg(path("loops.toml"))
        .args(
            "--workload loops --sched eevdf --neighbour scx_magpie --rounds 2 --repeat 1 --json"
                .split(' '),
        )
        .arg(path("result.json"))
        .output()
        .context("run the bench")?;
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}", output.status);
    let report = Report::load(&path("result.json"))?;
    ensure!(report.complete, "the run did not end");
    ensure!(
        report.kernel.starts_with(char::is_numeric),
        "{}",
        report.kernel
    );

    let samples = |pair: &str, case: &str| -> Result<Vec<f64>> {
        let row = report.row(("loops", &format!("two: {case}")), pair);
        let row = row.with_context(|| format!("{pair} has no row {case}"))?;
        ensure!(row.samples.len() == 2, "{pair}, {case}: {:?}", row.samples);
        Ok(row.samples.clone())
    };
    let of_both = |pair: &str, figure: &str| -> Result<(Vec<f64>, Vec<f64>)> {
        let of = |guest| samples(pair, &format!("{guest} {figure}"));
        Ok((of("heavy")?, of("light")?))
    };
    let (eevdf, ours) = ("eevdf beside eevdf", "eevdf beside scx_magpie");
    assert_eq!(of_both(eevdf, "loaded")?, (vec![0.0; 2], vec![0.0; 2]));
    assert_eq!(of_both(ours, "loaded")?, (vec![0.0; 2], vec![1.0; 2]));

    let (heavy, light) = of_both(eevdf, "time")?;
    assert_ne!(heavy[0], heavy[1], "two rounds are one run twice");
    let (heavy_cpu, light_cpu) = of_both(eevdf, "CPU time per run")?;
    let (heavy_share, light_share) = of_both(eevdf, "share of the host")?;
    for round in 0..2 {
        is_within("times as long", light[round] / heavy[round], 2.4..3.6)?;
        is_within(
            "times the CPU time",
            light_cpu[round] / heavy_cpu[round],
            0.9..1.1,
        )?;
        is_within("percent of the host", heavy_share[round], 70.0..77.0)?;
        // Both keep all of their CPUs busy, but for the starts of their runs.
        let together = heavy_share[round] + light_share[round];
        is_within("percent of the host together", together, 99.0..100.5)?;
    }
    Ok(())
}

fn is_within(what: &str, value: f64, range: Range<f64>) -> Result<()> {
    ensure!(
        range.contains(&value),
        "{value:.3} {what}, which is not within {range:?}"
    );
    Ok(())
}
