//! `magpie bench peers`: published schedulers to measure against, built from their crates.
//!
//! They are installed in `target/peers`, where `--sched` finds them; the host is not changed. Their
//! crates compile BPF as ours does, so they get the same compiler: `scripts/bpf-clang`, and its
//! libclang. The environment passes both, because `cargo install` ignores the source tree's
//! `.cargo/config.toml`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::provenance::version_of;
use crate::table::{Align, Style, write_lines};
use find_libclang::find_libclang;

#[path = "../../scheduler/find_libclang.rs"]
mod find_libclang;

/// The published schedulers that `list` shows, each with its idea. Other crates can be installed
/// too.
const KNOWN: [(&str, &str); 8] = [
    (
        "scx_beerland",
        "locality first, with little code; for servers",
    ),
    (
        "scx_bpfland",
        "interactive tasks first, told by how often they block",
    ),
    (
        "scx_cosmos",
        "stays on the CPU when there is room, shared queue when not",
    ),
    ("scx_flash", "earliest virtual deadline first, for fairness"),
    ("scx_lavd", "latency criticality, for games and handhelds"),
    (
        "scx_p2dq",
        "pick two queues, with queues by length of slice",
    ),
    ("scx_rusty", "a queue per LLC, balanced from user space"),
    ("scx_tickless", "few ticks, decisions on few CPUs"),
];

/// Programs and headers that a build needs besides cargo and clang, each with its Debian package.
const NEEDED: [(&str, &str); 5] = [
    ("cc", "gcc"),
    ("make", "make"),
    ("pkg-config", "pkg-config"),
    ("/usr/include/libelf.h", "libelf-dev"),
    ("/usr/include/zlib.h", "zlib1g-dev"),
];

/// Install and list published schedulers to measure against
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Build and install published schedulers; takes minutes for each
    Install(Install),
    /// List published schedulers, and which of them are installed
    List,
}

#[derive(Debug, clap::Args)]
struct Install {
    /// Crates, such as scx_cosmos or scx_cosmos@1.1.4
    #[arg(required = true, value_name = "CRATE")]
    crates: Vec<String>,
    /// Build even if it is installed: the newest version, unless CRATE names one
    #[arg(long)]
    force: bool,
}

/// Runs `magpie bench peers`.
pub fn run(args: &Args) -> Result<()> {
    let tree = magpie_lab::files::source_tree().context(
        "peers are installed in target/peers of Magpie's source tree, and this is not one: \
         change to it, or install the scheduler so that it is in PATH",
    )?;
    match &args.command {
        Action::List => print!("{}", list(&folder(&tree))),
        Action::Install(install) => {
            let peers: Vec<Peer> = install
                .crates
                .iter()
                .map(|text| Peer::parse(text))
                .collect::<Result<_>>()?;
            install_all(&tree, &peers, install.force)?;
        }
    }
    Ok(())
}

/// The folder where peers are installed; their programs are in its `bin`.
fn folder(tree: &Path) -> PathBuf {
    tree.join("target/peers")
}

/// A crate, of a certain version if `version` is given.
#[derive(Debug, PartialEq, Eq)]
struct Peer<'a> {
    name: &'a str,
    version: Option<&'a str>,
}

impl<'a> Peer<'a> {
    /// Reads `NAME` or `NAME@VERSION`. Refuses text that cargo might take for an option.
    fn parse(text: &'a str) -> Result<Self> {
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let is_name = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
        };
        ensure!(
            is_name(name) && version.is_none_or(|v| v.starts_with(|c: char| c.is_ascii_digit())),
            "`{text}` is not the name of a crate, such as scx_cosmos or scx_cosmos@1.1.4"
        );
        Ok(Self { name, version })
    }

    /// The version line of the installed program, if it is the version that is asked for.
    fn installed(&self, root: &Path) -> Option<String> {
        version_of(&root.join("bin").join(self.name)).filter(|found| self.is_satisfied_by(found))
    }

    /// Is an installed program with the version line `found` what is asked for?
    fn is_satisfied_by(&self, found: &str) -> bool {
        self.version
            .is_none_or(|wanted| found.split(&[' ', '-'][..]).any(|word| word == wanted))
    }
}

