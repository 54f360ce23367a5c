//! One job in a virtual-time machine, with no input from the host while it runs.
//!
//! An interactive [`Guest`](crate::Guest) takes commands over a socket, and the virtual time at
//! which one arrives depends on the host. A batch job is part of the boot instead: the machine
//! starts, runs the job and powers off. On a deterministic machine its output is the same, byte for
//! byte, in every run.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{Fidelity, REPORT, plugin, prepare};
use crate::boot;
use crate::kernel::Kernel;
use crate::options::{Accelerator, GuestOptions};
use crate::qemu::Qemu;

/// Most bytes of a job. The kernel's command line has room for 2048, which the job, in base64,
/// shares with the lab's words.
const LONGEST_JOB: usize = 1000;

/// The line that `vtime-batch` prints before the job's output begins with this; the kernel's release
/// follows.
const BEGIN: &str = "magpie-batch: begin ";

/// The line that it prints after the job's output begins with this; the exit code follows.
const END: &str = "magpie-batch: end ";

/// How a job ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// `uname -r` of the guest.
    pub kernel_release: String,
    /// The job's exit code.
    pub code: i32,
    /// The job's output, standard output and error together.
    pub output: String,
    /// How well the machine kept its promises.
    pub fidelity: Fidelity,
}

/// Boots the machine, runs `job` (a shell script) in it, and waits for its end. `timeout` is in
/// real time and includes the boot.
///
/// # Errors
/// When the job is too long for the kernel's command line, or the machine does not boot, run the
/// job and power off in time.
pub fn run(options: &GuestOptions, job: &str, timeout: Duration) -> Result<Outcome> {
    let qemu = start(options, job)?;
    let name = &options.machine.name;
    options.progress.say(&format!("running on {name}"));
    // No agent connects to the socket of this QEMU, which does not wait for one.
    let Some(status) = qemu.wait(timeout) else {
        let limit = timeout.as_secs_f64();
        let what = format!("the job did not end within {limit} s");
        bail!("{}", qemu.report(&what));
    };
    ensure!(
        status.success(),
        "{}",
        qemu.report("QEMU failed while the job ran")
    );
    let (kernel_release, code, output) = parse(&qemu.console())
        .with_context(|| qemu.report("the guest powered off before the job was done"))?;
    Ok(Outcome {
        kernel_release,
        code,
        output,
        fidelity: Fidelity::read(&qemu.folder().join(REPORT))?,
    })
}

/// A machine whose init runs a job, with all that it boots from at hand.
#[derive(Debug)]
pub(super) struct Prepared {
    options: GuestOptions,
    kernel: Kernel,
}

impl Prepared {
    /// Prepares a machine whose init runs `job`, but for its image.
    pub(super) fn new(options: &GuestOptions, job: &str) -> Result<Prepared> {
        ensure!(
            job.len() <= LONGEST_JOB,
            "the job has {} bytes, a batch guest takes {LONGEST_JOB}: put it into a file and copy \
             that",
            job.len()
        );
        let mut options = prepare(options)?;
        let init = plugin::batch_init(&options.progress)?;
        options.files.push(init);
        options.kernel_cmdline.extend([
            "rdinit=/bin/vtime-batch".to_string(),
            format!("magpie.job={}", BASE64.encode(job)),
        ]);
        let kernel = options.kernel.resolve(&options.progress)?;
        Ok(Prepared { options, kernel })
    }

    /// Writes the machine's image to `path`. The first one of its kind may take minutes.
    pub(super) fn write_image(&self, path: &Path) -> Result<()> {
        boot::write_image(&self.options, &self.kernel, path)
    }

    /// Boots the machine with an image, which moves into its folder.
    pub(super) fn start_with(&self, image: &Path) -> Result<Qemu> {
        Qemu::start(&self.options, &self.kernel, Accelerator::Tcg, |path| {
            fs::rename(image, path).context("cannot move a guest's image into its folder")
        })
    }
}

/// Boots a machine whose init runs `job`. Returns while it still boots.
pub(super) fn start(options: &GuestOptions, job: &str) -> Result<Qemu> {
    let Prepared { options, kernel } = Prepared::new(options, job)?;
    boot::start(&options, &kernel, Accelerator::Tcg)
}

/// Returns a job that starts a scheduler, runs a shell command under it and stops it. The job's exit
/// code is the command's, or 125 if the scheduler did not start or did not last; then the job prints
/// the scheduler's output.
pub(crate) fn job(scheduler: Option<&[String]>, command: &str) -> String {
    let Some(scheduler) = scheduler else {
        return format!("{command}\n");
    };
    let scheduler = shell_words::join(scheduler);
    format!(
        "state() {{ [ \"$(cat /sys/kernel/sched_ext/state)\" = enabled ]; }}\n\
         {scheduler} >/run/scheduler 2>&1 & pid=$!\n\
         for i in $(seq 600); do state && break; sleep 0.1; done\n\
         state || {{ cat /run/scheduler; exit 125; }}\n\
         {command}\ncode=$?\n\
         state || {{ cat /run/scheduler; exit 125; }}\n\
         kill -INT $pid; wait $pid\nexit $code\n"
    )
}

/// Returns the kernel's release, the exit code, and the output between the marks of `vtime-batch`.
pub(super) fn parse(console: &str) -> Option<(String, i32, String)> {
    let (release, rest) = parse_begin(console)?;
    let (output, end) = rest.rsplit_once(END)?;
    let code = end.lines().next()?.trim().parse().ok()?;
    Some((release.trim().into(), code, output.to_string()))
}

/// Returns the kernel's release, and the output after the begin mark of `vtime-batch`.
pub(super) fn parse_begin(console: &str) -> Option<(&str, &str)> {
    let (_, rest) = console.split_once(BEGIN)?;
    rest.split_once('\n')
}

#[cfg(test)]
mod tests {
    use super::{job, parse};

    #[test]
    fn words_of_a_job_stay_words() {
        assert_eq!(job(None, "echo 'a b; c'"), "echo 'a b; c'\n");
        let scheduler = ["/bin/s".to_string(), "--x=1 2".to_string()];
        assert!(job(Some(&scheduler), "true").contains("/bin/s '--x=1 2' >/run/scheduler"));
    }

    #[test]
    fn the_output_is_between_the_marks() {
        let console =
            "Booting...\nmagpie-batch: begin 7.2\na\nb\nmagpie-batch: end 3\nreboot: Power\n";
        assert_eq!(
            parse(console),
            Some(("7.2".into(), 3, "a\nb\n".to_string()))
        );
        assert_eq!(parse("magpie-batch: begin 7.2\nhalf"), None);
    }
}
