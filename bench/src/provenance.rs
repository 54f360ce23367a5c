//! Where a result comes from: commit, machine, kernel, command, date, rounds, versions.
//!
//! A result file keeps these in `machine`, `kernel`, `started_unix` and `options`. A file that an
//! older version wrote may lack some; then [`Origin`] says "not recorded".

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use magpie_lab::files;
use serde_json::{Map, Value};
use time::OffsetDateTime;

/// Named values of a result file: its machine, or its options.
pub type Values = BTreeMap<String, Value>;

const COMMIT: &str = "commit";
/// The option under which a report keeps the kernel release of each candidate, if they differ.
pub const KERNELS: &str = "kernels";
/// The option under which a report keeps the margin of `--until-sure`, as a share.
pub const UNTIL_SURE: &str = "until_sure";
/// The option of a result file that names the candidates of which the best is the baseline.
pub const BASELINES: &str = "baselines";
/// The part of a machine that describes the host of several guests.
pub const HOST: &str = "host";
/// The part of an [`Origin`] that has the command.
pub const COMMAND: &str = "command";
const COMMAND_LINE: &str = "command_line";
const VERSIONS: &str = "versions";

/// Stands for a value that a file of an older version does not have.
const NOT_RECORDED: &str = "not recorded: an older version wrote this file";

/// Prose of the pages is this wide at most.
const WIDTH: usize = 100;

/// Adds the commit of the source tree, this program's command line and the versions of `programs`
/// to the options of a result file. `programs` are paths of schedulers on this host.
pub fn record<'a>(options: &mut Values, programs: impl Iterator<Item = &'a Path>) {
    options.insert(COMMIT.into(), commit().into());
    options.insert(COMMAND_LINE.into(), command_line(std::env::args()).into());
    let mut versions = Map::new();
    for program in programs {
        let (Some(name), Some(version)) = (program.file_name(), version_of(program)) else {
            continue;
        };
        versions.insert(name.to_string_lossy().into_owned(), version.into());
    }
    options.insert(VERSIONS.into(), versions.into());
}

/// The commit of the source tree that the working directory or this program is in, with `-dirty`
/// behind it if a tracked file outside `docs/` is changed; `unknown` outside a tree, or without
/// git.
///
/// Pages and results do not count, because no program is built from them, and `make results` writes
/// them while it measures.
fn commit() -> String {
    let Some(tree) = files::source_tree() else {
        return "unknown".into();
    };
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&tree).args(arguments);
        git.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()
    };
    let head = git(&["rev-parse", "--short=12", "HEAD"]).filter(|output| output.status.success());
    let Some(head) = head else {
        return "unknown".into();
    };
    let head = String::from_utf8_lossy(&head.stdout).trim().to_string();
    let changed = git(&["diff", "--quiet", "HEAD", "--", ".", ":!docs"]);
    match changed.is_some_and(|output| output.status.success()) {
        true => head,
        false => format!("{head}-dirty"),
    }
}

/// The command that measures the same again: without this shard's number and without output files,
/// so that all shards of a run have the same.
fn command_line(mut words: impl Iterator<Item = String>) -> String {
    const LEFT_OUT: [&str; 4] = ["--shard", "--json", "--markdown", "--html"];
    // Of `callbacks`, `--markdown` has no value.
    let is_flag = |kept: &[String], word: &str| {
        word == "--markdown" && kept.iter().any(|kept| kept == "callbacks")
    };
    let program = words.next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default();
    let mut kept = vec![program.to_string_lossy().into_owned()];
    while let Some(word) = words.next() {
        if word == "--" {
            // The rest is another program's.
            kept.push(word);
            kept.extend(words);
            break;
        }
        if LEFT_OUT.contains(&word.as_str()) {
            if !is_flag(&kept, &word) {
                words.next();
            }
        } else if !LEFT_OUT
            .iter()
            .any(|option| word.starts_with(&format!("{option}=")))
        {
            kept.push(word);
        }
    }
    shell_words::join(kept)
}

/// The version line of a program, such as `scx_cosmos 1.1.7 x86_64-unknown-linux-gnu`; None if it
/// does not run or prints nothing.
pub fn version_of(program: &Path) -> Option<String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?.trim();
    (output.status.success() && !line.is_empty()).then(|| line.to_string())
}

