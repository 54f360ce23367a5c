//! The verdict on the run of a seed, from the output of its guest.

use serde::{Deserialize, Serialize};

use crate::vtime::snapshot::{End, Run};

/// Begins the lines of the harness that are for this module: `fuzz: RESULT`.
const MARK: &str = "fuzz: ";

/// The verdict on the run of a seed. All but [`Verdict::Holds`] are violations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing.
    Holds,
    /// A runnable task waited beside an idle CPU for longer than a tick.
    Stranded,
    /// The kernel warned, or found a fault.
    Warning,
    /// The kernel ended the scheduler, as its watchdog does, or the scheduler ended by itself.
    Exit,
    /// The run did not end, or the kernel panicked.
    Hang,
    /// The scenario itself failed.
    Failed,
}

impl Verdict {
    /// Judges a run.
    pub fn of(run: &Run) -> Verdict {
        if run.end != End::Mark {
            return Verdict::Hang;
        }
        let said = |result: &str| {
            run.console
                .lines()
                .any(|line| line == format!("{MARK}{result}"))
        };
        // The worst first: a warning explains a scheduler's exit, and that a scenario's failure.
        let results = [
            ("warning", Verdict::Warning),
            ("exit", Verdict::Exit),
            ("stranded", Verdict::Stranded),
            ("failed", Verdict::Failed),
            ("holds", Verdict::Holds),
        ];
        results
            .into_iter()
            .find(|(result, _)| said(result))
            .map_or(Verdict::Failed, |(_, verdict)| verdict)
    }

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Holds => "nothing found",
            Verdict::Stranded => "a task was stranded beside an idle CPU",
            Verdict::Warning => "the kernel warned",
            Verdict::Exit => "the scheduler did not stay loaded",
            Verdict::Hang => "the run did not end",
            Verdict::Failed => "the scenario failed",
        }
    }
}

/// The guest's output, without the lines for this module and without empty ones.
pub fn report(console: &str) -> String {
    console
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty() && !line.starts_with(MARK))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::{Verdict, report};
    use crate::vtime::snapshot::{End, Run};

    fn verdict(end: End, console: &str) -> Verdict {
        Verdict::of(&Run {
            end,
            console: console.into(),
            fidelity: None,
        })
    }

    #[test]
    fn the_worst_result_counts() {
        let console = "scx_magpie: 0.1 s watched\nfuzz: stranded\nfuzz: exit\n";
        assert_eq!(verdict(End::Mark, console), Verdict::Exit);
        assert_eq!(verdict(End::Mark, "fuzz: holds\n"), Verdict::Holds);
        assert_eq!(report(console), "scx_magpie: 0.1 s watched");
    }

    #[test]
    fn a_run_that_says_nothing_is_no_success() {
        assert_eq!(verdict(End::Mark, ""), Verdict::Failed);
        assert_eq!(verdict(End::Limit, "fuzz: holds\n"), Verdict::Hang);
        assert_eq!(verdict(End::Exit(0), "fuzz: holds\n"), Verdict::Hang);
    }
}
