//! Workloads as data: what to run, and how to read its result.
//!
//! The definitions are in `bench/workloads.toml`; nothing here knows any of them by name.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::stats::Better;

const BUILT_IN: &str = include_str!("../workloads.toml");

/// A program with parameters and the metrics that a run of it yields.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// The name given to `--workload`.
    pub name: String,
    /// One line for the list.
    pub about: String,
    /// The command, with `{parameter}` where a value goes.
    pub command: String,
    /// The Debian package of the program; none for one that is built here.
    #[serde(default)]
    pub package: Option<String>,
    /// Seconds after which a run has failed.
    pub timeout_s: u64,
    /// Default values of the parameters; several values of one make several cases.
    #[serde(default)]
    pub parameters: BTreeMap<String, Vec<String>>,
    /// What a run yields.
    pub metric: Vec<Metric>,
}

/// A number that a run yields.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Tells several metrics of one run apart.
    #[serde(default)]
    pub name: Option<String>,
    /// Unit of the number.
    pub unit: String,
    /// Which direction is an improvement.
    pub better: Better,
    /// The number stands behind this text in the output.
    #[serde(default)]
    pub after: Option<String>,
    /// The number stands at this JSON pointer of the last line of the output.
    #[serde(default)]
    pub json: Option<String>,
}

/// One command of a workload, all parameters filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The arguments as the report names them.
    pub label: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    workload: Vec<Workload>,
}

/// The built-in workloads, then those of `extra`, the text of a file of the same form; one of the
/// same name takes the place of a built-in one.
pub fn load(extra: Option<&str>) -> Result<Vec<Workload>> {
    let mut all = parse(BUILT_IN).context("the built-in workloads")?;
    for workload in extra.map(parse).transpose()?.unwrap_or_default() {
        all.retain(|known| known.name != workload.name);
        all.push(workload);
    }
    Ok(all)
}

fn parse(text: &str) -> Result<Vec<Workload>> {
    let file: File = toml::from_str(text)?;
    for workload in &file.workload {
        workload
            .check()
            .with_context(|| format!("workload `{}`", workload.name))?;
    }
    Ok(file.workload)
}

impl Workload {
    fn check(&self) -> Result<()> {
        if self.metric.is_empty() {
            bail!("it has no metric: nothing would be measured");
        }
        for metric in &self.metric {
            if metric.after.is_some() == metric.json.is_some() {
                bail!("each metric needs either `after` or `json`");
            }
            if self.metric.len() > 1 && metric.name.is_none() {
                bail!("of several metrics each needs a name");
            }
        }
        self.cases(&BTreeMap::new()).map(|_| ())
    }

    /// The program's name.
    pub fn program(&self) -> &str {
        self.command.split_whitespace().next().unwrap_or_default()
    }

    /// All combinations of the parameters' values; `chosen` takes precedence over the defaults, and
    /// parameters that this workload does not have are none of its business.
    pub fn cases(&self, chosen: &BTreeMap<String, Vec<String>>) -> Result<Vec<Case>> {
        let mut commands = vec![self.command.clone()];
        for (name, defaults) in &self.parameters {
            let values = chosen.get(name).unwrap_or(defaults);
            let place = format!("{{{name}}}");
            if !self.command.contains(&place) {
                bail!("parameter `{name}` does not occur in its command");
            }
            commands = commands
                .iter()
                .flat_map(|command| values.iter().map(|value| command.replace(&place, value)))
                .collect();
        }
        commands.iter().map(|command| self.case(command)).collect()
    }

    fn case(&self, command: &str) -> Result<Case> {
        if command.contains('{') {
            bail!("`{command}` has a parameter without a value");
        }
        let argv = shell_words::split(command).with_context(|| format!("split `{command}`"))?;
        // How a program is made to print its result is not part of what is measured.
        let label: Vec<&str> = argv
            .iter()
            .skip(1)
            .map(String::as_str)
            .filter(|word| *word != "--json")
            .collect();
        Ok(Case {
            label: label.join(" "),
            argv,
        })
    }
}

impl Metric {
    /// The case's label, with the metric's name where there are several.
    pub fn label(&self, case: &Case) -> String {
        match &self.name {
            Some(name) => format!("{}: {name}", case.label),
            None => case.label.clone(),
        }
    }

