//! A report for a mailing list: plain text, 72 columns, in the form of the tables that are posted
//! to the kernel's scheduler list.
//!
//! ```text
//!  ==================================================================
//!  Test          : hackbench
//!  Units         : s, normalized to eevdf
//!  Interpretation: lower is better
//!  Statistic     : arithmetic mean
//!  ==================================================================
//!  Case:                 average  norm. [pct imp](   CV)
//!  -g 1 -l 100
//!    eevdf                0.3740   1.00 [  -0.00]( 5.58)
//!    scx_magpie           0.3474   0.93 [   7.10]( 2.11)
//! ```
//!
//! The list's tables have a column per kernel, which leaves 72 columns room for two. Here each
//! candidate has a line, so that any number fits. A reader's quote marks ("> ") still fit into 80.

use std::fmt::Write as _;

use crate::provenance::{COMMAND, Origin, fill, quote};
use crate::report::{Report, Row};
use crate::stats::{Average, Better, variation_percent};
use crate::table::significant;
use crate::verdicts::Verdicts;

/// No line is longer, in characters.
pub const WIDTH: usize = 72;

const RULE: &str = "==================================================================";

/// Width of the average.
const AVERAGE: usize = 10;

/// Names of candidates up to this length stand on the line of their figures, longer ones above it.
const NAME: usize = 20;

const LEGEND: &str = "\
norm.: the average normalized to the baseline; pct imp: the improvement
in percent, positive is better; CV: the coefficient of variation in
percent. The difference is real unless a mark says otherwise:
";
const FIXED: &str = "\
  same    the test finds no difference (two-sided Mann-Whitney U test,
          p >= 0.05)
  few     too few rounds to tell (at least 4 are needed)
";
const UNTIL_SURE: &str = "\
  same    the difference is known to be smaller than the margin of
          --until-sure (always-valid rank test, p < 0.05)
  unsure  not decided within the rounds
";
const MARKS: &str = "\
  mixed   most samples differ one way, the average the other, because
          of outliers
  weak    different by its own test, but not as one of so many rows
          (Benjamini-Hochberg, false discovery rate 0.05)
";

/// The mail's text. No line is longer than [`WIDTH`].
pub fn render(report: &Report) -> String {
    let mut text = head(report.origin());
    if !report.complete {
        text += "\nThis run did not end, or the file does not say that it did: samples\n\
                 may be missing.\n";
    }
    let verdicts = Verdicts::of(report);
    for block in blocks(report) {
        text.push('\n');
        block.write(report, &verdicts, &mut text);
    }
    if report.results.is_empty() {
        return text + "\nThe file has no results.\n";
    }
    text.push('\n');
    text += LEGEND;
    text += match report.until_sure() {
        Some(_) => UNTIL_SURE,
        None => FIXED,
    };
    text += MARKS;
    text.push('\n');
    text += &summary(report, &verdicts);
    text += &failures(report);
    text
}

/// Returns what the figures depend on: machine, kernel, versions and command.
fn head(origin: Origin) -> String {
    let mut text = String::new();
    for (name, value) in origin.parts() {
        if name != COMMAND {
            write_filled(&mut text, &value, &format!("{name:<10}  "), "            ");
        }
    }
    if let Some(Ok(words)) = origin.command().map(shell_words::split) {
        text += "\nMeasured with:\n\n";
        text += &shell_lines(&words);
    }
    text
}

