//! The configuration file: what may be in it, how it combines with the command line, its errors.

use super::*;

fn with_config(text: &str, arguments: &[&str]) -> Options {
    let arguments = ["scx_magpie"]
        .iter()
        .chain(arguments)
        .map(OsString::from)
        .collect();
    combine(parse(text).unwrap(), arguments).unwrap()
}

fn config_error(text: &str) -> String {
    format!("{:#}", parse(text).unwrap_err())
}

#[test]
fn the_file_sets_what_the_command_line_leaves_open() {
    let text = "# a comment\nslice-us = 2000\nno-steal = true\nstats = 0.5\n";
    let options = with_config(text, &["--no-preempt"]);
    assert_eq!(options.settings.slice_us, Some(2000));
    assert!(options.settings.switches.no_steal && options.settings.switches.no_preempt);
    assert_eq!(options.settings.stats, Some(0.5));
}

#[test]
fn the_command_line_wins() {
    let text = "slice-us = 2000\nno-steal = true\n";
    let options = with_config(text, &["--slice-us", "5000", "--no-steal=false"]);
    assert_eq!(options.settings.slice_us, Some(5000));
    assert!(!options.settings.switches.no_steal);
}

#[test]
fn only_a_start_reads_the_file() {
    let given = |arguments: &[&str]| {
        Options::try_parse_from(["scx_magpie"].iter().chain(arguments)).unwrap()
    };
    assert!(!starts_nothing(&given(&["--stats=1"])));
    for other in [
        &["man"][..],
        &["completions", "bash"],
        &["--help-stats"],
        &["--monitor=1"],
    ] {
        assert!(starts_nothing(&given(other)), "{other:?}");
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
    let error = read(Path::new("/nonexistent/magpie.toml"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("/nonexistent/magpie.toml") && error.contains("--config"));
}

#[test]
fn the_example_file_is_valid_as_shipped_and_with_all_lines_enabled() {
    let text = include_str!("../../packaging/scx_magpie.toml");
    assert_eq!(parse(text).unwrap(), Vec::<String>::new());
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
        parse(&enabled).unwrap().len(),
        settings.get_arguments().count()
    );
}
