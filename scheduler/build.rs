//! Compiles the BPF side and generates its Rust bindings.
//!
//! The compiler is `BPF_CLANG`, which `.cargo/config.toml` points at a script
//! that finds the newest clang on the machine. This file adds two things to
//! `scx_cargo`. bindgen must read `intf.h` with the libclang of that same
//! compiler, so `LIBCLANG_PATH` is set to it. And `scx_cargo` watches only the
//! main file's own folder: every file below `src/bpf` is named here, so that a
//! change in `portable/` is never built from stale code.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Older ones miscompile or reject what the scheduler uses.
const OLDEST_CLANG: u32 = 19;

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    watch(Path::new("src/bpf"))?;

    let clang = env::var("BPF_CLANG").unwrap_or_else(|_| "clang".into());
    check_version(&clang)?;
    if env::var_os("LIBCLANG_PATH").is_none()
        && let Some(folder) = find_libclang(&clang)
    {
        // SAFETY: a build script has this one thread at this point; nothing
        // reads the environment at the same time.
        unsafe { env::set_var("LIBCLANG_PATH", folder) };
    }

    scx_cargo::BpfBuilder::new()?
        .enable_intf("src/bpf/intf.h", "bpf_intf.rs")
        .enable_skel("src/bpf/main.bpf.c", "bpf")
        .build()
        .context("building the BPF side from src/bpf/main.bpf.c")
}

/// Names a folder and everything below it to cargo. The folder itself is named
/// so that a new file is seen, too.
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

/// The folder of the libclang that came with `clang`. Nothing when it is not in
/// the usual place: then bindgen's own search decides, and says what it tried.
fn find_libclang(clang: &str) -> Option<PathBuf> {
    let output = Command::new(clang)
        .arg("-print-resource-dir")
        .output()
        .ok()?;
    let resources = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());

    // <prefix>/lib/clang/<version>: libclang.so is in <prefix>/lib.
    let folder = resources.ancestors().nth(2)?;
    let holds_libclang = fs::read_dir(folder).ok()?.flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.contains(".so") && name.starts_with("libclang") && !name.contains("-cpp")
    });
    holds_libclang.then(|| folder.to_path_buf())
}
