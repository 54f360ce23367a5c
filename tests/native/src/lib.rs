//! The BPF side's pure logic, tested and measured without a kernel.
//!
//! What the scheduler computes without asking the kernel is in `scheduler/src/bpf/portable/*.h`.
//! These headers compile for BPF and for this machine. Here they are called from Rust, so that they
//! can be held against models and run under sanitizers by thousands of threads' worth of luck, which
//! BPF cannot. There is no second implementation of anything that is tested.
//!
//! - [`sparsemask`]: the bitmap over cache lines, in every layout that is measured
//! - [`arithmetic`]: averages, weights, virtual time
//! - [`shares`]: the shares of cgroups
//! - [`bandwidth`]: the limits of cgroups
//! - [`governor`]: how many cores a guest should use
//! - [`placement`]: where a woken task runs, and which CPUs are idle
//! - [`contention`]: the benchmark behind `docs/sparsemask.md`
//!
//! `tests/` holds the tests: properties against models, stores counted by the memory protection,
//! and `c/stress.c` under the sanitizers for threads, memory and undefined behaviour.

pub mod arithmetic;
pub mod bandwidth;
pub mod contention;
pub mod governor;
pub mod placement;
pub mod shares;
pub mod sparsemask;

/// The C compiler that the headers were compiled with.
pub const CC: &str = env!("MAGPIE_NATIVE_CC");

/// The folder of the portable headers.
pub const PORTABLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../scheduler/src/bpf/portable"
);
