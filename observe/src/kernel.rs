//! The kernel's side of sched_ext, from `/sys/kernel/sched_ext`.
//!
//! The kernel tells what scx_magpie cannot: that a scheduler ended, that another one runs, and how
//! often the kernel had to act instead of the scheduler.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The state of sched_ext.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SchedExt {
    /// As the kernel names it: `enabled`, `disabled` or a state between; nothing where the kernel
    /// was built without sched_ext.
    pub state: Option<String>,
    /// The name of the scheduler that runs.
    pub scheduler: Option<String>,
    /// How many schedulers were enabled since boot.
    pub enabled: u64,
    /// The kernel's events (`SCX_EV_...`) since the running scheduler was enabled.
    pub events: BTreeMap<String, u64>,
}

impl SchedExt {
    /// Reads the state below `root`, which is `/` but in tests.
    pub fn read(root: &Path) -> SchedExt {
        let read = |file: &str| {
            let text = fs::read_to_string(root.join("sys/kernel/sched_ext").join(file)).ok()?;
            Some(text.trim().to_string())
        };
        let events = read("root/events").unwrap_or_default();
        let count = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_string(), count.trim().parse().ok()?))
        };
        SchedExt {
            state: read("state"),
            scheduler: read("root/ops"),
            enabled: read("enable_seq")
                .and_then(|count| count.parse().ok())
                .unwrap_or(0),
            events: events.lines().filter_map(count).collect(),
        }
    }

    /// Returns whether a sched_ext scheduler schedules now.
    pub fn is_enabled(&self) -> bool {
        self.state.as_deref() == Some("enabled")
    }

    /// Returns how many schedulers ended since boot, whatever the reason.
    pub fn ended(&self) -> u64 {
        let has_one = self
            .state
            .as_deref()
            .is_some_and(|state| state != "disabled");
        self.enabled.saturating_sub(u64::from(has_one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> SchedExt {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/kernel/sched_ext");
        fs::create_dir_all(folder.join("root")).unwrap();
        for (file, text) in files {
            fs::write(folder.join(file), text).unwrap();
        }
        SchedExt::read(root.path())
    }

    #[test]
    fn a_running_scheduler_has_a_name_and_events() {
        let state = read(&[
            ("state", "enabled\n"),
            ("root/ops", "magpie_0.1.0\n"),
            ("enable_seq", "3\n"),
            (
                "root/events",
                "SCX_EV_BYPASS_ACTIVATE 1\nSCX_EV_BYPASS_DURATION 16389613\n",
            ),
        ]);
        assert!(state.is_enabled());
        assert_eq!(state.scheduler.as_deref(), Some("magpie_0.1.0"));
        assert_eq!((state.enabled, state.ended()), (3, 2));
        assert_eq!(state.events["SCX_EV_BYPASS_DURATION"], 16_389_613);
    }

    #[test]
    fn after_the_end_every_scheduler_has_ended() {
        let state = read(&[("state", "disabled\n"), ("enable_seq", "3\n")]);
        assert!(!state.is_enabled());
        assert_eq!((state.ended(), state.scheduler), (3, None));
    }

    #[test]
    fn a_kernel_without_sched_ext_has_no_state() {
        let state = SchedExt::read(Path::new("/no/such/folder"));
        assert_eq!(state, SchedExt::default());
        assert_eq!(state.ended(), 0);
    }
}
