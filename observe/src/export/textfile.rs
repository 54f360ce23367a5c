//! Writes metrics to a file that the node exporter's textfile collector reads.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use atomic_write_file::AtomicWriteFile;
use atomic_write_file::unix::OpenOptionsExt as _;

use super::exporter::Exporter;
use super::families::Format;

/// Writes the file every `interval` until SIGINT or SIGTERM, and removes it then, because a file
/// left behind would say for ever that the scheduler runs.
///
/// # Errors
/// When the file cannot be written.
pub fn keep(file: &Path, interval: Duration, exporter: &mut Exporter) -> Result<()> {
    if file.extension().is_none_or(|extension| extension != "prom") {
        eprintln!(
            "magpie export: the node exporter reads only files whose names end in .prom, and {} \
             does not",
            file.display()
        );
    }
    let (stop, stopped) = channel();
    ctrlc::set_handler(move || {
        let _ = stop.send(());
    })
    .context("handling SIGINT and SIGTERM")?;
    write(file, &exporter.scrape(Format::Prometheus))?;
    println!("writing metrics to {} every {interval:?}", file.display());
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
        write(file, &exporter.scrape(Format::Prometheus))?;
    }
    fs::remove_file(file).with_context(|| format!("removing {}", file.display()))
}

/// Replaces the file as a whole. Its readers are other users, so all may read it.
///
/// # Errors
/// When its folder cannot be written.
pub fn write(file: &Path, text: &str) -> Result<()> {
    let replace = || -> io::Result<()> {
        // The collector skips the file until it is complete: its name does not end in .prom yet.
        let mut options = AtomicWriteFile::options();
        let mut written = options
            .preserve_mode(false)
            .preserve_owner(false)
            .open(file)?;
        written.write_all(text.as_bytes())?;
        written.set_permissions(Permissions::from_mode(0o644))?;
        written.commit()
    };
    replace().with_context(|| format!("writing the metrics to {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("magpie.prom");
        for text in ["magpie_up 1\n", "magpie_up 0\n"] {
            write(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_is_missing_is_named() {
        let error = write(Path::new("/no/such/magpie.prom"), "").unwrap_err();
        assert!(
            format!("{error:#}").contains("/no/such/magpie.prom"),
            "{error:#}"
        );
    }
}
