//! scx_magpie starts and ends as it should: on each kernel of `kernels.lock`, with each switch,
//! while another scheduler runs, without permission, and stopped by each signal.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use magpie_bench::candidate;
use magpie_lab::{Guest, KernelChoice, SchedulerExit, kernel};
use magpie_tests::scheduler::{
    MAGPIE, PATIENCE, boot_for_magpie, code_and_output, program, shell, under, words,
};
use magpie_tests::{TestGuest, verifier};

/// Returns every switch that `--help` names.
fn switches() -> Result<Vec<String>> {
    let help = Command::new(program(MAGPIE)?)
        .arg("--help")
        .output()
        .context("run scx_magpie --help")?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let switches = candidate::switches(&help);
    ensure!(
        switches.contains(&"--no-steal".to_string()),
        "no switches in the help:\n{help}"
    );
    Ok(switches)
}

/// Runs a short load, so that each operation of the scheduler is called.
fn work(guest: &mut Guest) -> Result<()> {
    shell(guest, "hackbench -g 1 -l 20").map(|_| ())
}

fn boot_tiny(series: &str) -> Result<TestGuest> {
    boot_for_magpie("tiny2", |options| {
        options.kernel = KernelChoice::Series(series.to_string());
    })
}

/// Kernels differ in their verifiers. Switches differ in the code that the verifier sees: they are
/// constants, and the verifier removes code that they switch off.
#[test]
fn it_works_on_every_kernel_and_with_every_switch() -> Result<()> {
    let switches = switches()?;
    let newest = kernel::SERIES.last().context("a matrix of kernels")?;
    for series in kernel::SERIES {
        let mut guest = boot_tiny(series)?;
        let mut commands = vec![
            MAGPIE.to_string(),
            format!("{MAGPIE} {}", switches.join(" ")),
            // No guest has the governor for which this is active by default.
            format!("{MAGPIE} --frequency on"),
        ];
        if series == newest {
            commands.extend(switches.iter().map(|switch| format!("{MAGPIE} {switch}")));
        }
        for command in commands {
            println!("kernel {series}: {command}");
            let counts = under(&mut guest, &command, |guest| {
                work(guest)?;
                verifier::counts(guest)
            })
            .with_context(|| format!("kernel {series}"))?;
            if command == MAGPIE {
                println!("instructions that the verifier processed: {counts:?}");
                verifier::check(series, &counts)?;
            }
        }
        guest.into_guest().shutdown()?;
    }
    Ok(())
}

/// Starts scx_magpie, sends it a signal, and returns how it ended.
fn end_by(guest: &mut Guest, signal: &str) -> Result<SchedulerExit> {
    guest.start_scheduler(&words(MAGPIE))?;
    shell(guest, &format!("killall -{signal} {MAGPIE}"))?;
    let script = "for i in $(seq 600); do \
                  grep -q disabled /sys/kernel/sched_ext/state && exit 0; sleep 0.1; done; exit 1";
    shell(guest, script).with_context(|| format!("the kernel's state after SIG{signal}"))?;
    guest
        .scheduler_died()?
        .with_context(|| format!("{MAGPIE} survives SIG{signal}"))?;
    guest.stop_scheduler()
}

/// Runs a command that must fail with this exit code, and returns all that it printed.
fn fails(guest: &mut Guest, command: &str, code: i32) -> Result<String> {
    let (found, output) = code_and_output(guest, command)?;
    ensure!(
        found == code,
        "`{command}` ended with {found}, not {code}:\n{output}"
    );
    Ok(output)
}

