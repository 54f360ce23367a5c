//! Scenarios: shell scripts that define `scenario`, and `prepare` if something is to be done before
//! the mark. `lab/scenarios/` has the presets; a user's own is a file of the same form.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        const PRESETS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../scenarios/", $name, ".sh")))),*];
    };
}

presets!(
    "wakeups", "hotplug", "affinity", "limits", "realtime", "reload",
);

/// The line of a script that says what it does begins with this.
const ABOUT: &str = "# about: ";

/// A scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    name: String,
    script: String,
}

impl Scenario {
    /// The presets.
    pub fn presets() -> Vec<Scenario> {
        let scenario = |(name, script): &(&str, &str)| Scenario {
            name: name.to_string(),
            script: script.to_string(),
        };
        PRESETS.iter().map(scenario).collect()
    }

    /// Returns a preset, or the scenario in a file.
    ///
    /// # Errors
    /// When there is neither.
    pub fn find(name: &str) -> Result<Scenario> {
        let presets = Scenario::presets();
        if let Some(preset) = presets.iter().find(|preset| preset.name == name) {
            return Ok(preset.clone());
        }
        let path = Path::new(name);
        if !path.is_file() {
            let names: Vec<&str> = presets.iter().map(Scenario::name).collect();
            bail!(
                "there is no scenario \"{name}\": it is neither a file nor one of {}",
                names.join(", ")
            );
        }
        let script = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the scenario {name}"))?;
        ensure!(
            script.contains("scenario()"),
            "{name} is no scenario: it does not define the shell function `scenario()`"
        );
        Ok(Scenario {
            name: name.to_string(),
            script,
        })
    }

    /// The name of a preset, or the path of a file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its purpose, in one line; empty if the script does not say.
    pub fn about(&self) -> &str {
        let line = self
            .script
            .lines()
            .find_map(|line| line.strip_prefix(ABOUT));
        line.unwrap_or_default()
    }

    /// The shell script.
    pub fn script(&self) -> &str {
        &self.script
    }
}

#[cfg(test)]
mod tests {
    use super::Scenario;

    #[test]
    fn every_preset_says_what_it_does() {
        for scenario in Scenario::presets() {
            assert!(!scenario.about().is_empty(), "{}", scenario.name());
            assert!(
                scenario.script().contains("scenario()"),
                "{}",
                scenario.name()
            );
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = Scenario::find("nothing").expect_err("there is none");
        assert!(error.to_string().contains("hotplug"), "{error}");
    }
}
