//! From options to a QEMU that boots: the step that an interactive guest and a batch job share.

use anyhow::Result;

use crate::image::{self, Contents};
use crate::kernel::Kernel;
use crate::options::{Accelerator, GuestOptions};
use crate::packages;
use crate::qemu::Qemu;

/// Unpacks the packages, writes the image and starts QEMU. Returns while the guest still boots.
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
