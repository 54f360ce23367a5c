//! Result files on disk: text, compressed if the name ends in `.gz`. `-` is a standard stream.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use magpie_lab::files;

/// The first two bytes of everything that gzip wrote.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reads a text; `-` is standard input. Text that gzip compressed is recognized by its first bytes,
/// whatever the file is called.
///
/// # Errors
/// If the file cannot be read, its compressed data is damaged, or it is not text.
pub fn read(path: &Path) -> Result<String> {
    let bytes = match is_standard_stream(path) {
        true => {
            let mut bytes = Vec::new();
            let read = io::stdin().read_to_end(&mut bytes);
            read.map(|_| bytes).context("read standard input")?
        }
        false => fs::read(path).with_context(|| format!("read {}", path.display()))?,
    };
    let bytes = match bytes.starts_with(&GZIP_MAGIC) {
        true => decompress(&bytes)
            .with_context(|| format!("decompress {}: it is damaged", path.display()))?,
        false => bytes,
    };
    String::from_utf8(bytes).with_context(|| format!("{} is not text", path.display()))
}

/// Replaces the file at `path` by `text` in one step: a reader sees the old file or the whole new
/// one, even if this program is killed. `-` is standard output.
///
/// A device or FIFO is written as it is, because a rename would replace it by a regular file.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let compressed;
    let bytes = match path.extension().is_some_and(|extension| extension == "gz") {
        true => {
            compressed = compress(text.as_bytes())?;
            compressed.as_slice()
        }
        false => text.as_bytes(),
    };
    files::write_output(path, bytes)
}

/// Does this path stand for standard input or output?
pub fn is_standard_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// The header has no time and no name, so that equal texts become equal files.
fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).context("compress the result")?;
    encoder.finish().context("compress the result")
}

fn decompress(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_text_is_read_by_its_content_and_written_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json.gz");
        let text = "hackbench ".repeat(1000);
        write(&path, &text).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() < text.len() / 10, "{} bytes", bytes.len());
        assert_eq!(read(&path).unwrap(), text);

        let renamed = folder.path().join("a.json");
        fs::rename(&path, &renamed).unwrap();
        assert_eq!(read(&renamed).unwrap(), text);

        write(&path, &text).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes, "the same each time");
    }

    #[test]
    fn damaged_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json.gz");
        write(&path, &"hackbench ".repeat(1000)).unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains("a.json.gz: it is damaged"), "{error}");
        fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains("a.json.gz is not text"), "{error}");
    }

    #[test]
    fn a_device_is_written_and_not_replaced() {
        write(Path::new("/dev/null"), "text").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}
