//! Runs the kernel's makefile: its log, its progress, its end.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};

use crate::progress::Progress;
use crate::text;

/// Lines of a log that an error shows.
const LINES_SHOWN: usize = 8;

/// Variables of the environment that would change what is built, or tie it to another `make`.
const REMOVED: &[&str] = &[
    "MAKEFLAGS",
    "MAKELEVEL",
    "MFLAGS",
    "ARCH",
    "CROSS_COMPILE",
    "KBUILD_OUTPUT",
    "KCONFIG_ALLCONFIG",
    "KCONFIG_CONFIG",
    "LOCALVERSION",
];

/// A tree, the folder of its objects, and a log.
#[derive(Debug)]
pub struct Make<'a> {
    /// The source that is compiled.
    pub tree: &'a Path,
    /// Where objects and the configuration are.
    pub objects: &'a Path,
    /// The pahole that makes the BTF.
    pub pahole: &'a Path,
    /// Processes that run at a time.
    pub jobs: usize,
    /// The file to which the output of `make` is added.
    pub log: PathBuf,
    /// Hears of each step.
    pub progress: &'a Progress,
}

impl Make<'_> {
    /// Makes a target, with variables of the form `NAME=value`.
    ///
    /// # Errors
    /// If it fails; with the compiler's errors and the path of the log.
    pub fn run(&self, target: &str, variables: &[String]) -> Result<()> {
        let (reader, writer) = io::pipe().context("cannot create a pipe")?;
        let mut command = Command::new("make");
        command
            .arg(format!("-j{}", self.jobs))
            .arg("-C")
            .arg(self.tree)
            .arg(format!("O={}", self.objects.display()))
            .arg(format!("PAHOLE={}", self.pahole.display()))
            .args(variables)
            .arg(target)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(writer.try_clone().context("cannot duplicate a pipe")?)
            .stderr(writer);
        for variable in REMOVED {
            command.env_remove(variable);
        }
        // If the lab ends, `make` ends too, and removes what it has not completed.
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
                Ok(())
            });
        }
        let mut child = command.spawn().context("cannot run make")?;
        drop(command); // It holds the write end of the pipe.
        let mut log = open_log(&self.log)?;
        let (mut steps, mut errors) = (0_u32, Vec::new());
        for line in BufReader::new(reader).split(b'\n') {
            let line = line.context("cannot read what make prints")?;
            log.write_all(&line)
                .and_then(|()| log.write_all(b"\n"))
                .with_context(|| format!("cannot write {}", self.log.display()))?;
            let line = String::from_utf8_lossy(&line);
            if let Some(file) = step(&line) {
                steps += 1;
                self.progress
                    .say(&format!("{target}: step {steps}, {file}"));
            } else if is_error(&line) && errors.len() < LINES_SHOWN {
                errors.push(line.trim().to_string());
            }
        }
        let status = child.wait().context("cannot wait for make")?;
        if status.success() {
            return Ok(());
        }
        if errors.is_empty() {
            let text = std::fs::read(&self.log).unwrap_or_default();
            errors.push(text::last_lines(
                &String::from_utf8_lossy(&text),
                LINES_SHOWN,
            ));
        }
        bail!(
            "make {target} failed ({status}); all of its output is in {}:\n  {}",
            self.log.display(),
            text::indented(&errors.join("\n"))
        )
    }
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("cannot write the log {}", path.display()))
}

/// The file of a line such as `  CC      kernel/sched/fair.o`.
fn step(line: &str) -> Option<&str> {
    let mut words = line.strip_prefix("  ")?.split_whitespace();
    let is_command = |word: &str| word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    words.next().filter(|word| is_command(word))?;
    words.next_back()
}

/// Is this a line by which a compiler, the linker or `make` says why it failed?
fn is_error(line: &str) -> bool {
    ["error:", "undefined reference", "Error ", "*** "]
        .iter()
        .any(|word| line.contains(word))
}

/// Seconds of CPU time of this process's children that have ended.
pub fn cpu_seconds_of_children() -> f64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |usage| {
        [usage.user_time(), usage.system_time()]
            .iter()
            .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
            .sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_errors_are_told_from_other_lines() {
        assert_eq!(
            step("  CC      kernel/sched/fair.o"),
            Some("kernel/sched/fair.o")
        );
        assert_eq!(step("  LD [M]  x.ko"), Some("x.ko"));
        assert_eq!(step("make[1]: Entering directory '/x'"), None);
        assert!(is_error("fair.c:12:3: error: 'x' undeclared"));
        assert!(!is_error("  CC      lib/errname.o"));
    }

    #[test]
    fn a_failure_has_the_errors_and_all_output_is_in_the_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let makefile = "all:\n\t@echo '  CC      a.o'; echo 'a.c:1: error: no such x' >&2; \
                        echo $(O) $(LOCALVERSION); exit 2\nfine:\n\t@true\n";
        std::fs::write(folder.path().join("Makefile"), makefile).expect("written");
        let make = Make {
            tree: folder.path(),
            objects: Path::new("/objects"),
            pahole: Path::new("pahole"),
            jobs: 1,
            log: folder.path().join("log"),
            progress: &Progress::default(),
        };
        make.run("fine", &[]).expect("succeeds");
        let error = make
            .run("all", &["LOCALVERSION=-x".into()])
            .expect_err("fails");
        let error = error.to_string();
        assert!(error.contains("a.c:1: error: no such x"), "{error}");
        let log = std::fs::read_to_string(&make.log).expect("a log");
        assert!(
            log.contains("  CC      a.o\n") && log.contains("/objects -x\n"),
            "{log}"
        );
    }
}
