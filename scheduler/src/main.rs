//! A sched_ext CPU scheduler that finds work for idle CPUs, and idle CPUs for work.
fn main() {}
