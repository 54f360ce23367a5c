//! From options to a QEMU that boots: the step that an interactive guest and a batch job share.

use anyhow::Result;

use crate::image::{self, Contents};
use crate::kernel::Kernel;
use crate::options::{Accelerator, GuestOptions};
use crate::packages;
use crate::qemu::Qemu;

/// Starts QEMU with an initramfs of the unpacked packages, the files and the kernel's configuration.
/// Returns before the guest is up, because only the caller knows how a guest says that it is: an
/// agent connects, a batch job prints.
pub fn start(options: &GuestOptions, kernel: &Kernel, accelerator: Accelerator) -> Result<Qemu> {
    let contents = Contents {
        config: kernel.config.clone(),
        packages: packages::unpacked(&options.packages, &options.progress)?,
        files: options.files.clone(),
    };
    let name = &options.machine.name;
    options.progress.say(&format!("booting {name}"));
    Qemu::start(options, kernel, accelerator, |path| {
        image::write(&contents, path)
    })
}
