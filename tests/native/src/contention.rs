//! How much CPUs that use one bitmap at the same time disturb each other.
//!
//! A machine with n CPUs has a place for each. For any n, a benchmark has only as many CPUs as
//! the machine it runs on; so a thread plays one CPU at a time: it takes a place, sets and clears
//! it [`STAY`] times, and goes on to another place. Two threads never take the same place (no two
//! CPUs do), but they share a cache line as often as two CPUs of n that announce at the same moment
//! do.
//!
//! Four things are measured, in every layout and for every n:
//!
//! - *announce alone*: one thread; the cost of set and clear without contention
//! - *announce together*: all threads at once; the cost under contention
//! - *search a quiet map*: one visit of all n places of an empty map
//! - *search a busy map*: the same while one other thread announces
//!
//! Rounds are short, and the cells of a table take turns, so that what drifts hits all alike. A
//! round counts only if every thread had its CPU for itself (its CPU time is the wall time) and all
//! ran at the same time (on a busy host they can run one after the other on one CPU), but for
//! [`LOST`]. On a busy host most rounds are lost; the result says how many were kept.

use crate::sparsemask::{Layout, Mask};
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often a thread sets and clears a place before it goes on to another.
pub const STAY: u32 = 32;

/// Visits between two looks at the clock, which takes as long as a visit of a small map.
const VISITS: u64 = 16;

/// The share of the wall time that a thread of a round that counts may lose.
pub const LOST: f64 = 0.03;

/// The size of a measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Numbers of threads that announce together, each at least 2.
    pub threads: Vec<u32>,
    /// Numbers of places.
    pub places: Vec<u32>,
    /// The length of a round.
    pub round: Duration,
    /// Rounds to keep for each cell.
    pub keep: usize,
    /// No round begins after this.
    pub limit: Duration,
}

impl Options {
    /// The measurement of `docs/sparsemask.md`, with 2, 4, 8, ... threads up to the CPUs there are.
    pub fn full() -> Options {
        let powers = std::iter::successors(Some(2), |n| Some(n * 2));
        Options {
            threads: powers.take_while(|&n| n <= cpus()).collect(),
            places: vec![2, 8, 64, 512, 4096],
            round: Duration::from_millis(2),
            keep: 31,
            limit: Duration::from_secs(300),
        }
    }

    /// Whether the benchmark works at all, in a second or two. Its numbers are worth nothing.
    pub fn quick() -> Options {
        Options {
            places: vec![2, 64, 4096],
            round: Duration::from_micros(200),
            keep: 3,
            limit: Duration::from_secs(5),
            ..Options::full()
        }
    }
}

/// CPUs that this process may use.
pub fn cpus() -> u32 {
    thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Binds this thread to the `nth` of the CPUs that it may use: a busy host would leave two threads
/// on one CPU for longer than a round takes.
fn pin(nth: u32) -> nix::Result<()> {
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread)?;
    let mut candidates = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu) == Ok(true));
    let mut own = CpuSet::new();
    own.set(candidates.nth(nth as usize).unwrap_or_default())?;
    sched_setaffinity(this_thread, &own)
}

/// The work of the threads of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// All threads set and clear.
    Announce,
    /// The first thread searches, the others set and clear.
    Search,
}

/// One cell of a table: what one layout costs in one situation.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// The work of the threads.
    pub scenario: Scenario,
    /// How many threads do it.
    pub threads: u32,
    /// Places of the map.
    pub places: u32,
    /// Places on a cache line of 64 bytes.
    pub bits_a_cache_line: u32,
    /// Rounds that were measured.
    pub rounds: u32,
    /// Nanoseconds of one operation in each round that counts, sorted.
    pub kept_ns: Vec<f64>,
}

impl Cell {
    /// The median of the rounds that count, in nanoseconds of one operation; none without any.
    pub fn median_ns(&self) -> Option<f64> {
        let middle = self.kept_ns.len() / 2;
        self.kept_ns.get(middle).copied()
    }
}

