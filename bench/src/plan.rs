//! Turns a command line into cases, schedulers, programs and a machine, and fails before a guest is
//! booted or a file is written.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::kernel::SERIES;
use magpie_lab::{GuestOptions, Machine, files};
use serde_json::Value;

use crate::beside::Beside;
use crate::candidate::{self, Candidate};
use crate::guests::Guests;
use crate::options::{Measure, Setup};
use crate::place::{Host, Place, host_cpus};
use crate::progress::Spinner;
use crate::provenance::{self, Values};
use crate::report::BASELINE;
use crate::runner::{self, Suite};
use crate::sequential::Question;
use crate::setting::Boot;
use crate::shard::{self, Shard};
use crate::suite::{self, Definition, Where};
use crate::workload::{self, Case, Parameters, Workload};

/// The machine of a guest where neither the command line nor a suite names one.
const MACHINE: &str = "tiny2";
const VIRTUAL_TIME_MACHINE: &str = "vt16";

/// Rounds where the command line names no number.
const ROUNDS: usize = 5;
const UNTIL_SURE_ROUNDS: usize = 30;

/// The suite to measure, and the place for it.
pub struct Plan {
    /// Schedulers, cases and rounds.
    pub suite: Suite,
    /// The suites that it came from.
    pub suites: Vec<Definition>,
    /// The options that the result file keeps, to run it again.
    pub options: Values,
    machine: Option<Machine>,
    programs: Vec<PathBuf>,
    /// The host with several guests of `--host`.
    beside: Option<Beside>,
    /// The folder for the workloads' files on this host; removed when the plan is dropped.
    _folder: Option<tempfile::TempDir>,
}

impl Plan {
    /// Makes the plan of a measurement.
    ///
    /// # Errors
    /// If the command line names what does not exist or does not fit together; with the remedy.
    pub(crate) fn new(args: &Measure) -> Result<Self> {
        let mut candidates = candidate::parse_list(&args.sched)?;
        if args.ablate {
            candidate::add_ablation(&mut candidates)?;
        }
        let mut setup = args.setup.clone();
        let beside = match &args.beside.host {
            Some(file) => {
                let neighbours = args.beside.neighbour.as_ref().unwrap_or(&args.sched);
                candidates = candidate::beside(&candidates, &candidate::parse_list(neighbours)?);
                let beside = Beside::read(file, args.beside.repeat)?;
                setup.place = Where::Vtime;
                setup.machine = Some(beside.measured().machine.clone());
                Some(beside)
            }
            None => None,
        };
        ensure!(
            !args.until_sure || candidates.len() > 1,
            "--until-sure compares candidates with eevdf, and there is only eevdf: name another \
             with --sched, such as scx_magpie or again=eevdf"
        );
        let suites = suite::find(&args.suite)?;
        let margin = args.until_sure.then_some(args.margin / 100.0);
        let question = margin.map(Question::from);
        let baseline = match args.baseline.as_str() {
            BASELINE => &candidates[0].name,
            list => list,
        };
        let baselines = baselines(baseline, &candidates)?;
        let mut plan = Self::of(
            &setup,
            suites,
            candidates,
            rounds(args),
            question,
            args.shard,
        )?;
        if let Some(names) = baselines {
            plan.options.insert(provenance::BASELINES.into(), names);
        }
        if let Some(mut beside) = beside {
            beside.take_over(&mut plan.suite)?;
            plan.beside = Some(beside);
        }
        Ok(plan)
    }