/// The provenance that a result file records.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Where it ran, as the report has it.
    pub machine: &'a Values,
    /// Kernel release that ran the workloads.
    pub kernel: &'a str,
    /// Seconds since the epoch at the start of the run; 0 if not recorded.
    pub started_unix: u64,
    /// The command line's options, program versions and the commit.
    pub options: &'a Values,
}

impl<'a> Origin<'a> {
    fn option(self, name: &str) -> Option<&'a str> {
        self.options.get(name).and_then(Value::as_str)
    }

    /// The machine's name, its CPUs, and whether time was real.
    pub fn machine_name(self) -> String {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_string);
        let guest = self.machine.get("machine");
        let name = text(guest.and_then(|guest| guest.get("name")))
            .or_else(|| text(self.machine.get("model")))
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "an unnamed machine".into());
        match self.machine.get("cpus").and_then(Value::as_u64) {
            Some(cpus) => format!("{name} ({cpus} CPUs)"),
            None => name,
        }
    }

    /// The machine, and what its figures depend on: nothing but the machine in virtual time, the
    /// host in a functional guest.
    fn machine(self) -> String {
        let name = self.machine_name();
        let virtual_time = self
            .machine
            .get("machine")
            .and_then(|guest| guest.get("virtual_time"));
        let host = self.machine.get("host_cpus").and_then(Value::as_u64);
        match (virtual_time, host) {
            (Some(Value::Object(_)), _) => format!("{}, in virtual time", self.guests(name)),
            (_, Some(cpus)) => {
                let accelerator = self.machine.get("accelerator").and_then(Value::as_str);
                let accelerator = accelerator.unwrap_or("unknown accelerator");
                format!("{name}, in real time on {cpus} CPUs of the host, {accelerator}")
            }
            _ => name,
        }
    }

    /// The guests of a host with several, and its CPUs; else the machine's name.
    fn guests(self, name: String) -> String {
        let host = self.machine.get(HOST);
        let guests = host.and_then(|host| host.get("guests")?.as_array());
        let Some((host, guests)) = host.zip(guests) else {
            return name;
        };
        let guest = |guest: &Value| {
            let machine = guest["machine"].as_str().unwrap_or("unnamed");
            format!("{machine} ({} CPUs)", guest["cpus"])
        };
        let guests: Vec<String> = guests.iter().map(guest).collect();
        format!(
            "{} on one host of {} CPUs",
            guests.join(" beside "),
            host["physical_cpus"]
        )
    }

    /// The kernel; if candidates ran on several, which on which.
    pub fn kernels(self) -> String {
        let mut releases: Vec<(&str, Vec<&str>)> = Vec::new();
        let kernels = self.options.get(KERNELS).and_then(Value::as_object);
        for (candidate, release) in kernels.into_iter().flatten() {
            let release = release.as_str().unwrap_or_default();
            match releases.iter_mut().find(|(known, _)| *known == release) {
                Some((_, candidates)) => candidates.push(candidate),
                None => releases.push((release, vec![candidate])),
            }
        }
        if releases.len() < 2 {
            return self.kernel.into();
        }
        // The baseline's kernel first.
        releases.sort_by_key(|(release, _)| *release != self.kernel);
        let of = |(release, candidates): &(&str, Vec<&str>)| {
            format!("{release} ({})", candidates.join(", "))
        };
        releases.iter().map(of).collect::<Vec<_>>().join("; ")
    }

    /// The day and minute at which the run began.
    pub fn date(self) -> String {
        match OffsetDateTime::from_unix_timestamp(self.started_unix as i64) {
            Ok(time) if self.started_unix > 0 => {
                let (hour, minute) = (time.hour(), time.minute());
                format!("{} {hour:02}:{minute:02} UTC", time.date())
            }
            _ => "at an unknown time".into(),
        }
    }

    /// How often each case was run under each scheduler.
    pub fn rounds(self) -> String {
        match self.options.get("rounds").and_then(Value::as_u64) {
            Some(rounds) if self.options.contains_key(UNTIL_SURE) => {
                format!("at most {rounds} interleaved rounds, until each row is decided")
            }
            Some(1) => "one round".into(),
            Some(rounds) => format!("{rounds} interleaved rounds"),
            None => "rounds not recorded".into(),
        }
    }

    /// The command that measures it again.
    pub fn command(self) -> Option<&'a str> {
        self.option(COMMAND_LINE)
    }

    /// Name and version of each scheduler, without the platform that some add.
    fn versions(self) -> Option<String> {
        let versions = self.options.get(VERSIONS)?.as_object()?;
        let short = |version: &str| {
            let words: Vec<&str> = version.split_whitespace().take(2).collect();
            words.join(" ")
        };
        let versions: Vec<String> = versions
            .values()
            .filter_map(Value::as_str)
            .map(short)
            .collect();
        Some(match versions.is_empty() {
            true => "the kernel's own".into(),
            false => versions.join(", "),
        })
    }

    /// Name and value of each part.
    pub fn parts(self) -> [(&'static str, String); 7] {
        let or_not_recorded = |value: Option<&str>| value.unwrap_or(NOT_RECORDED).to_string();
        [
            (COMMIT, or_not_recorded(self.option(COMMIT))),
            ("machine", self.machine()),
            ("kernel", self.kernels()),
            (COMMAND, or_not_recorded(self.command())),
            ("date", self.date()),
            ("rounds", self.rounds()),
            ("schedulers", or_not_recorded(self.versions().as_deref())),
        ]
    }

    /// A line for each part, for a terminal.
    pub fn describe(self) -> String {
        let mut text = String::new();
        for (name, value) in self.parts() {
            let _ = writeln!(text, "{name:<10}  {value}");
        }
        text
    }

    /// The command as Markdown, to stand above the table.
    pub fn command_block(self) -> String {
        let command = self.command().unwrap_or(NOT_RECORDED);
        let words = match shell_words::split(command) {
            Ok(words) => words,
            Err(_) => vec![command.to_string()],
        };
        // Lines break before an option only, never inside a quoted word.
        let mut parts: Vec<String> = Vec::new();
        for word in &words {
            let quoted = quote(word);
            match parts.last_mut() {
                Some(last) if !word.starts_with('-') => *last += &format!(" {quoted}"),
                _ => parts.push(quoted.into()),
            }
        }
        let words: Vec<&str> = parts.iter().map(String::as_str).collect();
        let lines = fill(&words, WIDTH - " \\".len(), "$ ", "      ");
        format!("```console\n{}\n```\n", lines.join(" \\\n"))
    }

    /// Everything but the command as one paragraph of Markdown, to stand below the table.
    pub fn paragraph(self) -> String {
        let commit = match self.option(COMMIT) {
            Some(commit) => format!("Commit {commit}"),
            None => format!("Commit {NOT_RECORDED}"),
        };
        let versions = self.versions().unwrap_or_else(|| NOT_RECORDED.into());
        let text = format!(
            "{commit}; {}; Linux {}; {}; {}; {versions}.",
            self.machine(),
            self.kernels(),
            self.rounds(),
            self.date()
        );
        let words: Vec<&str> = text.split(' ').collect();
        fill(&words, WIDTH, "", "").join("\n") + "\n"
    }
}

