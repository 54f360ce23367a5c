//! Machines with memory: a guest measures the latencies of the machine's table, a guest on a
//! machine without the table measures others, and a deterministic machine repeats its misses.

use anyhow::{Context, Result, ensure};
use magpie_lab::selfcheck::{self, Figure, MemoryCheck};
use magpie_lab::vtime::memory_program;
use magpie_lab::{Machine, Memory, Progress};
use magpie_tests::scheduler::PATIENCE;
use magpie_tests::{boot, run_batch};

/// The memory of the small preset that the tests use.
fn small_memory() -> Result<Memory> {
    let time = Machine::find("vt8-mem")?.virtual_time;
    time.and_then(|time| time.memory)
        .context("vt8-mem has memory")
}

/// Returns the figures that are too far from their predictions, one a line.
fn wrong(check: &MemoryCheck) -> String {
    let wrong = check.figures().filter(|figure| !figure.holds());
    wrong.map(|figure| format!("{figure}\n")).collect()
}

#[test]
fn memory_costs_what_the_table_says() -> Result<()> {
    let mut guest = boot("vt8-mem", |_| {})?;
    let machine = Machine::find("vt8-mem")?;
    let check = selfcheck::run_memory(&mut guest, &machine, &small_memory()?, PATIENCE)?;
    ensure!(check.holds(), "{}", wrong(&check));
    ensure!(
        check.chase.len() == 12
            && check.transfers.len() == 3
            && check.moves.len() == 11
            && check.strings.len() == 2
            && check.contended.len() == 2
            && check.bandwidth.len() == 4
            && check.pages.len() == 1
            && check.switches.len() == 1
            && check.code.len() == 4,
        "{check:?}"
    );
    let fidelity = guest.fidelity()?.context("a machine in virtual time")?;
    let counts = fidelity.memory.context("a machine with memory")?;
    for (cause, served) in counts.causes() {
        let is_there = !matches!(cause, "other node" | "remote DRAM");
        ensure!(
            (served.count > 0 && served.stall_ns > 0) == is_there,
            "{cause}: {served:?}"
        );
    }
    let of_cpus = fidelity
        .vcpus
        .iter()
        .filter_map(|vcpu| vcpu.memory.as_ref());
    ensure!(
        of_cpus.map(|counts| counts.dram.count).sum::<u64>() == counts.dram.count,
        "the CPUs' misses are not those of the machine"
    );
    guest.into_guest().shutdown()
}

/// The same check must fail without the table, or the test above would show nothing.
#[test]
fn without_the_table_memory_costs_nothing() -> Result<()> {
    let program = memory_program(&Progress::default())?;
    let mut guest = boot("vt4", |options| options.files.push(program))?;
    let machine = Machine::find("vt4")?;
    let check = selfcheck::run_memory(&mut guest, &machine, &small_memory()?, PATIENCE)?;
    let beyond_l1 = |what: &str| !what.starts_with("L1") && !what.starts_with("L2");
    // Not the triad and the system call: on so slow a CPU their instructions take almost as long.
    let latencies = [
        &check.chase,
        &check.transfers,
        &check.moves,
        &check.strings,
        &check.contended,
        &check.pages,
        &check.code,
    ];
    let right: Vec<_> = latencies
        .into_iter()
        .flatten()
        .filter(|figure| beyond_l1(&figure.what) && figure.holds())
        .collect();
    ensure!(right.is_empty(), "{right:?}");
    let fidelity = guest.fidelity()?.context("a machine in virtual time")?;
    ensure!(fidelity.memory.is_none(), "{fidelity:?}");
    guest.into_guest().shutdown()
}

