//! A mechanism's files, switches, counters and page, held together.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;

use super::*;
use crate::counters::GROUPS;
use crate::options::Options;

/// The group of counters that belong to no mechanism.
const GENERAL: &str = "general";

fn in_tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn counters_of(mechanism: &Mechanism) -> &'static [&'static str] {
    let mut groups = GROUPS
        .iter()
        .filter(|group| group.mechanism == mechanism.name);
    let group = groups.next();
    let group =
        group.unwrap_or_else(|| panic!("{} has no counters in counters.rs", mechanism.name));
    assert!(groups.next().is_none(), "{} has two groups", mechanism.name);
    group.counters
}

#[test]
fn each_mechanism_has_its_files() {
    for mechanism in MECHANISMS {
        for file in mechanism.files {
            let path = in_tree("src/bpf").join(file);
            assert!(
                path.exists(),
                "{} of {} is missing",
                path.display(),
                mechanism.name
            );
        }
    }
}

#[test]
fn each_counter_belongs_to_one_mechanism_or_is_general() {
    for mechanism in MECHANISMS {
        assert!(
            !counters_of(mechanism).is_empty(),
            "{} counts nothing",
            mechanism.name
        );
    }
    for group in GROUPS {
        let is_known = MECHANISMS.iter().any(|one| one.name == group.mechanism);
        assert!(
            is_known || group.mechanism == GENERAL,
            "counters.rs has a group {:?}, and mechanisms.rs no such mechanism",
            group.mechanism
        );
    }
}

#[test]
fn each_switch_is_in_the_help_and_in_the_example_file() {
    let help = Options::command().render_long_help().to_string();
    let example = include_str!("../../packaging/scx_magpie.toml");
    for switch in MECHANISMS.iter().flat_map(|one| one.switches) {
        let option = switch.option();
        assert!(
            help.lines()
                .any(|line| line.trim_start().starts_with(&format!("--{option}["))),
            "--help does not name --{option}\n{help}"
        );
        let line = format!("#{option} = false");
        assert!(
            example.lines().any(|one| one == line),
            "packaging/scx_magpie.toml has no line\n{line}"
        );
    }
}

#[test]
fn each_switch_clears_a_variable_of_the_bpf_side() {
    let sources = read_below(&in_tree("src/bpf"));
    for switch in MECHANISMS.iter().flat_map(|one| one.switches) {
        let definition = format!("const volatile bool {} = ", switch.variable);
        assert!(
            sources.contains(&definition),
            "no {definition:?} in src/bpf"
        );
    }
}

fn read_below(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        text += &match path.is_dir() {
            true => read_below(&path),
            false => fs::read_to_string(&path).unwrap(),
        };
    }
    text
}

#[test]
fn each_mechanism_has_a_page_that_names_its_parts() {
    let pages = in_tree("../docs/mechanisms");
    let index = fs::read_to_string(pages.join("README.md")).unwrap();
    for mechanism in MECHANISMS {
        let name = mechanism.name;
        let path = pages.join(format!("{name}.md"));
        let page = fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{} has no page {}: {error}", name, path.display()));
        let mut wanted = vec![format!("# {name}: "), "```text\n".into()];
        wanted.extend(mechanism.files.iter().map(|file| format!("`{file}`")));
        let options = mechanism.switches.iter().map(Switch::option);
        wanted.extend(options.map(|option| format!("`--{option}`")));
        wanted.extend(
            counters_of(mechanism)
                .iter()
                .map(|counter| format!("`{counter}`")),
        );
        for text in wanted {
            assert!(
                page.contains(&text),
                "{} does not have {text:?}",
                path.display()
            );
        }
        let link = format!("[{name}]({name}.md)");
        assert!(
            index.contains(&link),
            "docs/mechanisms/README.md has no {link}"
        );
    }
    let general = GROUPS
        .iter()
        .find(|group| group.mechanism == GENERAL)
        .unwrap();
    for counter in general.counters {
        assert!(
            index.contains(&format!("`{counter}`")),
            "the index does not name {counter}"
        );
    }
}

/// A page names counters and switches only in its table, so a stale one would be found there.
#[test]
fn no_page_names_a_counter_or_switch_of_another_time() {
    let options: Vec<_> = MECHANISMS
        .iter()
        .flat_map(|one| one.switches)
        .map(Switch::option)
        .collect();
    for mechanism in MECHANISMS {
        let path = in_tree("../docs/mechanisms").join(format!("{}.md", mechanism.name));
        let page = fs::read_to_string(&path).unwrap();
        for word in page
            .split('`')
            .filter_map(|word| word.strip_prefix("--no-"))
        {
            let option = format!("no-{word}");
            assert!(
                options.contains(&option),
                "{} names --{option}",
                path.display()
            );
        }
        let counters = page
            .lines()
            .find(|line| line.starts_with("| counters |"))
            .unwrap();
        for word in counters
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|word| !word.contains(' '))
        {
            assert!(
                counters_of(mechanism).contains(&word),
                "{} names the counter {word}",
                path.display()
            );
        }
    }
}
