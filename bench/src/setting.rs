//! Settings of the kernel that a candidate asks for, as they stand in braces behind its program.
//!
//! ```text
//!   llc_balancing=0               /sys/kernel/debug/sched/llc_balancing/enabled
//!   base_slice_ns=3000000         /sys/kernel/debug/sched/base_slice_ns
//!   features=NO_PREEMPT_SHORT     one word of /sys/kernel/debug/sched/features
//!   kernel.sched_rt_runtime_us=-1 a sysctl, because it has a dot
//!   boot:mitigations=off          a word of the kernel's command line
//! ```
//!
//! A name of a folder that has a file `enabled` stands for that file. `applied.rs` writes the
//! settings and puts them back.

use anyhow::{Result, bail};

/// The kernel of a candidate's guest. Candidates with the same share one guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// A series, the name of a built kernel, or the path of a bzImage; None is the kernel of
    /// `--kernel`.
    pub kernel: Option<String>,
    /// Words for the kernel's command line.
    pub parameters: Vec<String>,
}

/// A setting of a running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Path below the scheduler's folder in debugfs, or a sysctl with dots.
    pub name: String,
    /// The text to write.
    pub value: String,
}

/// Reads what stands in braces behind a scheduler's name.
///
/// # Errors
/// If an entry is not of the form NAME=VALUE or `boot:WORD`.
pub fn parse(text: &str) -> Result<(Vec<Setting>, Vec<String>)> {
    let (mut settings, mut parameters) = (Vec::new(), Vec::new());
    for entry in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
        if let Some(word) = entry.strip_prefix("boot:") {
            parameters.push(word.to_string());
            continue;
        }
        let is_name = |name: &str| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
            !name.is_empty() && !name.contains("..") && name.chars().all(is_part)
        };
        match entry.split_once('=') {
            Some((name, value)) if is_name(name.trim()) && !value.trim().is_empty() => {
                settings.push(Setting {
                    name: name.trim().into(),
                    value: value.trim().into(),
                });
            }
            _ => bail!(
                "`{entry}` is no setting: write it like base_slice_ns=3000000, \
                 features=NO_PREEMPT_SHORT, \
                 kernel.sched_rt_runtime_us=-1 or boot:mitigations=off"
            ),
        }
    }
    Ok((settings, parameters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_setting_is_refused() {
        for text in ["x", "=1", "x=", "../x=1", "a b=1"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(
            parse("boot:a.b=1").unwrap(),
            (vec![], vec!["a.b=1".to_string()])
        );
    }
}
