//! Does a browser show the HTML report, without a network and without a complaint on its console?
//!
//! A Chromium of the host, else Debian's, unpacked below the lab's folder as the programs of
//! workloads are: nothing is installed, and nothing is skipped where there is neither.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use magpie_bench::html;
use magpie_bench::report::{BASELINE, Report, Row};
use magpie_lab::{Progress, files, packages};

/// A browser's program, and folders of libraries that it needs besides the host's.
struct Browser {
    program: PathBuf,
    libraries: Vec<PathBuf>,
    /// Its settings, and the program itself where it was unpacked.
    folder: tempfile::TempDir,
}

/// A page after it was loaded, and the messages that it wrote to the console meanwhile.
struct Shown {
    document: String,
    console: Vec<String>,
}

impl Browser {
    fn find() -> Result<Self> {
        let folder = tempfile::tempdir_in(files::lab_dir()?)?;
        let names = ["chromium", "chromium-browser", "google-chrome"];
        if let Some(program) = names.iter().find_map(|name| which::which(name).ok()) {
            return Ok(Self {
                program,
                libraries: Vec::new(),
                folder,
            });
        }
        let packages = packages::unpacked(&["chromium".into()], &Progress::default()).context(
            "there is no Chromium to open the report with: apt-get install chromium, or install \
             it by hand",
        )?;
        // It looks for its data beside itself, but Debian has them in a package of their own: both
        // come together in one folder, as links because they are large.
        for package in &packages {
            let part = package.join("usr/lib/chromium");
            if part.is_dir() {
                let mut copy = Command::new("cp");
                copy.args(["--recursive", "--link"])
                    .arg(part)
                    .arg(folder.path());
                ensure!(
                    copy.status()?.success(),
                    "cannot link Chromium into one folder"
                );
            }
        }
        let program = folder.path().join("chromium/chromium");
        ensure!(
            program.is_file(),
            "Debian's chromium has no usr/lib/chromium/chromium"
        );
        let multiarch = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let libraries = packages
            .iter()
            .map(|package| package.join(&multiarch))
            .flat_map(|libraries| [libraries.join("pulseaudio"), libraries])
            .filter(|libraries| libraries.is_dir())
            .collect();
        Ok(Self {
            program,
            libraries,
            folder,
        })
    }

    fn command(&self) -> Result<Command> {
        // Bounded: a browser that hangs would hold up all tests.
        let mut command = Command::new("timeout");
        command.arg("120").arg(&self.program);
        command.args(["--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(["--enable-logging=stderr", "--v=0"]);
        // No name is resolved and no address is reached: what is needed must be in the page.
        command.args([
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--proxy-server=127.0.0.1:9",
        ]);
        let profile = self.folder.path().join("profile");
        command.arg(format!("--user-data-dir={}", profile.display()));
        if !self.libraries.is_empty() {
            command.env("LD_LIBRARY_PATH", std::env::join_paths(&self.libraries)?);
        }
        Ok(command)
    }

    fn show(&self, page: &Path) -> Result<Shown> {
        let url = format!("file://{}", page.display());
        let output = self.command()?.arg("--dump-dom").arg(url).output()?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "Chromium: {}\n{log}",
            output.status
        );
        Ok(Shown {
            document: String::from_utf8_lossy(&output.stdout).into_owned(),
            console: log
                .lines()
                .filter(|line| line.contains(":CONSOLE"))
                .map(str::to_string)
                .collect(),
        })
    }

    fn picture(&self, page: &Path, picture: &Path) -> Result<Vec<u8>> {
        let status = self
            .command()?
            .arg(format!("--screenshot={}", picture.display()))
            .arg("--window-size=1000,1200")
            .arg(format!("file://{}", page.display()))
            .output()?
            .status;
        ensure!(status.success(), "Chromium took no picture: {status}");
        Ok(std::fs::read(picture)?)
    }
}

fn report() -> Report {
    let mut report = Report::new(BTreeMap::new(), "7.2-test".into(), BTreeMap::new());
    report.complete = true;
    for (case, unit) in [("-g 1", "s"), ("-g 2", "s")] {
        for (scheduler, factor) in [(BASELINE, 1.0), ("scx_a --option", 0.8), ("scx_<b>", 1.3)] {
            report.results.push(Row {
                workload: "hackbench".into(),
                case: case.into(),
                scheduler: scheduler.into(),
                samples: [1.0, 1.02, 0.99, 1.01, 0.98].map(|s| s * factor).to_vec(),
                unit: unit.into(),
                ..Row::default()
            });
        }
    }
    report
}

#[test]
fn the_report_opens_without_a_network_and_without_console_errors() -> Result<()> {
    let browser = Browser::find()?;
    let folder = tempfile::tempdir()?;
    let page = folder.path().join("report.html");
    html::write(&report(), &page)?;
    let shown = browser.show(&page)?;
    ensure!(shown.console.is_empty(), "console: {:#?}", shown.console);
    // As the browser understood it, not as it was written.
    let count = |what: &str| shown.document.matches(what).count();
    assert_eq!(count("<svg "), 2, "a picture per test");
    assert_eq!(count("<circle "), 2 * 2 * 3 * 5, "a dot per sample");
    ensure!(shown.document.contains("scx_&lt;b&gt;"), "the name is text");

    // The browser would have told: a page with a fault is found out.
    let faulty = folder.path().join("faulty.html");
    std::fs::write(
        &faulty,
        "<!DOCTYPE html><script>no_such_function()</script>",
    )?;
    let console = browser.show(&faulty)?.console;
    ensure!(
        console.iter().any(|line| line.contains("no_such_function")),
        "{console:?}"
    );

    // Something is to be seen: the picture of an empty page is much smaller.
    let seen = browser.picture(&page, &folder.path().join("report.png"))?;
    std::fs::write(&faulty, "<!DOCTYPE html>")?;
    let empty = browser.picture(&faulty, &folder.path().join("empty.png"))?;
    ensure!(
        seen.len() > 4 * empty.len(),
        "the report's picture has {} bytes, an empty page's {}",
        seen.len(),
        empty.len()
    );
    Ok(())
}
