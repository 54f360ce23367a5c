//! Sets up the system that workloads and schedulers run in: mounts, cgroups, the loopback
//! interface.
//!
//! A step that fails becomes a warning, which hello carries to the host, and the boot goes on: a
//! kernel may lack a file system that no test of this run needs.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use magpie_guest::PORT_NAME;
use nix::mount::{MsFlags, mount};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::utsname::uname;

/// Types of file systems, and where they are mounted.
const MOUNTS: &[(&str, &str)] = &[
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("bpf", "/sys/fs/bpf"),
    ("debugfs", "/sys/kernel/debug"),
    ("tracefs", "/sys/kernel/tracing"),
];

/// Cgroup controllers that are enabled for children of the root.
const CONTROLLERS: &[&str] = &["cpu", "cpuset", "pids", "memory"];

/// Sets the system up. Returns what failed.
pub fn set_up() -> Vec<String> {
    let mut warnings = Vec::new();
    let mut note = |what: String, result: Result<(), String>| {
        if let Err(error) = result {
            warnings.push(format!("{what}: {error}"));
        }
    };
    for (kind, target) in MOUNTS {
        let result = fs::create_dir_all(target)
            .map_err(|e| e.to_string())
            .and_then(|()| {
                mount(
                    Some(*kind),
                    *target,
                    Some(*kind),
                    MsFlags::empty(),
                    None::<&str>,
                )
                .map_err(|e| e.to_string())
            });
        note(format!("mount {kind} on {target}"), result);
    }
    let available = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    for controller in CONTROLLERS
        .iter()
        .filter(|c| available.split_whitespace().any(|a| a == **c))
    {
        let result = fs::write(
            "/sys/fs/cgroup/cgroup.subtree_control",
            format!("+{controller}"),
        );
        note(
            format!("enable cgroup controller {controller}"),
            result.map_err(|e| e.to_string()),
        );
    }
    note("bring up lo".into(), bring_up_loopback());
    note("link the kernel's config".into(), link_config());
    // Up to here the log told the host where the boot was. From here on it would cost time, but a
    // warning says why the kernel may die later.
    let _ = fs::write("/proc/sys/kernel/printk", "5");
    // Without this, /proc/schedstat has no domains and no run delays.
    let _ = fs::write("/proc/sys/kernel/sched_schedstats", "1");
    for cpu in offline_cpus(&command_line()) {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        note(
            format!("write 0 to {path}"),
            fs::write(&path, "0").map_err(|e| e.to_string()),
        );
    }
    warnings
}

fn command_line() -> String {
    fs::read_to_string("/proc/cmdline").unwrap_or_default()
}

/// Returns the value of a word of the kernel's command line.
fn value<'a>(cmdline: &'a str, name: &str) -> Option<&'a str> {
    let words = cmdline.split_whitespace();
    words
        .filter_map(|word| word.split_once('='))
        .find_map(|(found, value)| (found == name).then_some(value))
}

/// Returns the program that is to be the guest's init, if that is not the agent.
pub fn other_init() -> Option<String> {
    value(&command_line(), "magpie.init").map(str::to_string)
}

/// Returns the CPUs that `magpie.offline=3,5` on the kernel's command line names.
fn offline_cpus(cmdline: &str) -> Vec<u32> {
    value(cmdline, "magpie.offline")
        .into_iter()
        .flat_map(|list| list.split(','))
        .filter_map(|cpu| cpu.parse().ok())
        .collect()
}

/// Brings up lo, which workloads with sockets need.
fn bring_up_loopback() -> Result<(), String> {
    if_nametoindex("lo").map_err(|e| e.to_string())?;
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").map_err(|e| e.to_string())?;
    // SAFETY: an all-zero ifreq is valid: it is plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags =
        (InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING).bits() as libc::c_short;
    // SAFETY: the socket is open, and SIOCSIFFLAGS reads an ifreq, which `request` is during the
    // call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().to_string()),
    }
}

/// Links the kernel's configuration to `/boot/config-$(uname -r)`, where libbpf looks for it. The
/// image has it under a fixed name, because the host does not know the release of a user's own
/// kernel.
fn link_config() -> Result<(), String> {
    let release = uname()
        .map_err(|e| e.to_string())?
        .release()
        .to_string_lossy()
        .into_owned();
    if !Path::new("/boot/config").exists() {
        return Ok(());
    }
    std::os::unix::fs::symlink("config", format!("/boot/config-{release}"))
        .map_err(|e| e.to_string())
}

/// Opens the port to the host. Waits for it, because the kernel may find it after init has started.
pub fn open_port() -> Result<File, String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(device) = find_port() {
            return OpenOptions::new()
                .read(true)
                .write(true)
                .open(&device)
                .map_err(|e| format!("cannot open {device}: {e}"));
        }
        if Instant::now() > deadline {
            return Err(format!(
                "no virtio-serial port {PORT_NAME} in /sys/class/virtio-ports"
            ));
        }
        sleep(Duration::from_millis(5));
    }
}

/// Returns the device of the port to the host, if the kernel has found it.
fn find_port() -> Option<String> {
    for entry in fs::read_dir("/sys/class/virtio-ports").ok()?.flatten() {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        let device = format!("/dev/{}", entry.file_name().to_string_lossy());
        if name.trim() == PORT_NAME && Path::new(&device).exists() {
            return Some(device);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{offline_cpus, value};

    #[test]
    fn offline_cpus_come_from_the_command_line() {
        assert_eq!(offline_cpus("quiet magpie.offline=3,5 panic=-1\n"), [3, 5]);
        assert!(offline_cpus("quiet\n").is_empty());
    }

    #[test]
    fn a_value_belongs_to_a_whole_word() {
        let cmdline = "rdinit=/init magpie.init=/sbin/a=b quiet\n";
        assert_eq!(value(cmdline, "magpie.init"), Some("/sbin/a=b"));
        assert_eq!(value(cmdline, "init"), None);
    }
}