    /// Makes a plan of these candidates, of which the first is the baseline.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub(crate) fn of(
        setup: &Setup,
        suites: Vec<Definition>,
        candidates: Vec<Candidate>,
        rounds: usize,
        until_sure: Option<Question>,
        shard: Option<Shard>,
    ) -> Result<Self> {
        let machine = choose_machine(setup, &suites)?;
        let cpus = machine.as_ref().map_or(host_cpus() as u32, Machine::cpus);
        let mut suite = Suite {
            candidates,
            work: choose_work(setup, &suites, cpus)?,
            rounds,
            until_sure,
        };
        settle_kernels(&mut suite.candidates, setup)?;
        let mut options = runner::options(&suite);
        if let Some(shard) = shard {
            shard.choose(&mut suite.work);
            options.insert(shard::OPTION.into(), shard.to_string().into());
        }
        let programs = find_programs(setup.place, &mut suite)?;
        provenance::record(&mut options, schedulers(&suite, &programs));
        let folder = match setup.place {
            Where::Host => Some(tempfile::tempdir().context("make a folder for the workloads")?),
            Where::Vm | Where::Vtime => None,
        };
        let path = folder.as_ref().map_or(Path::new("/tmp"), |f| f.path());
        let cases = suite.work.iter_mut().flat_map(|(_, cases)| cases);
        cases.for_each(|case| case.set_folder(&path.to_string_lossy()));
        Ok(Self {
            suite,
            suites,
            options,
            machine,
            programs,
            beside: None,
            _folder: folder,
        })
    }

    /// Boots the guests, or checks that this host can be measured. Adds the kernels of the
    /// candidates to the options if there are several.
    pub(crate) fn open_place(&mut self, setup: &Setup) -> Result<Box<dyn Place>> {
        let Some(machine) = &self.machine else {
            if self.suite.candidates.iter().any(|c| !c.is_baseline()) {
                Host::check_schedulers_possible()?;
            }
            return Ok(Box::new(Host::new()?));
        };
        let spinner = Spinner::new();
        let work = self.suite.work.iter();
        let mut packages: Vec<String> = work
            .flat_map(|(workload, _)| workload.packages().map(str::to_string))
            .collect();
        packages.sort();
        packages.dedup();
        let options = |boot: &Boot| {
            Ok(GuestOptions {
                machine: machine.clone(),
                kernel: setup.kernel_of(boot)?,
                kernel_cmdline: boot.parameters.clone(),
                packages: packages.clone(),
                files: self.programs.clone(),
                progress: spinner.of_lab(),
                ..GuestOptions::default()
            })
        };
        let candidates = &self.suite.candidates;
        if let Some(mut beside) = self.beside.take() {
            beside.files.clone_from(&self.programs);
            beside.packages = packages;
            let kernels = beside.open(candidates, setup, &spinner.of_lab())?;
            self.options.insert(provenance::KERNELS.into(), kernels);
            return Ok(Box::new(beside));
        }
        let guests = Guests::boot(candidates, options)?;
        if candidates.iter().any(Candidate::needs_guest) {
            let kernels = guests.kernels(candidates);
            self.options.insert(provenance::KERNELS.into(), kernels);
        }
        Ok(Box::new(guests))
    }
}

/// The names of the baselines, for the options of the result file; None if it is `eevdf` alone.
fn baselines(list: &str, candidates: &[Candidate]) -> Result<Option<Value>> {
    let mut names = candidate::split_list(list)?;
    names.iter_mut().for_each(|name| *name = name.trim());
    for (index, name) in names.iter().enumerate() {
        ensure!(
            !names[..index].contains(name),
            "--baseline names {name} twice"
        );
        let measured: Vec<&str> = candidates.iter().map(|one| one.name.as_str()).collect();
        ensure!(
            measured.contains(name),
            "--baseline names {name}, which is not measured: name it in --sched, too, or choose one \
             of {}",
            measured.join(", ")
        );
    }
    Ok((names != [BASELINE]).then(|| names.into()))
}

/// Removes the kernel from candidates that name the kernel of `--kernel`, so that they share the
/// baseline's guest.
///
/// # Errors
/// With `--in host`, if a candidate asks for a kernel or settings.
fn settle_kernels(candidates: &mut [Candidate], setup: &Setup) -> Result<()> {
    let newest = SERIES.last().copied();
    let default = setup.kernel.as_deref().or(newest);
    for candidate in candidates.iter_mut().filter(|c| c.neighbour.is_none()) {
        if candidate.boot.kernel.as_deref() == default {
            candidate.boot.kernel = None;
        }
        ensure!(
            setup.place != Where::Host || !candidate.needs_guest(),
            "{} asks for a kernel or settings of its own, which would change this host: measure in \
             a guest, with --in vm or --in vtime",
            candidate.name
        );
    }
    Ok(())
}

/// The schedulers' programs on this host. (The suite has their paths in the guest.)
fn schedulers<'a>(suite: &'a Suite, programs: &'a [PathBuf]) -> impl Iterator<Item = &'a Path> {
    let candidates = suite.candidates.iter();
    let all = candidates.flat_map(Candidate::with_neighbour);
    let argv = all.filter_map(|candidate| candidate.argv.first());
    argv.map(|program| {
        let program = Path::new(program);
        let copied = programs
            .iter()
            .find(|copied| copied.file_name() == program.file_name());
        copied.map_or(program, PathBuf::as_path)
    })
}