/// A command in lines that a shell reads back as these words. Lines break before an option, between
/// words if option and value are too long together, and inside a word if it alone is longer.
fn shell_lines(words: &[String]) -> String {
    const INDENT: &str = "      ";
    // A line that goes on ends in " \", or within a word in "\".
    const ROOM: usize = WIDTH - 2;
    let length = |text: &str| text.chars().count();
    let mut parts: Vec<Vec<&str>> = Vec::new();
    for word in words {
        match parts.last_mut() {
            Some(part) if !word.starts_with('-') => part.push(word),
            _ => parts.push(vec![word]),
        }
    }
    let (mut text, mut line) = (String::new(), "  $".to_string());
    let mut end = |line: &mut String, mark: &str, next: String| {
        text += &format!("{}{mark}\n", std::mem::replace(line, next));
    };
    for part in parts {
        let quoted: Vec<_> = part.iter().map(|word| quote(word)).collect();
        let whole = quoted.join(" ");
        if length(&line) + 1 + length(&whole) <= ROOM {
            line += &format!(" {whole}");
            continue;
        }
        if INDENT.len() + length(&whole) <= ROOM {
            end(&mut line, " \\", format!("{INDENT}{whole}"));
            continue;
        }
        for (word, quoted) in part.iter().zip(&quoted) {
            if length(&line) + 1 + length(quoted) <= ROOM {
                line += &format!(" {quoted}");
            } else if INDENT.len() + length(quoted) <= ROOM {
                end(&mut line, " \\", format!("{INDENT}{quoted}"));
            } else {
                // The pieces begin in the first column, because they would be words otherwise.
                let (mut mark, mut rest) = (" \\", *word);
                while !rest.is_empty() {
                    let (piece, others) = rest.split_at(piece_end(rest, ROOM));
                    end(&mut line, mark, shell_words::quote(piece).into_owned());
                    (mark, rest) = ("\\", others);
                }
            }
        }
    }
    end(&mut line, "", String::new());
    text
}

/// Where to break a word so that its first piece, quoted, has at most `room` characters: behind a
/// comma if one is there.
fn piece_end(word: &str, room: usize) -> usize {
    let ends = word.char_indices().map(|(at, c)| at + c.len_utf8());
    let fits = |end: &usize| shell_words::quote(&word[..*end]).chars().count() <= room;
    let fitting: Vec<usize> = ends.take_while(fits).collect();
    let last = fitting.last().copied().unwrap_or(word.len());
    let behind_comma = |end: &&usize| **end == word.len() || word[..**end].ends_with(',');
    fitting
        .iter()
        .rev()
        .find(behind_comma)
        .copied()
        .unwrap_or(last)
}

/// The cases of a workload that have the same unit and direction, and so one head.
struct Block<'a> {
    workload: &'a str,
    unit: &'a str,
    better: Better,
    tests: Vec<(&'a str, &'a str)>,
}

/// Groups the rows of each workload by unit and direction, because one head states both. Keeps their
/// order.
fn blocks(report: &Report) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block> = Vec::new();
    for test in report.tests() {
        let Some(row) = report.results.iter().find(|row| row.test() == test) else {
            continue;
        };
        let is_alike = |block: &&mut Block| {
            (block.workload, block.unit, block.better) == (test.0, row.unit.as_str(), row.better)
        };
        match blocks.iter_mut().find(is_alike) {
            Some(block) => block.tests.push(test),
            None => blocks.push(Block {
                workload: test.0,
                unit: &row.unit,
                better: row.better,
                tests: vec![test],
            }),
        }
    }
    blocks
}

impl Block<'_> {
    /// Writes the head, and for each case a line with the figures of each candidate.
    fn write(&self, report: &Report, verdicts: &Verdicts, text: &mut String) {
        let direction = match self.better {
            Better::Lower => "lower is better",
            Better::Higher => "higher is better",
        };
        let statistic = match Average::for_unit(self.unit) {
            Average::Arithmetic => "arithmetic mean",
            Average::Harmonic => "harmonic mean",
        };
        let _ = writeln!(text, "{RULE}");
        for (name, value) in [
            ("Test", self.workload),
            (
                "Units",
                &format!("{}, normalized to {}", self.unit, report.normalized_to()),
            ),
            ("Interpretation", direction),
            ("Statistic", statistic),
        ] {
            write_filled(text, value, &format!("{name:<14}: "), "                ");
        }
        let _ = writeln!(text, "{RULE}");
        let head = "norm. [pct imp](   CV)";
        let _ = writeln!(
            text,
            "{:<NAME$}    {:>AVERAGE$}  {head}",
            "Case:", "average"
        );
        for test in &self.tests {
            write_filled(text, test.1, "", "    ");
            for scheduler in report.schedulers() {
                if let Some(row) = report.row(*test, scheduler) {
                    write_row(row, &figures(report, verdicts, row), text);
                }
            }
        }
    }
}

