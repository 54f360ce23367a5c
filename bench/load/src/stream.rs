//! `stream`: how fast do threads read and write memory that no cache holds?
//!
//! McCalpin's STREAM: copy `c = a`, scale `b = s * c`, add `c = a + b`, triad `a = b + s * c`, over
//! arrays much larger than the caches. Every thread has arrays of its own and fills them first, so
//! that they are in the memory of the node on which the thread runs; a migration to another node
//! costs bandwidth. As in the original, the rate is of all threads together, counts bytes read and
//! written, and is that of the best repetition.

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;

use anyhow::{Result, anyhow};
use serde_json::{Map, Value, json};

use crate::Finding;
use crate::cpus;
use crate::sys;

/// Measure the memory's rate: copy, scale, add and triad.
#[derive(clap::Args)]
pub struct Args {
    /// Threads, each with arrays of its own [default: one per CPU]
    #[arg(long)]
    threads: Option<usize>,
    /// Size of one of a thread's three arrays in MiB
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    mib: u32,
    /// Repetitions of each kernel; the first is not counted
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    repetitions: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const SCALE: f64 = 3.0;

/// Name, arrays touched per element, and what it does.
type Kernel = (&'static str, usize, fn(&mut Arrays));

const KERNELS: [Kernel; 4] = [
    ("copy", 2, |arrays| arrays.c.copy_from_slice(&arrays.a)),
    ("scale", 2, |arrays| {
        let from = arrays.b.iter_mut().zip(&arrays.c);
        from.for_each(|(b, c)| *b = SCALE * c);
    }),
    ("add", 3, |arrays| {
        let from = arrays.c.iter_mut().zip(arrays.a.iter().zip(&arrays.b));
        from.for_each(|(c, (a, b))| *c = a + b);
    }),
    ("triad", 3, |arrays| {
        let from = arrays.a.iter_mut().zip(arrays.b.iter().zip(&arrays.c));
        from.for_each(|(a, (b, c))| *a = b + SCALE * c);
    }),
];

struct Arrays {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

/// When a thread began and ended each repetition of each kernel.
type Times = Vec<[(u64, u64); KERNELS.len()]>;

/// Runs the kernels on all threads and reports megabytes per second.
pub fn run(args: &Args) -> Result<Finding> {
    let threads = match args.threads {
        Some(0) => {
            return Err(anyhow!(
                "no thread measures nothing: give --threads 1 or more"
            ));
        }
        Some(threads) => threads,
        None => cpus::usable(),
    };
    let elements = args.mib as usize * (1 << 20) / size_of::<f64>();
    let barrier = Arc::new(Barrier::new(threads));
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (barrier, repetitions) = (Arc::clone(&barrier), args.repetitions);
            thread::spawn(move || measure(elements, repetitions, &barrier))
        })
        .collect();
    let times: Vec<Times> = workers
        .into_iter()
        .map(|worker| worker.join().map_err(|_| anyhow!("a thread panicked")))
        .collect::<Result<_>>()?;

    let mut text = String::new();
    let mut json = Map::from_iter([("threads".to_string(), json!(threads))]);
    for (index, (name, arrays, _)) in KERNELS.iter().enumerate() {
        let bytes = arrays * elements * size_of::<f64>() * threads;
        let rate = bytes as f64 / shortest(&times, index) as f64 * 1e3;
        text.push_str(&format!("{name:<6} {rate:.1} MB/s\n"));
        json.insert(format!("{name}_mb_per_s"), json!(rate));
    }
    Ok(Finding {
        text,
        json: Value::Object(json),
        holds: true,
    })
}

/// One thread: runs each kernel together with the other threads, and notes the times.
fn measure(elements: usize, repetitions: u32, barrier: &Barrier) -> Times {
    let mut arrays = Arrays {
        a: vec![1.0; elements],
        b: vec![2.0; elements],
        c: vec![0.5; elements],
    };
    (0..repetitions)
        .map(|_| {
            KERNELS.map(|(_, _, kernel)| {
                barrier.wait();
                let start = sys::now_ns();
                kernel(black_box(&mut arrays));
                (start, sys::now_ns())
            })
        })
        .collect()
}

/// From the first thread's start to the last one's end, in the best repetition after the first.
fn shortest(times: &[Times], kernel: usize) -> u64 {
    let repetitions = times.first().map_or(0, Vec::len);
    let lengths = (1..repetitions).map(|repetition| {
        let of_all = times.iter().map(|times| times[repetition][kernel]);
        let start = of_all.clone().map(|(start, _)| start).min().unwrap_or(0);
        let end = of_all.map(|(_, end)| end).max().unwrap_or(0);
        end - start
    });
    lengths.min().unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_compute_what_they_are_named_after() {
        let mut arrays = Arrays {
            a: vec![1.0, 2.0],
            b: vec![0.0; 2],
            c: vec![0.0; 2],
        };
        let mut run = |index: usize| {
            KERNELS[index].2(&mut arrays);
            (arrays.a.clone(), arrays.b.clone(), arrays.c.clone())
        };
        assert_eq!(run(0).2, [1.0, 2.0]);
        assert_eq!(run(1).1, [3.0, 6.0]);
        assert_eq!(run(2).2, [4.0, 8.0]);
        assert_eq!(run(3).0, [15.0, 30.0]);
    }

    #[test]
    fn the_best_repetition_counts_from_first_start_to_last_end() {
        let of = |times: [(u64, u64); 3]| -> Times { times.map(|time| [time; 4]).to_vec() };
        // The first repetition is the fastest, and is not counted.
        let times = [
            of([(0, 1), (10, 30), (50, 65)]),
            of([(0, 1), (15, 31), (52, 70)]),
        ];
        assert_eq!(shortest(&times, 2), 20);
    }

    #[test]
    fn a_short_run_measures_all_kernels() {
        let args = Args {
            threads: Some(2),
            mib: 1,
            repetitions: 3,
            json: true,
        };
        let json = run(&args).unwrap().json;
        for (name, ..) in KERNELS {
            assert!(
                json[format!("{name}_mb_per_s")].as_f64().unwrap() > 1.0,
                "{json}"
            );
        }
    }
}
