//! The runner on the real host, with small shell commands as workloads.

use super::*;
use crate::place::{Host, Place};
use crate::stats::Verdict;
use crate::workload;

/// Keeps all calls.
#[derive(Default)]
struct Log {
    steps: Vec<String>,
    done: usize,
    saved: Vec<usize>,
    warnings: Vec<String>,
}

impl Watcher for Log {
    fn step(&mut self, step: &Step) {
        self.steps
            .push(format!("{} {} {}", step.round, step.scheduler, step.what));
    }
    fn done(&mut self) {
        self.done += 1;
    }
    fn save(&mut self, report: &Report) -> Result<()> {
        self.saved
            .push(report.results.iter().map(|row| row.samples.len()).sum());
        Ok(())
    }
    fn warn(&mut self, message: &str) {
        self.warnings.push(message.into());
    }
}

fn suite(command: &str, candidates: &[&str]) -> Suite {
    let text = format!(
        "[[workload]]\nname = 'w'\nabout = ''\ntimeout_s = 10\ncommand = '''{command}'''\n\
         metric = [{{ unit = 's', better = 'lower', after = 'Time:' }}]"
    );
    let workload = workload::load(Some(&text)).unwrap().pop().unwrap();
    let cases = workload.cases(&BTreeMap::new(), 1).unwrap();
    let candidates = candidates
        .iter()
        // Without a program each is the host's own scheduler, because only the order is tested.
        .map(|name| Candidate {
            name: (*name).into(),
            ..Candidate::default()
        })
        .collect();
    Suite {
        candidates,
        work: vec![(workload, cases)],
        rounds: 3,
        until_sure: None,
    }
}

fn empty() -> Report {
    Report::new(BTreeMap::new(), String::new(), BTreeMap::new())
}

#[test]
fn rounds_are_interleaved_and_rotate_and_the_first_is_dropped() {
    let suite = suite("sh -c 'echo Time: 1.5'", &["a", "b", "c"]);
    let (mut report, mut log) = (empty(), Log::default());
    suite
        .run(&mut Host::default(), &mut report, &mut log)
        .unwrap();
    let order: Vec<String> = log.steps.iter().map(|step| step[..3].to_string()).collect();
    assert_eq!(
        order.join(","),
        "0 a,0 b,0 c,1 b,1 c,1 a,2 c,2 a,2 b,3 a,3 b,3 c"
    );
    assert_eq!(log.done, suite.runs(&Host::default()));
    assert!(report.complete);
    for row in &report.results {
        assert_eq!(row.samples, [1.5; 3]);
        assert!(
            row.counters.contains_key("context_switches"),
            "{:?}",
            row.counters
        );
    }
    // The report was saved after each turn, with all samples until then.
    assert_eq!(log.saved, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn a_failing_workload_is_marked_and_left_out() {
    let suite = suite("sh -c 'echo no memory; exit 4'", &["a", "b"]);
    let (mut report, mut log) = (empty(), Log::default());
    suite
        .run(&mut Host::default(), &mut report, &mut log)
        .unwrap();
    assert_eq!(log.steps.len(), 2, "tried once each");
    assert_eq!(log.done, suite.runs(&Host::default()));
    let why = report.results[0].failed.as_ref().unwrap();
    assert!(why.contains("code 4") && why.contains("no memory"), "{why}");
}

#[test]
fn a_scheduler_that_cannot_start_fails_its_rows_only() {
    let mut suite = suite("sh -c 'echo Time: 2'", &["eevdf", "scx_broken"]);
    suite.candidates[1].argv = vec![
        "sh".into(),
        "-c".into(),
        "echo cannot load >&2; exit 1".into(),
    ];
    let (mut report, mut log) = (empty(), Log::default());
    suite
        .run(&mut Host::default(), &mut report, &mut log)
        .unwrap();
    assert_eq!(report.results[0].samples, [2.0; 3]);
    let why = report.results[1].failed.as_ref().unwrap();
    assert!(why.contains("cannot load"), "{why}");
    assert_eq!(log.warnings.len(), 1);
}

#[test]
fn inputs_are_made_once_before_everything_and_without_them_nothing_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("input");
    let mut suite = suite("sh -c 'cat $0'", &["a", "b"]);
    let case = &mut suite.work[0].1[0];
    case.argv.push(file.display().to_string());
    let make = format!("echo Time: 3 >> {}", file.display());
    case.prepare = ["sh", "-c", &make].map(String::from).to_vec();
    let (mut report, mut log) = (empty(), Log::default());
    suite
        .run(&mut Host::default(), &mut report, &mut log)
        .unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "Time: 3\n");
    assert_eq!(report.results[1].samples, [3.0; 3]);
    assert_eq!(log.done, suite.runs(&Host::default()));

    suite.work[0].1[0].prepare = vec!["false".into()];
    let (mut report, mut log) = (empty(), Log::default());
    suite
        .run(&mut Host::default(), &mut report, &mut log)
        .unwrap();
    assert_eq!(log.steps.len(), 1, "{:?}", log.steps);
    for row in &report.results {
        assert!(row.failed.as_ref().unwrap().contains("could not be made"));
    }
}

