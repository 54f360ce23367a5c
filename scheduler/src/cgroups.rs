//! The share of CPU time that each cgroup gets, its limit, and how often it was throttled.
//!
//! The BPF side knows cgroups by the kernel's ids. An id is the inode number of the cgroup's
//! folder, so a request walks through the file system to find the names.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};

/// Where the kernel shows cgroups.
pub const FOLDER: &str = "/sys/fs/cgroup";

/// The share and the limit of one cgroup.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "Share and limit of a cgroup")]
pub struct CgroupStatus {
    #[stat(
        desc = "Share of its own tasks in the CPU time in use, by weight and by how often they are active, in percent"
    )]
    pub share_percent: f64,
    #[stat(desc = "Limit (cpu.max) in percent of one CPU; 0: none")]
    pub limit_percent: f64,
    #[stat(desc = "How often it was throttled since the scheduler started")]
    pub throttled: u64,
    #[stat(desc = "For how long it was throttled in all, in nanoseconds")]
    pub throttled_ns: u64,
}

impl CgroupStatus {
    /// Returns whether the cgroup is active or limited.
    fn is_worth_a_line(&self) -> bool {
        self.share_percent > 0.0 || self.limit_percent > 0.0 || self.throttled > 0
    }
}

/// All cgroups that the scheduler tells apart.
#[stat_doc]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "Shares and limits of cgroups; ask for the target \"cgroups\"")]
pub struct CgroupsStatus {
    #[stat(desc = "By path below the root cgroup")]
    pub cgroups: BTreeMap<String, CgroupStatus>,
}

impl CgroupsStatus {
    /// Makes the status of all cgroups. Turns shares, which `by_id` may have on any scale, into
    /// percentages of their sum, and the kernel's ids into names. `folder` is where the kernel
    /// shows the root cgroup. A cgroup that has no folder below it keeps its id as the name.
    pub fn new(mut by_id: Vec<(u64, CgroupStatus)>, folder: &Path) -> CgroupsStatus {
        let all: f64 = by_id.iter().map(|(_, status)| status.share_percent).sum();
        for (_, status) in &mut by_id {
            status.share_percent *= if all > 0.0 { 100.0 / all } else { 0.0 };
        }
        let mut names = HashMap::new();
        name_cgroups(folder, "/", &mut names);
        let name = |id| match names.get(&id) {
            Some(name) => name.clone(),
            None => format!("id {id}"),
        };
        CgroupsStatus {
            cgroups: by_id
                .into_iter()
                .map(|(id, status)| (name(id), status))
                .collect(),
        }
    }

    /// Writes a table of the cgroups that are active or limited.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn tell<W: Write>(&self, output: &mut W) -> io::Result<()> {
        writeln!(
            output,
            "   share     limit  throttled      for  cgroup (share of the time in use, limit of a CPU)"
        )?;
        for (name, status) in self.cgroups.iter().filter(|(_, s)| s.is_worth_a_line()) {
            let limit = match status.limit_percent {
                0.0 => "none".into(),
                percent => format!("{percent:.1} %"),
            };
            writeln!(
                output,
                "{:>6.1} % {limit:>9} {:>8} x {:>6.1} s  {name}",
                status.share_percent,
                status.throttled,
                status.throttled_ns as f64 / 1e9
            )?;
        }
        Ok(())
    }
}

/// Adds the names of `folder` and all cgroups below it by id, except those that vanish meanwhile.
fn name_cgroups(folder: &Path, name: &str, names: &mut HashMap<u64, String>) {
    let Ok(own) = fs::metadata(folder) else {
        return;
    };
    names.insert(own.ino(), name.to_string());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // Another hierarchy mounted below, as that of cgroup v1, has inode numbers of its own.
        let is_of_this = |inner: fs::Metadata| inner.is_dir() && inner.dev() == own.dev();
        if entry.metadata().is_ok_and(is_of_this) {
            let inner = format!(
                "{}/{}",
                name.trim_end_matches('/'),
                entry.file_name().display()
            );
            name_cgroups(&entry.path(), &inner, names);
        }
    }
}

/// Returns the paths of the cgroups below `folder` that have a limit, for a warning where limits do
/// not hold. Cgroups that vanish meanwhile are left out.
pub fn find_limited(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let limit = fs::read_to_string(path.join("cpu.max")).unwrap_or_default();
        if !limit.is_empty() && !limit.starts_with("max") {
            found.push(path.display().to_string());
        }
        found.extend(find_limited(&path));
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(share_percent: f64, limit_percent: f64) -> CgroupStatus {
        CgroupStatus {
            share_percent,
            limit_percent,
            ..CgroupStatus::default()
        }
    }

    #[test]
    fn cgroups_have_the_names_of_their_folders_and_shares_of_the_whole() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        let id = |path: &str| fs::metadata(root.path().join(path)).unwrap().ino();
        let by_id = vec![
            (id(""), status(0.0, 0.0)),
            (id("a"), status(3.0, 0.0)),
            (id("a/b"), status(9.0, 50.0)),
            (1, status(0.0, 0.0)),
        ];
        let found = CgroupsStatus::new(by_id, root.path()).cgroups;
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["/", "/a", "/a/b", "id 1"]);
        assert_eq!(found["/a"], status(25.0, 0.0));
        assert_eq!(found["/a/b"], status(75.0, 50.0));
    }

    #[test]
    fn the_table_has_those_that_are_active_or_limited() {
        let throttled = CgroupStatus {
            throttled: 7,
            throttled_ns: 1_500_000_000,
            ..status(0.0, 20.0)
        };
        let cgroups = [
            ("/idle", status(0.0, 0.0)),
            ("/busy", status(62.5, 0.0)),
            ("/limited", throttled),
        ];
        let cgroups = cgroups.map(|(name, status)| (name.to_string(), status));
        let mut text = Vec::new();
        CgroupsStatus {
            cgroups: cgroups.into(),
        }
        .tell(&mut text)
        .unwrap();
        let text = String::from_utf8(text).unwrap();
        let words = |line: usize| {
            let line = text.lines().nth(line).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(text.lines().count(), 3, "{text}");
        assert_eq!(words(1), "62.5 % none 0 x 0.0 s /busy");
        assert_eq!(words(2), "0.0 % 20.0 % 7 x 1.5 s /limited");
    }

    #[test]
    fn nothing_active_is_no_division_by_nothing() {
        let found = CgroupsStatus::new(vec![(1, status(0.0, 0.0))], Path::new("/none"));
        assert_eq!(found.cgroups["id 1"], status(0.0, 0.0));
    }

    #[test]
    fn cgroups_with_a_limit_are_found() {
        let root = tempfile::tempdir().unwrap();
        for (path, limit) in [
            ("a", "max 100000\n"),
            ("a/b", "20000 100000\n"),
            ("c", "150000 100000\n"),
            ("d", ""),
        ] {
            let folder = root.path().join(path);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cpu.max"), limit).unwrap();
        }
        let path = |path| root.path().join(path).display().to_string();
        assert_eq!(find_limited(root.path()), [path("a/b"), path("c")]);
        assert!(find_limited(&root.path().join("none")).is_empty());
    }
}
