//! The options: what they mean, where they may stand, and that README, example
//! file and `--help` agree on them.

use super::*;

fn parse(arguments: &[&str]) -> std::result::Result<Options, clap::Error> {
    Options::try_parse_from(["scx_magpie"].iter().chain(arguments))
}

fn with_config(text: &str, arguments: &[&str]) -> Options {
    let arguments = ["scx_magpie"]
        .iter()
        .chain(arguments)
        .map(OsString::from)
        .collect();
    Options::combine(parse_config(text).unwrap(), arguments).unwrap()
}

fn config_error(text: &str) -> String {
    format!("{:#}", parse_config(text).unwrap_err())
}

#[test]
fn the_command_is_well_formed() {
    Options::command().debug_assert();
}

#[test]
fn everything_is_on_by_default() {
    let options = parse(&[]).unwrap();
    assert!(!options.settings.no_steal && !options.settings.no_preempt);
    assert_eq!(options.settings.slice_us, None);
}

#[test]
fn the_file_sets_what_the_command_line_leaves_open() {
    let text = "# a comment\nslice-us = 2000\nno-steal = true\nstats = 0.5\n";
    let options = with_config(text, &["--no-preempt"]);
    assert_eq!(options.settings.slice_us, Some(2000));
    assert!(options.settings.no_steal && options.settings.no_preempt);
    assert_eq!(options.settings.stats, Some(0.5));
}

#[test]
fn the_command_line_wins() {
    let text = "slice-us = 2000\nno-steal = true\n";
    let options = with_config(text, &["--slice-us", "5000", "--no-steal=false"]);
    assert_eq!(options.settings.slice_us, Some(5000));
    assert!(!options.settings.no_steal);
}

#[test]
fn only_a_start_reads_the_file() {
    assert!(!parse(&["--stats=1"]).unwrap().starts_nothing());
    for other in [
        &["man"][..],
        &["completions", "bash"],
        &["--help-stats"],
        &["--monitor=1"],
    ] {
        assert!(parse(other).unwrap().starts_nothing(), "{other:?}");
    }
}

#[test]
fn mistakes_in_the_file_are_reported_with_their_line() {
    let unknown = config_error("slice-us = 2000\n\nno-stael = true\n");
    assert!(
        unknown.starts_with("line 3") && unknown.contains("no-steal"),
        "{unknown}"
    );
    let range = config_error("verbose = true\nslice-us = 5\n");
    assert!(
        range.starts_with("line 2") && range.contains("100"),
        "{range}"
    );
    let kind = config_error("no-steal = \"perhaps\"");
    assert!(
        kind.starts_with("line 1") && kind.contains("perhaps"),
        "{kind}"
    );
    let list = config_error("slice-us = [1, 2]");
    assert!(list.starts_with("line 1"), "{list}");
    let syntax = config_error("slice-us = 2000\nno-steal =\n");
    assert!(syntax.contains("line 2"), "{syntax}");
}

#[test]
fn what_is_no_setting_is_refused_in_the_file() {
    for name in ["monitor", "stats-json", "config", "help"] {
        assert!(
            config_error(&format!("{name} = 1")).contains("no setting"),
            "{name}"
        );
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = read_config(Path::new("/nonexistent/magpie.toml"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("/nonexistent/magpie.toml") && error.contains("--config"));
}

#[test]
fn wrong_values_are_refused() {
    for wrong in [
        "--slice-us=0",
        "--slice-us=2s",
        "--monitor=0",
        "--stats=-1",
        "--no-such",
    ] {
        assert!(parse(&[wrong]).is_err(), "{wrong}");
    }
}

/// A README that promises what the program does not have is worse than none.
#[test]
fn readme_and_help_name_the_same_options() {
    let readme = include_str!("../../README.md");
    let command = Options::command();
    let known: Vec<_> = command
        .get_arguments()
        .filter_map(|argument| argument.get_long())
        .chain(
            command
                .get_subcommands()
                .flat_map(|action| action.get_arguments())
                .filter_map(|argument| argument.get_long()),
        )
        .chain(["help", "version"])
        .collect();
    let named: Vec<_> = readme
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .filter_map(|word| {
            word.strip_prefix("--")
                .filter(|name| !name.starts_with('-'))
        })
        .filter(|name| !name.is_empty())
        .collect();
    for name in &named {
        assert!(
            known.contains(name),
            "README names --{name}, which does not exist"
        );
    }
    for name in &known {
        assert!(named.contains(name), "README does not name --{name}");
    }
}

#[test]
fn the_example_file_is_valid_as_shipped_and_with_all_lines_enabled() {
    let text = include_str!("../../packaging/scx_magpie.toml");
    assert_eq!(parse_config(text).unwrap(), Vec::<String>::new());
    let enabled: String = text
        .lines()
        .map(|line| {
            line.strip_prefix('#')
                .filter(|rest| !rest.starts_with(' '))
                .unwrap_or(line)
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let settings = Settings::augment_args(Command::new("settings"));
    assert_eq!(
        parse_config(&enabled).unwrap().len(),
        settings.get_arguments().count()
    );
}
