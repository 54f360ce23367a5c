//! Candidates with a kernel and settings of their own: two guests run side by side, a setting is in
//! force in the runs of its candidate and in no other, and the report says which kernel ran what.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use magpie_bench::candidate::{Candidate, parse_list};
use magpie_bench::guests::Guests;
use magpie_bench::place::Place;
use magpie_bench::report::{BASELINE, Report};
use magpie_bench::runner::{self, Suite};
use magpie_bench::table::{Style, render};
use magpie_bench::workload;
use magpie_lab::{GuestOptions, KernelChoice, Machine};

const ROUNDS: usize = 2;
/// Nanoseconds; no kernel has this by default.
const SLICE: f64 = 3_100_000.0;

/// A workload whose figures are no times, but the state of the kernel while it runs. One is added
/// to each flag, because the bench takes a figure of zero for a failure.
const WORK: &str = r#"
[[workload]]
name = 'state'
about = ''
command = '''sh -c 'cd /sys/kernel/debug/sched; echo slice $(cat base_slice_ns); uname -r | sed "s/^\([0-9]*\.[0-9]*\).*/kernel \1/"; echo short $((1 + $(grep -c -w PREEMPT_SHORT features))); echo parameter $((1 + $(grep -c -w magpie_test /proc/cmdline)))' '''
label = 'of the kernel'
timeout_s = 60
metric = [
  { name = 'slice', unit = 'ns', better = 'lower', after = 'slice' },
  { name = 'kernel', unit = 'version', better = 'higher', after = 'kernel' },
  { name = 'short', unit = 'flag', better = 'higher', after = 'short' },
  { name = 'parameter', unit = 'flag', better = 'higher', after = 'parameter' },
]
"#;

/// Boots a guest for each kernel and kernel command line that the candidates ask for.
fn boot(machine: &Machine, candidates: &[Candidate]) -> Result<Guests> {
    Guests::boot(candidates, |boot| {
        Ok(GuestOptions {
            machine: machine.clone(),
            kernel: KernelChoice::parse(boot.kernel.as_deref(), None)?,
            kernel_cmdline: boot.parameters.clone(),
            ..GuestOptions::default()
        })
    })
}

#[test]
fn each_candidate_has_its_kernel_and_its_settings_and_no_other_has_them() -> Result<()> {
    magpie_tests::build_agent()?;
    let all = workload::load(Some(WORK))?;
    let mut work = Vec::new();
    for workload in all.into_iter().filter(|w| w.name == "state") {
        let cases = workload.cases(&BTreeMap::new(), 2)?;
        work.push((workload, cases));
    }
    let suite = Suite {
        candidates: parse_list(&format!(
            "set=eevdf{{base_slice_ns={SLICE},features=NO_PREEMPT_SHORT}},again=eevdf,\
             old=eevdf@7.0{{boot:magpie_test}}"
        ))?,
        work,
        rounds: ROUNDS,
        until_sure: None,
    };
    let machine = Machine::find("tiny2")?;
    let _share = magpie_tests::share_of(&machine);
    let mut guests = boot(&machine, &suite.candidates)?;
    let mut report = Report::new(guests.machine(), guests.kernel(), runner::options(&suite));
    let kernels = guests.kernels(&suite.candidates);
    report.options.insert("kernels".into(), kernels);
    let mut warn = |message: &str| eprintln!("{message}");
    suite.run(&mut guests, &mut report, &mut warn)?;
    let text = render(&report, Style::Text);
    println!("{text}");

    let samples = |metric: &str, scheduler: &str| {
        let row = report
            .results
            .iter()
            .find(|row| row.case.ends_with(metric) && row.scheduler == scheduler);
        row.map_or(Vec::new(), |row| row.samples.clone())
    };
    let same = |value: f64| vec![value; ROUNDS];
    let default = samples("slice", BASELINE);
    ensure!(
        default.len() == ROUNDS && !default.contains(&SLICE),
        "{default:?}"
    );
    for (metric, scheduler, expected) in [
        ("slice", "set", same(SLICE)),
        ("slice", "again", default.clone()),
        ("short", BASELINE, same(2.0)),
        ("short", "set", same(1.0)),
        ("short", "again", same(2.0)),
        ("kernel", BASELINE, same(7.2)),
        ("kernel", "set", same(7.2)),
        ("kernel", "old", same(7.0)),
        ("parameter", BASELINE, same(1.0)),
        ("parameter", "old", same(2.0)),
    ] {
        let found = samples(metric, scheduler);
        ensure!(
            found == expected,
            "{metric} under {scheduler}: {found:?}\n{text}"
        );
    }
    // Restored, and also at the end.
    let now = guests.read("/sys/kernel/debug/sched/base_slice_ns")?;
    ensure!(now.trim().parse() == Ok(default[0]), "{now}");
    let kernels = text.lines().find(|line| line.starts_with("kernels: "));
    let kernels = kernels.unwrap_or_default();
    ensure!(
        kernels.contains("kernels: 7.2.")
            && kernels.contains("; 7.0.")
            && kernels.contains("(old)"),
        "{text}"
    );

    // Kernel 7.0 has no cache-aware scheduling, and 7.2 has.
    let lacks = Candidate {
        settings: parse_list("eevdf{llc_balancing=0}")?[1].settings.clone(),
        ..suite.candidates[3].clone()
    };
    let error = match guests.enter(&lacks) {
        Ok(()) => String::new(),
        Err(error) => format!("{error:#}"),
    };
    println!("{error}");
    ensure!(
        error.contains("has no scheduler setting `llc_balancing`; it has base_slice_ns, "),
        "{error}"
    );
    guests.leave()?;
    guests.enter(&Candidate {
        boot: suite.candidates[0].boot.clone(),
        ..lacks
    })?;
    let switch = "/sys/kernel/debug/sched/llc_balancing/enabled";
    ensure!(guests.read(switch)? == "0\n", "llc_balancing stays on");
    guests.leave()?;
    ensure!(guests.read(switch)? == "1\n", "llc_balancing stays off");
    Ok(())
}
