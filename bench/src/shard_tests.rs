//! Four shards, run and merged, against one whole run of the same.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::*;
use crate::candidate::Candidate;
use crate::place::{Place, Ran};
use crate::runner::{self, Suite};
use crate::stats::{Average, median, variation_percent};
use crate::table::{Style, render};
use crate::workload;

/// A machine whose results depend on scheduler, command and number of earlier runs only.
#[derive(Default)]
struct Machine {
    scheduler: String,
    ran: BTreeMap<(String, String), u64>,
}

impl Place for Machine {
    fn machine(&self) -> BTreeMap<String, Value> {
        BTreeMap::from([("in".into(), "test".into())])
    }
    fn kernel(&self) -> String {
        "7.2-test".into()
    }
    fn run(&mut self, argv: &[String], _: Duration) -> Result<Ran> {
        let key = (self.scheduler.clone(), argv.join(" "));
        let count = self.ran.entry(key.clone()).or_default();
        *count += 1;
        let mut hash = DefaultHasher::new();
        (&key, *count).hash(&mut hash);
        let number = 1.0 + (hash.finish() % 1000) as f64 / 1000.0;
        let output = format!("{{\"time\": {number}, \"rate\": {}}}\n", 100.0 / number);
        Ok(Ran {
            code: 0,
            output,
            seconds: number,
        })
    }
    fn read(&mut self, _: &str) -> Result<String> {
        Ok(String::new())
    }
    fn start_scheduler(&mut self, argv: &[String]) -> Result<()> {
        self.scheduler = argv.join(" ");
        Ok(())
    }
    fn stop_scheduler(&mut self) -> Result<()> {
        self.scheduler.clear();
        Ok(())
    }
}

const WORKLOADS: &str = "
[[workload]]
name = 'one'
about = ''
command = 'one {n}'
timeout_s = 1
parameters = { n = ['1', '2', '3', '4', '11'] }
metric = [
    { name = 'time', unit = 's', better = 'lower', json = '/time' },
    { name = 'rate', unit = 'x/s', better = 'higher', json = '/rate' },
]
[[workload]]
name = 'two'
about = ''
command = 'two {n}'
timeout_s = 1
parameters = { n = ['1', '2'] }
metric = [{ unit = 's', better = 'lower', time = true }]
";

/// The report that `magpie bench` makes with or without `--shard`.
fn measure(shard: Option<&str>) -> Report {
    let all = workload::load(Some(WORKLOADS)).unwrap();
    let work = all
        .into_iter()
        .filter(|w| ["one", "two"].contains(&w.name.as_str()));
    let candidate = |name: &str, command: &str| Candidate {
        name: name.into(),
        argv: command.split_whitespace().map(str::to_string).collect(),
        ..Candidate::default()
    };
    let mut suite = Suite {
        candidates: vec![
            candidate("eevdf", ""),
            candidate("scx_a", "scx_a"),
            candidate("scx_b", "scx_b"),
        ],
        work: work
            .map(|workload| {
                let cases = workload.cases(&BTreeMap::new(), 1).unwrap();
                (workload, cases)
            })
            .collect(),
        rounds: 5,
        until_sure: None,
    };
    let mut options = runner::options(&suite);
    if let Some(text) = shard {
        let shard: Shard = text.parse().unwrap();
        shard.choose(&mut suite.work);
        options.insert(OPTION.into(), text.into());
    }
    let mut machine = Machine::default();
    let mut report = Report::new(machine.machine(), machine.kernel(), options);
    let mut fail = |message: &str| panic!("{message}");
    suite.run(&mut machine, &mut report, &mut fail).unwrap();
    report
}

/// Result files by their names.
type Parts = Vec<(String, Report)>;

fn shards(of: usize) -> Parts {
    (1..=of)
        .map(|number| {
            let shard = format!("{number}/{of}");
            let report = measure(Some(&shard));
            (shard, report)
        })
        .collect()
}

#[test]
fn four_shards_merged_are_one_whole_run() {
    let whole = measure(None);
    let mut parts = shards(4);
    assert!(
        parts
            .iter()
            .all(|(_, part)| part.results.len() < whole.results.len())
    );
    // The order of the files does not matter.
    parts.swap(0, 2);
    let merged = merge(&parts).unwrap();

    assert!(merged.complete);
    assert_eq!(whole.results.len(), (5 * 2 + 2) * 3);
    assert_eq!(merged.results.len(), whole.results.len());
    for (merged, whole) in merged.results.iter().zip(&whole.results) {
        assert_eq!(merged.test(), whole.test());
        assert_eq!(merged.scheduler, whole.scheduler);
        assert_eq!(merged.samples, whole.samples);
        let average = Average::for_unit(&merged.unit);
        assert_eq!(average.of(&merged.samples), average.of(&whole.samples));
        assert_eq!(median(&merged.samples), median(&whole.samples));
        assert_eq!(
            variation_percent(&merged.samples),
            variation_percent(&whole.samples)
        );
    }
    // Normalization, improvement and verdicts.
    assert_eq!(render(&merged, Style::Text), render(&whole, Style::Text));
    let mut options = merged.options.clone();
    options.remove("merged_from");
    assert_eq!(options, whole.options);
}

#[test]
fn more_shards_than_cases_leave_some_of_them_empty() {
    let parts = shards(9);
    assert!(parts[8].1.results.is_empty() && parts[8].1.complete);
    assert_eq!(
        merge(&parts).unwrap().results.len(),
        measure(None).results.len()
    );
}

#[test]
fn what_may_not_be_compared_is_not_mixed() {
    let refused = |change: &dyn Fn(&mut Parts)| {
        let mut parts = shards(2);
        change(&mut parts);
        merge(&parts).unwrap_err().to_string()
    };
    let other = |change: fn(&mut Report)| refused(&|parts| change(&mut parts[1].1));
    for (error, word) in [
        (
            other(|r| drop(r.machine.insert("cpus".into(), 8.into()))),
            "machine",
        ),
        (other(|r| r.kernel.push('+')), "kernel"),
        (
            other(|r| drop(r.options.insert("rounds".into(), 9.into()))),
            "rounds",
        ),
        (
            other(|r| drop(r.options.insert("magpie".into(), "9".into()))),
            "magpie",
        ),
        (other(|r| drop(r.options.remove(OPTION))), "no part"),
        (other(|r| r.complete = false), "--shard 2/2"),
        (
            other(|r| drop(r.options.insert(OPTION.into(), "2/3".into()))),
            "different runs",
        ),
        (
            other(|r| r.results[0].case = "9: time".into()),
            "suite has not",
        ),
        (
            other(|r| r.results[0].case = "1: time".into()),
            "another shard",
        ),
        (refused(&|parts| drop(parts.pop())), "2/2 are missing"),
        (
            refused(&|parts| parts[1] = parts[0].clone()),
            "merge each part once",
        ),
        (refused(&|parts| parts.clear()), "nothing to merge"),
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn a_shard_is_a_part_of_a_whole() {
    assert_eq!("2/4".parse(), Ok(Shard { number: 2, of: 4 }));
    for wrong in ["0/4", "5/4", "1/0", "1", "a/b", "-1/4"] {
        assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
    }
}