/// Builds and installs the peers that are not installed, or all with `force`.
fn install_all(tree: &Path, peers: &[Peer], force: bool) -> Result<()> {
    let root = folder(tree);
    let mut to_build = Vec::new();
    for peer in peers {
        match peer.installed(&root) {
            Some(found) if !force => println!("{found} is installed; --force builds it again"),
            _ => to_build.push(peer),
        }
    }
    if to_build.is_empty() {
        return Ok(());
    }
    check_needed()?;
    let clang = find_clang(tree)?;
    // One folder for all builds, because the crates share most dependencies.
    std::fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    let build = tempfile::Builder::new()
        .prefix("build-")
        .tempdir_in(&root)
        .with_context(|| format!("make a folder in {}", root.display()))?;
    for peer in to_build {
        eprintln!("building {} with {}", peer.name, clang.display());
        let status = command(peer, &root, build.path(), &clang)
            .status()
            .context("run cargo")?;
        ensure!(
            status.success(),
            "cargo could not install {} ({status}; its reason is above): is the name right and \
             the registry reachable? A crate that needs a newer Rust says so: rustup update",
            peer.name
        );
        let program = root.join("bin").join(peer.name);
        let found = version_of(&program).with_context(|| {
            format!(
                "the crate {} was installed, but {} does not run: is it a scheduler?",
                peer.name,
                program.display()
            )
        })?;
        println!("{found} is installed");
    }
    Ok(())
}

/// The command that builds and installs a peer.
fn command(peer: &Peer, root: &Path, build: &Path, clang: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args(["install", "--locked"]);
    // Replaces a program of another version, and one that cargo did not install.
    cargo.arg("--force").arg("--root").arg(root);
    cargo.arg("--target-dir").arg(build).arg(peer.name);
    if let Some(version) = peer.version {
        cargo.args(["--version", version]);
    }
    cargo.env("BPF_CLANG", clang);
    if std::env::var_os("LIBCLANG_PATH").is_none()
        && let Some(libclang) = find_libclang(clang)
    {
        cargo.env("LIBCLANG_PATH", libclang);
    }
    cargo
}

/// Refuses to build if a program or header is missing, and names its package.
fn check_needed() -> Result<()> {
    ensure!(
        which::which("cargo").is_ok(),
        "cargo is not in PATH: install Rust with rustup, https://www.rust-lang.org/tools/install"
    );
    let is_there = |what: &str| match what.starts_with('/') {
        true => Path::new(what).exists(),
        false => which::which(what).is_ok(),
    };
    let (missing, packages): (Vec<&str>, Vec<&str>) = NEEDED
        .into_iter()
        .filter(|(what, _)| !is_there(what))
        .unzip();
    ensure!(
        missing.is_empty(),
        "missing: {}; apt-get install {}, or run `make setup`",
        missing.join(", "),
        packages.join(" ")
    );
    Ok(())
}

