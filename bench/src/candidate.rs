//! The schedulers to compare: reads `--sched`, and finds the programs that it names.
//!
//! ```text
//!   scx_magpie --no-steal                     a command
//!   new=./scx_magpie                          NAME=COMMAND
//!   eevdf@7.0, scx_magpie@path/bzImage        on another kernel than that of --kernel
//!   eevdf@patched                             on one of `magpie lab kernel build`
//!   eevdf{llc_balancing=0,boot:nohz=off}      with settings of the kernel
//!   old=scx_magpie@7.0{base_slice_ns=3000000} --no-steal
//! ```

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::files;

use crate::report::BASELINE;
use crate::setting::{self, Boot, Setting};

/// A scheduler with its options, or none: the kernel's own; on a kernel, with settings of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The name in the report: as given to `--sched`.
    pub name: String,
    /// Program and options; empty for the baseline.
    pub argv: Vec<String>,
    /// The kernel of its guest.
    pub boot: Boot,
    /// Settings of the kernel that are in force while it runs.
    pub settings: Vec<Setting>,
    /// What the guests beside run, on a host with several guests.
    pub neighbour: Option<Box<Candidate>>,
}

impl Candidate {
    /// This one, and what the guests beside run.
    pub fn with_neighbour(&self) -> impl Iterator<Item = &Candidate> {
        std::iter::once(self).chain(self.neighbour.as_deref())
    }

    /// Does it ask for a kernel of its own, or for settings?
    pub fn needs_guest(&self) -> bool {
        self.boot != Boot::default() || !self.settings.is_empty()
    }

    /// Is this the kernel's own scheduler?
    pub fn is_baseline(&self) -> bool {
        self.argv.is_empty()
    }

    /// Is this scx_magpie, which prints its own counters?
    pub fn is_magpie(&self) -> bool {
        self.argv.first().is_some_and(|program| {
            Path::new(program)
                .file_name()
                .is_some_and(|n| n == "scx_magpie")
        })
    }
}

/// Reads a list such as `eevdf,scx_magpie,scx_lavd --performance`. The baseline comes first even if
/// the list does not name it, because every figure is relative to it.
pub fn parse_list(list: &str) -> Result<Vec<Candidate>> {
    let mut candidates = vec![Candidate {
        name: BASELINE.into(),
        ..Candidate::default()
    }];
    let parts = split_list(list)?;
    for part in parts.into_iter().map(str::trim).filter(|p| !p.is_empty()) {
        if part == BASELINE {
            continue;
        }
        let (name, command) = split_name(part);
        let candidate = parse(name, command).with_context(|| format!("the scheduler `{part}`"))?;
        add(&mut candidates, candidate)?;
    }
    Ok(candidates)
}

