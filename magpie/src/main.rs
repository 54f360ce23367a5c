//! The magpie command: lab and bench.
fn main() {}
