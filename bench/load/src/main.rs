//! Load generators and checkers that the bench and the tests run.
fn main() {}
