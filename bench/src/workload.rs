//! Workloads as data: which command to run, and how to read its result.
//!
//! The definitions are in `bench/workloads.toml`; no code knows a workload by name.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::report::Curve;
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
    /// How the report names a case, with `{parameter}` where a value goes; the arguments if absent.
    #[serde(default)]
    pub label: Option<String>,
    /// A command that makes the workload's input; it runs once and is not measured.
    #[serde(default)]
    pub prepare: Option<String>,
    /// The Debian packages of the programs, separated by spaces; none for `magpie-load`.
    #[serde(default)]
    pub package: Option<String>,
    /// The programs that it needs, if they are not the command's first word (`sh -c`).
    #[serde(default)]
    pub needs: Vec<String>,
    /// Seconds after which a run has failed.
    pub timeout_s: u64,
    /// Default values of the parameters; several values of one make several cases. `50%` is half of
    /// the machine's CPUs.
    #[serde(default)]
    pub parameters: BTreeMap<String, Vec<String>>,
    /// The numbers that a run yields.
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
    /// The number is the first one behind this text in the output.
    #[serde(default)]
    pub after: Option<String>,
    /// The number is at this JSON pointer of the output's last line, or of the whole output.
    #[serde(default)]
    pub json: Option<String>,
    /// The metric is the time of the run, for programs that do not print it.
    #[serde(default)]
    pub time: bool,
    /// The JSON pointer of all percentiles, if the metric is one of them; see [`Curve`].
    #[serde(default)]
    pub curve: Option<String>,
}

/// One command of a workload, all parameters filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The arguments as the report names them.
    pub label: String,
    /// The command that makes its input; empty if it needs none.
    pub prepare: Vec<String>,
}

/// Chosen values of parameters, by name.
pub type Parameters = BTreeMap<String, Vec<String>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    workload: Vec<Workload>,
}

/// The built-in workloads, then those of `extra`, the text of a file of the same form. A workload
/// of `extra` replaces a built-in one of the same name.
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
    /// Refuses a definition whose runs would yield no figure, or an ambiguous one.
    fn check(&self) -> Result<()> {
        if self.metric.is_empty() {
            bail!("it has no metric: nothing would be measured");
        }
        for metric in &self.metric {
            let ways = [metric.after.is_some(), metric.json.is_some(), metric.time];
            if ways.iter().filter(|way| **way).count() != 1 {
                bail!("each metric needs one of `after`, `json` and `time = true`");
            }
            if self.metric.len() > 1 && metric.name.is_none() {
                bail!("of several metrics each needs a name");
            }
        }
        self.cases(&Parameters::new(), 1).map(|_| ())
    }

    /// The program's name.
    pub fn program(&self) -> &str {
        self.command.split_whitespace().next().unwrap_or_default()
    }

    /// The names of all programs that the workload needs.
    pub fn programs(&self) -> Vec<&str> {
        match self.needs.is_empty() {
            true => vec![self.program()],
            false => self.needs.iter().map(String::as_str).collect(),
        }
    }

    /// The Debian packages of the programs.
    pub fn packages(&self) -> impl Iterator<Item = &str> {
        self.package.iter().flat_map(|text| text.split_whitespace())
    }

    /// One case for each combination of the parameters' values, on a machine of `cpus` CPUs.
    /// `chosen` overrides the defaults; parameters of other workloads in it are ignored. Values
    /// that mean the same, such as 50 % and 60 % of two CPUs, are one case.
    pub fn cases(&self, chosen: &Parameters, cpus: u32) -> Result<Vec<Case>> {
        let mut combinations: Vec<Vec<(&str, String)>> = vec![Vec::new()];
        for (name, defaults) in &self.parameters {
            if !self.command.contains(&place(name)) {
                bail!("parameter `{name}` does not occur in its command");
            }
            let values: Vec<String> = chosen
                .get(name)
                .unwrap_or(defaults)
                .iter()
                .map(|value| of_cpus(value, cpus))
                .collect::<Result<_>>()?;
            combinations = combinations
                .iter()
                .flat_map(|before| {
                    values.iter().map(|value| {
                        let mut all = before.clone();
                        all.push((name, value.clone()));
                        all
                    })
                })
                .collect();
        }
        let mut cases: Vec<Case> = Vec::new();
        for values in &combinations {
            let case = self.case(values)?;
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        Ok(cases)
    }

    /// Fills values into the commands and the label.
    fn case(&self, values: &[(&str, String)]) -> Result<Case> {
        let fill = |text: &str| -> Result<String> {
            let filled = values.iter().fold(text.to_string(), |text, (name, value)| {
                text.replace(&place(name), value)
            });
            if filled
                .replace(FOLDER, "")
                .replace(CANDIDATE, "")
                .contains('{')
            {
                bail!("`{filled}` has a parameter without a value");
            }
            Ok(filled)
        };
        let split =
            |text: &str| shell_words::split(text).with_context(|| format!("split `{text}`"));
        let argv = split(&fill(&self.command)?)?;
        let label = match &self.label {
            Some(label) => fill(label)?,
            // `--json` says how the program prints its result, not what is measured.
            None => {
                let words = argv.iter().skip(1).map(String::as_str);
                let words: Vec<&str> = words.filter(|word| *word != "--json").collect();
                words.join(" ")
            }
        };
        let prepare = self.prepare.as_deref().unwrap_or_default();
        ensure!(
            !prepare.contains(CANDIDATE),
            "`{prepare}` has {CANDIDATE}, but the input is made once for all candidates"
        );
        Ok(Case {
            label,
            argv,
            prepare: split(&fill(prepare)?)?,
        })
    }
}