/// A host whose runs last as long as its script for the loaded scheduler says, round by round.
struct Scripted {
    host: Host,
    times: fn(scheduler: &str, run: usize) -> f64,
    scheduler: String,
    runs: BTreeMap<String, usize>,
}

impl Place for Scripted {
    fn machine(&self) -> Values {
        self.host.machine()
    }
    fn kernel(&self) -> String {
        self.host.kernel()
    }
    fn run(&mut self, _: &[String], _: Duration) -> Result<crate::place::Ran> {
        let run = self.runs.entry(self.scheduler.clone()).or_default();
        *run += 1;
        Ok(crate::place::Ran {
            output: format!("Time: {}", (self.times)(&self.scheduler, *run)),
            ..Default::default()
        })
    }
    fn read(&mut self, path: &str) -> Result<String> {
        self.host.read(path)
    }
    fn start_scheduler(&mut self, argv: &[String]) -> Result<()> {
        self.scheduler = argv[0].clone();
        Ok(())
    }
    fn stop_scheduler(&mut self) -> Result<()> {
        self.scheduler.clear();
        Ok(())
    }
}

#[test]
fn until_sure_ends_each_row_when_it_is_decided() {
    let mut suite = suite("true", &["eevdf", "slower", "same", "noisy"]);
    suite.rounds = 9;
    suite.until_sure = Some(0.03.into());
    for candidate in &mut suite.candidates[1..] {
        candidate.argv = vec![candidate.name.clone()];
    }
    let mut place = Scripted {
        host: Host::default(),
        times: |scheduler, run| match scheduler {
            "slower" => 2.0 + run as f64 / 1000.0,
            // Nobody can tell whether this differs from 1.0.
            "noisy" => 1.0 + if run % 2 == 0 { 0.5 } else { -0.5 },
            _ => 1.0 + run as f64 / 1000.0,
        },
        scheduler: String::new(),
        runs: BTreeMap::new(),
    };
    let (mut report, mut log) = (empty(), Log::default());
    report.options = options(&suite);
    suite.run(&mut place, &mut report, &mut log).unwrap();
    assert!(report.complete);
    assert_eq!(log.done, suite.runs(&Host::default()));
    crate::verdicts::judge(&mut report);
    let rows: Vec<(&str, usize)> = report
        .results
        .iter()
        .map(|row| (row.scheduler.as_str(), row.samples.len()))
        .collect();
    assert_eq!((rows[1].1, rows[2].1), (5, 4), "{rows:?}");
    // The baseline runs as long as one candidate needs it.
    assert_eq!((rows[0].1, rows[3].1), (9, 9), "{rows:?}");
    let verdicts: Vec<_> = report
        .results
        .iter()
        .map(|row| row.verdict.map(|judged| judged.verdict))
        .collect();
    assert_eq!(
        verdicts,
        [
            None,
            Some(Verdict::Different),
            Some(Verdict::Same),
            Some(Verdict::Undecided)
        ]
    );

    // Once all rows are decided, nothing runs any more, and the run is complete.
    suite.candidates.pop();
    place.runs.clear();
    let (mut report, mut log) = (empty(), Log::default());
    suite.run(&mut place, &mut report, &mut log).unwrap();
    assert!(report.complete);
    assert_eq!(report.results[0].samples.len(), 5);
    assert!(log.done < suite.runs(&Host::default()));
}
