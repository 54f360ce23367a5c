//! The configuration file, and how it combines with the command line.
//!
//! The file has no names or types of its own. Each entry becomes `--name=value`, ahead of the
//! command line, and goes through the same parser, where the last value given wins. So every option
//! of [`Settings`] may be in the file without being mentioned here, and the command line overrules
//! the file. Each entry is also checked alone, so that an error names its line.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Command, CommandFactory, Parser};
use toml::de::{DeTable, DeValue};

use crate::options::{Options, Settings};

/// The configuration file that is read if it exists and `--config` names no other.
const DEFAULT_FILE: &str = "/etc/scx_magpie.toml";

/// Reads the command line of this process and the configuration file.
///
/// Prints and exits on `--help`, `--version` and wrong options, as clap programs do.
///
/// # Errors
/// When the configuration file cannot be read or has a mistake, with its line.
pub fn read_options() -> Result<Options> {
    let arguments: Vec<OsString> = env::args_os().collect();
    let given = Options::try_parse_from(&arguments).unwrap_or_else(|error| error.exit());
    if starts_nothing(&given) {
        return Ok(given);
    }
    let from_file = read_file(given.config.as_deref())?;
    combine(from_file, arguments).map_err(|error| error.exit())
}

/// Reads the configuration file alone: the settings of a start without options.
///
/// # Errors
/// When the file cannot be read or has a mistake, with its line.
pub fn read_settings() -> Result<Settings> {
    let options = combine(read_file(None)?, vec!["scx_magpie".into()]);
    Ok(options.map_err(|error| error.exit())?.settings)
}

/// Returns whether no scheduler is to be started. The configuration file is then not read, so that
/// the manual page can be read even if the file has a mistake.
fn starts_nothing(options: &Options) -> bool {
    options.action.is_some()
        || options.help_stats
        || options.stats_json
        || options.monitor.is_some()
}

/// Parses both sources as one command line, with the file's entries first.
fn combine(from_file: Vec<String>, arguments: Vec<OsString>) -> Result<Options, clap::Error> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next();
    let from_file = from_file.into_iter().map(OsString::from);
    Options::try_parse_from(program.into_iter().chain(from_file).chain(arguments))
}

/// Returns the entries of this configuration file, or of the default one if it exists, as options.
fn read_file(chosen: Option<&Path>) -> Result<Vec<String>> {
    match chosen {
        Some(path) => read(path),
        None if Path::new(DEFAULT_FILE).exists() => read(Path::new(DEFAULT_FILE)),
        None => Ok(Vec::new()),
    }
}

/// Returns the entries of a configuration file as options.
fn read(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::NotFound => "; name an existing file with --config",
            _ => "",
        };
        anyhow!(
            "cannot read the configuration file {}: {error}{remedy}",
            path.display()
        )
    })?;
    parse(&text).with_context(|| format!("in the configuration file {}", path.display()))
}

/// Turns the text of a configuration file into options, `--name=value` each.
///
/// # Errors
/// At the first mistake, with its line.
fn parse(text: &str) -> Result<Vec<String>> {
    // The message of toml shows the line, with a marker under the mistake.
    let table = DeTable::parse(text).map_err(|error| anyhow!("{error}"))?;
    let settings = Settings::augment_args(Command::new("settings"));
    let known: Vec<_> = settings
        .get_arguments()
        .filter_map(|argument| argument.get_long())
        .collect();
    let mut entries: Vec<_> = table.into_inner().into_iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);

    let mut options = Vec::new();
    for (name, value) in entries {
        let line = 1 + text[..name.span().start].matches('\n').count();
        let name = name.into_inner();
        if !known.contains(&name.as_ref()) {
            bail!("line {line}: {}", explain_unknown(&name, &known));
        }
        let value = match value.into_inner() {
            DeValue::String(value) => value.into_owned(),
            DeValue::Integer(value) => value.to_string(),
            DeValue::Float(value) => value.to_string(),
            DeValue::Boolean(value) => value.to_string(),
            _ => bail!("line {line}: {name} takes a single value, not a list, table or date"),
        };
        let option = format!("--{name}={value}");
        if let Err(error) = Options::try_parse_from(["scx_magpie", &option]) {
            let text = error.to_string();
            let reason = text.lines().next().unwrap_or_default();
            bail!("line {line}: {}", reason.trim_start_matches("error: "));
        }
        options.push(option);
    }
    Ok(options)
}

/// Says why a name cannot be in the file. Some options of the command line cannot: they do not say
/// how the scheduler works, but what to do instead of starting it.
fn explain_unknown(name: &str, known: &[&str]) -> String {
    let known = known.join(", ");
    let is_option = Options::command()
        .get_arguments()
        .any(|argument| argument.get_long() == Some(name));
    match is_option {
        true => {
            format!("{name} is no setting but for the command line alone; settings are {known}")
        }
        false => format!("there is no setting {name:?}; known are {known}"),
    }
}

#[cfg(test)]
#[path = "configuration_tests.rs"]
mod tests;