/// Stands in commands for a folder that the workload may write to.
pub const FOLDER: &str = "{folder}";

/// Stands in a command for the name of the candidate whose turn it is.
pub const CANDIDATE: &str = "{candidate}";

impl Case {
    /// The command under a candidate.
    pub fn argv_of(&self, candidate: &str) -> Vec<String> {
        let words = self.argv.iter();
        words
            .map(|word| word.replace(CANDIDATE, candidate))
            .collect()
    }

    /// Replaces [`FOLDER`] in the commands by a real folder.
    pub fn set_folder(&mut self, folder: &str) {
        for word in self.argv.iter_mut().chain(&mut self.prepare) {
            *word = word.replace(FOLDER, folder);
        }
    }
}

/// The text that stands in a command for a parameter.
fn place(name: &str) -> String {
    format!("{{{name}}}")
}

/// Turns `50%` into a number of CPUs, at least one; returns any other value as it is.
fn of_cpus(value: &str, cpus: u32) -> Result<String> {
    let Some(percent) = value.strip_suffix('%') else {
        return Ok(value.to_string());
    };
    let share: f64 = percent
        .parse()
        .with_context(|| format!("`{value}` is no share of the CPUs, such as 50%"))?;
    Ok(((f64::from(cpus) * share / 100.0).round().max(1.0) as u64).to_string())
}

impl Metric {
    /// The case's label, with the metric's name if the workload has several metrics.
    pub fn label(&self, case: &Case) -> String {
        match &self.name {
            Some(name) => format!("{}: {name}", case.label),
            None => case.label.clone(),
        }
    }

    /// Finds the metric in the output of a run that took `seconds`.
    ///
    /// # Errors
    /// If the number is not there, or is a rate of zero. A run that was too short to finish
    /// anything has such a rate, and a comparison would take it for a result. The error shows the
    /// output's end.
    pub fn read(&self, output: &str, seconds: f64) -> Result<f64> {
        let found = match (&self.after, &self.json) {
            (Some(text), _) => output.split(text.as_str()).nth(1).and_then(first_number),
            (_, Some(pointer)) => json_in(output).and_then(|json| json.pointer(pointer)?.as_f64()),
            _ => Some(seconds),
        };
        let what = self
            .after
            .as_ref()
            .or(self.json.as_ref())
            .map_or("", String::as_str);
        let end: Vec<&str> = output.lines().rev().take(5).collect();
        let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
        let number = found.filter(|number| number.is_finite()).with_context(|| {
            format!("the output has no number at `{what}`; it ends with:\n{end}")
        })?;
        ensure!(
            self.better == Better::Lower || number > 0.0,
            "a result of {number} {}: the run was too short to finish anything, or failed; its \
             output ends with:\n{end}",
            self.unit
        );
        Ok(number)
    }

    /// Finds the percentiles in a run's output; None if the metric has no curve.
    ///
    /// # Errors
    /// If it has one, and they are not there.
    pub fn read_curve(&self, output: &str) -> Result<Option<Curve>> {
        let Some(pointer) = &self.curve else {
            return Ok(None);
        };
        let curve = json_in(output)
            .and_then(|json| serde_json::from_value(json.pointer(pointer)?.clone()).ok())
            .with_context(|| format!("the output has no list of percentiles at `{pointer}`"))?;
        Ok(Some(curve))
    }
}

/// The last line that is a JSON object, else the object that begins at the first brace.
fn json_in(output: &str) -> Option<serde_json::Value> {
    output
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
        .filter(serde_json::Value::is_object)
        .or_else(|| serde_json::from_str(&output[output.find('{')?..]).ok())
}

