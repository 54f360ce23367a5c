//! Kernels without their compression.
//!
//! A bzImage unpacks itself, which takes an emulated CPU more than a second of each boot. The host
//! unpacks it once instead, and QEMU starts the ELF file within at the entry for PVH guests (the
//! kernel's arch/x86/platform/pvh; `CONFIG_PVH`, which Debian's kernels have). What unpacks a kernel
//! also moves it and its memory to random addresses, and turns on five levels of page tables. Guests
//! that boot unpacked have neither; `no5lvl` leaves the levels out where a kernel unpacks itself.
//!
//! A kernel that is packed in another way than zstd, or has no such entry, unpacks itself as before.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use ruzstd::decoding::StreamingDecoder;

use crate::cache::Kind;

const KIND: Kind = Kind {
    name: "vmlinux",
    extension: "elf",
    maker: include_str!("payload.rs"),
    system: &[],
};

/// Type of the note with the address of the PVH entry (`XEN_ELFNOTE_PHYS32_ENTRY` in the kernel's
/// include/xen/interface/elfnote.h).
const PVH_ENTRY: u32 = 18;

/// Returns the file that QEMU boots for this bzImage: the kernel without its compression if QEMU can
/// boot that, else the bzImage.
///
/// # Errors
/// If the image cannot be read, or the kernel cannot be written.
pub(crate) fn boot_file(image: &Path) -> Result<PathBuf> {
    let made = KIND.of(&[image.to_path_buf()], |mut file| {
        let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
        let kernel = payload_in(&bytes).and_then(unpack);
        // An empty file says that this kernel unpacks itself.
        let kernel = kernel.filter(|kernel| has_pvh_entry(kernel));
        file.write_all(&kernel.unwrap_or_default())
            .context("cannot write it; is the disk full?")
    })?;
    let is_empty = fs::metadata(&made)
        .with_context(|| format!("cannot read {}", made.display()))?
        .len()
        == 0;
    Ok(if is_empty { image.to_path_buf() } else { made })
}

/// The packed kernel in a bzImage. Its place is noted in the header (the kernel's
/// Documentation/arch/x86/boot.rst), counted from the end of the 16-bit part.
fn payload_in(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    let has_header = image.get(0x202..0x206)? == b"HdrS";
    let sectors = match image.get(0x1f1)? {
        0 => 4,
        count => usize::from(*count),
    };
    let start = (sectors + 1) * 512 + number(0x248)?;
    let payload = image.get(start..start.checked_add(number(0x24c)?)?)?;
    has_header.then_some(payload)
}

/// Unpacks a kernel that is packed with zstd. Behind the packed kernel is its length.
fn unpack(payload: &[u8]) -> Option<Vec<u8>> {
    let (packed, length) = payload.split_last_chunk()?;
    let mut kernel = Vec::new();
    StreamingDecoder::new(packed)
        .ok()?
        .read_to_end(&mut kernel)
        .ok()?;
    (kernel.len() == u32::from_le_bytes(*length) as usize).then_some(kernel)
}

/// Whether QEMU can start this kernel: a 64-bit ELF file with a PVH entry.
fn has_pvh_entry(kernel: &[u8]) -> bool {
    let find = || -> object::read::Result<bool> {
        let header = FileHeader64::<Endianness>::parse(kernel)?;
        let endian = header.endian()?;
        for segment in header.program_headers(endian, kernel)? {
            let Some(mut notes) = segment.notes(endian, kernel)? else {
                continue;
            };
            while let Some(note) = notes.next()? {
                if note.name() == b"Xen" && note.n_type(endian) == PVH_ENTRY {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    find().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage whose 16-bit part has one sector, with that payload behind 8 other bytes.
    fn bzimage(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024 + 8];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&8u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend(payload);
        image
    }

    #[test]
    fn a_payload_is_found_where_the_header_says() {
        assert_eq!(payload_in(&bzimage(b"packed")), Some(&b"packed"[..]));
    }

    #[test]
    fn a_header_that_points_beyond_the_image_has_no_payload() {
        let mut image = bzimage(b"packed");
        image.pop();
        assert_eq!(payload_in(&image), None);
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload_in(&image), None);
        assert_eq!(payload_in(b"MZ"), None);
    }

    #[test]
    fn what_is_no_kernel_or_packed_otherwise_unpacks_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bzImage");
        for image in [b"no kernel".to_vec(), bzimage(b"\x1f\x8bgzip")] {
            fs::write(&path, image).expect("written");
            assert_eq!(boot_file(&path).expect("a file to boot"), path);
        }
    }

    #[test]
    fn only_an_elf_file_with_the_entry_can_be_booted() {
        assert!(!has_pvh_entry(b""));
        assert!(!has_pvh_entry(b"\x7fELF"));
        let this = fs::read(std::env::current_exe().expect("this program")).expect("read");
        assert!(!has_pvh_entry(&this));
    }
}
