//! The programs that a kernel is built with: which are missing, and a pahole that is new enough.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::apt::Apt;
use crate::files;
use crate::progress::Progress;

/// Programs, and the Debian packages that have them.
const PROGRAMS: &[(&str, &str)] = &[
    ("make", "make"),
    ("gcc", "gcc"),
    ("ld", "binutils"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("perl", "perl"),
    ("gzip", "gzip"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("patch", "patch"),
];

/// Headers that the kernel's own tools include, and the Debian packages that have them.
const HEADERS: &[(&str, &str)] = &[
    ("gelf.h", "libelf-dev"),
    ("zlib.h", "zlib1g-dev"),
    ("openssl/opensslv.h", "libssl-dev"),
];

/// From about kernel 7.1 on, no sched_ext program loads on a kernel with the BTF of an older
/// pahole.
const OLDEST_PAHOLE: (u32, u32) = (1, 26);

/// The Debian suite whose pahole is taken if the host's is too old, and its package.
const PAHOLE_SUITE: &str = "sid";
const PAHOLE_PACKAGE: &str = "pahole";

/// A script that runs the pahole beside it with the libraries beside it. The host's are too old.
const PAHOLE_SCRIPT: &str = r#"#!/bin/sh
root=$(dirname "$0")
exec "$root/usr/lib64/ld-linux-x86-64.so.2" \
	--library-path "$root/usr/lib/x86_64-linux-gnu" "$root/usr/bin/pahole" "$@"
"#;

/// Checks that everything is there that a build needs.
///
/// # Errors
/// With all that is missing and the command that installs it.
pub fn check() -> Result<()> {
    let programs = PROGRAMS
        .iter()
        .filter(|(name, _)| which::which(name).is_err());
    let mut missing: Vec<_> = programs.collect();
    // Without a compiler, no header is found either.
    if !missing.iter().any(|(name, _)| *name == "gcc") {
        missing.extend(HEADERS.iter().filter(|(name, _)| !has_header(name)));
    }
    let names = |part: fn(&(&'static str, &'static str)) -> &'static str| {
        let names: Vec<_> = missing.iter().map(|entry| part(entry)).collect();
        names
    };
    ensure!(
        missing.is_empty(),
        "a kernel cannot be built on this host, because it lacks {}; install them with `apt-get \
         install {}`",
        names(|(name, _)| name).join(", "),
        names(|(_, package)| package).join(" ")
    );
    Ok(())
}

/// Does the compiler find this header?
fn has_header(name: &str) -> bool {
    let found = Command::new("gcc")
        .args([
            "-E",
            "-x",
            "c",
            "-include",
            name,
            "/dev/null",
            "-o",
            "/dev/null",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}

/// Returns `MAGPIE_PAHOLE`, or the host's pahole if it is new enough, or that of [`PAHOLE_SUITE`],
/// which the first call unpacks beside its own libraries.
///
/// # Errors
/// If there is none and it cannot be downloaded.
pub fn pahole(progress: &Progress) -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("MAGPIE_PAHOLE") {
        return Ok(program.into());
    }
    if let Ok(installed) = which::which("pahole")
        && is_new(&installed)
    {
        return Ok(installed);
    }
    let root = files::lab_dir()?.join("pahole");
    let program = root.join("pahole");
    let _lock = files::lock(&root.with_extension("lock"))?;
    if program.is_file() {
        return Ok(program);
    }
    let (major, minor) = OLDEST_PAHOLE;
    unpack_pahole(&root, progress).with_context(|| {
        format!(
            "this host's pahole is missing or older than {major}.{minor}, and the one of Debian's \
             {PAHOLE_SUITE} cannot be had instead; install a newer pahole (package \
             dwarves), or name one in MAGPIE_PAHOLE"
        )
    })?;
    Ok(program)
}

/// Downloads a pahole that is new enough, with the libraries that it needs, into the folder `root`.
/// The folder appears complete or not at all.
fn unpack_pahole(root: &Path, progress: &Progress) -> Result<()> {
    progress.say(&format!("downloading {PAHOLE_PACKAGE} of {PAHOLE_SUITE}"));
    let apt = Apt::open("pahole", &[PAHOLE_SUITE], None)?;
    apt.update(false)?;
    let work = tempfile::tempdir_in(files::lab_dir()?).context("cannot create a folder")?;
    let tree = work.path().join("tree");
    apt.unpack_with_dependencies(PAHOLE_PACKAGE, &tree)?;
    let program = tree.join("pahole");
    fs::write(&program, PAHOLE_SCRIPT).context("cannot write the script that runs pahole")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    ensure!(is_new(&program), "it does not run on this host");
    fs::rename(&tree, root).with_context(|| format!("cannot create {}", root.display()))
}

fn is_new(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").output();
    let version = output.ok().and_then(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        parse_version(&text)
    });
    version.is_some_and(|version| version >= OLDEST_PAHOLE)
}

/// Reads `v1.32`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().strip_prefix('v')?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(parse_version("v1.9\n") < Some(OLDEST_PAHOLE));
        assert!(parse_version("v1.32\n") > Some(OLDEST_PAHOLE));
        assert_eq!(parse_version("pahole"), None);
    }

    #[test]
    fn a_header_of_the_compiler_is_found_and_another_is_not() {
        assert!(has_header("stddef.h") && !has_header("no/such/header.h"));
    }
}