#[test]
fn it_ends_when_asked_and_leaves_the_kernels_own_scheduler() -> Result<()> {
    let mut guest = boot_for_magpie("tiny2", |_| {})?;
    for signal in ["INT", "TERM"] {
        let exit = end_by(&mut guest, signal)?;
        ensure!(exit.code == 0, "after SIG{signal}: {exit:?}");
    }
    let exit = end_by(&mut guest, "KILL")?;
    ensure!(exit.code != 0 && exit.state == "disabled", "{exit:?}");
    work(&mut guest)?;

    // After a kill the next instance starts, counts and answers.
    under(&mut guest, MAGPIE, |guest| {
        work(guest)?;
        let counters = shell(guest, "scx_magpie --stats-json")?;
        ensure!(counters.contains("\"wake_idle\":"), "{counters}");

        let second = fails(guest, MAGPIE, 1)?;
        ensure!(
            second.contains("another sched_ext scheduler is running: magpie")
                && second.contains("Stop it first"),
            "{second}"
        );
        Ok(())
    })?;

    let none = fails(&mut guest, "scx_magpie --stats-json", 1)?;
    ensure!(none.contains("scx_magpie is not running"), "{none}");
    shell(
        &mut guest,
        "echo nobody:x:65534:65534::/:/bin/sh >> /etc/passwd",
    )?;
    let user = "start-stop-daemon -S -c nobody -x /bin/scx_magpie";
    let refused = fails(&mut guest, user, 1)?;
    ensure!(
        refused.contains("no permission") && refused.contains("sudo scx_magpie"),
        "{refused}"
    );
    let unknown = fails(&mut guest, "scx_magpie --no-such-thing", 2)?;
    ensure!(unknown.contains("--no-such-thing"), "{unknown}");
    let state = shell(&mut guest, "cat /sys/kernel/sched_ext/state")?;
    ensure!(state.trim() == "disabled", "{state}");
    guest.into_guest().shutdown()
}

/// The kernel's limit of how long waking an idle CPU may take, in microseconds.
fn resume_limit(guest: &mut Guest) -> Result<u32> {
    let text = shell(guest, "od -A n -t d4 -N 4 /dev/cpu_dma_latency")?;
    text.trim().parse().with_context(|| format!("{text:?}"))
}

#[test]
fn the_limit_of_deep_idle_ends_with_it_however_it_ends() -> Result<()> {
    let mut guest = boot_for_magpie("tiny2", |_| {})?;
    let none = resume_limit(&mut guest)?;
    for (option, limit) in [("", none), (" --idle-resume-us 70", 70)] {
        let command = format!("{MAGPIE}{option}");
        let found = under(&mut guest, &command, resume_limit)?;
        ensure!(found == limit, "under `{command}` the limit is {found}");
        ensure!(resume_limit(&mut guest)? == none, "it stayed after the end");
    }
    guest.start_scheduler(&words("scx_magpie --idle-resume-us 70"))?;
    ensure!(resume_limit(&mut guest)? == 70);
    shell(&mut guest, &format!("killall -KILL {MAGPIE}; sleep 1"))?;
    ensure!(resume_limit(&mut guest)? == none, "it stayed after a kill");
    guest.stop_scheduler()?;
    guest.into_guest().shutdown()
}

/// The capabilities that the systemd unit keeps, as `setpriv` names them.
fn capabilities_of_the_unit() -> Result<Vec<String>> {
    let unit = include_str!("../../../packaging/scx_magpie.service");
    let kept = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .context("a bounding set in the unit")?;
    let names = kept.split_whitespace();
    names
        .map(|name| {
            let name = name.strip_prefix("CAP_").context("a capability's name")?;
            Ok(name.to_lowercase())
        })
        .collect()
}

/// As root with the capabilities of the unit and no others, scx_magpie runs, moves workqueues and
/// interrupts, and puts them back. Without any one of these capabilities it says what is missing.
#[test]
fn the_capabilities_of_the_unit_are_enough_and_needed() -> Result<()> {
    let kept = capabilities_of_the_unit()?;
    let mut guest = boot_for_magpie("tiny2", |options| {
        options.files.push("/usr/bin/setpriv".into());
    })?;
    // The path is needed: busybox has an applet of that name that cannot do it.
    let start = |names: &[String]| {
        let names: String = names.iter().map(|name| format!(",+{name}")).collect();
        format!("/bin/setpriv --no-new-privs --bounding-set=-all{names} {MAGPIE} --preferred 0")
    };
    let wait_for = |state: &str| {
        format!(
            "for i in $(seq 600); do grep -qx {state} /sys/kernel/sched_ext/state && break; sleep 0.1; \
             done; grep -qx {state} /sys/kernel/sched_ext/state || {{ cat /tmp/log; exit 1; }}"
        )
    };
    let mask = "/sys/devices/virtual/workqueue/cpumask";
    let script = format!(
        "{} > /tmp/log 2>&1 & {}; {MAGPIE} preferred --set 1 > /dev/null || exit 1\n\
         cat {mask} /proc/irq/*/smp_affinity_list | sort | uniq | tr '\\n' ' '\n\
         kill -INT $!; wait $! || {{ cat /tmp/log; exit 1; }}; {}; cat {mask}",
        start(&kept),
        wait_for("enabled"),
        wait_for("disabled"),
    );
    let told = shell(&mut guest, &script)?;
    let words: Vec<_> = told.split_whitespace().collect();
    ensure!(
        words.contains(&"1") && words.contains(&"2") && words.last() == Some(&"3"),
        "interrupts on CPU 1, workqueues on mask 2 and then 3 again: {told}"
    );

    for missing in 0..kept.len() {
        let mut others = kept.clone();
        let name = others.remove(missing);
        let refused = fails(&mut guest, &start(&others), 1)?;
        ensure!(
            refused.contains("no permission"),
            "without {name}: {refused}"
        );
    }
    guest.into_guest().shutdown()
}

