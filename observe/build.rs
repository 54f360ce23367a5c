//! Compiles the BPF side of `magpie trace` and generates its skeleton.

use anyhow::{Context, Result};

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    scx_cargo::BpfBuilder::new()?
        .enable_skel("src/bpf/trace.bpf.c", "trace")
        .build()
        .context(
            "building the BPF side from src/bpf/trace.bpf.c (`make setup` installs a clang for it)",
        )
}