/// The number at the beginning of a text, whatever follows it: 1.5 in `1.5s`, 12 in `12.0",`.
fn first_number(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let is_part = |c: char| c.is_ascii_digit() || ".+-eE".contains(c);
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    (1..=end).rev().find_map(|end| text[..end].parse().ok())
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
                !workload.cases(&Parameters::new(), 4).unwrap().is_empty(),
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
        let cases = find("hackbench").cases(&chosen, 2).unwrap();
        let labels: Vec<&str> = cases.iter().map(|case| case.label.as_str()).collect();
        assert_eq!(labels, ["-g 1 -l 100", "-g 4 -l 100"]);
        assert_eq!(cases[1].argv, ["hackbench", "-g", "4", "-l", "100"]);
    }

    #[test]
    fn results_are_read_from_real_output() {
        let hackbench = "Running in process mode with 1 groups using 40 file descriptors each (== 40 tasks)\n\
                         Each sender will pass 100 messages of 100 bytes\nTime: 0.374\n";
        assert_eq!(
            find("hackbench").metric[0].read(hackbench, 9.0).unwrap(),
            0.374
        );
        let perf = "# Running 'sched/pipe' benchmark:\n# Executed 10000 pipe operations between two processes\n\n     \
                    Total time: 0.103 [sec]\n\n      10.345000 usecs/op\n          96665 ops/sec\n";
        assert_eq!(find("perf-pipe").metric[0].read(perf, 9.0).unwrap(), 0.103);
        let latency = "{\"requests_per_s\":10.5,\"wakeup_us\":{\"p50\":7.25,\"p99\":9.0},\"request_us\":{\"p99\":11.0},\"answer_us\":{\"p50\":8.5,\"p99\":12.0}}\n";
        let metrics = find("latency").metric;
        assert_eq!(metrics[0].read(latency, 9.0).unwrap(), 7.25);
        assert_eq!(metrics[3].read(latency, 9.0).unwrap(), 8.5);
        assert_eq!(metrics[5].read(latency, 9.0).unwrap(), 10.5);
        let case = &find("latency").cases(&Parameters::new(), 2).unwrap()[0];
        assert_eq!(
            metrics[0].label(case),
            "latency --message-threads 1 --threads 2 --seconds 2: wakeup p50"
        );
    }

    #[test]
    fn output_without_a_result_is_an_error_that_shows_it() {
        let error = find("hackbench").metric[0]
            .read("fork: Cannot allocate memory", 9.0)
            .unwrap_err();
        assert!(
            error.to_string().contains("Cannot allocate memory"),
            "{error}"
        );
        // JSON null, as `spread` prints when it never happened.
        assert!(
            find("spread").metric[0]
                .read("{\"spread_ms\":null}", 9.0)
                .is_err()
        );
    }

    #[test]
    fn real_programs_say_their_results_in_their_own_ways() {
        let x265 = "encoded 60 frames in 1.35s (44.44 fps), 312.48 kb/s, Avg QP:33.05\n";
        assert_eq!(find("x265").metric[0].read(x265, 9.0).unwrap(), 1.35);
        let redis = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"41666.67\",\"0.6\"\n";
        assert_eq!(find("redis").metric[0].read(redis, 9.0).unwrap(), 41666.67);
        let iperf3 = "{\n  \"end\": {\n \"sum_received\": { \"bits_per_second\": 2.5e9 }\n}\n}\n";
        assert_eq!(find("iperf3").metric[0].read(iperf3, 9.0).unwrap(), 2.5e9);
        let tbench = |rate| format!("Throughput {rate} MB/sec  4 clients  4 procs");
        let read = |rate| find("tbench").metric[0].read(&tbench(rate), 9.0);
        assert_eq!(read("12.5").unwrap(), 12.5);
        assert!(read("0").unwrap_err().to_string().contains("too short"));
        // SQLite's shell says nothing: its time is that of the run.
        assert_eq!(find("sqlite").metric[0].read("", 1.25).unwrap(), 1.25);
    }

    #[test]
    fn a_share_of_the_cpus_becomes_a_number_of_threads() {
        let chosen = Parameters::from([(
            "threads".into(),
            vec!["31.25%".into(), "50%".into(), "60%".into()],
        )]);
        let labels = |cpus| -> Vec<String> {
            let cases = find("primesieve").cases(&chosen, cpus).unwrap();
            cases.into_iter().map(|case| case.label).collect()
        };
        assert_eq!(labels(64), ["20 threads", "32 threads", "38 threads"]);
        assert_eq!(labels(2), ["1 threads"]);
        assert!(of_cpus("half%", 2).is_err());
    }

    #[test]
    fn numbers_end_where_they_end() {
        assert_eq!(first_number(" 1.5s"), Some(1.5));
        assert_eq!(first_number("12e3 x"), Some(12e3));
        assert_eq!(first_number("-"), None);
        assert_eq!(first_number(""), None);
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
        let both = "command='x'\nmetric=[{unit='s',better='lower',after='T',time=true}]";
        assert!(with(both).is_err());
        assert!(with("command='x'\nmetric=[{unit='s',better='lower',after='T'}]\nmore=1").is_err());
        assert!(with("command='x'\nmetric=[{unit='s',better='lower',after='T'}]").is_ok());
    }
}
