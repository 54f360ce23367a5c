//! Measures schedulers: interleaved, with statistics.
pub mod compare;
pub mod report;
pub mod stats;
pub mod table;
