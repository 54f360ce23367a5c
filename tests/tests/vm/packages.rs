//! The Debian packages under systemd: installed, started, upgraded under load, removed and purged,
//! nothing of them is left.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use magpie_lab::{Guest, files};
use magpie_tests::scheduler::{program, shell};
use magpie_tests::{TestGuest, boot};

/// The packages that a Debian root needs beyond busybox: to boot systemd, to install packages, and
/// for those to run. The shell is not busybox, which would run its own dpkg.
const SYSTEM: &[&str] = &[
    "systemd",
    "dash",
    "dpkg",
    "tar",
    "perl-base",
    "init-system-helpers",
    "libc-bin",
    "libelf1",
    "zlib1g",
    "rt-tests",
];

/// Makes systemd the guest's init. Without the last word it would take the boot for the first one
/// of a new machine, and enable every service.
const SYSTEMD: &[&str] = &[
    "magpie.init=/lib/systemd/systemd",
    "systemd.unit=basic.target",
    "systemd.condition-first-boot=0",
];

/// Files but for dpkg's own and logs, units, processes, and who holds BPF maps: a map lives as long
/// as a pinned file, or a file descriptor of a process, that refers to it.
pub const TRACES: &str = "\
    find / /run /tmp /dev/shm /sys/fs/bpf -xdev ! -path '/var/lib/dpkg*' ! -path '/var/log*' \
        ! -path '/run/log/*' ! -path '/run/systemd/*' ! -path '/tmp/dpkg' ! -path '/tmp/hackbench' \
        ! -path '/tmp/ended'
    systemctl list-units --all --plain --no-legend '*magpie*'
    systemctl list-unit-files --no-legend '*magpie*'
    pgrep -l magpie
    grep -l map_id /proc/[0-9]*/fdinfo/* | cut -d / -f 3
    true";

/// The settings of the host that scx_magpie changes while it runs.
pub const HOST_STATE: &str = "cat /sys/devices/virtual/workqueue/cpumask \
                          /proc/irq/*/smp_affinity_list /proc/irq/default_smp_affinity";

