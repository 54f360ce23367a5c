//! Compiles the BPF sides of `magpie trace` and `magpie top`, and generates their skeletons.

use anyhow::{Context, Result};

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    // A builder makes one skeleton: the second call of enable_skel() would replace the first.
    for name in ["trace", "latency"] {
        let source = format!("src/bpf/{name}.bpf.c");
        scx_cargo::BpfBuilder::new()?
            .enable_skel(&source, name)
            .build()
            .with_context(|| {
                format!(
                    "building the BPF side from {source} (`make setup` installs a clang for it)"
                )
            })?;
    }
    Ok(())
}
