//! scx_loader, built from its crate with scx_magpie in its list, starts scx_magpie over D-Bus,
//! switches its modes, and stops it. Nothing of it is left.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use magpie_lab::{Guest, files};
use magpie_tests::scheduler::{MAGPIE, program, shell};

use crate::packages::{HOST_STATE, TRACES, boot_debian, must_be_as_before, state};

/// What scx_loader needs: the system bus, and polkit, which it asks about each call.
const BUS: &[&str] = &["dbus", "dbus-daemon", "dbus-system-bus-common", "polkitd"];

/// The modes' names in the configuration, in the order of their numbers on the bus.
const MODES: [&str; 5] = ["auto", "gaming", "powersave", "lowlatency", "server"];

/// The configuration that packaging/ offers for scx_loader.
const CONFIGURATION: &str = include_str!("../../../packaging/scx_loader.toml");

/// The unit with the rights that scx_loader's own has starts scx_loader here, and the bus lets root
/// own its name. With `RUST_LOG` it logs how each scheduler ended.
const INSTALL: &str = "\
    mkdir -p /usr/share/dbus-1/system.d /usr/share/polkit-1/actions /var/log
    mv /bin/org.scx.Loader.conf /usr/share/dbus-1/system.d/ || exit 1
    mv /bin/org.scx.Loader.policy /usr/share/polkit-1/actions/ || exit 1
    cd /etc/systemd/system && mv /bin/scx_loader.service . && mkdir scx_loader.service.d || exit 1
    { echo '[Service]'; echo Type=dbus; echo BusName=org.scx.Loader
      echo ExecStart=; echo ExecStart=/usr/bin/scx_loader; echo Environment=RUST_LOG=debug
      echo StandardOutput=append:/var/log/scx_loader; } > scx_loader.service.d/dbus.conf
    systemd-sysusers && systemctl daemon-reload
    systemctl start dbus polkit scx_loader || { systemctl status dbus polkit scx_loader; exit 1; }";

/// The folders of its sockets stay in /run, empty: rmdir fails if anything is in them.
const REMOVE_FOLDERS: &str = "for folder in /run/scx/root /run/scx /run/scx_magpie; do \
    [ ! -e $folder ] || rmdir $folder || exit 1; done";

const LOG: &str = "cat /var/log/scx_loader";

/// How scx_loader logs that a scheduler ended with exit code 0 after SIGINT.
const CLEAN: &str = "stopped with status: Ok(Ok(Some(ExitStatus(unix_wait_status(0)))))";

/// Builds scx_loader unless it is built.
fn scx_loader() -> Result<PathBuf> {
    let tree = files::source_tree().context("the tests need the source tree")?;
    let built = Command::new(tree.join("scripts/scx_loader.sh"))
        .output()
        .context("run scripts/scx_loader.sh")?;
    ensure!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Ok(String::from_utf8(built.stdout)?.trim().into())
}

/// Returns the command line that each mode of the configuration stands for.
fn command_lines() -> Result<[String; 5]> {
    let file: toml::Table = CONFIGURATION.parse()?;
    Ok(MODES.map(|name| {
        let options = file["scheds"][MAGPIE][&format!("{name}_mode")].as_array();
        let options = options.into_iter().flatten();
        let words = options.filter_map(|word| word.as_str());
        let line: Vec<_> = [MAGPIE].into_iter().chain(words).collect();
        line.join(" ")
    }))
}

/// Calls a method of scx_loader.
fn call(guest: &mut Guest, call: &str) -> Result<String> {
    let command = format!("busctl call -- org.scx.Loader /org/scx/Loader org.scx.Loader {call}");
    let said = shell(guest, &command).with_context(|| format!("call {call}"))?;
    println!("{call} {said}");
    Ok(said)
}

/// Returns a property of scx_loader, as `busctl` prints it.
fn property(guest: &mut Guest, name: &str) -> Result<String> {
    let command =
        format!("busctl get-property org.scx.Loader /org/scx/Loader org.scx.Loader {name}");
    Ok(shell(guest, &command)?.trim().to_string())
}

/// Waits until this is the only scheduler that runs, and serves requests.
fn wait_for(guest: &mut Guest, command_line: &str) -> Result<()> {
    let script = format!(
        "for i in $(seq 600); do\n\
         [ \"$(ps -o args | grep ^scx_)\" = '{command_line}' ] && scx_magpie preferred \
         && grep -H . /sys/kernel/sched_ext/state /sys/kernel/sched_ext/root/ops \
         && ps -o pid,args | grep '[0-9] scx_' && exit\n\
         sleep 0.1; done 2> /var/log/error\n\
         cat /var/log/error; ps -o pid,args; {LOG}; exit 1"
    );
    let said = shell(guest, &script).with_context(|| format!("`{command_line}` does not run"))?;
    println!("{said}");
    ensure!(
        said.contains("state:enabled") && said.contains("ops:magpie"),
        "{said}"
    );
    Ok(())
}

