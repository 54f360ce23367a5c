//! Preferred CPUs as the user sees them: options, changes while the scheduler runs, status.
//!
//! The BPF side decides which CPUs are preferred. This file has the words for it, which are the
//! same on the command line, in the configuration file and over scx_stats. There a request for
//! `preferred` may carry a [`Change`], and the answer is the [`PreferredStatus`] after it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};

use crate::bpf_intf::{
    preferred_mode_PREFERRED_AUTO as MODE_AUTO, preferred_mode_PREFERRED_KERNEL as MODE_KERNEL,
    preferred_mode_PREFERRED_OFF as MODE_OFF, preferred_mode_PREFERRED_SET as MODE_SET,
    steal_source_STEAL_SOURCE_AUTO as SOURCE_AUTO,
    steal_source_STEAL_SOURCE_ESTIMATE as SOURCE_ESTIMATE,
    steal_source_STEAL_SOURCE_KERNEL as SOURCE_KERNEL,
};
use crate::cpu_set::CpuSet;

/// A choice of preferred CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preferred {
    /// As many CPUs as the governor says, or the kernel's own preferred CPUs.
    Auto,
    /// All CPUs.
    Off,
    /// These CPUs.
    Cpus(CpuSet),
}

impl Preferred {
    /// Returns the BPF side's `enum preferred_mode`.
    pub fn mode(&self) -> u32 {
        match self {
            Preferred::Auto => MODE_AUTO,
            Preferred::Off => MODE_OFF,
            Preferred::Cpus(_) => MODE_SET,
        }
    }
}

impl FromStr for Preferred {
    type Err = String;

    fn from_str(text: &str) -> Result<Preferred, String> {
        match text {
            "auto" => Ok(Preferred::Auto),
            "off" => Ok(Preferred::Off),
            _ => match text.parse::<CpuSet>() {
                Ok(cpus) if !cpus.is_empty() => Ok(Preferred::Cpus(cpus)),
                Ok(_) => Err("give auto, off or at least one CPU".into()),
                Err(error) => Err(format!("give auto, off or CPUs such as 0-3,8: {error}")),
            },
        }
    }
}

impl fmt::Display for Preferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Preferred::Auto => f.write_str("auto"),
            Preferred::Off => f.write_str("off"),
            Preferred::Cpus(cpus) => write!(f, "{cpus}"),
        }
    }
}

/// How the number of cores follows the time that the host takes, in the order of the BPF side's
/// `enum governor_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Governor {
    /// Give up or take back one core each period
    Step,
    /// Go down at once to as many cores as the host gives, and back up by 1, 2, 4, ...
    Direct,
}

impl Governor {
    /// Returns the BPF side's `enum governor_kind`.
    pub fn kind(self) -> u32 {
        self as u32
    }

    /// Returns its name on the command line.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_string())
    }
}

/// How the scheduler learns the time that the host takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StealSource {
    /// Use the kernel's counter once it has counted anything, else the estimate
    Auto,
    /// Use the kernel's counter: right if the hypervisor feeds it, else always zero
    Kernel,
    /// Estimate the time from late ticks of busy CPUs
    Estimate,
}

impl StealSource {
    /// Returns the BPF side's `enum steal_source`.
    pub fn number(self) -> u32 {
        match self {
            StealSource::Auto => SOURCE_AUTO,
            StealSource::Kernel => SOURCE_KERNEL,
            StealSource::Estimate => SOURCE_ESTIMATE,
        }
    }
}

/// When and how the number of preferred cores changes. All of it can be changed while the scheduler
/// runs.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Decide the number of cores this often, in milliseconds [default: 1000]
    ///
    /// The decision comes sooner, down to an eighth of that time, when the host takes ten times as
    /// much as --high allows. Where the kernel's steal_governor decides, its choice is read this
    /// often.
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub period: Option<u64>,

    /// Set the steal time above which fewer cores are used, in 1/100 of a percent [default: 200]
    #[arg(long, value_name = "RATIO", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub high: Option<u32>,

    /// Set the steal time below which more cores are used, in 1/100 of a percent [default: 100]
    #[arg(long, value_name = "RATIO", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub low: Option<u32>,

    /// Choose how the number of cores follows the time that the host takes [default: direct]
    #[arg(long, value_name = "GOVERNOR")]
    pub governor: Option<Governor>,
}

impl Knobs {
    /// Checks the thresholds, where `high` and `low` stand for those that are not given.
    ///
    /// # Errors
    /// When the lower threshold would be above the upper one, with the remedy.
    pub fn check(&self, high: u32, low: u32) -> Result<(), String> {
        let (high, low) = (self.high.unwrap_or(high), self.low.unwrap_or(low));
        match low <= high {
            true => Ok(()),
            false => Err(format!(
                "low ({low}) must not be above high ({high}): give both --low and --high"
            )),
        }
    }
}

