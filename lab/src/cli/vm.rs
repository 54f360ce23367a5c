//! The machine, the kernel, the scheduler and the command of a guest, as the commands of `magpie lab`
//! take them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::terminal::Spinner;
use crate::files::find_program;
use crate::kernel::KernelChoice;
use crate::machine::Machine;
use crate::options::GuestOptions;
use crate::{image, packages};

/// Exit code of commands that end with a guest's, when the lab itself failed. Commands seldom end
/// with it.
pub(super) const LAB_FAILED: u8 = 125;

#[derive(Debug, clap::Args)]
pub(super) struct Vm {
    /// Preset (see `magpie lab machines`) or path of a machine's TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "tiny2")]
    pub(super) machine: String,
    /// Series of a stock kernel or name of a built one (see `magpie lab kernels`), or path of a
    /// bzImage [default: the newest series].
    #[arg(long, value_name = "SERIES|NAME|FILE")]
    pub(super) kernel: Option<String>,
    /// Configuration of a kernel that is given as a file. libbpf needs it to load schedulers.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Seconds of real time that the guest may take to boot.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(super) boot_timeout: u64,
}

impl Vm {
    /// Returns the options of a guest that these arguments describe.
    pub(super) fn options(&self, spinner: &Spinner) -> Result<GuestOptions> {
        Ok(GuestOptions {
            machine: Machine::find(&self.machine)?,
            kernel: KernelChoice::parse(self.kernel.as_deref(), self.config.as_deref())?,
            boot_timeout: Duration::from_secs(self.boot_timeout),
            progress: spinner.progress(),
            ..GuestOptions::default()
        })
    }
}

/// Returns the words of a scheduler's command as the guest runs it, and adds its program to the
/// guest's files.
pub(super) fn scheduler_of(line: &str, options: &mut GuestOptions) -> Result<Vec<String>> {
    let mut argv = shell_words::split(line)
        .with_context(|| format!("cannot read the scheduler's command: {line}"))?;
    let name = argv.first().context("--sched is empty")?;
    let program = find_program(name).with_context(|| {
        format!(
            "there is no scheduler \"{name}\" in target/release, target/peers/bin or PATH; \
             build it (`cargo build --release`) or install it (`cargo install {name}`)"
        )
    })?;
    argv[0] = guest_name(&program)?;
    options.files.push(program);
    Ok(argv)
}

/// Returns the path in the guest of a program that is copied there.
pub(super) fn guest_name(program: &Path) -> Result<String> {
    let name = program.file_name().context("a program has a file name")?;
    Ok(format!("/bin/{}", name.to_string_lossy()))
}

/// Returns the host program to copy for a command, or `None` if the guest has the program. A path
/// that is a file here is copied; any other path is one of the guest. A name is looked for among the
/// files and packages of the guest, in busybox, and then on the host.
pub(super) fn to_copy(command: &str, options: &GuestOptions) -> Result<Option<PathBuf>> {
    if command.contains('/') {
        let path = PathBuf::from(command);
        return Ok(path.is_file().then_some(path));
    }
    let mut files = options.files.iter();
    if files.any(|file| file.file_name().is_some_and(|name| name == command)) {
        return Ok(None);
    }
    let folders = packages::unpacked(&options.packages, &options.progress)?;
    let in_package = folders.iter().any(|folder| {
        ["usr/bin", "usr/sbin", "bin", "sbin"]
            .iter()
            .any(|bin| folder.join(bin).join(command).exists())
    });
    if in_package || image::is_applet(command)? {
        return Ok(None);
    }
    match find_program(command) {
        Some(program) => Ok(Some(program)),
        None => bail!(
            "there is no program \"{command}\" among the files and packages given, in busybox or on \
             this host; name the Debian package that has it with --package"
        ),
    }
}