/// The rounds that count; with `--until-sure`, at most.
fn rounds(args: &Measure) -> usize {
    let default = match args.until_sure {
        true => UNTIL_SURE_ROUNDS,
        false => ROUNDS,
    };
    args.rounds.map_or(default, usize::from)
}

/// The guest's machine, from the command line, the suites or the default; None on the host.
fn choose_machine(setup: &Setup, suites: &[Definition]) -> Result<Option<Machine>> {
    let name = match (&setup.machine, setup.place) {
        (Some(machine), Where::Host) => {
            bail!("--machine {machine} is for guests; with --in host the machine is this host")
        }
        (None, Where::Host) => return Ok(None),
        (Some(machine), _) => machine.clone(),
        (None, place) => suite::machine(suites, place)?.unwrap_or_else(|| {
            let name = if place == Where::Vtime {
                VIRTUAL_TIME_MACHINE
            } else {
                MACHINE
            };
            name.to_string()
        }),
    };
    let machine = Machine::find(&name)?;
    ensure!(
        setup.place != Where::Vtime || machine.virtual_time.is_some(),
        "the machine {name} is not in virtual time; `magpie lab machines` shows which are"
    );
    Ok(Some(machine))
}

/// The workloads and cases of the suites and of `--workload`, each case once.
fn choose_work(
    setup: &Setup,
    suites: &[Definition],
    cpus: u32,
) -> Result<Vec<(Workload, Vec<Case>)>> {
    let extra = match &setup.workloads {
        Some(path) => Some(
            std::fs::read_to_string(path)
                .with_context(|| format!("read the workloads of {}", path.display()))?,
        ),
        None => None,
    };
    let known = workload::load(extra.as_deref())?;
    let chosen = parse_parameters(setup)?;
    let mut wanted: Vec<(&str, Parameters)> = Vec::new();
    for suite in suites {
        for run in suite.runs(setup.place) {
            wanted.push((&run.workload, run.parameters(setup.place)));
        }
    }
    for (index, name) in setup.workload.iter().enumerate() {
        if setup.workload[..index].contains(name) {
            bail!("the workload `{name}` is named twice");
        }
        wanted.push((name, Parameters::new()));
    }
    if wanted.is_empty() {
        wanted.push(("hackbench", Parameters::new()));
    }

    let mut work: Vec<(Workload, Vec<Case>)> = Vec::new();
    for (name, mut parameters) in wanted {
        let Some(workload) = known.iter().find(|workload| workload.name == *name) else {
            let names: Vec<&str> = known.iter().map(|w| w.name.as_str()).collect();
            bail!(
                "there is no workload `{name}`; there are {}",
                names.join(", ")
            );
        };
        // Parameters of the command line override those of a suite.
        parameters.extend(parameters_for(workload, &chosen));
        let cases = workload.cases(&parameters, cpus)?;
        match work.iter_mut().find(|(other, _)| other.name == *name) {
            None => work.push((workload.clone(), cases)),
            Some((_, known)) => {
                let new: Vec<Case> = cases.into_iter().filter(|c| !known.contains(c)).collect();
                known.extend(new);
            }
        }
    }
    for name in chosen.keys() {
        if !work
            .iter()
            .any(|(workload, _)| has_parameter(workload, name))
        {
            bail!(
                "none of the chosen workloads has a parameter `{name}`; `magpie bench workloads` \
                 shows them"
            );
        }
    }
    Ok(work)
}

/// What WORKLOAD.NAME of `--set` begins with for this workload.
fn scope_of(workload: &Workload) -> String {
    format!("{}.", workload.name)
}

/// Is a name of `--set`, NAME or WORKLOAD.NAME, a parameter of this workload?
fn has_parameter(workload: &Workload, name: &str) -> bool {
    let own = name.strip_prefix(&scope_of(workload)).unwrap_or(name);
    workload.parameters.contains_key(own)
}

/// What `--set` says for a workload, which ignores names that it does not have. WORKLOAD.NAME
/// overrides NAME, which is for all workloads.
fn parameters_for(workload: &Workload, chosen: &Parameters) -> Parameters {
    let scope = scope_of(workload);
    let mut parameters = chosen.clone();
    for (name, list) in chosen {
        if let Some(own) = name.strip_prefix(&scope) {
            parameters.insert(own.to_string(), list.clone());
        }
    }
    parameters
}