/// A change that a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Which CPUs are preferred.
    pub set: Option<Preferred>,
    /// When and how their number changes, as far as given.
    pub knobs: Knobs,
}

impl Change {
    /// Returns the change as arguments of a request over scx_stats.
    pub fn to_arguments(&self) -> Vec<(String, String)> {
        let governor = self.knobs.governor.map(Governor::name);
        [
            ("set", self.set.as_ref().map(Preferred::to_string)),
            ("period", self.knobs.period.map(|value| value.to_string())),
            ("high", self.knobs.high.map(|value| value.to_string())),
            ("low", self.knobs.low.map(|value| value.to_string())),
            ("governor", governor),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_string(), value?)))
        .collect()
    }

    /// Reads the arguments of a request over scx_stats. The client may be any program, so the rules
    /// of the command line are applied to them.
    ///
    /// # Errors
    /// With the argument that is unknown or has a wrong value.
    pub fn from_arguments(arguments: &BTreeMap<String, String>) -> Result<Change, String> {
        let own = arguments.iter().filter(|(name, _)| *name != "target");
        let options = own.map(|(name, value)| format!("--{name}={value}"));
        let command =
            ChangeOptions::augment_args(clap::Command::new("preferred").no_binary_name(true));
        let matches = command
            .try_get_matches_from(options)
            .map_err(|error| error.to_string())?;
        let parsed = <ChangeOptions as clap::FromArgMatches>::from_arg_matches(&matches)
            .map_err(|error| error.to_string())?;
        Ok(parsed.into())
    }
}

/// A change as options of `scx_magpie preferred`.
#[derive(Args, Clone, Debug)]
pub struct ChangeOptions {
    /// Prefer these CPUs: auto, off (all) or a list such as 0-3,8
    #[arg(long, value_name = "auto|off|CPUS")]
    pub set: Option<Preferred>,

    /// When and how their number changes.
    #[command(flatten)]
    pub knobs: Knobs,
}

impl From<ChangeOptions> for Change {
    fn from(options: ChangeOptions) -> Change {
        Change {
            set: options.set,
            knobs: options.knobs,
        }
    }
}

/// The preferred CPUs, and why these.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "Preferred CPUs; ask for the target \"preferred\"")]
pub struct PreferredStatus {
    #[stat(desc = "Preferred CPUs, as a list")]
    pub preferred: String,
    #[stat(desc = "Online CPUs, as a list")]
    pub online: String,
    #[stat(
        desc = "Decided by: auto (the governor), kernel (its steal_governor), set (the user), off"
    )]
    pub mode: String,
    #[stat(desc = "Why these CPUs, as a sentence")]
    pub why: String,
    #[stat(desc = "The kernel's own preferred CPUs, as a list, where they decide; else empty")]
    pub kernel_mask: String,
    #[stat(desc = "How much power is saved: performance (none), balanced or saver")]
    pub power: String,
    #[stat(desc = "Why so much, as the end of a sentence")]
    pub power_why: String,
    #[stat(desc = "1 if these CPUs are preferred to save power, else 0")]
    pub power_rules: u64,
    #[stat(desc = "step or direct")]
    pub governor: String,
    #[stat(desc = "How steal time is known: kernel, estimate, none yet, or no host to take any")]
    pub source: String,
    #[stat(desc = "1 if the kernel has ever counted steal time, else 0")]
    pub kernel_counts: u64,
    #[stat(desc = "Share of the preferred CPUs' time that the host took, percent")]
    pub steal_percent: f64,
    #[stat(desc = "Cores that were busy, as the guest sees it")]
    pub wanted_cores: f64,
    #[stat(desc = "Cores that the host gave")]
    pub given_cores: f64,
    #[stat(desc = "Direction of the number of cores in the last period: -1, 0, 1")]
    pub direction: i64,
    #[stat(desc = "Changes of the number of cores since the start")]
    pub changes: u64,
    #[stat(desc = "Tasks moved away from CPUs that are not preferred, since the start")]
    pub moved_away: u64,
    #[stat(desc = "Milliseconds between two decisions")]
    pub period: u64,
    #[stat(desc = "Steal above which fewer cores are used, 1/100 percent")]
    pub high: u64,
    #[stat(desc = "Steal below which more cores are used, 1/100 percent")]
    pub low: u64,
}

