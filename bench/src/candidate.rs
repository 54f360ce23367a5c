//! The schedulers to compare: reads `--sched`, and finds the programs that it names.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use magpie_lab::files;

use crate::report::BASELINE;

/// A scheduler with its options, or none: the kernel's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The name in the report: as given to `--sched`.
    pub name: String,
    /// Program and options; empty for the baseline.
    pub argv: Vec<String>,
}

impl Candidate {
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
        argv: Vec::new(),
    }];
    for part in list
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        if part == BASELINE {
            continue;
        }
        let (name, command) = split_name(part);
        let mut argv = shell_words::split(command)
            .with_context(|| format!("read the scheduler `{command}`"))?;
        if command == BASELINE {
            argv.clear();
        }
        add(
            &mut candidates,
            Candidate {
                name: name.into(),
                argv,
            },
        )?;
    }
    Ok(candidates)
}

fn add(candidates: &mut Vec<Candidate>, new: Candidate) -> Result<()> {
    if candidates.iter().any(|known| known.name == new.name) {
        bail!(
            "the scheduler `{0}` is named twice; to measure it twice, name it: first={0},second={0}",
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
                .all(|c| c.is_ascii_alphanumeric() || "_.+".contains(c))
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
            add(candidates, Candidate { name, argv })?;
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
        assert!(parse_list("scx_a,scx_a").is_err());
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
