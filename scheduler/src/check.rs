//! Checks before the load whether the scheduler can run here, because the kernel's own answer is a
//! bare error number.
//!
//! Each [`Obstacle`] says what is missing and what to do about it. All files are read below a given
//! root, so that the tests make their own `/sys` and `/proc`.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The oldest kernel that can run the BPF side. sched_ext is in mainline since 6.12, but
/// [`NEEDED_KFUNC`] came with this version.
const FIRST_KERNEL: (u32, u32) = (6, 17);

/// The newest of the kernel's functions that the BPF side cannot do without. Later kernels put
/// underscores before the name.
const NEEDED_KFUNC: &str = "scx_bpf_select_cpu_and";

/// How long to wait for another scheduler that is leaving.
const LEAVING_TIMEOUT: Duration = Duration::from_secs(5);

const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;
const CAP_BPF: u64 = 1 << 39;

/// Why the scheduler cannot run, with the remedy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The kernel has no sched_ext, and is older than [`FIRST_KERNEL`].
    #[error(
        "kernel {release} is too old: scx_magpie needs the sched_ext of Linux {}.{} or later.\n\
         Boot a newer kernel built with CONFIG_SCHED_CLASS_EXT; {WHERE_TO_GET_ONE}",
        FIRST_KERNEL.0, FIRST_KERNEL.1
    )]
    KernelTooOld {
        /// As `uname -r` prints it.
        release: String,
    },

    /// The kernel has sched_ext, but one that is older than the BPF side.
    #[error(
        "the sched_ext of kernel {release} is too old: it lacks {NEEDED_KFUNC}(), which came with \
         Linux {}.{}.\nBoot that or a later kernel; {WHERE_TO_GET_ONE}",
        FIRST_KERNEL.0, FIRST_KERNEL.1
    )]
    SchedExtTooOld {
        /// As `uname -r` prints it.
        release: String,
    },

    /// The kernel is new enough, but was built without sched_ext.
    #[error(
        "kernel {release} was built without sched_ext (CONFIG_SCHED_CLASS_EXT is off: there is no \
         /sys/kernel/sched_ext).\nBoot a kernel that has it; {WHERE_TO_GET_ONE}"
    )]
    NoSchedExt {
        /// As `uname -r` prints it.
        release: String,
    },

    /// The kernel does not describe its types, to which libbpf fits BPF programs.
    #[error(
        "kernel {release} has no BTF (there is no /sys/kernel/btf/vmlinux), to which libbpf fits \
         BPF programs.\nBoot a kernel built with CONFIG_DEBUG_INFO_BTF; the distributions' kernels \
         with sched_ext have it"
    )]
    NoBtf {
        /// As `uname -r` prints it.
        release: String,
    },

    /// The BPF programs read the kernel's configuration, and libbpf cannot find it.
    #[error(
        "the configuration of kernel {release} is in neither /proc/config.gz nor \
         /boot/config-{release}, and the BPF programs depend on it.\n\
         Put it at /boot/config-{release} (it comes with the kernel's package), or boot a kernel \
         built with CONFIG_IKCONFIG_PROC"
    )]
    NoKernelConfig {
        /// As `uname -r` prints it.
        release: String,
    },

    /// The process lacks the capabilities that loading needs.
    #[error(
        "no permission to load a scheduler (that takes CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN).\n\
         Run it as root: sudo scx_magpie"
    )]
    NoPermission,

    /// The kernel runs one sched_ext scheduler at a time.
    #[error(
        "another sched_ext scheduler is running: {name}.\n\
         Stop it first: its process is usually called scx_{}; where a service started it, \
         `systemctl stop` that service (scx, scx_loader, scx_magpie)",
        name.split('_').next().unwrap_or_default()
    )]
    OtherScheduler {
        /// The name by which the kernel knows the other scheduler.
        name: String,
    },
}

const WHERE_TO_GET_ONE: &str = "among those that do are Arch, CachyOS, Fedora 42, openSUSE \
    Tumbleweed and Ubuntu 25.10 and later, and Debian's kernels 6.17 and later (trixie-backports, \
    testing)";