/// Reads `--set`, `--groups` and `--loops` into lists of values, by NAME or WORKLOAD.NAME.
fn parse_parameters(setup: &Setup) -> Result<Parameters> {
    let mut parameters = Parameters::new();
    let short = [("groups", &setup.groups), ("loops", &setup.loops)];
    let short = short
        .into_iter()
        .filter_map(|(name, list)| Some((name.to_string(), list.clone()?)));
    let long: Vec<(String, String)> = setup
        .parameters
        .iter()
        .map(|text| {
            let (name, list) = text
                .split_once('=')
                .with_context(|| format!("`--set {text}`: write it like threads=2,8"))?;
            Ok((name.trim().to_string(), list.to_string()))
        })
        .collect::<Result<_>>()?;
    for (name, list) in short.chain(long) {
        let values: Vec<String> = list
            .split(',')
            .map(|value| value.trim().to_string())
            .collect();
        if values.iter().any(String::is_empty) {
            bail!("the parameter `{name}` has an empty value in `{list}`");
        }
        parameters.insert(name, values);
    }
    Ok(parameters)
}

/// Finds the programs of all schedulers and workloads, and puts their paths, in the guest or on
/// this host, into the suite's commands. Returns those that must be copied into the guest.
fn find_programs(place: Where, suite: &mut Suite) -> Result<Vec<PathBuf>> {
    let mut programs: Vec<PathBuf> = Vec::new();
    let mut put = |program: PathBuf| -> Result<String> {
        let name = program
            .file_name()
            .context("a program has a file name")?
            .to_string_lossy()
            .into_owned();
        if place == Where::Host {
            return Ok(program.to_string_lossy().into_owned());
        }
        if programs
            .iter()
            .any(|known| known.file_name() == program.file_name() && *known != program)
        {
            bail!("two programs are named {name}: a guest has room for one, rename the other");
        }
        if !programs.contains(&program) {
            programs.push(program);
        }
        Ok(format!("/bin/{name}"))
    };
    for candidate in &mut suite.candidates {
        let neighbour = candidate.neighbour.as_deref_mut();
        let argvs = std::iter::once(&mut candidate.argv).chain(neighbour.map(|n| &mut n.argv));
        for program in argvs.filter_map(|argv| argv.first_mut()) {
            *program = put(candidate::find_scheduler(program)?)?;
        }
    }
    for (workload, cases) in &mut suite.work {
        for name in workload.programs() {
            // A guest has the programs of Debian packages from the packages themselves.
            if place != Where::Host && workload.package.is_some() && !is_ours(name) {
                continue;
            }
            let program = files::find_program(name).with_context(|| match &workload.package {
                Some(package) if !is_ours(name) => {
                    format!("{name} is not installed: apt-get install {package}")
                }
                _ => format!("{name} is not built: cargo build --release"),
            })?;
            let program = put(program)?;
            if name == workload.program() {
                cases
                    .iter_mut()
                    .for_each(|case| case.argv[0].clone_from(&program));
            }
        }
    }
    Ok(programs)
}