/// Makes the packages as `make deb` does, which also checks them with lintian.
fn packages() -> Result<Vec<PathBuf>> {
    program("scx_magpie")?;
    let tree = files::source_tree().context("the tests need the source tree")?;
    // lintian refuses an author of the last commit who is on no mail host, such as root@localhost.
    let made = Command::new(tree.join("scripts/deb.sh"))
        .env("DEBFULLNAME", "Magpie")
        .env("DEBEMAIL", "magpie@example.org")
        .output()
        .context("run scripts/deb.sh")?;
    let said = String::from_utf8_lossy(&made.stdout).into_owned();
    ensure!(
        made.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let made = said.lines().filter(|line| line.ends_with(".deb"));
    Ok(made.map(PathBuf::from).collect())
}

/// Makes a package of a later version with the same content.
fn later_version(package: &Path, folder: &Path) -> Result<PathBuf> {
    let later = folder.join("later.deb");
    let script = "dpkg-deb -R \"$1\" \"$2/unpacked\" && \
                  sed -i '/^Version:/s/$/later/' \"$2/unpacked/DEBIAN/control\" && \
                  dpkg-deb -Zgzip --root-owner-group -b \"$2/unpacked\" \"$3\"";
    let made = Command::new("sh")
        .args(["-c", script, "sh"])
        .args([package, folder, &later])
        .output()
        .context("run dpkg-deb")?;
    ensure!(made.status.success(), "{made:?}");
    Ok(later)
}

/// Boots a Debian root with systemd, and these files in its /bin. Its packages are the host's, as
/// its libraries are. Its folders are those of a machine on which some service is enabled.
pub fn boot_debian(files: Vec<PathBuf>, more_packages: &[&str]) -> Result<TestGuest> {
    let mut guest = boot("tiny2", |options| {
        options.files = files;
        options.files.push("/var/lib/dpkg/status".into());
        let packages = SYSTEM.iter().chain(more_packages);
        options.packages = packages.map(|name| name.to_string()).collect();
        options.kernel_cmdline = SYSTEMD.iter().map(|word| word.to_string()).collect();
    })?;
    shell(
        &mut guest,
        "for i in $(seq 600); do systemctl -q is-active basic.target && break; sleep 0.2; done\n\
         systemctl is-active basic.target && [ $(cat /proc/1/comm) = systemd ] || exit 1\n\
         mkdir -p /var/tmp /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/dpkg/triggers\n\
         cd /etc/systemd/system && mkdir -p multi-user.target.wants\n\
         cd /var/lib/systemd && mkdir -p deb-systemd-helper-enabled/multi-user.target.wants\n\
         mv /bin/status /var/lib/dpkg/",
    )?;
    Ok(guest)
}

/// Installs packages by the names of their files in /bin.
fn install(guest: &mut Guest, packages: &[PathBuf]) -> Result<()> {
    let names = packages
        .iter()
        .filter_map(|path| path.file_name()?.to_str());
    let list: Vec<_> = names.map(|name| format!("/bin/{name}")).collect();
    dpkg(guest, &format!("-i {}", list.join(" ")))
}

fn dpkg(guest: &mut Guest, arguments: &str) -> Result<()> {
    // The lists of the host's packages are missing, of which dpkg warns for each.
    let filter = "grep -v 'files list file for package' /tmp/dpkg";
    let script = format!(
        "dpkg --force-unsafe-io {arguments} > /tmp/dpkg 2>&1 || {{ {filter}; exit 1; }}; {filter}"
    );
    let said = shell(guest, &script)?;
    println!("{said}");
    Ok(())
}

/// Returns a property of the scheduler's service.
fn property(guest: &mut Guest, name: &str) -> Result<String> {
    let command = format!("systemctl show -p {name} --value scx_magpie");
    Ok(shell(guest, &command)?.trim().to_string())
}

/// Returns the state of sched_ext.
pub fn state(guest: &mut Guest) -> Result<String> {
    let state = shell(guest, "cat /sys/kernel/sched_ext/state")?;
    Ok(state.trim().to_string())
}

/// Installing starts nothing; the service counts as started when the kernel runs the scheduler.
fn install_and_start(guest: &mut Guest, packages: &[PathBuf]) -> Result<()> {
    install(guest, packages)?;
    ensure!(state(guest)? == "disabled", "the installation started it");
    shell(
        guest,
        // Off, so that only the test changes the host's state.
        "echo SCX_MAGPIE_FLAGS=--preferred=off --idle-resume-us=70 > /etc/default/scx_magpie\n\
         scx_magpie check && systemctl enable --now scx_magpie magpie-export",
    )?;
    ensure!(state(guest)? == "enabled", "it is not started");
    let limit = shell(guest, "od -A n -t d4 -N 4 /dev/cpu_dma_latency")?;
    ensure!(limit.trim() == "70", "the limit of deep idle is {limit}");
    let metrics = shell(
        guest,
        "for i in $(seq 300); do wget -q -O - http://127.0.0.1:9790/metrics && exit; sleep 0.2; \
         done; systemctl status magpie-export; exit 1",
    )?;
    ensure!(metrics.contains("\nmagpie_up 1"), "{metrics}");
    for unit in ["scx_magpie", "magpie-export"] {
        let security = shell(
            guest,
            &format!("systemd-analyze security --no-pager {unit}"),
        )?;
        let level = security
            .split_once("Overall exposure level for ")
            .and_then(|(_, level)| level.split(' ').nth(1)?.parse::<f64>().ok())
            .with_context(|| security.clone())?;
        println!("{unit}: exposure level {level}");
        ensure!(level < 3.0, "{security}");
    }
    Ok(())
}

/// The services scx and scx_loader start it, too, with fewer rights. Each of the three services
/// ends the others'.
fn take_turns(guest: &mut Guest, before: &str) -> Result<()> {
    let install = "mv /bin/scx.service /bin/scx_loader.service /etc/systemd/system/\n\
                   echo 'SCX_SCHEDULER=scx_magpie' > /etc/default/scx\n\
                   echo 'SCX_FLAGS=--no-push' >> /etc/default/scx\n\
                   systemctl daemon-reload";
    shell(guest, install)?;
    for other in ["scx", "scx_loader"] {
        let script = format!(
            "systemctl start {other}\n\
             for i in $(seq 600); do [ -S /run/scx/root/stats ] \
             && scx_magpie preferred --set 1 && break; sleep 0.1; done\n\
             systemctl is-active {other} || systemctl status {other}\n\
             ! systemctl -q is-active scx_magpie || exit 1\n\
             ls -l /proc/$(systemctl show -p MainPID --value {other})/fd"
        );
        let files = shell(guest, &script).with_context(|| format!("started by {other}"))?;
        ensure!(state(guest)? == "enabled", "{files}");
        ensure!(
            shell(guest, HOST_STATE)? != before,
            "under {other}: {files}"
        );
        // Only unix sockets: the number of each is in their list.
        let unix = shell(guest, "cat /proc/net/unix")?;
        for socket in files.split("socket:[").skip(1) {
            let number = socket.split(']').next().unwrap_or_default();
            ensure!(unix.contains(number), "{number} in {files}, not in {unix}");
        }

        shell(guest, "systemctl start scx_magpie")?;
        let how = format!("systemctl show -p ActiveState -p Result -p ExecMainStatus {other}");
        let how = shell(guest, &how)?;
        ensure!(
            how.contains("ActiveState=inactive")
                && how.contains("Result=success")
                && how.contains("ExecMainStatus=0"),
            "{other} ended with {how}"
        );
        ensure!(shell(guest, HOST_STATE)? == before, "after {other}");
    }
    let remove = "rm /etc/systemd/system/scx*.service /etc/default/scx\n\
                  systemctl daemon-reload";
    shell(guest, remove).map(|_| ())
}

/// After kill -9, systemd puts back what the scheduler changed, and starts it again.
fn kill(guest: &mut Guest, before: &str) -> Result<()> {
    shell(guest, "scx_magpie preferred --set 1")?;
    ensure!(shell(guest, HOST_STATE)? != before, "it changed nothing");
    let first = property(guest, "MainPID")?;
    let script = format!(
        "systemctl kill -s KILL scx_magpie\n\
         for i in $(seq 600); do [ \"$({HOST_STATE})\" = '{}' ] && break; sleep 0.1; done\n\
         [ $i -lt 600 ] || exit 1\n\
         for i in $(seq 600); do \
         systemctl -q is-active scx_magpie && [ $(cat /sys/kernel/sched_ext/state) = enabled ] \
         && exit; sleep 0.1; done; exit 1",
        before.trim_end()
    );
    shell(guest, &script).context("the host's state, or the service, is not back")?;
    ensure!(property(guest, "MainPID")? != first, "it was not killed");
    Ok(())
}

/// A later version takes over while hackbench runs, which neither fails nor notices.
fn upgrade(guest: &mut Guest, later: PathBuf) -> Result<()> {
    let first = property(guest, "MainPID")?;
    shell(
        guest,
        "(while [ ! -e /tmp/stop ] && hackbench -g 2 -l 100; do :; done; echo $? > /tmp/ended) \
         > /tmp/hackbench 2>&1 &",
    )?;
    install(guest, &[later])?;
    ensure!(property(guest, "MainPID")? != first, "it was not restarted");
    let (service, scheduler) = (property(guest, "ActiveState")?, state(guest)?);
    if service != "active" || scheduler != "enabled" {
        let status = "systemctl status --no-pager scx_magpie; dmesg | grep sched_ext | tail -5";
        let why = shell(guest, &format!("{status}; true"))?;
        bail!("after the upgrade the service is {service}, sched_ext {scheduler}: {why}");
    }
    let version = shell(guest, "dpkg-query -W scx-magpie")?;
    ensure!(version.trim().ends_with("later"), "{version}");
    let load = "[ ! -e /tmp/ended ] && touch /tmp/stop || { cat /tmp/hackbench; exit 1; }\n\
                while [ ! -e /tmp/ended ]; do sleep 0.5; done; cat /tmp/hackbench; rm /tmp/stop";
    let load = shell(guest, load).context("hackbench failed during the upgrade")?;
    ensure!(load.contains("Time: "), "{load}");
    Ok(())
}

/// Settings stay until the packages are purged; everything else goes when they are removed.
fn remove_and_purge(guest: &mut Guest) -> Result<()> {
    shell(guest, "echo '#' >> /etc/scx_magpie.toml")?;
    dpkg(guest, "--remove scx-magpie magpie-lab")?;
    ensure!(state(guest)? == "disabled", "it is not stopped");
    shell(
        guest,
        "[ -e /etc/scx_magpie.toml ] && [ ! -e /usr/bin/scx_magpie ]",
    )?;
    dpkg(guest, "--purge scx-magpie magpie-lab")
}

#[test]
fn packages_leave_nothing_behind() -> Result<()> {
    let packages = packages()?;
    let scheduler = packages
        .iter()
        .find(|path| path.to_string_lossy().contains("/scx-magpie_"))
        .context("a package scx-magpie")?;
    let folder = tempfile::tempdir()?;
    let later = later_version(scheduler, folder.path())?;
    let mut files = packages.clone();
    files.push(later.clone());
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vm/units");
    files.extend(["scx.service", "scx_loader.service"].map(|unit| units.join(unit)));
    let mut guest = boot_debian(files, &[])?;

    let host = shell(&mut guest, HOST_STATE)?;
    let before = shell(&mut guest, TRACES)?;
    install_and_start(&mut guest, &packages)?;
    let installed = shell(&mut guest, TRACES)?;
    ensure!(new_lines(&before, &installed).len() > 20, "{installed}");
    take_turns(&mut guest, &host)?;
    kill(&mut guest, &host)?;
    upgrade(&mut guest, later)?;
    remove_and_purge(&mut guest)?;

    must_be_as_before(&mut guest, &before, &host)?;
    guest.into_guest().shutdown()
}

/// Compares the guest's traces and host state with those of an earlier moment.
pub fn must_be_as_before(guest: &mut Guest, traces: &str, host: &str) -> Result<()> {
    let after = shell(guest, TRACES)?;
    let left = new_lines(traces, &after);
    ensure!(left.is_empty(), "left behind: {left:#?}");
    let now = shell(guest, HOST_STATE)?;
    ensure!(now == host, "interrupts or workqueues: {now}, not {host}");
    Ok(())
}

/// Returns the lines of one text that another one lacks.
fn new_lines<'a>(before: &str, after: &'a str) -> Vec<&'a str> {
    let is_new = |line: &&str| !before.lines().any(|known| known == *line);
    after.lines().filter(is_new).collect()
}
