//! Preferred CPUs: where the kernel has a mask of its own and its governor is loaded, that mask
//! decides and scx_magpie's governor rests; without the module, scx_magpie's governor decides
//! again.
//!
//! No kernel of the lab has the mask, so files stand in for the kernel's. Everything else is real.

use anyhow::{Result, bail, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{VT8_NODES, boot_for_magpie, boot_for_magpie_alone, shell, under};
use serde_json::Value;

use crate::preferred_cpus::{Following, cpus_of, following, preferred, start_all_hogs};
use crate::preferred_overcommit::confine;

/// The scheduler, which looks for the kernel's files below `/tmp/kernel`.
const SCHEDULER: &str = "env SCX_MAGPIE_TEST_ROOT=/tmp/kernel scx_magpie --period 100";

/// Writes the kernel's mask.
fn set_mask(guest: &mut Guest, mask: &str) -> Result<()> {
    let script =
        format!("cd /tmp/kernel/sys/devices/system/cpu && echo '{mask}' > new && mv new preferred");
    shell(guest, &script).map(|_| ())
}

/// Makes the files of a kernel whose governor is not loaded.
fn make_kernel(guest: &mut Guest) -> Result<()> {
    shell(
        guest,
        "mkdir -p /tmp/kernel/sys/devices/system/cpu /tmp/kernel/sys/module",
    )?;
    set_mask(guest, "0-7")
}

/// Loads the kernel's governor, or removes it.
fn set_module(guest: &mut Guest, is_loaded: bool) -> Result<()> {
    let command = if is_loaded { "mkdir" } else { "rmdir" };
    shell(
        guest,
        &format!("{command} /tmp/kernel/sys/module/steal_governor"),
    )
    .map(|_| ())
}

/// Waits, for at most a minute of the guest, until `is_so` holds for the status, which it returns.
fn wait_until(guest: &mut Guest, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut status = Value::Null;
    for _ in 0..300 {
        status = preferred(guest, "")?;
        if is_so(&status) {
            return Ok(status);
        }
        shell(guest, "sleep 0.2")?;
    }
    bail!("not within a minute: {what}; the status is {status}")
}

/// Waits until these CPUs are preferred because that one decides. Returns why.
fn must_prefer(guest: &mut Guest, mode: &str, cpus: &str) -> Result<String> {
    let status = wait_until(guest, &format!("{mode} prefers {cpus}"), |status| {
        status["mode"] == mode && status["preferred"] == cpus
    })?;
    Ok(status["why"].as_str().unwrap_or_default().to_string())
}

/// Waits, for at most 10 seconds of the guest, until `is_so` holds for what follows the preferred
/// CPUs: scx_magpie moves tasks at once, and interrupts and workqueues when it looks next.
fn must_follow(
    guest: &mut Guest,
    before: &Following,
    is_so: impl Fn(&Following) -> bool,
) -> Result<()> {
    let mut now = Following::new();
    for _ in 0..50 {
        now = following(guest)?;
        if is_so(&now) {
            return Ok(());
        }
        shell(guest, "sleep 0.2")?;
    }
    bail!("interrupts or workqueues do not follow: {before:?}, and now {now:?}")
}

/// Waits until the hogs run on these CPUs, on all of them and on no other.
fn must_run_on(guest: &mut Guest, cpus: &[u32]) -> Result<()> {
    let mut seen = Vec::new();
    for _ in 0..50 {
        seen = cpus_of(guest, "/tmp/hogs", 20)?;
        if seen == cpus {
            return Ok(());
        }
    }
    bail!("the hogs run on {seen:?}, not on {cpus:?}")
}

#[test]
fn tasks_and_interrupts_follow_the_kernels_mask_while_its_governor_is_loaded() -> Result<()> {
    let mut guest = boot_for_magpie(VT8_NODES, |_| {})?;
    make_kernel(&mut guest)?;
    let before = following(&mut guest)?;
    under(&mut guest, SCHEDULER, |guest| {
        start_all_hogs(guest, 16)?;
        // The mask alone does not decide.
        set_mask(guest, "0-1,4-5")?;
        let why = must_prefer(guest, "auto", "0-7")?;
        ensure!(why.contains("steal_governor is not loaded"), "{why}");
        must_run_on(guest, &[0, 1, 2, 3, 4, 5, 6, 7])?;

        set_module(guest, true)?;
        let why = must_prefer(guest, "kernel", "0-1,4-5")?;
        ensure!(why == "as the kernel's steal_governor says", "{why}");
        must_run_on(guest, &[0, 1, 4, 5])?;
        ensure!(
            cpus_of(guest, "/tmp/pinned", 5)? == [5],
            "a pinned hog moved"
        );
        must_follow(guest, &before, |now| {
            let is_list = |cpus: &String| cpus == "0-1,4-5";
            let is_mask = |cpus: &String| cpus.trim_start_matches('0') == "33";
            now.values().any(is_list) && now.values().any(is_mask)
        })?;
        let text = shell(guest, "scx_magpie preferred")?;
        println!("{text}");
        for part in ["0-1,4-5 of 0-7, as the kernel's", "the governor rests"] {
            ensure!(text.contains(part), "no {part:?} in {text}");
        }

        // The kernel would empty the second node.
        set_mask(guest, "0-3")?;
        wait_until(guest, "0-3 is followed", |status| {
            status["kernel_mask"] == "0-3"
        })?;
        let why = must_prefer(guest, "kernel", "0-1,4-5")?;
        ensure!(why.contains("evenly from the nodes"), "{why}");

        // A mask that cannot be used changes nothing, and the status says why.
        for (wrong, reason) in [("", "is empty"), ("0-", "no list"), ("40", "no online CPU")] {
            set_mask(guest, wrong)?;
            let status = wait_until(guest, reason, |status| {
                status["why"]
                    .as_str()
                    .is_some_and(|why| why.contains(reason))
            })?;
            ensure!(
                status["mode"] == "kernel" && status["preferred"] == "0-1,4-5",
                "{status}"
            );
        }

        // The user overrules the kernel, until the choice is left to it again.
        set_mask(guest, "0,4")?;
        must_prefer(guest, "kernel", "0,4")?;
        must_run_on(guest, &[0, 4])?;
        preferred(guest, "--set 2-3")?;
        must_run_on(guest, &[2, 3])?;
        let status = preferred(guest, "--set auto")?;
        ensure!(
            status["mode"] == "kernel" && status["preferred"] == "0,4",
            "{status}"
        );

        set_module(guest, false)?;
        must_prefer(guest, "auto", "0-7")?;
        must_run_on(guest, &[0, 1, 2, 3, 4, 5, 6, 7])?;
        must_follow(guest, &before, |now| *now == before)?;

        // Stopped while the kernel's mask decides.
        set_module(guest, true)?;
        must_prefer(guest, "kernel", "0,4").map(|_| ())
    })?;
    ensure!(
        following(&mut guest)? == before,
        "interrupts or workqueues are not where they were"
    );
    guest.into_guest().shutdown()
}

#[test]
fn of_two_governors_one_rests() -> Result<()> {
    let mut guest = boot_for_magpie_alone("flat8")?;
    confine(&mut guest)?;
    make_kernel(&mut guest)?;
    set_module(&mut guest, true)?;
    let withholds = |status: &Value| status["preferred"] != "0-7";
    under(&mut guest, SCHEDULER, |guest| {
        start_all_hogs(guest, 8)?;
        // Eight busy vCPUs on two CPUs: our governor would withhold some of them.
        let status = wait_until(guest, "the host takes much time", |status| {
            status["steal_percent"].as_f64() > Some(20.0)
        })?;
        ensure!(
            status["mode"] == "kernel" && !withholds(&status),
            "{status}"
        );
        for _ in 0..20 {
            shell(guest, "sleep 0.1")?;
            let status = preferred(guest, "")?;
            ensure!(
                status["mode"] == "kernel" && !withholds(&status) && status["changes"] == 0,
                "two governors: {status}"
            );
        }

        set_module(guest, false)?;
        let status = wait_until(guest, "our governor withholds CPUs", withholds)?;
        ensure!(status["mode"] == "auto", "{status}");
        set_module(guest, true)?;
        must_prefer(guest, "kernel", "0-7").map(|_| ())
    })?;
    guest.into_guest().shutdown()
}