/// Splits a list of candidates at its commas, except those in braces.
pub(crate) fn split_list(list: &str) -> Result<Vec<&str>> {
    let (mut parts, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '{' | '}' if is_inside == (c == '{') => {
                bail!("the braces of `{list}` do not match: settings stand between {{ and }}")
            }
            '{' => is_inside = true,
            '}' => is_inside = false,
            ',' if !is_inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    ensure!(
        !is_inside,
        "the braces of `{list}` do not match: settings stand between {{ and }}"
    );
    parts.push(&list[start..]);
    Ok(parts)
}

/// Reads `PROGRAM[@KERNEL][{SETTINGS}] [OPTIONS]`.
///
/// # Errors
/// If it is not of this form.
pub fn parse(name: &str, command: &str) -> Result<Candidate> {
    let end = command
        .find('{')
        .or_else(|| command.find(char::is_whitespace));
    let (target, rest) = command.split_at(end.unwrap_or(command.len()));
    ensure!(
        !target.contains(char::is_whitespace),
        "settings stand behind the program, before its options: PROGRAM@KERNEL{{SETTINGS}} OPTIONS"
    );
    let (settings, options) = match rest.strip_prefix('{') {
        Some(rest) => rest.split_once('}').context("the braces do not match")?,
        None => ("", rest),
    };
    let (settings, parameters) = setting::parse(settings)?;
    let (program, kernel) = match target.split_once('@') {
        Some((program, kernel)) => (program, Some(kernel)),
        None => (target, None),
    };
    ensure!(
        !program.is_empty() && kernel != Some(""),
        "write it like eevdf@7.0, scx_magpie@path/bzImage or eevdf{{base_slice_ns=3000000}}"
    );
    let mut argv = shell_words::split(&format!("{program} {options}"))?;
    if program == BASELINE {
        ensure!(
            argv.len() == 1,
            "{BASELINE} is the kernel's own scheduler and has no options; settings stand in \
             braces: {BASELINE}{{base_slice_ns=3000000}}"
        );
        argv.clear();
    }
    Ok(Candidate {
        name: name.into(),
        argv,
        boot: Boot {
            kernel: kernel.map(str::to_string),
            parameters,
        },
        settings,
        neighbour: None,
    })
}

/// Every candidate beside every neighbour: `eevdf beside eevdf` first, and of those with the same
/// scheduler, the one beside the baseline first.
pub fn beside(candidates: &[Candidate], neighbours: &[Candidate]) -> Vec<Candidate> {
    let pair = |own: &Candidate, neighbour: &Candidate| Candidate {
        name: format!("{} beside {}", own.name, neighbour.name),
        neighbour: Some(Box::new(neighbour.clone())),
        ..own.clone()
    };
    let pairs = candidates
        .iter()
        .flat_map(|own| neighbours.iter().map(move |neighbour| pair(own, neighbour)));
    pairs.collect()
}

/// Adds a candidate; refuses a name that is taken.
fn add(candidates: &mut Vec<Candidate>, new: Candidate) -> Result<()> {
    if candidates.iter().any(|known| known.name == new.name) {
        bail!(
            "the scheduler `{0}` is named twice; to measure it twice, name it: \
             first={0},second={0}",
            new.name
        );
    }
    candidates.push(new);
    Ok(())
}

/// Splits `NAME=COMMAND`, where NAME is one word. A command without a name is its own name.
fn split_name(part: &str) -> (&str, &str) {
    let is_name = |text: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_.+-".contains(c))
    };
    match part.split_once('=') {
        Some((name, command)) if is_name(name) && !command.is_empty() => (name, command.trim()),
        _ => (part, part),
    }
}

/// Adds scx_magpie with all mechanisms, with each left out, with each alone, and with none. The
/// switches come from the program's own help, so that a new mechanism is measured without a change
/// here.
pub fn add_ablation(candidates: &mut Vec<Candidate>) -> Result<()> {
    let program = find_scheduler(MAGPIE)?;
    let output = std::process::Command::new(&program)
        .arg("--help")
        .output()
        .with_context(|| format!("ask {} for its switches", program.display()))?;
    let variants = variants(&String::from_utf8_lossy(&output.stdout)).with_context(|| {
        format!(
            "{} --help names no --no-... switch to leave a mechanism out",
            program.display()
        )
    })?;
    for arguments in variants {
        let mut argv = vec![MAGPIE.to_string()];
        argv.extend(arguments);
        let name = argv.join(" ");
        if candidates.iter().all(|known| known.name != name) {
            let candidate = Candidate {
                name,
                argv,
                ..Candidate::default()
            };
            add(candidates, candidate)?;
        }
    }
    Ok(())
}

const MAGPIE: &str = "scx_magpie";

/// From how many columns on a line of a long help text is a description.
const DESCRIPTION_INDENT: usize = 8;

/// Does this line of a help text begin with an option of its own? A wrapped description may begin
/// with the name of an option too, but is indented further.
fn is_option(line: &&str) -> bool {
    let text = line.trim_start();
    text.starts_with('-') && line.len() - text.len() < DESCRIPTION_INDENT
}