/// The figures of bandwidth, page walks, mode switches and code must be wrong if these are off, or the
/// first test would show nothing of them.
#[test]
fn each_part_of_the_memory_has_a_switch() -> Result<()> {
    let mut machine = Machine::find("vt8-mem")?;
    let time = machine.virtual_time.as_mut();
    let memory = time.and_then(|time| time.memory.as_mut());
    let memory = memory.context("vt8-mem has memory")?;
    memory.bandwidth = Default::default();
    memory.switch_ns = Default::default();
    memory.tlb = None;
    memory.l1i = None;
    let mut guest = boot("vt8-mem", |options| options.machine = machine.clone())?;
    let check = selfcheck::run_memory(&mut guest, &machine, &small_memory()?, PATIENCE)?;
    println!("{check:?}");
    let beyond_l1i = &check.code[1..];
    for part in [
        &check.bandwidth[..],
        &check.pages,
        &check.switches,
        beyond_l1i,
    ] {
        ensure!(
            !part.is_empty() && part.iter().all(|figure| !figure.holds()),
            "{part:?}"
        );
    }
    // A jump takes its instruction wherever the code is.
    let in_l1i = check.code[0].predicted;
    ensure!(
        check.code.iter().all(|jump| jump.measured < in_l1i * 1.1),
        "{:?}",
        check.code
    );
    let others = [
        &check.chase,
        &check.transfers,
        &check.moves,
        &check.contended,
    ];
    ensure!(
        others.into_iter().flatten().all(Figure::holds),
        "{}",
        wrong(&check)
    );
    let fidelity = guest.fidelity()?.context("a machine in virtual time")?;
    let counts = fidelity.memory.context("a machine with memory")?;
    let off = [
        counts.core_bandwidth,
        counts.llc_bandwidth,
        counts.node_bandwidth,
        counts.syscall,
        counts.interrupt,
        counts.address_space,
        counts.page_walk,
        counts.fetch,
    ];
    ensure!(off.iter().all(|served| served.count == 0), "{counts:?}");
    guest.into_guest().shutdown()
}

/// Measures what an addition takes 2, 8 and 32 CPUs that add to one line.
fn additions(contention: bool) -> Result<Vec<Figure>> {
    let mut machine = Machine::find("vt8-mem")?;
    machine.llc[0].count = 4;
    machine.llc[0].cores = 4;
    let mut memory = small_memory()?;
    memory.contention = contention;
    let time = machine.virtual_time.as_mut();
    let time = time.context("vt8-mem is in virtual time")?;
    time.memory = Some(memory.clone());
    let mut guest = boot("vt8-mem", |options| options.machine = machine.clone())?;
    let figures = selfcheck::run_contended(&mut guest, &machine, &memory, PATIENCE)?;
    guest.into_guest().shutdown()?;
    ensure!(figures.len() == 3, "{figures:?}");
    Ok(figures)
}

#[test]
fn a_contended_line_visits_each_cpu_in_turn() -> Result<()> {
    let figures = additions(true)?;
    println!("{figures:?}");
    ensure!(figures.iter().all(Figure::holds), "{figures:?}");
    Ok(())
}

/// Without the rule a CPU has the line for a whole turn, and the test above would fail.
#[test]
fn without_contention_a_line_costs_as_little_as_one_cpu_alone_pays() -> Result<()> {
    let figures = additions(false)?;
    let cheap = |figure: &Figure| figure.measured < figure.predicted / 5.0;
    ensure!(figures.iter().all(cheap), "{figures:?}");
    Ok(())
}

#[test]
fn a_deterministic_machine_repeats_its_misses() -> Result<()> {
    let mut machine = Machine::find("vt2")?;
    let time = machine.virtual_time.as_mut();
    let time = time.context("vt2 is in virtual time")?;
    time.deterministic = true;
    time.memory = Some(small_memory()?);
    let job = "for i in 1 2 3; do (seq 2000 | sort -n | md5sum) & done; wait; \
               grep cpu /proc/stat; cat /proc/schedstat; grep . /proc/uptime";
    let first = run_batch(&machine, job)?;
    let second = run_batch(&machine, job)?;
    assert_eq!(first.code, 0, "{}", first.output);
    assert_eq!(first.output, second.output);
    let misses = first.fidelity.memory.context("a machine with memory")?;
    assert_eq!(Some(&misses), second.fidelity.memory.as_ref());
    ensure!(
        misses.dram.count > 0 && misses.same_llc.count > 0,
        "{misses:?}"
    );
    Ok(())
}
