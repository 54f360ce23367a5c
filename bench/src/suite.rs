//! Suites: lists of workloads, with their sizes and machines, that answer one question.
//!
//! Each is a file of `bench/suites/`, so that a new one needs no code but its line in the list
//! below. `--suite FILE.toml` names a suite of one's own in the same form.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::workload::Parameters;

const BUILT_IN: [&str; 7] = [
    include_str!("../suites/steal.toml"),
    include_str!("../suites/wakeup.toml"),
    include_str!("../suites/push.toml"),
    include_str!("../suites/preferred.toml"),
    include_str!("../suites/latency.toml"),
    include_str!("../suites/fairness.toml"),
    include_str!("../suites/feel.toml"),
];

/// The places where a suite can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Where {
    /// A guest of the lab: works on any host, and does not change it
    Vm,
    /// This host: needs root, and a kernel with sched_ext
    Host,
    /// A guest in virtual time: many CPUs on any host
    Vtime,
}

impl Where {
    fn name(self) -> &'static str {
        match self {
            Where::Vm => "vm",
            Where::Host => "host",
            Where::Vtime => "vtime",
        }
    }
}

/// A suite as its file defines it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The name given to `--suite`.
    pub name: String,
    /// One line for the list.
    pub about: String,
    /// The published table, a file of `reference/`.
    #[serde(default)]
    pub reference: Option<String>,
    /// The published table's names of our workloads, where they differ.
    #[serde(default)]
    pub published: BTreeMap<String, String>,
    /// The guest's machine, by place. The suite does not run in a guest place that is not named.
    pub machine: BTreeMap<Where, String>,
    /// The workloads.
    pub run: Vec<Run>,
}

/// A workload of a suite, in certain sizes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The workload's name.
    pub workload: String,
    /// Values of its parameters, one case for each.
    #[serde(default)]
    pub set: Parameters,
    /// Other values in virtual time, where one second of many CPUs takes minutes.
    #[serde(default)]
    pub vtime: Parameters,
    /// The places where its result means something; all if empty.
    #[serde(default)]
    pub only: Vec<Where>,
}

impl Run {
    /// The parameters at a place.
    pub fn parameters(&self, place: Where) -> Parameters {
        let mut parameters = self.set.clone();
        if place == Where::Vtime {
            parameters.extend(self.vtime.clone());
        }
        parameters
    }
}

impl Definition {
    /// The workloads of the suite at a place.
    pub fn runs(&self, place: Where) -> impl Iterator<Item = &Run> {
        self.run
            .iter()
            .filter(move |run| run.only.is_empty() || run.only.contains(&place))
    }
}

/// All built-in suites.
pub fn built_in() -> Result<Vec<Definition>> {
    BUILT_IN
        .iter()
        .map(|text| toml::from_str(text).context("a built-in suite"))
        .collect()
}

/// Finds suites by name, or by the path of a file that ends in `.toml`.
pub fn find(names: &[String]) -> Result<Vec<Definition>> {
    let known = built_in()?;
    let mut found: Vec<Definition> = Vec::new();
    for name in names {
        let suite = if name.ends_with(".toml") {
            read(Path::new(name))?
        } else if let Some(suite) = known.iter().find(|suite| suite.name == *name) {
            suite.clone()
        } else {
            let names: Vec<&str> = known.iter().map(|suite| suite.name.as_str()).collect();
            bail!(
                "there is no suite `{name}`; there are {}, or give a file that ends in .toml",
                names.join(", ")
            );
        };
        ensure!(
            found.iter().all(|other| other.name != suite.name),
            "the suite `{name}` is named twice"
        );
        found.push(suite);
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Definition> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("read the suite {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} does not define a suite", path.display()))
}