/// A word as a shell reads it back, without the quotes around `threads=4` that it does not need.
pub fn quote(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,=%+:@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => shell_words::quote(word),
    }
}

/// Breaks words into lines of at most `width` characters, unless a word alone is longer. The first
/// line begins with `first`, the others with `indent`.
pub fn fill(words: &[&str], width: usize, first: &str, indent: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = first.to_string();
    let mut is_empty = true;
    for word in words {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, indent.to_string()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values(json: Value) -> Values {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn all_shards_of_a_run_keep_the_same_command() {
        let kept = |line: &str| command_line(line.split(' ').map(str::to_string));
        let line = "/a/magpie bench --shard 2/4 --json=x --sched scx_a --html y --rounds 5";
        assert_eq!(kept(line), "magpie bench --sched scx_a --rounds 5");
        assert_eq!(
            kept(line),
            kept("magpie bench --sched scx_a --shard=1/4 --rounds 5")
        );
        let of_the_command = "magpie try -- magpie-load frames --json --clients 4";
        assert_eq!(kept(of_the_command), of_the_command);
        assert_eq!(
            kept("magpie bench callbacks --markdown --groups 2 --json x"),
            "magpie bench callbacks --groups 2"
        );
    }

    #[test]
    fn the_commit_of_this_tree_is_found() {
        let commit = commit();
        let head = commit.trim_end_matches("-dirty");
        let is_hash = head.len() == 12 && head.chars().all(|c| c.is_ascii_hexdigit());
        assert!(is_hash || commit == "unknown", "{commit}");
    }

    #[test]
    fn every_part_is_described() {
        let machine = values(
            json!({"in": "vm", "cpus": 2, "host_cpus": 4, "accelerator": "tcg",
            "machine": {"name": "vt2", "virtual_time": {"mips": 500}}}),
        );
        let options = values(json!({"rounds": 4, "commit": "0123456789ab",
            "command_line": "magpie bench --in vtime --set 'threads=4'", "versions": {"scx_a": "scx_a 1.2 x86_64"}}));
        let origin = Origin {
            machine: &machine,
            kernel: "7.2.13",
            started_unix: 1_700_000_000,
            options: &options,
        };
        assert_eq!(
            origin.describe(),
            "commit      0123456789ab\n\
             machine     vt2 (2 CPUs), in virtual time\n\
             kernel      7.2.13\n\
             command     magpie bench --in vtime --set 'threads=4'\n\
             date        2023-11-14 22:13 UTC\n\
             rounds      4 interleaved rounds\n\
             schedulers  scx_a 1.2\n"
        );
        assert_eq!(
            origin.paragraph().replace('\n', " "),
            "Commit 0123456789ab; vt2 (2 CPUs), in virtual time; Linux 7.2.13; 4 interleaved \
             rounds; 2023-11-14 22:13 UTC; scx_a 1.2. "
        );
        assert_eq!(
            origin.command_block(),
            "```console\n$ magpie bench --in vtime --set threads=4\n```\n"
        );
        let long = values(
            json!({"command_line": format!("magpie bench --sched '{}'", "a b ".repeat(22))}),
        );
        let block = Origin {
            options: &long,
            ..origin
        }
        .command_block();
        assert!(
            block.contains("bench \\\n      --sched 'a b a b"),
            "{block}"
        );
        let real = values(json!({"cpus": 8, "host_cpus": 2, "accelerator": "tcg",
            "machine": {"name": "flat8", "virtual_time": null}}));
        let beside = values(
            json!({"cpus": 8, "machine": {"name": "vt8on2", "virtual_time": {}}, "host":
            {"physical_cpus": 2, "guests": [{"machine": "vt8on2", "cpus": 8}, {"machine": "vt4", "cpus": 4}]}}),
        );
        let origin = Origin {
            machine: &beside,
            ..origin
        };
        assert!(origin.describe().contains(
            "vt8on2 (8 CPUs) beside vt4 (4 CPUs) on one host of 2 CPUs, in virtual time\n"
        ));
        let origin = Origin {
            machine: &real,
            ..origin
        };
        assert!(
            origin
                .describe()
                .contains("flat8 (8 CPUs), in real time on 2 CPUs of the host, tcg\n")
        );
    }

    #[test]
    fn a_file_of_an_older_version_says_what_it_lacks() {
        let nothing = Values::new();
        let origin = Origin {
            machine: &nothing,
            kernel: "7.2",
            started_unix: 0,
            options: &nothing,
        };
        let text = origin.describe();
        assert_eq!(text.matches(NOT_RECORDED).count(), 3, "{text}");
        assert!(text.contains("an unnamed machine") && text.contains("rounds not recorded"));
    }

    #[test]
    fn lines_are_as_wide_as_they_may_be() {
        let lines = fill(&["ab", "cd", "e", "too-long-a-word", "f"], 8, "$ ", "  ");
        assert_eq!(lines, ["$ ab cd", "  e", "  too-long-a-word", "  f"]);
    }
}