/// The options of a help text that leave a mechanism out, `--no-...`.
pub fn switches(help: &str) -> Vec<String> {
    let switch = |line: &str| {
        let rest = line.trim_start().strip_prefix("--no-")?;
        let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '-'));
        Some(format!("--no-{}", &rest[..end.unwrap_or(rest.len())]))
    };
    help.lines().filter(is_option).filter_map(switch).collect()
}

/// The arguments of each variant that a help text allows; None if it has no switches.
fn variants(help: &str) -> Option<Vec<Vec<String>>> {
    let switches = switches(help);
    if switches.is_empty() {
        return None;
    }
    // The long help lists the values below `--only`, as `- name: text`; the short one behind it, in
    // brackets.
    let mut lines = help.lines();
    let head = lines.find(|line| is_option(line) && line.trim_start().starts_with("--only"));
    let below = lines.take_while(|line| !is_option(line));
    let mut mechanisms: Vec<String> = Vec::new();
    for line in head.into_iter().chain(below) {
        if let Some(value) = line.trim_start().strip_prefix("- ") {
            let name = value.split(':').next().unwrap_or(value);
            mechanisms.push(name.trim().to_string());
        } else if let Some((_, list)) = line.split_once("[possible values: ") {
            let list = list.split(']').next().unwrap_or(list);
            mechanisms.extend(list.split(',').map(|name| name.trim().to_string()));
        }
    }
    let mut variants = vec![Vec::new()];
    variants.extend(switches.iter().map(|switch| vec![switch.clone()]));
    variants.extend(
        mechanisms
            .into_iter()
            .map(|name| vec!["--only".into(), name]),
    );
    variants.push(switches);
    Some(variants)
}

