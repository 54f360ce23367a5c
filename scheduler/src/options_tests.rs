//! The options: what they mean, and that `README.md` and `--help` name the same ones.

use super::*;

fn parse(arguments: &[&str]) -> std::result::Result<Options, clap::Error> {
    Options::try_parse_from(["scx_magpie"].iter().chain(arguments))
}

#[test]
fn the_command_is_well_formed() {
    Options::command().debug_assert();
}

#[test]
fn everything_is_on_by_default() {
    let options = parse(&[]).unwrap();
    assert!(!options.settings.switches.no_steal && !options.settings.switches.no_preempt);
    assert_eq!(options.settings.slice_us, None);
}

#[test]
fn wrong_values_are_refused() {
    for wrong in [
        "--slice-us=0",
        "--slice-us=2s",
        "--idle-resume-us=-1",
        "--idle-resume-us=2000000",
        "--monitor=0",
        "--stats=-1",
        "--no-such",
    ] {
        assert!(parse(&[wrong]).is_err(), "{wrong}");
    }
}

/// The README must not promise an option that does not exist, nor forget one that does.
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
fn the_options_of_a_trial_are_left_to_it() {
    for words in [
        ["try", "--minutes", "5", "--", "make", "-j8"].as_slice(),
        &["try", "--help"],
        &["try"],
    ] {
        let action = parse(words).unwrap().action;
        let Some(Action::Try { arguments }) = action else {
            panic!("{words:?}: {action:?}")
        };
        assert_eq!(arguments, words[1..]);
    }
}

/// scx_loader hands these options over as they are.
#[test]
fn the_modes_of_scx_loader_are_valid_options() {
    let file: toml::Table = include_str!("../../packaging/scx_loader.toml")
        .parse()
        .unwrap();
    let modes = file["scheds"]["scx_magpie"].as_table().unwrap();
    for name in ["auto", "gaming", "lowlatency", "powersave", "server"] {
        let mode = modes[&format!("{name}_mode")].as_array().unwrap();
        let arguments: Vec<_> = mode.iter().map(|word| word.as_str().unwrap()).collect();
        let options = parse(&arguments).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(options.action.is_none(), "{name}");
    }
    assert_eq!(modes.len(), 5);
}

/// The options that the patch builds into scx_loader are those of the configuration.
#[test]
fn the_patch_of_scx_loader_has_the_same_modes() {
    let patch = include_str!("../../packaging/scx_loader.diff");
    let file = include_str!("../../packaging/scx_loader.toml");
    for mode in file.lines().filter(|line| line.contains("_mode = ")) {
        let added = format!("+{mode}");
        assert!(patch.lines().any(|line| line == added), "{mode}");
    }
}

#[test]
fn performance_is_asked_for_where_a_governor_follows() {
    let asks = |arguments: &[&str], has_schedutil| {
        let options = Options::parse_from(["scx_magpie"].iter().chain(arguments));
        options.settings.asks_for_performance(has_schedutil)
    };
    assert!(asks(&[], true) && !asks(&[], false));
    assert!(asks(&["--frequency=on"], false) && asks(&["--frequency=auto"], true));
    assert!(!asks(&["--no-frequency", "--frequency=on"], true));
}
