//! How interrupts and workqueues follow the preferred CPUs and are put back, on a host made of
//! files.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::mpsc;

use super::*;

/// The number of a process that does not exist.
const DEAD: u32 = 0x7fff_fff0;

struct Fake(tempfile::TempDir);

impl Fake {
    /// Makes a host of eight CPUs, with an interrupt that may be served anywhere, two that may be
    /// served on some CPUs, and one whose affinity cannot be written.
    fn new() -> Fake {
        let fake = Fake(tempfile::tempdir().unwrap());
        fake.process(std::process::id(), 100);
        fake.file("proc/irq/default_smp_affinity", "ff\n");
        fake.file("proc/irq/9/smp_affinity_list", "0-7\n");
        fake.file("proc/irq/10/smp_affinity_list", "1-5\n");
        fake.file("proc/irq/11/smp_affinity_list", "6-7\n");
        fake.file("proc/irq/12/name", "without an affinity");
        // A folder cannot be written either, and cannot even be read.
        fs::create_dir_all(fake.root().join("proc/irq/13/smp_affinity_list")).unwrap();
        fake.file(WORKQUEUES, "ff\n");
        fake
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, path: &str, content: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn process(&self, pid: u32, started: u64) {
        let between = "0 ".repeat(18);
        self.file(
            &format!("proc/{pid}/stat"),
            &format!("{pid} (a) b (c) S {between}{started} 0 0\n"),
        );
    }

    fn read(&self, path: &str) -> String {
        let text = fs::read_to_string(self.root().join(path)).unwrap();
        text.trim().to_string()
    }

    /// Returns the CPUs of interrupts 9 to 11, and of the workqueues.
    fn state(&self) -> [String; 4] {
        [
            self.read("proc/irq/9/smp_affinity_list"),
            self.read("proc/irq/10/smp_affinity_list"),
            self.read("proc/irq/11/smp_affinity_list"),
            self.read(WORKQUEUES),
        ]
    }

    fn has_state_file(&self) -> bool {
        self.root().join(STATE_FILE).exists()
    }
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

const BEFORE: [&str; 4] = ["0-7", "1-5", "6-7", "ff"];

#[test]
fn what_may_run_on_preferred_cpus_follows_and_comes_back() {
    let fake = Fake::new();
    let mut host = HostState::new(fake.root()).unwrap();
    host.follow(&cpus("0-7"), &cpus("0-7")).unwrap();
    assert!(fake.state() == BEFORE && !fake.has_state_file());

    host.follow(&cpus("0-1"), &cpus("0-7")).unwrap();
    // Interrupt 11 may be served on CPUs 6-7 alone, and neither is preferred: it stays.
    assert_eq!(fake.state(), ["0-1", "1", "6-7", "00000003"]);
    assert!(fake.has_state_file());

    // The new affinity comes from the original one, not from that of the last change.
    host.follow(&cpus("2-6"), &cpus("0-7")).unwrap();
    assert_eq!(fake.state(), ["2-6", "2-5", "6", "0000007c"]);

    host.follow(&cpus("0-7"), &cpus("0-7")).unwrap();
    assert!(fake.state() == BEFORE && !fake.has_state_file());
}

#[test]
fn dropping_restores() {
    let fake = Fake::new();
    let mut host = HostState::new(fake.root()).unwrap();
    host.follow(&cpus("3"), &cpus("0-7")).unwrap();
    assert_eq!(fake.state(), ["3", "3", "6-7", "00000008"]);
    drop(host);
    assert!(fake.state() == BEFORE && !fake.has_state_file());
}

#[test]
fn a_process_that_was_killed_is_recovered_from() {
    let fake = Fake::new();
    let mut host = HostState::new(fake.root()).unwrap();
    host.follow(&cpus("0-1"), &cpus("0-7")).unwrap();
    std::mem::forget(host);

    // The process that moved them lives, and will put them back itself.
    let error = recover(fake.root()).unwrap_err().to_string();
    assert!(error.contains("stop it first"), "{error}");
    assert_eq!(fake.state()[0], "0-1");

    // A later process has the same number, but another start time.
    fake.process(std::process::id(), 200);
    assert!(recover(fake.root()).unwrap());
    assert!(fake.state() == BEFORE && !fake.has_state_file());
    assert!(!recover(fake.root()).unwrap(), "there was nothing left");
}

#[test]
fn killed_between_saving_and_writing_loses_nothing() {
    let fake = Fake::new();
    let mut host = HostState::new(fake.root()).unwrap();
    let plan = host
        .plan("proc/irq/9/smp_affinity_list", &cpus("0"))
        .unwrap();
    assert_eq!(plan, ("0-7".to_string(), "0".to_string()));
    let wanted = BTreeMap::from([("proc/irq/9/smp_affinity_list".to_string(), plan)]);
    host.remember(&wanted, None).unwrap();
    std::mem::forget(host);
    fake.process(std::process::id(), 200);
    assert!(recover(fake.root()).unwrap());
    assert_eq!(fake.state(), BEFORE);
}

#[test]
fn killed_before_it_knew_what_cannot_be_written_restores_the_rest() {
    let fake = Fake::new();
    // This file of the kernel holds one number, and not even root can write it.
    let number = "/proc/sys/kernel/cap_last_cap";
    let fixed = "proc/irq/2/smp_affinity_list".to_string();
    let link = fake.root().join(&fixed);
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(number, &link).unwrap();
    let original = fs::read_to_string(number).unwrap().trim().to_string();

    let mut host = HostState::new(fake.root()).unwrap();
    host.follow(&cpus("0-1"), &cpus("0-7")).unwrap();
    host.saved.files.insert(fixed.clone(), original);
    save(fake.root(), &host.saved).unwrap();
    std::mem::forget(host);
    fake.process(std::process::id(), 200);
    assert!(recover(fake.root()).unwrap());
    assert!(fake.state() == BEFORE && !fake.has_state_file());

    // One that has other content is named.
    let mut host = HostState::new(fake.root()).unwrap();
    host.saved.files.insert(fixed, "0-7".into());
    let error = host.restore().unwrap_err().to_string();
    assert!(error.contains("irq/2/"), "{error}");
}

#[test]
fn what_is_gone_meanwhile_is_no_failure() {
    let fake = Fake::new();
    let mut host = HostState::new(fake.root()).unwrap();
    host.follow(&cpus("0-1"), &cpus("0-7")).unwrap();
    fs::remove_dir_all(fake.root().join("proc/irq/9")).unwrap();
    host.restore().unwrap();
    assert_eq!(fake.read("proc/irq/10/smp_affinity_list"), "1-5");
    assert!(!fake.has_state_file());
}

#[test]
fn what_cannot_be_restored_is_named_and_kept() {
    let fake = Fake::new();
    let mut host = HostState::new(fake.root()).unwrap();
    host.follow(&cpus("0-1"), &cpus("0-7")).unwrap();
    let file = fake.root().join("proc/irq/9/smp_affinity_list");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let error = host.restore().unwrap_err().to_string();
    assert!(
        error.contains("irq/9/") && error.contains("scx_magpie restore"),
        "{error}"
    );
    assert_eq!(fake.read("proc/irq/10/smp_affinity_list"), "1-5");

    fs::remove_dir(&file).unwrap();
    fs::write(&file, "0-1").unwrap();
    host.restore().unwrap();
    assert!(fake.state() == BEFORE && !fake.has_state_file());
}

#[test]
fn without_a_place_for_the_originals_nothing_is_changed() {
    let fake = Fake::new();
    fake.file("run/scx_magpie", "in the way");
    let mut host = HostState::new(fake.root()).unwrap();
    let error = host.follow(&cpus("0-1"), &cpus("0-7")).unwrap_err();
    assert!(error.to_string().contains("host-state.json"), "{error}");
    assert_eq!(fake.state(), BEFORE);
}

#[test]
fn a_damaged_state_file_is_named() {
    let fake = Fake::new();
    fake.file(STATE_FILE, "{");
    let error = recover(fake.root()).unwrap_err().to_string();
    assert!(error.contains("host-state.json") && error.contains("remove it"));
}

/// Answers as irqbalance does, and sends each request to the returned receiver.
fn irqbalance(fake: &Fake, pid: u32, banned: &'static str) -> mpsc::Receiver<String> {
    fake.process(pid, 300);
    let folder = fake.root().join("run/irqbalance");
    fs::create_dir_all(&folder).unwrap();
    let listener = UnixListener::bind(folder.join(format!("irqbalance{pid}.sock"))).unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut buffer = [0; 1000];
            let mut stream = stream.unwrap();
            let size = stream.read(&mut buffer).unwrap();
            let asked = String::from_utf8_lossy(&buffer[..size]).into_owned();
            if asked == "setup" {
                let answer = format!("SLEEP 10 BANNED {banned}");
                stream.write_all(answer.as_bytes()).unwrap();
            } else if sender.send(asked).is_err() {
                return;
            }
        }
    });
    receiver
}

