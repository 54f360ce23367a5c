//! Sessions on disk: one JSON object for each line. The topology has a line of its own whenever it
//! changes, because on a large machine it is larger than what changes each second.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::sample::Sample;
use crate::topology::Topology;

/// The number of the format. A change that older programs cannot read raises it.
const VERSION: u32 = 1;

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The first line.
    MagpieTop { version: u32 },
    /// Where the CPUs of the following samples are.
    Topology(Topology),
    /// A sample.
    Sample(Box<Sample>),
}

/// A session that is being written.
pub struct Recorder {
    path: PathBuf,
    file: File,
    topology: Option<Topology>,
}

impl Recorder {
    /// Creates the file, in place of an older one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(path: &Path) -> Result<Recorder> {
        let file =
            File::create(path).with_context(|| format!("recording to {}", path.display()))?;
        let mut recorder = Recorder {
            path: path.into(),
            file,
            topology: None,
        };
        recorder.write_line(&Line::MagpieTop { version: VERSION })?;
        Ok(recorder)
    }

    /// Adds a sample.
    ///
    /// # Errors
    /// When it cannot be written, as when the disk is full.
    pub fn write(&mut self, sample: &Sample) -> Result<()> {
        if self.topology.as_ref() != Some(&sample.topology) {
            self.topology = Some(sample.topology.clone());
            self.write_line(&Line::Topology(sample.topology.clone()))?;
        }
        self.write_line(&Line::Sample(Box::new(sample.clone())))
    }

    /// Adds a line, and names the file if that fails.
    fn write_line(&mut self, line: &Line) -> Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        let written = self.file.write_all(text.as_bytes());
        written.with_context(|| format!("recording to {}", self.path.display()))
    }
}

/// Reads a session. A last line that was cut off, because the program was killed, is left out.
///
/// # Errors
/// When it cannot be read, or is no session, or has no sample, with the line.
pub fn read(path: &Path) -> Result<Vec<Sample>> {
    let place = path.display();
    let file = File::open(path).with_context(|| format!("reading the session {place}"))?;
    let lines: Vec<String> = BufReader::new(file)
        .lines()
        .collect::<Result<_, _>>()
        .with_context(|| format!("reading the session {place}"))?;
    let mut topology = Topology::default();
    let mut samples = Vec::new();
    for (index, text) in lines.iter().enumerate() {
        let line = match serde_json::from_str(text) {
            Ok(line) => line,
            Err(_) if index > 0 && index + 1 == lines.len() => break,
            Err(error) => {
                return Err(error).with_context(|| {
                    format!(
                        "{place}, line {}: no session of magpie top --record",
                        index + 1
                    )
                });
            }
        };
        match line {
            Line::MagpieTop { version } => ensure!(
                version <= VERSION,
                "{place} was recorded by a newer magpie (format {version}, this one reads up to \
                 {VERSION})"
            ),
            Line::Topology(found) => topology = found,
            Line::Sample(mut sample) => {
                sample.topology = topology.clone();
                samples.push(*sample);
            }
        }
    }
    ensure!(
        !samples.is_empty(),
        "{place} has no sample: nothing was recorded"
    );
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::moment::tests::{busy_sample, sample};

    #[test]
    fn a_session_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session");
        let samples = [sample(1.0), busy_sample(2.0), busy_sample(3.0)];
        let mut recorder = Recorder::create(&path).unwrap();
        for sample in &samples {
            recorder.write(sample).unwrap();
        }
        assert_eq!(read(&path).unwrap(), samples);

        // Cut off in the last line.
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("\"topology\"").count(), 1);
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert_eq!(read(&path).unwrap(), samples[..2]);
    }

    #[test]
    fn what_is_no_session_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session");
        let error = |text: &str| {
            std::fs::write(&path, text).unwrap();
            format!("{:#}", read(&path).unwrap_err())
        };
        assert!(error("hello\n").contains("line 1: no session"));
        assert!(error("").contains("no sample"));
        let newer = "{\"magpie_top\":{\"version\":99}}\n";
        assert!(error(newer).contains("newer magpie"));
        let missing = format!("{:#}", read(&folder.path().join("none")).unwrap_err());
        assert!(missing.contains("none"), "{missing}");
    }
}