impl PreferredStatus {
    /// Writes the status as sentences, with the source of the steal time.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn tell<W: Write>(&self, output: &mut W) -> io::Result<()> {
        writeln!(
            output,
            "preferred CPUs  {} of {}, {}",
            self.preferred, self.online, self.why
        )?;
        writeln!(output, "power           {}, {}", self.power, self.power_why)?;
        writeln!(output, "steal time      {}", self.steal_sentence())?;
        writeln!(
            output,
            "cores           {:.2} busy, of which the host gave {:.2}",
            self.wanted_cores, self.given_cores
        )?;
        let direction = match (self.mode.as_str(), self.direction) {
            _ if self.source == "no host" => "the governor rests",
            ("auto", -1) => "fewer",
            ("auto", 1) => "more",
            ("auto", _) => "as many as before",
            _ => "the governor rests",
        };
        writeln!(
            output,
            "last period     {direction}; {} changes and {} tasks moved away since the start",
            self.changes, self.moved_away
        )?;
        writeln!(
            output,
            "knobs           --period {} --high {} --low {} --governor {}",
            self.period, self.high, self.low, self.governor
        )
    }

    /// Says how much time the host took and how that is known; gives no number where there is none.
    fn steal_sentence(&self) -> String {
        let percent = self.steal_percent;
        match (self.source.as_str(), self.kernel_counts != 0) {
            ("kernel", true) => format!("{percent:.2} %, counted by the kernel"),
            ("kernel", false) => "unknown: the kernel's counter was chosen, and has counted none so far. \
                                  Use --steal-source auto if the hypervisor does not expose steal time"
                .into(),
            ("estimate", true) => {
                format!("{percent:.2} %, an estimate from late ticks (the kernel counts, too)")
            }
            ("estimate", false) => format!(
                "{percent:.2} %, an estimate from late ticks: the hypervisor has exposed none so far"
            ),
            ("no host", _) => "none: this is no virtual machine".into(),
            _ => "not measured yet: the first period has not ended".into(),
        }
    }
}

/// Returns the word for an `enum preferred_mode`.
pub fn mode_name(mode: u32) -> &'static str {
    match mode {
        MODE_AUTO => "auto",
        MODE_SET => "set",
        MODE_KERNEL => "kernel",
        _ => "off",
    }
}

/// Returns the name of an `enum governor_kind`.
pub fn governor_name(kind: u32) -> String {
    let known = Governor::value_variants();
    let found = known.iter().find(|governor| governor.kind() == kind);
    found.map_or(kind.to_string(), |governor| governor.name())
}

/// Returns the word for the `enum steal_source` in use; before the first period there is none.
pub fn source_name(source: u32) -> &'static str {
    match source {
        SOURCE_KERNEL => "kernel",
        SOURCE_ESTIMATE => "estimate",
        _ => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(change: &Change) -> BTreeMap<String, String> {
        change.to_arguments().into_iter().collect()
    }

    #[test]
    fn a_change_arrives_as_it_was_sent() {
        for set in [None, Some("auto"), Some("off"), Some("0-1,7")] {
            let change = Change {
                set: set.map(|text| text.parse().unwrap()),
                knobs: Knobs {
                    period: set.map(|_| 50),
                    high: Some(300),
                    low: None,
                    governor: set.map(|_| Governor::Step),
                },
            };
            let mut sent = arguments(&change);
            sent.insert("target".into(), "preferred".into());
            assert_eq!(Change::from_arguments(&sent), Ok(change));
        }
    }

    #[test]
    fn a_wrong_request_is_refused_with_its_argument() {
        for (name, value) in [
            ("set", "sometimes"),
            ("set", ""),
            ("period", "0"),
            ("high", "10001"),
            ("governor", "best"),
            ("colour", "red"),
        ] {
            let sent = BTreeMap::from([(name.to_string(), value.to_string())]);
            let error = Change::from_arguments(&sent).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn thresholds_must_not_cross() {
        let knobs = |high, low| Knobs {
            high,
            low,
            ..Knobs::default()
        };
        assert!(knobs(None, None).check(200, 100).is_ok());
        assert!(knobs(Some(50), None).check(200, 100).is_err());
        assert!(knobs(Some(50), Some(50)).check(200, 100).is_ok());
        assert!(knobs(None, Some(300)).check(200, 100).is_err());
    }

    #[test]
    fn where_the_number_comes_from_is_always_said() {
        let say = |source: &str, kernel_counts: bool| {
            let status = PreferredStatus {
                source: source.into(),
                kernel_counts: u64::from(kernel_counts),
                steal_percent: 12.5,
                ..PreferredStatus::default()
            };
            let mut text = Vec::new();
            status.tell(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert!(say("kernel", true).contains("12.50 %, counted by the kernel"));
        assert!(say("estimate", false).contains("12.50 %, an estimate"));
        // No number where there is none.
        for text in [say("kernel", false), say("none", false)] {
            assert!(!text.contains('%'), "{text}");
        }
    }
}