/// Waits until no scheduler runs.
fn wait_for_none(guest: &mut Guest) -> Result<()> {
    let script = format!(
        "for i in $(seq 600); do ps -o args | grep -q ^scx_ || exit 0; sleep 0.1; done\n\
         ps -o pid,args; {LOG}; exit 1"
    );
    shell(guest, &script).context("a scheduler is left")?;
    ensure!(state(guest)? == "disabled", "no scheduler, but sched_ext");
    println!("no scheduler runs, sched_ext is disabled");
    Ok(())
}

/// Starts scx_magpie, and switches through its modes.
fn switch_modes(guest: &mut Guest, command_lines: &[String; 5]) -> Result<()> {
    for (mode, line) in command_lines.iter().enumerate() {
        let method = if mode == 0 { "Start" } else { "Switch" };
        call(guest, &format!("{method}Scheduler su {MAGPIE} {mode}"))?;
        wait_for(guest, line)?;
        ensure!(property(guest, "CurrentScheduler")? == format!("s \"{MAGPIE}\""));
        ensure!(property(guest, "SchedulerMode")? == format!("u {mode}"));
    }
    call(
        guest,
        &format!("SwitchSchedulerWithArgs sas {MAGPIE} 1 --no-push"),
    )?;
    wait_for(guest, "scx_magpie --no-push")
}

/// A scheduler of the list that is not installed ends scx_magpie, and scx_loader gives up on that
/// one; scx_magpie can be started again.
fn switch_away_and_back(guest: &mut Guest, command_lines: &[String; 5]) -> Result<()> {
    call(guest, "SwitchScheduler su scx_rusty 0")?;
    wait_for_none(guest)?;
    call(guest, &format!("SwitchScheduler su {MAGPIE} 1"))?;
    wait_for(guest, &command_lines[1])
}

#[test]
#[ignore = "builds scx_loader from its crate: minutes of all CPUs"]
fn scx_loader_starts_switches_and_stops_it() -> Result<()> {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vm/units");
    let rules = ["org.scx.Loader.conf", "org.scx.Loader.policy"];
    let mut files = vec![program(MAGPIE)?, scx_loader()?];
    files.push(units.join("scx_loader.service"));
    files.extend(rules.map(|name| units.join(name)));
    let mut guest = boot_debian(files, BUS)?;
    shell(&mut guest, INSTALL)?;
    let command_lines = command_lines()?;
    let host = shell(&mut guest, HOST_STATE)?;
    let before = shell(&mut guest, TRACES)?;

    ensure!(property(&mut guest, "SupportedSchedulers")?.contains("\"scx_magpie\""));
    let built_in = call(&mut guest, &format!("SchedulerModeArgs s {MAGPIE}"))?;
    switch_modes(&mut guest, &command_lines)?;
    switch_away_and_back(&mut guest, &command_lines)?;
    call(&mut guest, "StopScheduler")?;
    wait_for_none(&mut guest)?;
    ensure!(property(&mut guest, "CurrentScheduler")? == "s \"unknown\"");
    shell(&mut guest, REMOVE_FOLDERS)?;
    must_be_as_before(&mut guest, &before, &host)?;

    // Five ends for another mode or other options, one for another scheduler, one for none.
    let log = shell(&mut guest, LOG)?;
    println!("{log}");
    ensure!(log.matches(CLEAN).count() == 7, "{log}");

    // Its own configuration says the same, and the service's end is the scheduler's.
    let configuration = format!("default_sched = \"{MAGPIE}\"\ndefault_mode = \"Server\"\n");
    let script = format!(
        "cat > /etc/scx_loader.toml <<'END'\n{configuration}{CONFIGURATION}\nEND\n\
         systemctl restart scx_loader"
    );
    shell(&mut guest, &script)?;
    wait_for(&mut guest, &command_lines[4])?;
    let configured = call(&mut guest, &format!("SchedulerModeArgs s {MAGPIE}"))?;
    ensure!(configured == built_in, "{configured}, not {built_in}");
    let stop = "systemctl stop scx_loader && systemctl show -p ActiveState -p Result scx_loader";
    let ended = shell(&mut guest, stop)?;
    ensure!(
        ended.contains("ActiveState=inactive") && ended.contains("Result=success"),
        "{ended}"
    );
    wait_for_none(&mut guest)?;

    shell(&mut guest, "rm /etc/scx_loader.toml")?;
    shell(&mut guest, REMOVE_FOLDERS)?;
    must_be_as_before(&mut guest, &before, &host)?;
    guest.into_guest().shutdown()
}
