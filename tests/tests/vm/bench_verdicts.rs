//! The bench's verdicts are right on a real kernel in virtual time: EEVDF against itself is `same`,
//! and a slowdown of 5 % is found. The runner, the guest, the report and the verdicts are those of
//! `magpie bench`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use magpie_bench::candidate::parse_list;
use magpie_bench::place::{Place, Ran, Vm};
use magpie_bench::relation::{Relation, relate};
use magpie_bench::report::{BASELINE, Report, Row};
use magpie_bench::runner::{self, Suite};
use magpie_bench::stats::Verdict;
use magpie_bench::table::{Style, render};
use magpie_bench::workload;
use magpie_lab::{GuestOptions, Machine};

/// How many runs get a verdict, and how many rounds each has.
const RUNS: usize = 3;
const ROUNDS: usize = 6;

/// Workloads of known length: loops of a shell.
const WORK: &str = "
[[workload]]
name = 'loop'
about = ''
command = \"sh -c 'i=0; while [ $i -lt 6000 ]; do i=$((i+1)); done'\"
label = 'alone'
timeout_s = 60
metric = [{ unit = 's', better = 'lower', time = true }]
[[workload]]
name = 'loops'
about = ''
command = \"sh -c 'for j in 1 2 3 4 5 6; do (i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done) & done; wait'\"
label = 'six on four CPUs'
timeout_s = 60
metric = [{ unit = 's', better = 'lower', time = true }]
[[workload]]
name = 'forks'
about = ''
command = \"sh -c 'i=0; while [ $i -lt 30 ]; do (true | true); i=$((i+1)); done'\"
label = 'pipelines'
timeout_s = 60
metric = [{ unit = 's', better = 'lower', time = true }]
";

/// A guest that pretends to load a scheduler: from then on its loops are 5 % longer.
struct Slowed {
    guest: Vm,
    is_slower: bool,
}

impl Place for Slowed {
    fn machine(&self) -> BTreeMap<String, serde_json::Value> {
        self.guest.machine()
    }
    fn kernel(&self) -> String {
        self.guest.kernel()
    }
    fn run(&mut self, argv: &[String], timeout: Duration) -> Result<Ran> {
        let mut argv = argv.to_vec();
        if self.is_slower {
            let words = argv.iter_mut();
            words.for_each(|word| *word = word.replace("6000", "6300").replace("2000", "2100"));
        }
        self.guest.run(&argv, timeout)
    }
    fn read(&mut self, path: &str) -> Result<String> {
        self.guest.read(path)
    }
    fn start_scheduler(&mut self, _: &[String]) -> Result<()> {
        self.is_slower = true;
        Ok(())
    }
    fn stop_scheduler(&mut self) -> Result<()> {
        self.is_slower = false;
        Ok(())
    }
}

#[test]
fn the_same_is_called_the_same_and_five_percent_are_found() -> Result<()> {
    magpie_tests::build_agent()?;
    let all = workload::load(Some(WORK))?;
    let mut work = Vec::new();
    for workload in all
        .into_iter()
        .filter(|w| ["loop", "loops", "forks"].contains(&&*w.name))
    {
        let cases = workload.cases(&BTreeMap::new(), 4)?;
        work.push((workload, cases));
    }
    let suite = Suite {
        candidates: parse_list("again=eevdf,slower=true")?,
        work,
        rounds: RUNS * ROUNDS,
        until_sure: None,
    };
    let options = GuestOptions {
        machine: Machine::find("vt4")?,
        ..GuestOptions::default()
    };
    let _share = magpie_tests::share_of(&options.machine);
    let guest = Vm::boot(&options)?;
    let mut place = Slowed {
        guest,
        is_slower: false,
    };
    let mut report = Report::new(place.machine(), place.kernel(), runner::options(&suite));
    let mut warn = |message: &str| eprintln!("{message}");
    suite.run(&mut place, &mut report, &mut warn)?;
    ensure!(report.complete, "the run did not end");
    print!("{}", render(&report, Style::Text));

    // Cuts the one long run into runs of six rounds, and compares within one of them.
    let relation = |workload: &str, scheduler: &str, run: usize| -> Result<Relation> {
        let tests = report.tests();
        let test = tests.iter().find(|(name, _)| *name == workload);
        let test = *test.with_context(|| format!("{workload} did not run"))?;
        let of_run = |scheduler| -> Option<Row> {
            let mut row = report.row(test, scheduler)?.clone();
            row.samples = row.samples.chunks_exact(ROUNDS).nth(run)?.to_vec();
            Some(row)
        };
        let rows = of_run(BASELINE).zip(of_run(scheduler));
        rows.and_then(|(base, row)| relate(&base, &row))
            .with_context(|| format!("{workload} under {scheduler} has no samples"))
    };
    // At p < 0.05 the test calls one of twenty different by chance. Four of nine are different by
    // chance in less than one of a thousand tests.
    let mut different = 0;
    for run in 0..RUNS {
        for workload in ["loop", "loops", "forks"] {
            let verdict = relation(workload, "again", run)?.verdict;
            different += usize::from(verdict == Verdict::Different);
        }
    }
    println!("{different} of {} differ from themselves", 3 * RUNS);
    ensure!(different <= RUNS, "{different} differ from themselves");

    // The loop that is alone on its CPU repeats within a per mille. Six loops on four CPUs do not,
    // so six rounds of those cannot show 5 %.
    for run in 0..RUNS {
        let slower = relation("loop", "slower", run)?;
        ensure!(
            slower.verdict == Verdict::Different,
            "5 % were not found: {slower:?}"
        );
        ensure!(
            (-5.5..-4.5).contains(&slower.improvement),
            "5 % were measured as {:.2} %",
            -slower.improvement
        );
    }
    Ok(())
}