/// The work that a thread did in a round.
struct Share {
    operations: u64,
    began: Instant,
    wall: Duration,
    cpu: Duration,
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("Linux has a clock for each thread")
        .into()
}

/// Calls `batch`, which returns the number of its operations, until the time is over.
fn repeat(round: Duration, mut batch: impl FnMut() -> u64) -> Share {
    let cpu = cpu_time();
    let began = Instant::now();
    let mut operations = 0;
    while began.elapsed() < round {
        operations += batch();
    }
    Share {
        operations,
        began,
        wall: began.elapsed(),
        cpu: cpu_time() - cpu,
    }
}

/// Thread `thread` of `threads` has every `threads`th place, so that neighbours are of different
/// ones.
fn announce(mask: &Mask, places: u32, thread: u32, threads: u32, round: Duration) -> Share {
    let mut random = fastrand::Rng::with_seed(u64::from(thread));
    let own = (places - thread).div_ceil(threads);
    repeat(round, || {
        let place = random.u32(0..own) * threads + thread;
        for _ in 0..STAY {
            mask.set(place);
            mask.clear(place);
        }
        2 * u64::from(STAY)
    })
}

fn search(mask: &Mask, places: u32, round: Duration) -> Share {
    let mut random = fastrand::Rng::with_seed(1);
    repeat(round, || {
        for _ in 0..VISITS {
            let start = random.u32(0..places);
            std::hint::black_box(mask.visit(0..places, start).count());
        }
        VISITS
    })
}

/// Whether all threads ran all the time, and at the same time.
fn is_undisturbed(shares: &[Share], round: Duration) -> bool {
    let mostly = |part: Duration, whole: Duration| part >= whole.mul_f64(1.0 - LOST);
    let last_began = shares.iter().map(|share| share.began).max();
    let first_ended = shares.iter().map(|share| share.began + share.wall).min();
    let (Some(from), Some(to)) = (last_began, first_ended) else {
        return false;
    };
    shares.iter().all(|share| mostly(share.cpu, share.wall))
        && mostly(to.saturating_duration_since(from), round)
}

/// Nanoseconds of one operation, averaged over the threads that do what is measured; none if a
/// thread lost its CPU.
fn measure_round(layout: Layout, cell: &Cell, round: Duration) -> Option<f64> {
    let mask = Mask::new(layout, cell.places);
    let ready = AtomicU32::new(0);
    let work = |thread| {
        // Where that is not allowed, rounds that overlap too little are dropped all the same.
        let _ = pin(thread);
        ready.fetch_add(1, Ordering::AcqRel);
        while ready.load(Ordering::Acquire) < cell.threads {
            thread::yield_now();
        }
        match (cell.scenario, thread) {
            (Scenario::Search, 0) => search(&mask, cell.places, round),
            _ => announce(&mask, cell.places, thread, cell.threads, round),
        }
    };
    let work = &work;
    let shares: Vec<Share> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cell.threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<Share>| thread.join().expect("no panic");
        threads.into_iter().map(join).collect()
    });

    if !is_undisturbed(&shares, round) {
        return None;
    }
    let measured = match cell.scenario {
        Scenario::Announce => &shares[..],
        Scenario::Search => &shares[..1],
    };
    let wall: f64 = measured.iter().map(|s| s.wall.as_nanos() as f64).sum();
    let operations: u64 = measured.iter().map(|s| s.operations).sum();
    Some(wall / operations as f64)
}

