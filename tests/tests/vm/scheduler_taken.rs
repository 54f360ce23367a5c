//! A vCPU that its host does not run looks idle if it was idle before: the task that is woken there
//! first waits until the vCPU runs again, because the kernel keeps it in a list of that CPU. No
//! second task may follow.
//!
//! ```text
//!   twelve workers on CPUs 1-3, each woken by a thread of its own:  stopped  |  go on, one by one
//!   vCPU 3                                                   taken from here on
//! ```

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::limit::Taken;
use magpie_tests::scheduler::{MAGPIE, boot_for_magpie_alone, shell, under};

const VCPU: usize = 3;

/// Stops the workers, lets them go on when the vCPU is taken, and then counts those that do not run
/// for a second. It stays on CPU 0, so that it does not wait for the vCPU either.
const SCRIPT: &str = r#"
loads= workers=
for i in $(seq 12); do
    magpie-load latency --threads 1 --operations 20000 --seconds 60 >/dev/null 2>&1 &
    loads="$loads $!"
done
for load in $loads; do
    for i in $(seq 50); do set -- $(ls /proc/$load/task); [ $# = 3 ] && break; sleep 0.1; done
    taskset -p e $3 >/dev/null
    workers="$workers /proc/$load/task/$3/schedstat"
done
sleep 0.5; kill -STOP $loads; sleep 0.5
touch /tmp/ready; sleep 2
for load in $loads; do kill -CONT $load; sleep 0.05; done
sleep 0.5
cut -d ' ' -f 3 $workers >/tmp/before; sleep 1; cut -d ' ' -f 3 $workers >/tmp/after
paste /tmp/before /tmp/after | awk '{stuck += $1 == $2} END {print stuck, NR}' >/tmp/stuck.new
mv /tmp/stuck.new /tmp/stuck
kill -9 $loads
"#;

/// A command that waits for a file of the script, and prints what the script did if none comes.
fn wait_for(file: &str) -> String {
    format!(
        "for i in $(seq 100); do [ -e {file} ] && exec cat {file}; sleep 0.1; done
         cat /tmp/log >&2; exit 1"
    )
}

/// Returns how many of the workers do not run while the vCPU is taken.
fn stuck(guest: &mut Guest) -> Result<u32> {
    // In a session of its own: if its parent ended, the kernel would let stopped workers go on.
    let start = format!(
        "rm -f /tmp/ready /tmp/stuck; cat >/tmp/script <<'END'\n{SCRIPT}END\n\
         setsid taskset 1 sh -x /tmp/script >/tmp/log 2>&1 &\n\
         {}",
        wait_for("/tmp/ready")
    );
    shell(guest, &start)?;
    let taken = Taken::new(guest, VCPU)?;
    std::thread::sleep(Duration::from_secs(7));
    drop(taken);
    let text = shell(guest, &wait_for("/tmp/stuck"))?;
    let (stuck, workers) = text.trim().split_once(' ').context("two numbers")?;
    ensure!(workers == "12", "{workers} workers: {text}");
    stuck.parse().with_context(|| text.clone())
}

/// Counts three times, and adds up.
fn stuck_in_three(guest: &mut Guest) -> Result<u32> {
    (0..3).map(|_| stuck(guest)).sum()
}

#[test]
fn an_idle_cpu_that_the_host_took_gets_no_second_task() -> Result<()> {
    let mut guest = boot_for_magpie_alone("flat8")?;
    let eevdf = stuck_in_three(&mut guest)?;
    let ours = under(&mut guest, MAGPIE, stuck_in_three)?;
    println!(
        "workers that wait for the vCPU that the host took, three times of twelve: {eevdf} under \
         EEVDF, {ours} under {MAGPIE}"
    );
    ensure!(eevdf > 0, "no worker waits: the vCPU was not taken");
    // On a busy host another vCPU may come late as well, and then there is no better one.
    ensure!(
        ours <= 4,
        "{ours} of three times twelve workers wait for it"
    );
    guest.into_guest().shutdown()
}
