//! Compiles the BPF side and generates its Rust bindings.
//!
//! The compiler is `BPF_CLANG`, which `.cargo/config.toml` points at a script that finds the newest
//! clang on the machine. This file adds two things to `scx_cargo`. It sets `LIBCLANG_PATH`, because
//! bindgen must read `intf.h` with the libclang of that same compiler. And it names every file
//! below `src/bpf` to cargo, because `scx_cargo` watches only the main file's own folder, and a
//! change in another one would not be built.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use find_libclang::find_libclang;

mod find_libclang;

/// Older compilers miscompile or reject what the scheduler uses.
const OLDEST_CLANG: u32 = 19;

/// Checks the compiler, then generates the bindings of `intf.h` and the skeleton of the BPF object.
fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    watch(Path::new("src/bpf"))?;

    let clang = env::var("BPF_CLANG").unwrap_or_else(|_| "clang".into());
    check_version(&clang)?;
    if env::var_os("LIBCLANG_PATH").is_none()
        && let Some(folder) = find_libclang(Path::new(&clang))
    {
        // SAFETY: the build script has one thread, so nothing else reads the environment meanwhile.
        unsafe { env::set_var("LIBCLANG_PATH", folder) };
    }

    scx_cargo::BpfBuilder::new()?
        .enable_intf("src/bpf/intf.h", "bpf_intf.rs")
        .enable_skel("src/bpf/main.bpf.c", "bpf")
        .build()
        .context("building the BPF side from src/bpf/main.bpf.c")
}

/// Names a folder and everything below it to cargo: the folder for new files, the files for
/// changes.
fn watch(folder: &Path) -> Result<()> {
    println!("cargo:rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            watch(&path)?;
        } else {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    Ok(())
}

/// Fails with the remedy if the compiler is missing or too old.
fn check_version(clang: &str) -> Result<()> {
    let remedy = format!(
        "the BPF side needs clang {OLDEST_CLANG} or newer. On Debian and Ubuntu: apt-get install \
         clang-{OLDEST_CLANG}, or run `make setup`; or set BPF_CLANG to the compiler to use"
    );
    let output = Command::new(clang)
        .arg("--version")
        .output()
        .with_context(|| format!("running {clang} --version: {remedy}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version: Option<u32> = text
        .split_once("clang version ")
        .and_then(|(_, version)| version.split(['.', '-']).next()?.trim().parse().ok());

    match version {
        Some(version) if version >= OLDEST_CLANG => Ok(()),
        Some(0) | None => bail!("{clang} is not a usable clang: {remedy}"),
        Some(version) => bail!("{clang} is version {version}: {remedy}"),
    }
}
