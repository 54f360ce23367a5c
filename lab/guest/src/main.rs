//! The init and agent inside a lab guest.
fn main() {}
