//! Features of the kernel's own scheduler that scx_magpie lacks, for `scx_magpie check`.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// A feature of the kernel's scheduler that has no effect, or another one, under scx_magpie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unsupported {
    /// As the kernel's documentation names it.
    pub feature: &'static str,
    /// The behaviour in its place.
    pub effect: &'static str,
    /// Where this machine is set up to use the feature, as far as its files say.
    pub in_use: Option<String>,
}

impl Unsupported {
    /// Returns all such features; `root` has the `sys` and `proc` of the machine.
    pub fn all(root: &Path) -> Vec<Unsupported> {
        let read = |path: &str| {
            let text = fs::read_to_string(root.join(path)).ok()?;
            Some(text.trim().to_string())
        };
        let without_tick = read("sys/devices/system/cpu/nohz_full")
            .filter(|cpus| !cpus.is_empty() && cpus != "(null)")
            .map(|cpus| format!("CPUs {cpus}"));
        let clamps = ["min", "max"].iter().filter_map(|which| {
            let name = format!("sched_util_clamp_{which}");
            let value = read(&format!("proc/sys/kernel/{name}"))?;
            (value != "1024").then(|| format!("kernel.{name} = {value}"))
        });
        let clamps: Vec<String> = clamps.collect();
        [
            (
                "core scheduling",
                "tasks with different cookies do not share a core, but the one that waits longest runs \
                 first, whatever its share",
                None,
            ),
            (
                "nohz_full",
                "the tick does not stop while a single task runs",
                without_tick,
            ),
            (
                "utilization clamping (uclamp)",
                "the CPU's frequency follows it under the governor schedutil; on a hybrid machine it also \
                 chooses the CPU when the task wakes",
                (!clamps.is_empty()).then(|| clamps.join(", ")),
            ),
        ]
        .map(|(feature, effect, in_use)| Unsupported {
            feature,
            effect,
            in_use,
        })
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_use(files: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let all = Unsupported::all(root.path());
        let used = all.into_iter();
        used.filter_map(|one| Some((one.feature, one.in_use?)))
            .collect()
    }

    #[test]
    fn a_machine_as_it_comes_uses_none() {
        assert_eq!(in_use(&[]), []);
        let files = [
            ("sys/devices/system/cpu/nohz_full", "(null)\n"),
            ("proc/sys/kernel/sched_util_clamp_min", "1024\n"),
            ("proc/sys/kernel/sched_util_clamp_max", "1024\n"),
        ];
        assert_eq!(in_use(&files), []);
    }

    #[test]
    fn cpus_without_tick_and_clamps_are_named() {
        let files = [
            ("sys/devices/system/cpu/nohz_full", "2-7\n"),
            ("proc/sys/kernel/sched_util_clamp_max", "512\n"),
        ];
        let expected = [
            ("nohz_full", "CPUs 2-7".to_string()),
            (
                "utilization clamping (uclamp)",
                "kernel.sched_util_clamp_max = 512".to_string(),
            ),
        ];
        assert_eq!(in_use(&files), expected);
    }
}
