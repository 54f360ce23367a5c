//! A task moves to another LLC only if it would wait for longer than the move costs it, and learns
//! from its own bursts what that is.

use anyhow::{Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{boot_for_magpie, counters, grown, json, number, with_and_without};

/// Two LLCs of two cores of two threads, and memory: a line of the other LLC takes 100 ns, one of the
/// own LLC 10.
const MACHINE: &str = "vt8-mem";

/// What threads did that update memory of their own, which fits into an LLC. There are three of them
/// for every two CPUs.
struct Done {
    passes_per_s: f64,
    /// Moves to the other LLC for each pass.
    moves: f64,
}

fn update(guest: &mut Guest, scheduler: &str) -> Result<Done> {
    let before = counters(guest)?;
    let (seconds, warmup) = (0.1, 0.05);
    let load = format!(
        "magpie-load working-set --json --threads 12 --kib 192 --nap-us 20 --seconds {seconds} \
         --warmup {warmup}"
    );
    let told = json(guest, &load)?;
    let after = counters(guest)?;
    let passes_per_s = number(&told, "/passes_per_s")?;
    let moves = grown(&before, &after, "steal_node")? + grown(&before, &after, "wake_beyond")?;
    let moves = moves as f64 / ((seconds + warmup) * passes_per_s);
    println!("{scheduler}: {passes_per_s} passes a second, {moves:.3} moves in each");
    Ok(Done {
        passes_per_s,
        moves,
    })
}

#[test]
fn tasks_whose_memory_is_in_their_llc_seldom_leave_it() -> Result<()> {
    let mut guest = boot_for_magpie(MACHINE, |_| {})?;
    let (with, without) = with_and_without(&mut guest, "--no-move-cost", update)?;
    ensure!(with.passes_per_s >= 1.1 * without.passes_per_s);
    ensure!(with.moves <= 0.3 * without.moves);
    guest.into_guest().shutdown()
}
