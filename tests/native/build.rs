//! Compiles the portable headers of the BPF side for this machine.
//!
//! Every layout of the sparsemask twice: *checked*, with the undefined-behaviour sanitizer (it
//! traps and needs no runtime library) and counted loads, for tests; and *plain*, exactly what the
//! headers say, for the benchmark and for tests that watch the memory from outside.

use std::env;
use std::path::{Path, PathBuf};

/// Bits a line, and bytes a line. The last is a plain bitmap. `src/sparsemask.rs` lists them too.
const LAYOUTS: [(u32, u32); 6] = [(2, 64), (4, 64), (8, 64), (16, 64), (64, 64), (64, 8)];

const COUNTED: &str = "COUNT_LOADS";

fn compiler(portable: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .include(portable)
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true);
    build
}

/// As `compiler`, with undefined behaviour made a trap.
fn checked(portable: &Path) -> cc::Build {
    let mut build = compiler(portable);
    build.flag("-fsanitize=undefined");
    // Compilers before gcc 13 know only the older name.
    let trap = "-fsanitize-trap=all";
    if build.is_flag_supported(trap).unwrap_or(false) {
        build.flag(trap);
    } else {
        build.flag("-fsanitize-undefined-trap-on-error");
    }
    build
}

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let portable = root.join("../../scheduler/src/bpf/portable");
    println!("cargo:rerun-if-changed={}", portable.display());
    println!("cargo:rerun-if-changed=c");

    for (bits, line) in LAYOUTS {
        for (kind, mut build) in [
            ("checked", checked(&portable)),
            ("plain", compiler(&portable)),
        ] {
            let name = format!("{bits}_{line}_{kind}");
            if kind == "checked" {
                build.define(COUNTED, None);
            }
            build
                .define("SPARSEMASK_BITS", bits.to_string().as_str())
                .define("SPARSEMASK_LINE", line.to_string().as_str())
                .define("LAYOUT", name.as_str())
                .file("c/sparsemask_shim.c")
                .compile(&format!("magpie_sparsemask_{name}"));
        }
    }
    checked(&portable)
        .file("c/arithmetic_shim.c")
        .file("c/fair_shim.c")
        .file("c/governor_shim.c")
        .file("c/perf_shim.c")
        .file("c/placement_shim.c")
        .file("c/power_shim.c")
        .file("c/move_cost_shim.c")
        .compile("magpie_arithmetic");

    // The tests that compile C programs themselves use the same compiler.
    let cc = compiler(&portable).get_compiler();
    println!("cargo:rustc-env=MAGPIE_NATIVE_CC={}", cc.path().display());
}
