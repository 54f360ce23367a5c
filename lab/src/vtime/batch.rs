//! One job in a virtual-time machine, with nothing from outside while it runs.
//!
//! An interactive [`Guest`](crate::Guest) takes commands over a socket, and when one arrives depends
//! on the host. Here the job is part of the boot: the machine starts, does it, powers off. On a
//! deterministic machine the output is the same, byte for byte, in every run.

use super::{Fidelity, REPORT, plugin, prepare};
use crate::guest::{Accelerator, GuestOptions};
use crate::image::Contents;
use crate::qemu::Qemu;
use crate::{image, packages};
use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::time::Duration;

/// Most bytes of a job: the kernel's command line has room for 2048, the lab's words included.
const LONGEST_JOB: usize = 1000;

const BEGIN: &str = "magpie-batch: begin";
const END: &str = "magpie-batch: end ";

/// What came of a job.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The job's exit code.
    pub code: i32,
    /// What it wrote, standard output and error together.
    pub output: String,
    /// How well the machine kept its promises.
    pub fidelity: Fidelity,
}

/// Boots the machine, runs `job` (a shell script) in it, and waits for its end, at most `timeout` of
/// real time, boot included.
pub fn run(options: &GuestOptions, job: &str, timeout: Duration) -> Result<Outcome> {
    ensure!(
        job.len() <= LONGEST_JOB,
        "the job has {} bytes, a batch guest takes {LONGEST_JOB}: put it into a file and copy that",
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
    let contents = Contents {
        config: kernel.config.clone(),
        packages: packages::unpacked(&options.packages, &options.progress)?,
        files: options.files.clone(),
    };
    options
        .progress
        .say(&format!("running on {}", options.machine.name));
    let qemu = Qemu::start(&options, &kernel, Accelerator::Tcg, |path| {
        image::write(&contents, path)
    })?;
    // Its agent's socket stays unused, but QEMU waits for nobody.
    let Some(status) = qemu.wait(timeout) else {
        let limit = timeout.as_secs_f64();
        bail!(
            "{}",
            qemu.report(&format!("the job did not end within {limit} s"))
        );
    };
    ensure!(
        status.success(),
        "{}",
        qemu.report("QEMU failed while the job ran")
    );
    let console = qemu.console();
    let (code, output) = parse(&console)
        .with_context(|| qemu.report("the guest powered off before the job was done"))?;
    Ok(Outcome {
        code,
        output,
        fidelity: Fidelity::read(&qemu.folder().join(REPORT))?,
    })
}

/// The job that starts a scheduler, runs a command under it and stops it. It ends with the command's
/// exit code, or with 125 and the scheduler's own words if that did not start or did not last.
pub fn job(scheduler: Option<&[String]>, command: &[String]) -> String {
    let command = shell_words::join(command);
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

/// Exit code and output between the marks of `vtime-batch`.
fn parse(console: &str) -> Option<(i32, String)> {
    let (_, rest) = console.split_once(BEGIN)?;
    let (output, end) = rest.rsplit_once(END)?;
    let code = end.lines().next()?.trim().parse().ok()?;
    Some((code, output.trim_start_matches('\n').to_string()))
}

#[cfg(test)]
mod tests {
    use super::{job, parse};

    #[test]
    fn words_of_a_job_stay_words() {
        let command = ["echo".to_string(), "a b; c".to_string()];
        assert_eq!(job(None, &command), "echo 'a b; c'\n");
        let scheduler = ["/bin/s".to_string(), "--x=1 2".to_string()];
        assert!(job(Some(&scheduler), &command).contains("/bin/s '--x=1 2' >/run/scheduler"));
    }

    #[test]
    fn the_output_is_between_the_marks() {
        let console = "Booting...\nmagpie-batch: begin\na\nb\nmagpie-batch: end 3\nreboot: Power\n";
        assert_eq!(parse(console), Some((3, "a\nb\n".to_string())));
        assert_eq!(parse("magpie-batch: begin\nhalf"), None);
    }
}