/// Is this program built in this tree? Such a program is copied into the guest even if its workload
/// names Debian packages, which then have other programs that it needs.
fn is_ours(program: &str) -> bool {
    program.starts_with("magpie-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::measure;

    fn work(line: &str) -> Result<Vec<(Workload, Vec<Case>)>> {
        let args = measure(line);
        choose_work(&args.setup, &suite::find(&args.suite)?, 2)
    }

    fn labels(work: &[(Workload, Vec<Case>)]) -> Vec<String> {
        let cases = work.iter().flat_map(|(_, cases)| cases);
        cases.map(|case| case.label.clone()).collect()
    }

    #[test]
    fn cases_come_from_the_options() {
        let work = work("--workload hackbench,pipe --groups 1,4 --set round_trips=5").unwrap();
        assert_eq!(
            labels(&work),
            ["-g 1 -l 100", "-g 4 -l 100", "pipe --loops 5"]
        );
        assert_eq!(labels(&super::tests::work("").unwrap()), ["-g 1 -l 100"]);
    }

    #[test]
    fn suites_and_workloads_come_together_and_the_command_line_has_the_last_word() {
        let both = work("--suite steal,push --workload fairness --loops 7").unwrap();
        let hackbench: Vec<String> = labels(&both[..1]);
        // Groups 1, 2, 4 and 8 are in both suites.
        assert_eq!(
            hackbench.join(", "),
            "-g 1 -l 7, -g 2 -l 7, -g 3 -l 7, -g 4 -l 7, -g 8 -l 7, -g 16 -l 7"
        );
        assert_eq!(both.last().unwrap().0.name, "fairness");
        assert!(both.iter().any(|(workload, _)| workload.name == "tbench"));
    }

    #[test]
    fn a_size_of_one_workload_goes_before_that_of_all() {
        let line = "--workload tbench,iperf3,latency --set seconds=1 --set tbench.seconds=3";
        let work = work(line).unwrap();
        let seconds = |index: usize| work[index].1[0].argv.join(" ");
        assert!(seconds(0).contains("tbench -t 3 "), "{}", seconds(0));
        assert!(seconds(1).contains("-t 1 "), "{}", seconds(1));
        assert!(seconds(2).contains("--seconds 1"), "{}", seconds(2));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |line: &str| format!("{:#}", work(line).unwrap_err());
        assert!(error("--workload hackbnch").contains("there are hackbench"));
        assert!(error("--workload pipe --groups 4").contains("`groups`"));
        assert!(error("--workload pipe --set hackbench.groups=4").contains("`hackbench.groups`"));
        assert!(error("--set hackbench.clients=4").contains("`hackbench.clients`"));
        assert!(error("--set groups").contains("write it like"));
        assert!(error("--groups 1,,2").contains("empty value"));
        assert!(error("--workload pipe,pipe").contains("twice"));
        assert!(error("--suite stael").contains("there are steal"));
    }

    #[test]
    fn a_kernel_that_is_the_default_shares_its_guest() {
        let settled = |line: &str| {
            let args = measure(line);
            let mut candidates = candidate::parse_list(&args.sched).unwrap();
            settle_kernels(&mut candidates, &args.setup).map(|()| candidates)
        };
        let newest = SERIES.last().unwrap();
        let list = settled(&format!("--sched eevdf@{newest},eevdf@7.0")).unwrap();
        assert_eq!(list[1].boot, list[0].boot);
        assert_ne!(list[2].boot, list[0].boot);
        let list = settled("--kernel 7.0 --sched eevdf@7.0").unwrap();
        assert_eq!(list[1].boot, list[0].boot);
        let error = settled("--in host --sched eevdf{base_slice_ns=5}").unwrap_err();
        assert!(error.to_string().contains("change this host"), "{error}");
    }

    #[test]
    fn machines_are_for_guests_and_virtual_time_needs_one_that_has_it() {
        let machine = |line: &str| {
            let args = measure(line);
            choose_machine(&args.setup, &suite::find(&args.suite).unwrap())
        };
        assert_eq!(machine("").unwrap().unwrap().name, "tiny2");
        assert_eq!(machine("--in vtime").unwrap().unwrap().name, "vt16");
        let suite = machine("--in vtime --suite fairness").unwrap().unwrap();
        assert_eq!(suite.name, "vt4");
        assert!(machine("--in host").unwrap().is_none());
        for (line, word) in [
            ("--in host --machine tiny2", "this host"),
            ("--in vtime --machine tiny2", "virtual time"),
        ] {
            let error = machine(line).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn an_absent_scheduler_is_found_out_before_anything_runs() {
        let args = measure("--sched scx_no_such_thing --workload fairness");
        let mut suite = Suite {
            candidates: candidate::parse_list(&args.sched).unwrap(),
            work: Vec::new(),
            rounds: 1,
            until_sure: None,
        };
        let error = find_programs(Where::Vm, &mut suite)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("magpie bench peers install scx_no_such_thing"),
            "{error}"
        );
    }

    #[test]
    fn scripts_bring_our_own_programs_along_and_leave_the_shell_alone() {
        let mut suite = Suite {
            candidates: Vec::new(),
            work: work("--workload cyclictest").unwrap(),
            rounds: 1,
            until_sure: None,
        };
        let Ok(programs) = find_programs(Where::Vm, &mut suite) else {
            // Not built: that is said, and is not what is tested here.
            return assert!(files::find_program("magpie-load").is_none());
        };
        assert_eq!(programs.len(), 1, "{programs:?}");
        assert!(programs[0].ends_with("magpie-load"));
        assert_eq!(suite.work[0].1[0].argv[0], "sh");
    }
}
