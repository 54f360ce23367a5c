//! Measures schedulers: interleaved, with statistics.