/// The compiler of our own BPF side: `BPF_CLANG` where it is set, else what scripts/bpf-clang
/// finds.
fn find_clang(tree: &Path) -> Result<PathBuf> {
    let clang = match std::env::var_os("BPF_CLANG") {
        Some(clang) => PathBuf::from(clang),
        None => tree.join("scripts/bpf-clang"),
    };
    let output = Command::new(&clang)
        .arg("-dumpversion")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run the BPF compiler {}", clang.display()))?;
    if !output.status.success() {
        bail!(
            "{} is no usable BPF compiler: {}",
            clang.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(clang)
}

/// The table of known peers and of everything else that is installed.
fn list(root: &Path) -> String {
    let mut names: Vec<(String, &str)> = KNOWN
        .iter()
        .map(|(name, about)| (name.to_string(), *about))
        .collect();
    let entries = std::fs::read_dir(root.join("bin")).into_iter().flatten();
    let mut others: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| KNOWN.iter().all(|(known, _)| known != name))
        .collect();
    others.sort();
    names.extend(others.into_iter().map(|name| (name, "")));
    let mut lines = vec![vec!["peer".into(), "installed".into(), "about".into()]];
    for (name, about) in names {
        let program = root.join("bin").join(&name);
        let state = match (program.exists(), version_of(&program)) {
            (false, _) => "-".into(),
            (true, Some(found)) => found
                .strip_prefix(&name)
                .unwrap_or(&found)
                .trim()
                .to_string(),
            (true, None) => "does not run".into(),
        };
        lines.push(vec![name, state, about.into()]);
    }
    let mut text = String::new();
    write_lines(&mut text, &lines, Style::Text, Align::Left);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by another process: a file that is open for writing cannot be executed, and a test
    /// beside this one may fork just then, with whatever is open here.
    fn program(path: &Path, script: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", write]).arg(path).arg(script);
        assert!(shell.status().unwrap().success());
    }

    #[test]
    fn names_are_crates_and_nothing_that_cargo_would_take_for_an_option() {
        let peer = Peer::parse("scx_cosmos@1.1.4").unwrap();
        assert_eq!((peer.name, peer.version), ("scx_cosmos", Some("1.1.4")));
        assert!(peer.is_satisfied_by("scx_cosmos 1.1.4-gabc x86_64-unknown-linux-gnu"));
        assert!(!peer.is_satisfied_by("scx_cosmos 1.1.40 x86_64-unknown-linux-gnu"));
        assert!(
            Peer::parse("scx_cosmos")
                .unwrap()
                .is_satisfied_by("anything")
        );
        for wrong in ["--git", "", "scx cosmos", "a@newest", "a/b"] {
            assert!(Peer::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cargo_gets_the_compiler_of_our_own_build() {
        let peer = Peer::parse("scx_cosmos@1.1.4").unwrap();
        let cargo = command(
            &peer,
            Path::new("/r"),
            Path::new("/b"),
            Path::new("/no/clang"),
        );
        let words: Vec<_> = cargo
            .get_args()
            .map(|word| word.to_string_lossy())
            .collect();
        assert_eq!(
            words.join(" "),
            "install --locked --force --root /r --target-dir /b scx_cosmos --version 1.1.4"
        );
        assert!(
            cargo
                .get_envs()
                .any(|(name, value)| name == "BPF_CLANG" && value == Some("/no/clang".as_ref()))
        );
    }

    #[test]
    fn the_list_tells_what_is_installed_what_is_not_and_what_does_not_run() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        program(&bin.join("scx_cosmos"), "echo scx_cosmos 1.2.3 x86_64");
        program(&bin.join("scx_lavd"), "exit 1");
        program(&bin.join("scx_own"), "echo scx_own 9");
        let text = list(root.path());
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace()
                .map(str::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(row("scx_cosmos")[1], "1.2.3");
        assert_eq!(row("scx_lavd")[1..4].join(" "), "does not run");
        assert_eq!(row("scx_bpfland")[1], "-");
        assert_eq!(row("scx_own"), ["scx_own", "9"]);
    }

    #[test]
    fn what_is_there_is_not_built_again() {
        let root = tempfile::tempdir().unwrap();
        program(&root.path().join("bin/scx_cosmos"), "echo scx_cosmos 1.2.3");
        let installed = |text: &str| Peer::parse(text).unwrap().installed(root.path());
        assert_eq!(installed("scx_cosmos").unwrap(), "scx_cosmos 1.2.3");
        assert!(installed("scx_cosmos@1.2.3").is_some());
        assert_eq!(installed("scx_cosmos@1.2.4"), None);
        assert_eq!(installed("scx_lavd"), None);
    }
}
