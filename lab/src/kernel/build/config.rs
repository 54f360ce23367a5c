//! The kernel's configuration: merges fragments, and finds what the kernel did not accept.
//!
//! A fragment has the lines of a `.config`; `CONFIG_X=n` is another word for `# CONFIG_X is not
//! set`. A later fragment wins.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, bail};

/// The value of a symbol that is off.
const OFF: &str = "n";

/// Values that fragments ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config(BTreeMap<String, Wanted>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    value: String,
    /// Name of the fragment and number of the line.
    origin: String,
}

impl Config {
    /// Adds a fragment, whose values replace those of earlier ones.
    ///
    /// # Errors
    /// If a line is neither a comment nor a symbol with its value.
    pub fn merge(&mut self, name: &str, text: &str) -> Result<()> {
        for (number, line) in text.lines().enumerate() {
            let origin = format!("{name}:{}", number + 1);
            match parse_line(line) {
                Line::Symbol(symbol, value) => {
                    let value = value.to_string();
                    self.0.insert(symbol.into(), Wanted { value, origin });
                }
                Line::Comment => {}
                Line::Invalid => bail!(
                    "{origin}: `{line}` is no line of a kernel's configuration; write CONFIG_X=y, \
                     CONFIG_X=n or `# CONFIG_X is not set`"
                ),
            }
        }
        Ok(())
    }

    /// Adds the values of another configuration, which replace those of this one.
    pub fn extend(&mut self, other: Config) {
        self.0.extend(other.0);
    }

    /// The text of a fragment with all values.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (symbol, Wanted { value, .. }) in &self.0 {
            let _ = match value.as_str() {
                OFF => writeln!(text, "# {symbol} is not set"),
                _ => writeln!(text, "{symbol}={value}"),
            };
        }
        text
    }

    /// Returns a sentence for each option that a kernel's `.config` has otherwise than asked for.
    pub fn unmet(&self, config: &str) -> Vec<String> {
        let mut found = Config::default();
        // The kernel wrote the file, and writes no other lines.
        let _ = found.merge(".config", config);
        let found = |symbol: &String| found.0.get(symbol).map_or(OFF, |w| w.value.as_str());
        self.0
            .iter()
            .filter(|(symbol, wanted)| !is_met(&wanted.value, found(symbol)))
            .map(|(symbol, Wanted { value, origin })| {
                format!("{symbol}={value} ({origin}) became {}", found(symbol))
            })
            .collect()
    }
}

/// A kernel without modules builds in what should be one.
fn is_met(wanted: &str, found: &str) -> bool {
    wanted == found || (wanted == "m" && found == "y")
}

enum Line<'a> {
    Symbol(&'a str, &'a str),
    Comment,
    Invalid,
}

/// Reads a line as Kconfig writes it: `CONFIG_X=VALUE`, or `# CONFIG_X is not set`.
fn parse_line(line: &str) -> Line<'_> {
    let line = line.trim();
    let is_symbol = |name: &str| {
        name.strip_prefix("CONFIG_").is_some_and(|rest| {
            !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        })
    };
    if let Some(comment) = line.strip_prefix('#') {
        let symbol = comment.trim().strip_suffix(" is not set");
        return match symbol.filter(|symbol| is_symbol(symbol)) {
            Some(symbol) => Line::Symbol(symbol, OFF),
            None => Line::Comment,
        };
    }
    match line.split_once('=') {
        Some((symbol, value)) if is_symbol(symbol) && !value.is_empty() => {
            Line::Symbol(symbol, value)
        }
        _ if line.is_empty() => Line::Comment,
        _ => Line::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(fragments: &[&str]) -> Config {
        let mut config = Config::default();
        for text in fragments {
            config.merge("my.config", text).expect("valid");
        }
        config
    }

    #[test]
    fn a_later_fragment_wins_and_off_has_two_words() {
        let config = merged(&[
            "# A reason.\nCONFIG_A=y\nCONFIG_B=y\nCONFIG_C=\"a=b\"\n",
            "CONFIG_A=n\n\n# CONFIG_B is not set\nCONFIG_D=12\n",
        ]);
        assert_eq!(
            config.text(),
            "# CONFIG_A is not set\n# CONFIG_B is not set\nCONFIG_C=\"a=b\"\nCONFIG_D=12\n"
        );
    }

    #[test]
    fn what_the_kernel_did_not_accept_is_named_with_its_line() {
        let config = merged(&["CONFIG_A=y\nCONFIG_B=n\nCONFIG_C=m\nCONFIG_D=y\n"]);
        let unmet = config.unmet("CONFIG_A=y\nCONFIG_B=y\nCONFIG_C=y\n");
        assert_eq!(
            unmet,
            [
                "CONFIG_B=n (my.config:2) became y",
                "CONFIG_D=y (my.config:4) became n"
            ]
        );
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["A=y", "CONFIG_A", "CONFIG_=y", "CONFIG_A=", "rm -rf /"] {
            let error = Config::default().merge("f", line).expect_err(line);
            assert!(error.to_string().contains("f:1"), "{error}");
        }
    }
}