/// The machine that the suites name for a place; None on the host, and without suites.
///
/// # Errors
/// If a suite has no machine there, or two name different ones, because a run has one machine.
pub fn machine(suites: &[Definition], place: Where) -> Result<Option<String>> {
    if place == Where::Host {
        return Ok(None);
    }
    let mut wanted: Option<(&str, &str)> = None;
    for suite in suites {
        let Some(machine) = suite.machine.get(&place) else {
            bail!(
                "the suite {} has no meaning with --in {}: leave it out, or measure it elsewhere",
                suite.name,
                place.name()
            );
        };
        match wanted {
            Some((other, theirs)) if theirs != machine => bail!(
                "the suite {} is for the machine {machine}, {other} for {theirs}: run them one by \
                 one, or choose one for both with --machine",
                suite.name
            ),
            _ => wanted = Some((&suite.name, machine)),
        }
    }
    Ok(wanted.map(|(_, machine)| machine.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{reference, workload};

    fn named(names: &[&str]) -> Vec<Definition> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_string()).collect();
        find(&names).unwrap()
    }

    #[test]
    fn every_built_in_suite_names_what_exists() {
        let workloads = workload::load(None).unwrap();
        for suite in built_in().unwrap() {
            for machine in suite.machine.values() {
                magpie_lab::Machine::find(machine).unwrap();
            }
            let published: Vec<String> = suite
                .reference
                .iter()
                .flat_map(|name| {
                    let rows = reference::built_in(name).unwrap();
                    rows.into_iter().map(|row| row.workload)
                })
                .collect();
            for name in suite.published.values() {
                let is_there = published
                    .iter()
                    .any(|row| row.split(' ').next() == Some(name));
                assert!(is_there, "{}: {name} is not in its table", suite.name);
            }
            for run in &suite.run {
                let workload = workloads.iter().find(|w| w.name == run.workload);
                let workload = workload.unwrap_or_else(|| panic!("{}: {run:?}", suite.name));
                for name in run.set.keys().chain(run.vtime.keys()) {
                    assert!(
                        workload.parameters.contains_key(name),
                        "{}: {name}",
                        suite.name
                    );
                }
                for place in [Where::Vm, Where::Vtime] {
                    assert!(
                        !workload
                            .cases(&run.parameters(place), 8)
                            .unwrap()
                            .is_empty()
                    );
                }
            }
        }
    }

    #[test]
    fn the_promised_suites_are_there_and_others_are_refused() {
        let names = [
            "steal",
            "wakeup",
            "push",
            "preferred",
            "latency",
            "fairness",
            "feel",
        ];
        assert_eq!(named(&names).len(), names.len());
        let error = find(&["stael".into()]).unwrap_err().to_string();
        assert!(error.contains("there are steal, wakeup"), "{error}");
        assert!(find(&["steal".into(), "steal".into()]).is_err());
        let error = format!("{:#}", find(&["/no/such.toml".into()]).unwrap_err());
        assert!(error.contains("/no/such.toml"), "{error}");
    }

    #[test]
    fn one_run_has_one_machine() {
        let both = named(&["steal", "preferred"]);
        let error = machine(&both, Where::Vm).unwrap_err().to_string();
        assert!(error.contains("--machine"), "{error}");
        assert!(machine(&both, Where::Vtime).is_err());
        assert_eq!(machine(&both, Where::Host).unwrap(), None);
        let three = named(&["steal", "latency", "fairness"]);
        assert_eq!(machine(&three, Where::Vm).unwrap().unwrap(), "tiny2");
        assert_eq!(machine(&[], Where::Vm).unwrap(), None);
    }

    #[test]
    fn virtual_time_has_its_own_sizes_and_leaves_out_what_it_cannot_tell() {
        let push = &named(&["push"])[0];
        let of = |place| {
            push.runs(place)
                .map(|run| run.workload.as_str())
                .collect::<Vec<_>>()
        };
        assert!(of(Where::Host).contains(&"stream") && !of(Where::Vtime).contains(&"stream"));
        let hackbench = &push.run[0];
        assert_eq!(hackbench.parameters(Where::Vm)["loops"], ["100"]);
        assert_eq!(hackbench.parameters(Where::Vtime)["loops"], ["30"]);
    }
}