fn next(asked: &mpsc::Receiver<String>) -> String {
    asked
        .recv_timeout(std::time::Duration::from_secs(5))
        .unwrap()
}

#[test]
fn irqbalance_is_told_instead_of_writing_interrupts() {
    let fake = Fake::new();
    let asked = irqbalance(&fake, DEAD, "00000080");
    let mut host = HostState::new(fake.root()).unwrap();
    host.follow(&cpus("0-1"), &cpus("0-7")).unwrap();
    assert_eq!(next(&asked), "settings cpus 2-7");
    assert_eq!(fake.state(), ["0-7", "1-5", "6-7", "00000003"]);
    host.follow(&cpus("0-3,7"), &cpus("0-7")).unwrap();
    // CPUs that irqbalance avoided before stay banned.
    assert_eq!(next(&asked), "settings cpus 4-7");
    drop(host);
    assert_eq!(next(&asked), "settings cpus 7");
    assert!(fake.state() == BEFORE && !fake.has_state_file());
}

#[test]
fn irqbalance_without_bans_gets_its_own_configuration_back() {
    let fake = Fake::new();
    let asked = irqbalance(&fake, DEAD, "00000000");
    let mut host = HostState::new(fake.root()).unwrap();
    host.follow(&cpus("0-1"), &cpus("0-7")).unwrap();
    assert_eq!(next(&asked), "settings cpus 2-7");
    std::mem::forget(host);
    fake.process(std::process::id(), 200);
    assert!(recover(fake.root()).unwrap());
    assert_eq!(next(&asked), "settings cpus NULL");
    assert_eq!(fake.state(), BEFORE);
}

#[test]
fn a_socket_that_a_dead_irqbalance_left_does_not_count() {
    let fake = Fake::new();
    let _asked = irqbalance(&fake, DEAD, "00000000");
    fs::remove_dir_all(fake.root().join(format!("proc/{DEAD}"))).unwrap();
    let mut host = HostState::new(fake.root()).unwrap();
    host.follow(&cpus("0-1"), &cpus("0-7")).unwrap();
    assert_eq!(fake.state()[0], "0-1");
}