/// Writes the line of a candidate. Its name stands above the figures if both together are too long,
/// and figures that alone are too long are wrapped.
fn write_row(row: &Row, figures: &str, text: &mut String) {
    let name = &row.scheduler;
    let line = format!("  {name:<NAME$}  {figures}");
    if name.chars().count() <= NAME && line.chars().count() <= WIDTH {
        let _ = writeln!(text, "{line}");
        return;
    }
    write_filled(text, name, "  ", "      ");
    let line = format!("  {:<NAME$}  {figures}", "");
    match line.chars().count() <= WIDTH {
        true => text.push_str(&(line + "\n")),
        false => write_filled(text, figures, "    ", "    "),
    }
}

/// Returns the figures of a row: average, normalized average, improvement, variation and mark;
/// `FAILED`, or `-` without samples. The average stands alone if the baseline has no samples to
/// compare with.
fn figures(report: &Report, verdicts: &Verdicts, row: &Row) -> String {
    if row.failed.is_some() {
        return format!("{:>AVERAGE$}", "FAILED");
    }
    if row.samples.is_empty() {
        return format!("{:>AVERAGE$}", "-");
    }
    let average = significant(Average::for_unit(&row.unit).of(&row.samples));
    let (normalized, improvement, mark) = match verdicts.get(report, row) {
        Some((relation, judged)) => (relation.normalized, relation.improvement, judged.mark()),
        // The list prints the baseline's own improvement as -0.00.
        None if report.is_baseline(row) => (1.0, -0.0, ""),
        None => return format!("{average:>AVERAGE$}"),
    };
    format!(
        "{average:>AVERAGE$}  {normalized:>5.2} [{improvement:>7.2}]({:>5.2}){mark}",
        variation_percent(&row.samples),
    )
}

/// Counts the verdicts of each candidate, and how many differences stay real if they are seen as
/// those of so many rows.
fn summary(report: &Report, verdicts: &Verdicts) -> String {
    let tests = report.tests().len();
    let mut text = String::new();
    for scheduler in report.compared() {
        let tally = verdicts.tally(report, scheduler);
        let mut line = format!(
            "{scheduler}: better in {} of {tests} tests, worse in {}, no real difference in {}",
            tally.better, tally.worse, tally.undecided
        );
        if tally.missing > 0 {
            let _ = write!(line, ", without a result in {}", tally.missing);
        }
        write_filled(&mut text, &line, "", "    ");
    }
    let (tested, different, corrected) = verdicts.count();
    if tested > 1 {
        let line = format!(
            "{different} of {tested} rows differ by their own tests, {corrected} after the \
             correction for their number."
        );
        write_filled(&mut text, &line, "", "    ");
    }
    text
}

/// Writes the failures that the report lists: workload, candidate and reason.
fn failures(report: &Report) -> String {
    let mut text = String::new();
    for (row, why) in report.failures() {
        let _ = writeln!(text, "\nFAILED:");
        write_filled(
            &mut text,
            &format!("{} under {}", row.workload, row.scheduler),
            "  ",
            "    ",
        );
        for line in why.lines() {
            write_filled(&mut text, line, "    ", "      ");
        }
    }
    text
}

