//! Integration tests: every mechanism in a real kernel.