/// Finds a scheduler's program.
///
/// # Errors
/// If it is in none of the folders; the message says how to build or install it.
pub fn find_scheduler(name: &str) -> Result<PathBuf> {
    let remedy = match name {
        "scx_magpie" => "build it: cargo build --release -p scx_magpie".into(),
        peer => format!("install it: magpie bench peers install {peer}"),
    };
    files::find_program(name).with_context(|| {
        format!("no scheduler `{name}` in target/release, target/peers/bin or PATH; {remedy}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_always_first() {
        let names = |list| {
            parse_list(list)
                .unwrap()
                .into_iter()
                .map(|c| c.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names("scx_magpie"), ["eevdf", "scx_magpie"]);
        assert_eq!(names("scx_a, eevdf"), ["eevdf", "scx_a"]);
        assert_eq!(names(""), ["eevdf"]);
        assert_eq!(names("by-hand=eevdf{boot:maxcpus=2}"), ["eevdf", "by-hand"]);
        assert!(parse_list("scx_a,scx_a").is_err());
    }

    #[test]
    fn every_candidate_is_beside_every_neighbour() {
        let (own, neighbours) = (
            parse_list("scx_a --x").unwrap(),
            parse_list("scx_b").unwrap(),
        );
        let pairs = beside(&own, &neighbours);
        let names: Vec<&str> = pairs.iter().map(|pair| pair.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "eevdf beside eevdf",
                "eevdf beside scx_b",
                "scx_a --x beside eevdf",
                "scx_a --x beside scx_b"
            ]
        );
        let programs: Vec<_> = pairs[3].with_neighbour().map(|c| &c.argv).collect();
        assert_eq!(programs, [&vec!["scx_a", "--x"], &vec!["scx_b"]]);
    }

    #[test]
    fn options_belong_to_the_scheduler() {
        let candidates =
            parse_list("scx_lavd --performance,target/x/scx_magpie --no-steal").unwrap();
        assert_eq!(candidates[1].argv, ["scx_lavd", "--performance"]);
        assert!(!candidates[1].is_magpie() && candidates[2].is_magpie());
        assert!(candidates[0].is_baseline());
    }

    #[test]
    fn a_name_tells_two_of_the_same_apart() {
        let list = parse_list("again=eevdf,new=/x/scx_magpie --no-steal,scx_a --slice=5").unwrap();
        let found: Vec<(&str, String)> = list
            .iter()
            .map(|c| (c.name.as_str(), c.argv.join(" ")))
            .collect();
        assert_eq!(found[1], ("again", String::new()));
        assert_eq!(found[2], ("new", "/x/scx_magpie --no-steal".into()));
        // An option's value is no name of the scheduler.
        assert_eq!(found[3].0, "scx_a --slice=5");
        let error = parse_list("scx_a,scx_a").unwrap_err().to_string();
        assert!(error.contains("first=scx_a,second=scx_a"), "{error}");
    }

    #[test]
    fn kernels_and_settings_stand_behind_the_program() {
        let list = parse_list(
            "eevdf@7.0,eevdf{llc_balancing=0,features=NO_PREEMPT_SHORT},\
             old=./scx_magpie@a/bzImage{base_slice_ns=3000000,boot:nohz=off} --no-steal",
        )
        .unwrap();
        assert_eq!(list[1].name, "eevdf@7.0");
        assert!(list[1].is_baseline() && list[1].boot.kernel.as_deref() == Some("7.0"));
        assert_eq!(
            list[2].name,
            "eevdf{llc_balancing=0,features=NO_PREEMPT_SHORT}"
        );
        assert!(list[2].is_baseline() && list[2].boot == Boot::default());
        assert_eq!(list[2].settings.len(), 2);
        let old = &list[3];
        assert_eq!(old.name, "old");
        assert_eq!(old.argv, ["./scx_magpie", "--no-steal"]);
        assert_eq!(old.boot.kernel.as_deref(), Some("a/bzImage"));
        assert_eq!(old.boot.parameters, ["nohz=off"]);
        assert!(!list[0].needs_guest() && list[1..].iter().all(Candidate::needs_guest));
    }

    #[test]
    fn mistakes_in_kernels_and_settings_are_named() {
        for (list, word) in [
            ("eevdf@", "eevdf@7.0"),
            ("@7.0", "eevdf@7.0"),
            ("eevdf{a=1", "braces"),
            ("eevdf}", "braces"),
            ("eevdf{{a=1}}", "braces"),
            ("eevdf{slice}", "is no setting"),
            ("eevdf --fast", "no options"),
            ("scx_a --x {a=1}", "before its options"),
        ] {
            let error = format!("{:#}", parse_list(list).unwrap_err());
            assert!(error.contains(word), "{list}: {error}");
        }
    }

    #[test]
    fn ablation_follows_the_switches_that_the_help_names() {
        let help = "Options:\n      --no-steal[=<BOOL>]\n          Not --no-this\n\n      --no-steal-gate\n\n      \
                    --source <SOURCE>\n          Possible values:\n          - auto: no mechanism\n\n      \
                    --only <MECHANISM>\n          Only this; add\n          --no-steal: for more\n\n          Possible values:\n          \
                    - steal:     search\n          - preferred: few\n\n  -v, --verbose\n          - other: not its\n";
        let found: Vec<String> = variants(help)
            .unwrap()
            .iter()
            .map(|arguments| arguments.join(" "))
            .collect();
        assert_eq!(
            found,
            [
                "",
                "--no-steal",
                "--no-steal-gate",
                "--only steal",
                "--only preferred",
                "--no-steal --no-steal-gate"
            ]
        );
        let short = variants("--no-a  Without a\n--only <X>  [possible values: a, b]\n").unwrap();
        assert_eq!(short[2..4], [["--only", "a"], ["--only", "b"]]);
        assert_eq!(variants("no switches here"), None);
    }

    #[test]
    fn a_missing_program_is_named_with_its_remedy() {
        let error = find_scheduler("scx_no_such_thing").unwrap_err().to_string();
        assert!(
            error.contains("magpie bench peers install scx_no_such_thing"),
            "{error}"
        );
    }
}
