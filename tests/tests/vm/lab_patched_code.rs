//! The lab's guests execute what their kernel has patched, without KVM: no vCPU runs a breakpoint
//! that is gone, or code from before the patch.

use anyhow::{Result, ensure};
use magpie_tests::boot;
use magpie_tests::scheduler::{PATIENCE, VT8};

/// Switches the kernel's scheduling statistics on and off, under load. Their static key is in
/// schedule(), in each wakeup and in each enqueue. Prints a line for each CPU that still counts
/// when they are off, or does not when they are on.
const SCRIPT: &str = r#"
    key=/proc/sys/kernel/sched_schedstats
    counts() { sed -n 's/^\(cpu[0-9]*\) [0-9]* [0-9]* \([0-9]*\) .*/\1 \2/p' /proc/schedstat; }
    # Every CPU calls schedule().
    visit() { for cpu in 0 1 2 3 4 5 6 7; do taskset -c $cpu true; done; }
    while [ ! -e /tmp/stop ]; do hackbench -g 1 -l 50 > /dev/null; done &
    for i in $(seq ROUNDS); do
        echo 1 > $key
        echo 0 > $key
        counts > /tmp/before; visit; counts > /tmp/after
        diff /tmp/before /tmp/after | sed -n 's/^+\(cpu[0-9]*\) .*/\1 counts, and is off/p'
        echo 1 > $key
        counts > /tmp/before; visit; counts > /tmp/after
        grep -xF -f /tmp/before /tmp/after | sed 's/$/ does not count, and is on/'
    done
    touch /tmp/stop
    wait
    echo switched
"#;

/// Fails if a vCPU executes stale code.
fn must_execute_what_is_patched(machine: &str, rounds: u32) -> Result<()> {
    let mut guest = boot(machine, |options| {
        options.packages = vec!["rt-tests".into()]
    })?;
    let script = SCRIPT.replace("ROUNDS", &rounds.to_string());
    let said = guest.capture(&["sh", "-c", &script], PATIENCE)?;
    ensure!(said == "switched\n", "{said}");
    guest.into_guest().shutdown()
}

#[test]
fn vcpus_execute_what_the_kernel_has_patched() -> Result<()> {
    must_execute_what_is_patched("smt8", 30)
}

#[test]
fn vcpus_in_virtual_time_execute_what_the_kernel_has_patched() -> Result<()> {
    must_execute_what_is_patched(VT8, 15)
}
