//! `video`: makes a film for the encoders to encode.
//!
//! The bench generates its inputs and downloads none. The film is the same each time: a bright
//! square moves over a gradient, with a little noise, so that an encoder has motion and residuals
//! to code.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use crate::Finding;

/// Write a film as raw video (YUV4MPEG2, 4:2:0).
#[derive(clap::Args)]
pub struct Args {
    /// The file to write
    file: PathBuf,
    /// Number of pictures
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    frames: u32,
    /// Width of a picture, an even number
    #[arg(long, default_value_t = 320, value_parser = parse_even)]
    width: u32,
    /// Height of a picture, an even number
    #[arg(long, default_value_t = 180, value_parser = parse_even)]
    height: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Writes the film.
pub fn run(args: &Args) -> Result<Finding> {
    let bytes = write(args)
        .with_context(|| format!("write {}: is there room for it?", args.file.display()))?;
    Ok(Finding {
        text: format!("{} frames, {bytes} bytes", args.frames),
        json: json!({ "frames": args.frames, "bytes": bytes }),
        holds: true,
    })
}

/// Writes the film's pictures, and returns the file's size.
fn write(args: &Args) -> Result<u64> {
    let mut out = BufWriter::new(File::create(&args.file)?);
    let (width, height) = (args.width, args.height);
    writeln!(out, "YUV4MPEG2 W{width} H{height} F30:1 Ip A1:1 C420jpeg")?;
    let mut noise = fastrand::Rng::with_seed(1);
    let mut luma = vec![0; (width * height) as usize];
    let chroma = vec![128; (width / 2 * (height / 2)) as usize];
    for frame in 0..args.frames {
        let side = height / 4;
        let (left, top) = (frame * 3 % (width - side), frame * 2 % (height - side));
        for (index, pixel) in luma.iter_mut().enumerate() {
            let (x, y) = (index as u32 % width, index as u32 / width);
            let in_square = (left..left + side).contains(&x) && (top..top + side).contains(&y);
            let base = if in_square {
                220
            } else {
                (x + y + frame) % 180
            };
            *pixel = base as u8 + noise.u8(..8);
        }
        out.write_all(b"FRAME\n")?;
        out.write_all(&luma)?;
        // Without colours: both chroma planes are grey.
        out.write_all(&chroma)?;
        out.write_all(&chroma)?;
    }
    out.flush()?;
    Ok(std::fs::metadata(Path::new(&args.file))?.len())
}

fn parse_even(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number @ 16..=8192) if number % 2 == 0 => Ok(number),
        _ => Err(format!("`{text}` is not an even number from 16 to 8192")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_film_is_whole_and_always_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let film = |name: &str| {
            let args = Args {
                file: folder.path().join(name),
                frames: 3,
                width: 64,
                height: 32,
                json: true,
            };
            run(&args).unwrap();
            std::fs::read(args.file).unwrap()
        };
        let bytes = film("a");
        let header = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        assert_eq!(bytes.len(), header + 3 * (6 + 64 * 32 * 3 / 2));
        assert_eq!(bytes, film("b"));
        // The square moves, so the first and the last picture differ.
        let picture = |n: usize| {
            let start = header + n * (6 + 64 * 32 * 3 / 2) + 6;
            &bytes[start..start + 64 * 32]
        };
        assert_ne!(picture(0), picture(2));
        assert!(parse_even("321").is_err() && parse_even("0").is_err());
    }
}
