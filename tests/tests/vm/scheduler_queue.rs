//! Mechanism 0, continued: messages pile up for who waits for them, so that many are taken at once. Beside
//! it: the kernel's own scheduler.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{VT8, VT8_NODES, boot_for_magpie, shell, under};

/// Context switches of the whole machine while 160 tasks pass messages on two of its CPUs: the median
/// of five runs.
fn switches_for_messages(guest: &mut Guest, cpus: &str) -> Result<u64> {
    let mut switches = (0..5)
        .map(|_| {
            let printed = shell(
                guest,
                &format!(
                    "switches() {{ sed -n 's/^ctxt //p' /proc/stat; }}\n\
                     before=$(switches)\n\
                     taskset -c {cpus} hackbench -g 4 -l 30 > /dev/null\n\
                     after=$(switches); echo $((after - before))"
                ),
            )?;
            Ok(printed.trim().parse()?)
        })
        .collect::<Result<Vec<u64>>>()?;
    switches.sort_unstable();
    println!("{switches:?} context switches");
    Ok(switches[switches.len() / 2])
}

fn messages_pile_up(machine: &str, cpus: &str) -> Result<()> {
    let mut guest = boot_for_magpie(machine, |_| {})?;
    let eevdf = switches_for_messages(&mut guest, cpus)?;
    let magpie = under(&mut guest, "scx_magpie", |guest| {
        switches_for_messages(guest, cpus)
    })?;
    ensure!(
        magpie <= eevdf * 2,
        "{magpie} context switches, EEVDF {eevdf}"
    );
    guest.into_guest().shutdown()
}

#[test]
fn messages_pile_up_for_who_waits_on_another_node() -> Result<()> {
    messages_pile_up(VT8_NODES, "4,5")
}

#[test]
fn messages_pile_up_for_who_waits() -> Result<()> {
    messages_pile_up(VT8, "0,1")
}
