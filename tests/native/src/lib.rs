//! The BPF side's arithmetic, tested and measured without a kernel.
//!
//! The headers in `scheduler/src/bpf/portable/` compute without asking the kernel. They compile for
//! BPF and for this machine. Here Rust calls them, so that tests can compare them with models and
//! run them under sanitizers, which BPF has not. Nothing that is tested has a second
//! implementation.
//!
//! - [`sparsemask`]: the bitmap over cache lines, in every layout that is measured
//! - [`arithmetic`]: averages, weights, virtual time
//! - [`fair`]: lag, requests and deadlines
//! - [`shares`]: the shares of cgroups
//! - [`bandwidth`]: the limits of cgroups
//! - [`governor`]: how many cores a guest should use
//! - [`perf`]: what performance a CPU asks for
//! - [`power`]: how many cores a machine uses that saves power
//! - [`move_cost`]: what a move costs a task
//! - [`placement`]: where a woken task runs, and which CPUs are idle
//! - [`contention`]: the benchmark behind `docs/sparsemask.md`
//!
//! `tests/` holds the tests: properties against models, stores counted by the memory protection,
//! and `c/stress.c` under the sanitizers for threads, memory and undefined behaviour.

pub mod arithmetic;
pub mod bandwidth;
pub mod contention;
pub mod fair;
pub mod governor;
pub mod move_cost;
pub mod perf;
pub mod placement;
pub mod power;
pub mod shares;
pub mod sparsemask;

/// The C compiler that the headers were compiled with.
pub const CC: &str = env!("MAGPIE_NATIVE_CC");

/// The folder of the portable headers.
pub const PORTABLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../scheduler/src/bpf/portable"
);