fn cells(options: &Options) -> Vec<(Layout, Cell)> {
    let mut situations = vec![(Scenario::Announce, 1)];
    situations.extend(options.threads.iter().map(|&n| (Scenario::Announce, n)));
    situations.push((Scenario::Search, 1));
    if cpus() > 1 {
        situations.push((Scenario::Search, 2));
    }

    let mut cells = Vec::new();
    for (scenario, threads) in situations {
        for &places in options.places.iter().filter(|&&places| places >= threads) {
            for layout in Layout::plain() {
                let cell = Cell {
                    scenario,
                    threads,
                    places,
                    bits_a_cache_line: layout.bits_a_cache_line(),
                    rounds: 0,
                    kept_ns: Vec::new(),
                };
                cells.push((layout, cell));
            }
        }
    }
    cells
}

/// Measures every cell.
///
/// # Errors
/// When more threads are asked for than there are CPUs to run them at the same time.
pub fn measure(options: &Options) -> Result<Vec<Cell>> {
    for &threads in &options.threads {
        ensure!(
            threads >= 2,
            "{threads} threads do not contend: use 2 or more"
        );
        if threads > cpus() {
            bail!(
                "{threads} threads cannot run at the same time, which contention takes: this process \
                 may use {} CPUs; use at most as many threads, or a larger machine",
                cpus()
            );
        }
    }

    let mut cells = cells(options);
    let progress = ProgressBar::new((cells.len() * options.keep) as u64).with_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} rounds kept, {eta} left at most")
            .context("the progress bar's template")?,
    );
    let began = Instant::now();
    'limit: loop {
        let mut complete = true;
        for (layout, cell) in &mut cells {
            if cell.kept_ns.len() >= options.keep {
                continue;
            }
            if began.elapsed() > options.limit {
                break 'limit;
            }
            complete = false;
            cell.rounds += 1;
            if let Some(ns) = measure_round(*layout, cell, options.round) {
                cell.kept_ns.push(ns);
                progress.inc(1);
            }
        }
        if complete {
            break;
        }
    }
    progress.finish_and_clear();

    Ok(cells
        .into_iter()
        .map(|(_, mut cell)| {
            cell.kept_ns.sort_by(f64::total_cmp);
            cell
        })
        .collect())
}

fn title(scenario: Scenario, threads: u32) -> String {
    match (scenario, threads) {
        (Scenario::Announce, 1) => "Announce alone: ns for one set or clear, 1 thread".into(),
        (Scenario::Announce, n) => {
            format!("Announce together: ns for one set or clear, {n} threads")
        }
        (Scenario::Search, 1) => "Search a quiet map: ns for a visit of all places".into(),
        (Scenario::Search, _) => {
            "Search a busy map: ns for a visit while 1 thread announces".into()
        }
    }
}

/// The tables in Markdown, and under each how many rounds count.
pub fn markdown(cells: &[Cell]) -> String {
    let mut text = String::new();
    let same_table = |a: &Cell, b: &Cell| (a.scenario, a.threads) == (b.scenario, b.threads);
    for table in cells.chunk_by(same_table) {
        let rows: Vec<&[Cell]> = table.chunk_by(|a, b| a.places == b.places).collect();
        let _ = writeln!(text, "{}\n", title(table[0].scenario, table[0].threads));
        let _ = write!(text, "| places |");
        for cell in rows[0] {
            let _ = match cell.bits_a_cache_line {
                512 => write!(text, " plain bitmap |"),
                bits => write!(text, " {bits} a line |"),
            };
        }
        let _ = writeln!(text, "\n|---:|{}", "---:|".repeat(rows[0].len()));
        for row in rows {
            let _ = write!(text, "| {} |", row[0].places);
            for cell in row {
                let _ = match cell.median_ns() {
                    Some(ns) => write!(text, " {ns:.1} |"),
                    None => write!(text, " not measured |"),
                };
            }
            text.push('\n');
        }
        let kept: usize = table.iter().map(|cell| cell.kept_ns.len()).sum();
        let rounds: u32 = table.iter().map(|cell| cell.rounds).sum();
        let _ = writeln!(
            text,
            "\n(median of the rounds that count: {kept} of {rounds})\n"
        );
    }
    text
}