/// Writes words in lines of at most [`WIDTH`] characters, and breaks a word that is longer than a
/// line.
fn write_filled(text: &mut String, words: &str, first: &str, indent: &str) {
    let room = WIDTH - indent.len().max(first.len());
    let pieces = words.split_whitespace().flat_map(|word| pieces(word, room));
    let pieces: Vec<String> = pieces.collect();
    let words: Vec<&str> = pieces.iter().map(String::as_str).collect();
    for line in fill(&words, WIDTH, first, indent) {
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// The word in pieces of at most `length` characters.
fn pieces(word: &str, length: usize) -> Vec<String> {
    let characters: Vec<char> = word.chars().collect();
    let pieces = characters.chunks(length);
    pieces.map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::report::tests::report_of;

    const BASE: &[f64] = &[1.00, 1.02, 0.98, 1.01, 0.99];

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap()
    }

    #[test]
    fn a_mail_has_machine_command_table_and_verdicts() {
        let mut report = report_of(&[
            ("eevdf", BASE),
            ("scx_magpie", &[0.90, 0.91, 0.89, 0.90, 0.90]),
            ("scx_b", &[1.01, 1.02, 0.99, 1.03, 0.97]),
            ("scx_c", &[]),
        ]);
        report.results[3].failed = Some("runnable task stall\nwatchdog".into());
        report.options = [
            (
                "command_line",
                json!("magpie bench --sched 'scx_magpie, scx_b' --rounds 5"),
            ),
            ("rounds", json!(5)),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into();
        let text = render(&report);
        for line in [
            "kernel      7.2.12-test",
            "  $ magpie bench --sched 'scx_magpie, scx_b' --rounds 5",
            "Test          : hackbench",
            "Units         : s, normalized to eevdf",
            "Interpretation: lower is better",
            "Statistic     : arithmetic mean",
            "-g 1",
            "  eevdf                      1.000   1.00 [  -0.00]( 1.58)",
            "  scx_magpie                0.9000   0.90 [  10.00]( 0.79)",
            "  scx_b                      1.004   1.00 [  -0.40]( 2.40) same",
            "  scx_c                     FAILED",
            "scx_magpie: better in 1 of 1 tests, worse in 0, no real difference in 0",
            "scx_b: better in 0 of 1 tests, worse in 0, no real difference in 1",
            "    watchdog",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "no line `{line}` in\n{text}"
            );
        }
        assert!(widest(&text) <= WIDTH, "{text}");
    }

    #[test]
    fn rates_have_a_head_of_their_own() {
        let mut report = report_of(&[("eevdf", BASE), ("eevdf", BASE)]);
        report.results[1].case = "-g 1: throughput".into();
        report.results[1].unit = "requests/s".into();
        report.results[1].better = Better::Higher;
        let text = render(&report);
        assert_eq!(
            text.matches("Test          : hackbench").count(),
            2,
            "{text}"
        );
        assert!(
            text.contains("higher is better\nStatistic     : harmonic mean"),
            "{text}"
        );
    }

    #[test]
    fn an_empty_or_unfinished_file_says_so() {
        let mut report = report_of(&[]);
        assert!(render(&report).contains("no results"));
        report.complete = false;
        assert!(render(&report).contains("did not end"));
    }

    #[test]
    fn long_commands_break_where_a_shell_joins_them() {
        let list = "scx_magpie --no-steal,".repeat(9);
        let words = ["magpie", "bench", "--sched", &list, "--json", "x"].map(String::from);
        let text = shell_lines(&words);
        assert!(widest(&text) <= WIDTH, "{text}");
        assert!(text.contains("--no-steal,'\\\n'scx_magpie"), "{text}");
        let read = shell_words::split(text.trim_start_matches("  $"));
        assert_eq!(read.unwrap(), words);
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_a_mail(
            names in prop::collection::vec("[a-z{}@=, _-]{1,120}", 1..4),
            case in "[ -~]{0,200}",
            why in "[ -~\n]{0,300}",
            scale in -12_i32..12,
            words in prop::collection::vec("[ -~]{0,150}", 1..8),
        ) {
            let samples: Vec<f64> = BASE.iter().map(|s| s * 10_f64.powi(scale)).collect();
            let mut rows: Vec<(&str, &[f64])> = vec![("eevdf", BASE)];
            rows.extend(names.iter().map(|name| (name.as_str(), samples.as_slice())));
            let mut report = report_of(&rows);
            report.results.iter_mut().for_each(|row| row.case.clone_from(&case));
            report.results.last_mut().unwrap().failed = Some(why);
            report.options.insert("command_line".into(), shell_words::join(&words).into());
            let text = render(&report);
            prop_assert!(widest(&text) <= WIDTH, "{}", text);
            let lines = shell_lines(&words);
            let read = shell_words::split(lines.trim_start_matches("  $")).unwrap();
            prop_assert_eq!(read, words);
        }
    }
}