/// The machine to be checked, as a tree of the kernel's files.
#[derive(Clone, Debug)]
pub struct Host {
    /// The folder that has `sys`, `proc` and `boot`.
    pub root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Host { root: "/".into() }
    }
}

impl Host {
    /// Checks everything that is known to make the load fail. Waits a few seconds for a scheduler
    /// that is leaving.
    ///
    /// # Errors
    /// The first obstacle found; those that no user can remove come first.
    pub fn check(&self) -> Result<(), Obstacle> {
        match self.lasting_obstacles().into_iter().next() {
            Some(obstacle) => Err(obstacle),
            None => self.wait_until_free(),
        }
    }

    /// Returns everything that would make the load fail now; does not wait.
    pub fn obstacles(&self) -> Vec<Obstacle> {
        let other = self.running_scheduler();
        let other = other.map(|name| Obstacle::OtherScheduler { name });
        self.lasting_obstacles().into_iter().chain(other).collect()
    }

    /// Returns the obstacles that do not go away by waiting.
    fn lasting_obstacles(&self) -> Vec<Obstacle> {
        let release = self
            .read("proc/sys/kernel/osrelease")
            .unwrap_or("of unknown version".into());
        let release = || release.clone();
        let has_config =
            self.has("proc/config.gz") || self.has(&format!("boot/config-{}", release()));
        let is_old = version(&release()).is_some_and(|version| version < FIRST_KERNEL);
        let has_sched_ext = self.has("sys/kernel/sched_ext");
        let has_btf = self.has("sys/kernel/btf/vmlinux");
        let lacks_kfunc = has_sched_ext && has_btf && !self.btf_names(NEEDED_KFUNC);
        [
            (!has_sched_ext && is_old).then(|| Obstacle::KernelTooOld { release: release() }),
            (!has_sched_ext && !is_old).then(|| Obstacle::NoSchedExt { release: release() }),
            lacks_kfunc.then(|| Obstacle::SchedExtTooOld { release: release() }),
            (!has_btf).then(|| Obstacle::NoBtf { release: release() }),
            (!has_config).then(|| Obstacle::NoKernelConfig { release: release() }),
            (!self.may_load()).then_some(Obstacle::NoPermission),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Returns whether the name of a function, with anything before it, is in the kernel's BTF. If
    /// that cannot be read the kernel decides, so the answer is yes.
    fn btf_names(&self, function: &str) -> bool {
        let Ok(btf) = fs::read(self.root.join("sys/kernel/btf/vmlinux")) else {
            return true;
        };
        let mut names = btf.split(|byte| *byte == 0);
        names.any(|name| name.ends_with(function.as_bytes()))
    }

    /// Returns whether this process may load BPF schedulers. Where its capabilities are unknown the
    /// kernel decides, so the answer is yes.
    fn may_load(&self) -> bool {
        let Some(status) = self.read("proc/self/status") else {
            return true;
        };
        let Some(effective) = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        else {
            return true;
        };
        effective & CAP_SYS_ADMIN != 0
            || effective & (CAP_BPF | CAP_PERFMON) == CAP_BPF | CAP_PERFMON
    }

    /// Waits for a scheduler that is leaving, as at a restart of the service.
    ///
    /// # Errors
    /// When a scheduler runs, or one takes too long to leave.
    fn wait_until_free(&self) -> Result<(), Obstacle> {
        let deadline = Instant::now() + LEAVING_TIMEOUT;
        while self.state().as_deref() == Some("disabling") && Instant::now() < deadline {
            sleep(Duration::from_millis(50));
        }
        match self.running_scheduler() {
            Some(name) => Err(Obstacle::OtherScheduler { name }),
            None => Ok(()),
        }
    }

    /// Returns the name of the sched_ext scheduler that runs now, as the kernel knows it.
    pub fn running_scheduler(&self) -> Option<String> {
        let state = self.state().filter(|state| state != "disabled")?;
        let name = self.read("sys/kernel/sched_ext/root/ops");
        let name = name.filter(|name| !name.is_empty());
        Some(name.unwrap_or_else(|| format!("unnamed, its state is {state:?}")))
    }

    /// Returns the state of sched_ext: `disabled`, `enabling`, `enabled` or `disabling`.
    fn state(&self) -> Option<String> {
        self.read("sys/kernel/sched_ext/state")
    }

    /// Returns whether a file exists below the root.
    fn has(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Returns the content of a file below the root, without white space around it.
    fn read(&self, path: &str) -> Option<String> {
        Some(
            fs::read_to_string(self.root.join(path))
                .ok()?
                .trim()
                .to_string(),
        )
    }
}

/// Returns major and minor version of a release such as `7.2.12+deb14-cloud-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Explains why the kernel refused the BPF programs.
///
/// * `malformed`: kfuncs whose BTF is broken, see
///   [`scx_utils::compat::malformed_scx_kfuncs`].
/// * `log`: the last messages of libbpf and the verifier, oldest first.
/// * `verbose`: the user has already seen the log.
pub fn explain_load_failure(malformed: &[String], log: &[String], verbose: bool) -> String {
    if let Some(first) = malformed.first() {
        return format!(
            "this kernel's BTF is broken, so that it can load no sched_ext scheduler: the BTF was made \
             with a pahole older than 1.26, which leaves the hidden argument of KF_IMPLICIT_ARGS \
             functions in their public prototypes ({first} and {} others).\nBoot another build of \
             this kernel: of Debian's 7.2, those with +deb13 in their name have the fault and those \
             with +deb14 do not; or build it with pahole 1.26 or newer",
            malformed.len() - 1
        );
    }
    if verbose || log.is_empty() {
        return "the kernel refused the BPF programs; the reason is above".into();
    }
    format!(
        "the kernel refused the BPF programs. The end of libbpf's log (all of it: --verbose):\n  {}",
        log.join("\n  ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine made of files.
    struct Machine(tempfile::TempDir);

    impl Machine {
        /// One on which the scheduler can run.
        fn good() -> Machine {
            let machine = Machine(tempfile::tempdir().unwrap());
            machine
                .file("proc/sys/kernel/osrelease", "7.2.12+deb14-cloud-amd64\n")
                .file("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
                .file("sys/kernel/sched_ext/state", "disabled\n")
                .file("sys/kernel/btf/vmlinux", "\0__scx_bpf_select_cpu_and\0")
                .file(
                    "boot/config-7.2.12+deb14-cloud-amd64",
                    "CONFIG_PREEMPT_RCU=y\n",
                )
        }

        fn file(self, path: &str, content: &str) -> Machine {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
            self
        }

        fn without(self, path: &str) -> Machine {
            let path = self.0.path().join(path);
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
            self
        }

        fn check(&self) -> Result<(), Obstacle> {
            let root = self.0.path().to_path_buf();
            Host { root }.check()
        }

        fn obstacle(&self) -> String {
            self.check().unwrap_err().to_string()
        }
    }

    #[test]
    fn a_good_machine_has_no_obstacle() {
        assert_eq!(Machine::good().check(), Ok(()));
    }

    #[test]
    fn a_kernel_without_sched_ext_is_told_from_an_old_one() {
        let without = Machine::good().without("sys/kernel/sched_ext");
        assert!(matches!(without.check(), Err(Obstacle::NoSchedExt { .. })));
        let text = without.obstacle();
        assert!(
            text.contains("CONFIG_SCHED_CLASS_EXT") && text.contains("Debian"),
            "{text}"
        );

        let old = without.file("proc/sys/kernel/osrelease", "6.1.0-38-amd64\n");
        assert!(matches!(old.check(), Err(Obstacle::KernelTooOld { .. })));
        assert!(old.obstacle().contains("6.1.0-38-amd64") && old.obstacle().contains("6.17"));

        // 6.9 is older than 6.17 although it sorts behind it as text.
        let older = old.file("proc/sys/kernel/osrelease", "6.9.1\n");
        assert!(matches!(older.check(), Err(Obstacle::KernelTooOld { .. })));
    }

    #[test]
    fn a_sched_ext_that_lacks_a_function_is_too_old() {
        for btf in [
            "\0scx_bpf_select_cpu_dfl\0",
            "\0scx_bpf_select_cpu_and_more\0",
        ] {
            let old = Machine::good()
                .file("sys/kernel/btf/vmlinux", btf)
                .file("proc/sys/kernel/osrelease", "6.14.0-37-generic\n")
                .file("boot/config-6.14.0-37-generic", "");
            let expected = Obstacle::SchedExtTooOld {
                release: "6.14.0-37-generic".into(),
            };
            assert_eq!(old.check(), Err(expected));
            let text = old.obstacle();
            let parts = ["scx_bpf_select_cpu_and()", "Linux 6.17", "Debian's kernels"];
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }

    #[test]
    fn a_kernel_without_btf() {
        let text = Machine::good().without("sys/kernel/btf/vmlinux").obstacle();
        assert!(text.contains("CONFIG_DEBUG_INFO_BTF"), "{text}");
    }

    #[test]
    fn the_configuration_may_be_in_either_place() {
        let machine = Machine::good().without("boot");
        let text = machine.obstacle();
        assert!(
            text.contains("/boot/config-7.2.12+deb14-cloud-amd64"),
            "{text}"
        );
        assert_eq!(machine.file("proc/config.gz", "").check(), Ok(()));
    }

    #[test]
    fn permission_is_root_or_the_capabilities() {
        let with = |mask: u64| {
            Machine::good()
                .file("proc/self/status", &format!("CapEff:\t{mask:016x}\n"))
                .check()
        };
        assert_eq!(with(0), Err(Obstacle::NoPermission));
        assert_eq!(with(CAP_BPF), Err(Obstacle::NoPermission));
        assert_eq!(with(CAP_BPF | CAP_PERFMON), Ok(()));
        assert_eq!(with(CAP_SYS_ADMIN), Ok(()));
        assert!(Obstacle::NoPermission.to_string().contains("sudo"));
    }

    #[test]
    fn another_scheduler_is_named_with_its_process() {
        let text = Machine::good()
            .file("sys/kernel/sched_ext/state", "enabled\n")
            .file(
                "sys/kernel/sched_ext/root/ops",
                "cosmos_1.1.7_x86_64_unknown_linux_gnu\n",
            )
            .obstacle();
        assert!(
            text.contains("cosmos_1.1.7") && text.contains("scx_cosmos;"),
            "{text}"
        );
    }

    #[test]
    fn a_scheduler_without_a_name_is_still_an_obstacle() {
        let text = Machine::good()
            .file("sys/kernel/sched_ext/state", "enabling\n")
            .obstacle();
        assert!(text.contains("enabling"), "{text}");
    }

    #[test]
    fn a_scheduler_that_is_leaving_is_waited_for() {
        let machine = Machine::good().file("sys/kernel/sched_ext/state", "disabling\n");
        let state = machine.0.path().join("sys/kernel/sched_ext/state");
        let leaving = std::thread::spawn(move || {
            sleep(Duration::from_millis(120));
            // Renamed and not rewritten: the kernel's file is never empty.
            let next = state.with_extension("next");
            fs::write(&next, "disabled\n").unwrap();
            fs::rename(next, state).unwrap();
        });
        assert_eq!(machine.check(), Ok(()));
        leaving.join().unwrap();
    }

    #[test]
    fn a_broken_btf_is_explained_before_the_log() {
        let log = ["func_proto incompatible with vmlinux".to_string()];
        let text = explain_load_failure(&["scx_bpf_dsq_insert".into()], &log, false);
        assert!(
            text.contains("pahole") && text.contains("scx_bpf_dsq_insert"),
            "{text}"
        );
        assert!(!text.contains("func_proto"), "{text}");
    }

    #[test]
    fn a_refusal_shows_the_log_once() {
        let log = ["the verifier's reason".to_string()];
        assert!(explain_load_failure(&[], &log, false).contains("the verifier's reason"));
        assert!(!explain_load_failure(&[], &log, true).contains("the verifier's reason"));
    }

    #[test]
    fn releases_are_compared_as_numbers() {
        assert_eq!(version("7.2.12+deb14-cloud-amd64"), Some((7, 2)));
        assert_eq!(version("6.12-rc1"), Some((6, 12)));
        assert_eq!(version("unknown"), None);
    }
}
