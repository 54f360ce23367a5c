//! From options to a QEMU that boots: the step that an interactive guest and a batch job share.

use std::path::Path;

use anyhow::Result;

use crate::image::{self, Contents};
use crate::kernel::Kernel;
use crate::options::{Accelerator, GuestOptions};
use crate::packages;
use crate::qemu::Qemu;

/// Writes the initramfs of the unpacked packages, the files and the kernel's configuration.
pub fn write_image(options: &GuestOptions, kernel: &Kernel, path: &Path) -> Result<()> {
    let contents = Contents {
        config: kernel.config.clone(),
        packages: packages::unpacked(&options.packages, &options.progress)?,
        files: options.files.clone(),
    };
    image::write(&contents, path)
}

/// Starts QEMU with its initramfs. Returns before the guest is up, because only the caller knows how a
/// guest says that it is: an agent connects, a batch job prints.
pub fn start(options: &GuestOptions, kernel: &Kernel, accelerator: Accelerator) -> Result<Qemu> {
    let name = &options.machine.name;
    options.progress.say(&format!("booting {name}"));
    Qemu::start(options, kernel, accelerator, |path| {
        write_image(options, kernel, path)
    })
}
