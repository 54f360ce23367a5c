//! The kernel's own preferred CPUs, which Linux has from 7.4 on.
//!
//! The kernel's module `steal_governor` takes CPUs out of `/sys/devices/system/cpu/preferred` while
//! the host takes time, and puts them back. The kernel applies that mask to the fair class only, so
//! under a sched_ext scheduler it has no effect unless that scheduler reads it. While the module is
//! loaded, scx_magpie prefers the CPUs of the mask and its own governor rests: two governors would
//! each take the other's doing for the host's.
//!
//! ```text
//! file and module there?               --no-->  our own governor decides
//!      | yes
//! a list with an online CPU?           --no-->  as before, with one warning
//!      | yes
//! its share of cores from each node?   --no-->  as many cores, evenly from the nodes
//!      | yes
//! the mask
//! ```
//!
//! The module takes the highest CPU first, and so empties the last node first. A machine of one
//! node follows the mask to the CPU.
//!
//! Both paths are relative to a root. For tests alone, which have no such kernel, the environment
//! variable [`TEST_ROOT`] names another root than `/`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use log::warn;

use crate::cpu_set::CpuSet;

const MASK: &str = "sys/devices/system/cpu/preferred";
const MODULE: &str = "sys/module/steal_governor";

/// The environment variable with the folder below which tests put both paths.
const TEST_ROOT: &str = "SCX_MAGPIE_TEST_ROOT";

/// A core of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its NUMA node.
    pub node: u16,
    /// Its CPUs.
    pub cpus: CpuSet,
}

/// The kernel's mask, as it was when it was last read.
#[derive(Debug)]
pub struct KernelMask {
    root: PathBuf,
    /// All cores, in the order in which our own governor would prefer them.
    cores: Vec<Core>,
    /// The last mask that could be used; none while the module is not loaded.
    mask: Option<CpuSet>,
    /// The CPUs to prefer because of it.
    cpus: Option<CpuSet>,
    /// Why the mask that is in the file now cannot be used.
    fault: Option<String>,
}

impl KernelMask {
    /// Starts without a mask. `cores` are in the order in which our own governor would prefer them.
    pub fn new(cores: Vec<Core>) -> KernelMask {
        let test_root = std::env::var_os(TEST_ROOT);
        if let Some(root) = &test_root {
            warn!(
                "{TEST_ROOT} is set, which is for tests alone: the kernel's preferred CPUs are \
                 looked for below {}",
                root.display()
            );
        }
        KernelMask::below(test_root.unwrap_or_else(|| OsString::from("/")), cores)
    }

    fn below(root: impl Into<PathBuf>, cores: Vec<Core>) -> KernelMask {
        KernelMask {
            root: root.into(),
            cores,
            mask: None,
            cpus: None,
            fault: None,
        }
    }

    /// Reads the kernel's files, and returns the CPUs to prefer because of them. Returns nothing if
    /// our own governor shall decide. A mask that cannot be used changes nothing; that is said
    /// once, until there is a usable one again.
    pub fn read(&mut self, online: &CpuSet) -> Option<&CpuSet> {
        match self.usable_mask(online) {
            Ok(mask) => {
                self.cpus = mask.as_ref().map(|mask| evenly(mask, online, &self.cores));
                self.mask = mask;
                self.fault = None;
            }
            Err(fault) => {
                if self.fault.is_none() {
                    warn!(
                        "{fault}, though steal_governor is loaded. {}; to choose the CPUs \
                         yourself, use `scx_magpie preferred --set CPUS`",
                        match &self.mask {
                            Some(mask) => format!("The kernel's last choice, {mask}, stays"),
                            None => "scx_magpie's own governor goes on".into(),
                        }
                    );
                }
                self.fault = Some(fault);
            }
        }
        self.cpus.as_ref()
    }

    /// Returns the mask if the module is loaded and the kernel has the file.
    fn usable_mask(&self, online: &CpuSet) -> Result<Option<CpuSet>, String> {
        if !self.root.join(MODULE).exists() {
            return Ok(None);
        }
        let path = self.root.join(MASK);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("reading {} failed ({error})", path.display())),
        };
        let text = text.trim();
        let (path, mask) = (path.display(), text.parse::<CpuSet>());
        match mask {
            Err(error) => Err(format!("{path} is no list of CPUs ({error})")),
            Ok(mask) if mask.is_empty() => Err(format!("{path} is empty")),
            Ok(mask) if mask.and(online).is_empty() => Err(format!(
                "{path} has no online CPU ({mask}; online are {online})"
            )),
            Ok(mask) => Ok(Some(mask)),
        }
    }

    /// Returns the mask that rules now, as a list; no text if none does.
    pub fn list(&self) -> String {
        self.mask.as_ref().map_or(String::new(), CpuSet::to_string)
    }

    /// Says why the mask that rules now rules, and how it is followed.
    pub fn why(&self) -> String {
        let (Some(mask), Some(cpus)) = (&self.mask, &self.cpus) else {
            return String::new();
        };
        match &self.fault {
            Some(fault) => format!("as the kernel's steal_governor said last ({mask}): {fault}"),
            None if mask == cpus => "as the kernel's steal_governor says".into(),
            None => format!(
                "as many cores as the kernel's steal_governor says ({mask}), evenly from the nodes"
            ),
        }
    }

    /// Says why no mask rules; no text on a kernel without one.
    pub fn why_not(&self) -> String {
        match &self.fault {
            Some(fault) => format!(", because {fault}"),
            None if self.root.join(MASK).exists() => {
                ", because the kernel's steal_governor is not loaded".into()
            }
            None => String::new(),
        }
    }
}