/// `scx_magpie check` says which mechanisms would be active and why others would not, and names a
/// scheduler that runs.
#[test]
fn check_says_what_would_be_active() -> Result<()> {
    let mut guest = boot_for_magpie("tiny2", |_| {})?;
    let told = shell(&mut guest, "scx_magpie check")?;
    ensure!(
        told.starts_with("scx_magpie can run here.")
            && told.contains("\nsteal      active\n")
            && told.contains("\nfork       not active: there is one last-level cache\n")
            && told.contains("\nspread     not active: no core has SMT siblings\n")
            && told.contains("\npreferred  active\n"),
        "{told}"
    );

    shell(&mut guest, "echo 'no-steal = true' > /etc/scx_magpie.toml")?;
    let told = shell(&mut guest, "scx_magpie check --json")?;
    let json: serde_json::Value = serde_json::from_str(&told)?;
    let steal = json["mechanisms"]
        .as_array()
        .and_then(|all| all.iter().find(|one| one["name"] == "steal"))
        .context("steal among the mechanisms")?;
    let reason = steal["reason"].as_str().unwrap_or_default();
    ensure!(
        json["can_run"] == true && steal["active"] == false && reason.contains("no-steal"),
        "{told}"
    );

    under(&mut guest, MAGPIE, |guest| {
        let told = fails(guest, "scx_magpie check", 1)?;
        ensure!(
            told.contains("scx_magpie cannot run here:")
                && told.contains("another sched_ext scheduler is running: magpie"),
            "{told}"
        );
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// A library that gives programs the names of a kernel whose release has two numbers, as Debian calls
/// its release candidates. No other part of such a kernel matters to libbpf.
const TWO_NUMBERS: &str = r##"
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

int uname(struct utsname *names)
{
	long error = syscall(SYS_uname, names);

	strcpy(names->release, "7.3-cloud-amd64");
	strcpy(names->version, "#1 SMP PREEMPT_DYNAMIC Debian 7.3~rc2-1~exp1 (2026-11-15)");
	return error;
}
"##;

/// libbpf cannot tell the version of such a kernel, and loads no object that asks for it.
#[test]
fn it_starts_on_a_kernel_whose_release_has_two_numbers() -> Result<()> {
    let folder = tempfile::tempdir().context("a folder for the library")?;
    let source = folder.path().join("names.c");
    std::fs::write(&source, TWO_NUMBERS).context("write the library")?;
    let library = folder.path().join("names.so");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .context("run cc")?;
    ensure!(made.success(), "cc ended with {made}");
    let mut guest = boot_for_magpie("tiny2", |options| options.files.push(library))?;
    shell(
        &mut guest,
        "cp /boot/config-* /boot/config-7.3-cloud-amd64\n\
         echo 7.3-cloud-amd64 > /tmp/release; mount --bind /tmp/release /proc/sys/kernel/osrelease\n\
         printf '#!/bin/sh\\nLD_PRELOAD=/bin/names.so exec scx_magpie \"$@\"\\n' > /bin/renamed\n\
         chmod +x /bin/renamed; renamed check",
    )?;
    under(&mut guest, "renamed", work)?;
    guest.into_guest().shutdown()
}

/// Returns the capabilities of each thread of the scheduler, which are in lines such as `CapEff: 0`.
fn capabilities(guest: &mut Guest, set: &str) -> Result<Vec<String>> {
    let script = format!("grep -h ^{set} /proc/$(pidof scx_magpie)/task/*/status");
    let lines = shell(guest, &script)?;
    let masks = lines
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    Ok(masks.map(String::from).collect())
}

/// A scheduler that runs has no capability in use, and can take up those two only with which it loads.
/// It serves requests and changes the host without any. Another user gets no answer, even if root's
/// mask lets others use new files.
#[test]
fn it_keeps_no_right_that_it_does_not_need() -> Result<()> {
    const LOADING: &str = "000000c000000000";
    const NONE: &str = "0000000000000000";
    let mut guest = boot_for_magpie("tiny2", |options| {
        options.files.push("/usr/bin/setpriv".into());
    })?;
    let start =
        "printf '#!/bin/sh\\numask 0; exec scx_magpie \"$@\"\\n' > /bin/open; chmod +x /bin/open";
    shell(&mut guest, start)?;
    under(&mut guest, "open --preferred off", |guest| {
        for (set, expected) in [
            ("CapEff", NONE),
            ("CapInh", NONE),
            ("CapAmb", NONE),
            ("CapPrm", LOADING),
            ("CapBnd", LOADING),
        ] {
            let found = capabilities(guest, set)?;
            println!("{set}: {found:?}");
            ensure!(
                found.len() > 1 && found.iter().all(|mask| mask == expected),
                "{set} is {found:?}, not {expected}"
            );
        }
        work(guest)?;
        let told = shell(
            guest,
            "scx_magpie preferred --set 1; scx_magpie --stats-json; scx_magpie cpus",
        )?;
        ensure!(told.contains("preferred"), "{told}");
        let mask = shell(guest, "cat /sys/devices/virtual/workqueue/cpumask")?;
        ensure!(mask.trim() == "2", "workqueues do not follow: {mask}");

        let other = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        let command = format!("{other} scx_magpie --stats-json");
        let (code, told) = code_and_output(guest, &command)?;
        println!("{command}: {code}, {told}");
        ensure!(code == 1 && told.contains("only root may ask"), "{told}");
        // The socket itself refuses, too, and not only its folder.
        let mode = shell(
            guest,
            "chmod 755 /run/scx /run/scx/root; stat -c %a /run/scx/root/stats",
        )?;
        ensure!(mode.trim() == "700", "the socket's mode is {mode}");
        let (code, told) = code_and_output(guest, &command)?;
        ensure!(code == 1 && told.contains("only root may ask"), "{told}");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}

/// Each fault of a host that `scx_magpie check` finds in files: how it is made for one process and
/// its children, what names it, and what its remedy says.
const FAULTS: &[(&str, &str, &str)] = &[
    (
        "mount -t tmpfs none /sys/kernel",
        "was built without sched_ext",
        "Boot a kernel that has it",
    ),
    (
        "echo 6.9.1 > /tmp/release; mount --bind /tmp/release /proc/sys/kernel/osrelease; \
         mount -t tmpfs none /sys/kernel",
        "kernel 6.9.1 is too old",
        "Boot a newer kernel",
    ),
    (
        "head -c 100000 /sys/kernel/btf/vmlinux > /tmp/btf; \
         mount --bind /tmp/btf /sys/kernel/btf/vmlinux",
        "it lacks scx_bpf_select_cpu_and()",
        "Boot that or a later kernel",
    ),
    (
        "mount -t tmpfs none /sys/kernel/btf",
        "has no BTF",
        "Boot a kernel built with CONFIG_DEBUG_INFO_BTF",
    ),
    (
        "mount -t tmpfs none /boot",
        "is in neither /proc/config.gz nor /boot/config-",
        "Put it at /boot/config-",
    ),
];

/// With each fault `check` names it and the remedy, and the scheduler refuses to start for the same
/// reason. Without the fault it starts.
#[test]
fn check_names_each_fault_and_its_remedy() -> Result<()> {
    let mut guest = boot_for_magpie("tiny2", |options| {
        options.files.push("/usr/bin/setpriv".into());
    })?;
    let no_permission = (
        "set -- /bin/setpriv --no-new-privs --bounding-set=-all",
        "no permission to load a scheduler",
        "Run it as root",
    );
    for (fault, name, remedy) in FAULTS.iter().copied().chain([no_permission]) {
        for command in ["scx_magpie check", "scx_magpie"] {
            let script = format!("{fault}\n\"$@\" {command} 2>&1");
            let argv = ["unshare", "-m", "sh", "-c", &script].map(String::from);
            let mut told = Vec::new();
            let ended = guest.exec(&argv, PATIENCE, &mut |_, bytes| {
                told.extend_from_slice(bytes)
            })?;
            let told = String::from_utf8_lossy(&told);
            ensure!(
                ended.code == 1 && told.contains(name) && told.contains(remedy),
                "{fault}: `{command}` ended with {} and told:\n{told}",
                ended.code
            );
            if command == "scx_magpie check" {
                println!("{fault}:\n{told}");
            }
        }
    }
    under(&mut guest, MAGPIE, work)?;
    guest.into_guest().shutdown()
}