    /// Finds the metric in a run's output.
    ///
    /// # Errors
    /// When the number is not there; the error shows the output's end.
    pub fn read(&self, output: &str) -> Result<f64> {
        let found = match (&self.after, &self.json) {
            (Some(text), _) => output.split(text.as_str()).nth(1).and_then(first_number),
            (_, Some(pointer)) => output
                .lines()
                .rev()
                .find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
                .and_then(|value| value.pointer(pointer)?.as_f64()),
            _ => None,
        };
        let what = self
            .after
            .as_ref()
            .or(self.json.as_ref())
            .map_or("", String::as_str);
        let end: Vec<&str> = output.lines().rev().take(5).collect();
        let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
        found
            .filter(|number| number.is_finite())
            .with_context(|| format!("the output has no number at `{what}`; it ends with:\n{end}"))
    }
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str) -> Workload {
        load(None)
            .unwrap()
            .into_iter()
            .find(|w| w.name == name)
            .unwrap()
    }

    #[test]
    fn the_built_in_definitions_are_sound() {
        let all = load(None).unwrap();
        assert!(all.len() >= 5);
        for workload in &all {
            assert!(
                !workload.cases(&BTreeMap::new()).unwrap().is_empty(),
                "{}",
                workload.name
            );
        }
    }

    #[test]
    fn parameters_multiply_into_cases() {
        let chosen = BTreeMap::from([
            ("groups".into(), vec!["1".into(), "4".into()]),
            ("other".into(), vec![]),
        ]);
        let cases = find("hackbench").cases(&chosen).unwrap();
        let labels: Vec<&str> = cases.iter().map(|case| case.label.as_str()).collect();
        assert_eq!(labels, ["-g 1 -l 100", "-g 4 -l 100"]);
        assert_eq!(cases[1].argv, ["hackbench", "-g", "4", "-l", "100"]);
    }

    #[test]
    fn results_are_read_from_real_output() {
        let hackbench = "Running in process mode with 1 groups using 40 file descriptors each (== 40 tasks)\n\
                         Each sender will pass 100 messages of 100 bytes\nTime: 0.374\n";
        assert_eq!(find("hackbench").metric[0].read(hackbench).unwrap(), 0.374);
        let perf = "# Running 'sched/pipe' benchmark:\n# Executed 10000 pipe operations between two processes\n\n     \
                    Total time: 0.103 [sec]\n\n      10.345000 usecs/op\n          96665 ops/sec\n";
        assert_eq!(find("perf-pipe").metric[0].read(perf).unwrap(), 0.103);
        let latency = "{\"requests_per_s\":10.5,\"wakeup_us\":{\"p50\":7.25,\"p99\":9.0},\"request_us\":{\"p99\":11.0}}\n";
        let metrics = find("latency").metric;
        assert_eq!(metrics[0].read(latency).unwrap(), 7.25);
        assert_eq!(metrics[3].read(latency).unwrap(), 10.5);
        let case = &find("latency").cases(&BTreeMap::new()).unwrap()[0];
        assert_eq!(
            metrics[0].label(case),
            "latency --message-threads 1 --threads 2 --seconds 2: wakeup p50"
        );
    }

    #[test]
    fn output_without_a_result_is_an_error_that_shows_it() {
        let error = find("hackbench").metric[0]
            .read("fork: Cannot allocate memory")
            .unwrap_err();
        assert!(
            error.to_string().contains("Cannot allocate memory"),
            "{error}"
        );
        // JSON null, as `spread` prints when it never happened.
        assert!(
            find("spread").metric[0]
                .read("{\"spread_ms\":null}")
                .is_err()
        );
    }

    #[test]
    fn wrong_definitions_are_refused() {
        let with = |body: &str| {
            load(Some(&format!(
                "[[workload]]\nname='x'\nabout=''\ntimeout_s=1\n{body}"
            )))
        };
        assert!(with("command='x'\nmetric=[]").is_err());
        assert!(with("command='x {n}'\nmetric=[{unit='s',better='lower',after='T'}]").is_err());
        assert!(with("command='x'\nmetric=[{unit='s',better='lower'}]").is_err());
        assert!(with("command='x'\nmetric=[{unit='s',better='lower',after='T'}]\nmore=1").is_err());
        assert!(with("command='x'\nmetric=[{unit='s',better='lower',after='T'}]").is_ok());
    }
}
