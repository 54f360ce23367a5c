//! Preferred CPUs: on an overcommitted host a guest that uses fewer of its CPUs runs faster. Eight
//! vCPUs share two CPUs, in real time, and scx_magpie takes turns with the kernel's own scheduler.

use anyhow::{Context, Result, ensure};
use magpie_bench::stats::median;
use magpie_lab::Guest;
use magpie_tests::scheduler::{MAGPIE, boot_for_magpie_alone, shell, under};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Nine, because runs under EEVDF differ by a factor of two and more.
const ROUNDS: usize = 9;

/// Confines all threads of the guest to two CPUs of the host.
pub fn confine(guest: &mut Guest) -> Result<()> {
    let own = sched_getaffinity(Pid::from_raw(0)).context("read the own affinity")?;
    let mut two = CpuSet::new();
    let usable = (0..CpuSet::count()).filter(|cpu| own.is_set(*cpu).unwrap_or(false));
    for cpu in usable.take(2) {
        two.set(cpu)?;
    }
    for thread in guest.qemu_threads()? {
        let thread = Pid::from_raw(thread.cast_signed());
        sched_setaffinity(thread, &two).context("set the affinity of a vCPU")?;
    }
    Ok(())
}

/// Runs hackbench for longer than the governor needs to find the CPUs that the host gives, and returns
/// its time in seconds. How soon it finds them is tested in virtual time.
fn hackbench(guest: &mut Guest) -> Result<f64> {
    let text = shell(guest, "hackbench -g 1 -l 150")?;
    let time = text.lines().find_map(|line| line.strip_prefix("Time: "));
    let time = time.with_context(|| format!("no time in {text:?}"))?;
    Ok(time.trim().parse()?)
}

#[test]
fn a_guest_on_an_overcommitted_host_is_faster() -> Result<()> {
    let mut guest = boot_for_magpie_alone("flat8")?;
    confine(&mut guest)?;
    let (mut eevdf, mut magpie) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        eevdf.push(hackbench(&mut guest)?);
        magpie.push(under(&mut guest, MAGPIE, hackbench)?);
    }
    println!("hackbench, 8 vCPUs on 2 CPUs: EEVDF {eevdf:.3?} s, {MAGPIE} {magpie:.3?} s");
    let ratio = median(&magpie) / median(&eevdf);
    ensure!(
        ratio <= 0.7,
        "hackbench takes {ratio:.2} times as long as under EEVDF"
    );
    guest.into_guest().shutdown()
}