/// Returns the mask if it has, within less than one core, each node's share of cores. Otherwise
/// returns as many cores in our own governor's order, which takes them evenly.
fn evenly(mask: &CpuSet, online: &CpuSet, cores: &[Core]) -> CpuSet {
    let online_part = |core: &Core| Core {
        node: core.node,
        cpus: core.cpus.and(online),
    };
    let cores = cores.iter().map(online_part);
    let cores: Vec<_> = cores.filter(|core| !core.cpus.is_empty()).collect();
    // Of each node, the cores in the mask and all cores.
    let mut nodes: BTreeMap<u16, (usize, usize)> = BTreeMap::new();
    for core in &cores {
        let (used, all) = nodes.entry(core.node).or_default();
        *used += usize::from(!core.cpus.and(mask).is_empty());
        *all += 1;
    }
    let used: usize = nodes.values().map(|(used, _)| used).sum();
    let is_even =
        |(part, size): &(usize, usize)| (part * cores.len()).abs_diff(used * size) < cores.len();
    match nodes.values().all(is_even) {
        true => mask.clone(),
        false => {
            let chosen = cores[..used].iter();
            chosen.fold(CpuSet::default(), |set, core| set.or(&core.cpus))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of the kernel's files, read as on a machine of 8 CPUs: 4 cores on 2 nodes.
    struct Fake {
        folder: tempfile::TempDir,
        kernel: KernelMask,
    }

    impl Fake {
        /// Makes a kernel that has the file, with its module loaded.
        fn new() -> Fake {
            let folder = tempfile::tempdir().unwrap();
            let kernel = KernelMask::below(folder.path(), two_nodes());
            let fake = Fake { folder, kernel };
            fs::create_dir_all(fake.path(MASK).parent().unwrap()).unwrap();
            fs::create_dir_all(fake.path(MODULE)).unwrap();
            fake.set("0-7\n");
            fake
        }

        fn path(&self, path: &str) -> PathBuf {
            self.folder.path().join(path)
        }

        fn set(&self, mask: &str) {
            fs::write(self.path(MASK), mask).unwrap();
        }

        /// Returns the CPUs to prefer as a list, where CPUs 0 to 7 are online.
        fn read(&mut self) -> Option<String> {
            self.kernel.read(&cpus("0-7")).map(CpuSet::to_string)
        }
    }

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn two_nodes() -> Vec<Core> {
        let core = |(node, list)| Core {
            node,
            cpus: cpus(list),
        };
        [(0, "0-1"), (1, "4-5"), (0, "2-3"), (1, "6-7")]
            .map(core)
            .into()
    }

    fn some(list: &str) -> Option<String> {
        Some(list.into())
    }

    #[test]
    fn the_mask_rules_while_the_module_is_loaded() {
        let mut fake = Fake::new();
        assert_eq!(
            (fake.read(), fake.kernel.list()),
            (some("0-7"), "0-7".into())
        );
        fake.set("0-1,4-5\n");
        assert_eq!(fake.read(), some("0-1,4-5"));
        assert_eq!(fake.kernel.why(), "as the kernel's steal_governor says");

        fs::remove_dir(fake.path(MODULE)).unwrap();
        assert_eq!((fake.read(), fake.kernel.list()), (None, String::new()));
        assert!(fake.kernel.why_not().contains("not loaded"));
        fs::create_dir(fake.path(MODULE)).unwrap();
        assert_eq!(fake.read(), some("0-1,4-5"));

        // A module of that name on a kernel without the mask.
        fs::remove_file(fake.path(MASK)).unwrap();
        assert_eq!((fake.read(), fake.kernel.why_not()), (None, String::new()));
    }

    #[test]
    fn a_mask_that_cannot_be_used_changes_nothing() {
        for (wrong, reason) in [
            ("\n", "is empty"),
            ("0-3,x\n", "is no list of CPUs"),
            ("8-9\n", "online are 0-7"),
        ] {
            let mut fake = Fake::new();
            fake.set(wrong);
            assert_eq!(fake.read(), None, "{wrong:?} came first");
            assert!(fake.kernel.why_not().contains(reason), "{reason}");

            fake.set("0-1,4-5");
            assert_eq!(fake.read(), some("0-1,4-5"));
            fake.set(wrong);
            assert_eq!(fake.read(), some("0-1,4-5"), "{wrong:?} came second");
            let why = fake.kernel.why();
            assert!(why.contains(reason) && why.contains("last"), "{why}");

            fs::remove_dir(fake.path(MODULE)).unwrap();
            assert_eq!(fake.read(), None, "the module is gone");
        }
    }

    #[test]
    fn cores_leave_the_nodes_evenly() {
        for (mask, followed) in [
            ("0-7", "0-7"),
            // One core more of either node is as even as it can be.
            ("0-5", "0-5"),
            ("2-7", "2-7"),
            // The kernel has emptied a node.
            ("0-3", "0-1,4-5"),
            ("4-7", "0-1,4-5"),
            ("2-3", "2-3"),
            // Single CPUs of the right cores.
            ("1,6", "1,6"),
        ] {
            let all = cpus("0-7");
            assert_eq!(
                evenly(&cpus(mask), &all, &two_nodes()),
                cpus(followed),
                "{mask}"
            );
        }
        // A node that is offline has no share.
        let node = cpus("0-3");
        assert_eq!(evenly(&cpus("2-3"), &node, &two_nodes()), cpus("2-3"));
    }
}
