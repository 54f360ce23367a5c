//! A wakeup moves few cache lines between CPUs.

use anyhow::{Context, Result, ensure};
use magpie_tests::scheduler::{MAGPIE, boot_for_magpie, profile_of, under};

/// Two processes wake each other, each on a core of its own in an LLC of its own, so every line that
/// both CPUs write or read travels. The waker claims the idle CPU, which takes its line back as it
/// leaves idle, and takes the task's line, because the waker has read it: three. At most one is read:
/// the idle CPU's, before the claim. What the kernel's own functions take and read is not counted;
/// one of them is the first to read the task's line.
///
/// When the waker wrote the task's state and that state was three lines, 8.9 were taken and 5.9 read.
#[test]
fn a_wakeup_takes_three_lines_from_other_cpus() -> Result<()> {
    let mut guest = boot_for_magpie("vt8-mem", |options| options.profile = true)?;
    under(&mut guest, MAGPIE, |guest| {
        let load = "magpie-load pipe --loops 3000 --cpus-a 0,1 --cpus-b 4,5";
        let profile = profile_of(guest, load)?;
        let wakeups = profile.function("ttwu_do_activate").context("wakeups")?;
        ensure!(wakeups.calls >= 6000, "{wakeups:?}");
        let programs = profile
            .functions
            .iter()
            .filter(|f| f.name.ends_with("[bpf]"));
        let (taken, shared) = programs.fold((0, 0), |(taken, shared), f| {
            (taken + f.lines_taken, shared + f.lines_shared)
        });
        let each = |lines: u64| lines as f64 / wakeups.calls as f64;
        println!(
            "{} wakeups: {:.2} lines taken and {:.2} read by each",
            wakeups.calls,
            each(taken),
            each(shared)
        );
        // None would mean that nothing is counted.
        ensure!((1.0..=3.2).contains(&each(taken)), "{taken} lines taken");
        ensure!(each(shared) <= 1.3, "{shared} lines read");
        Ok(())
    })?;
    guest.into_guest().shutdown()
}
