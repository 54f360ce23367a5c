//! The lab's guests: output and exit codes arrive, and a guest that panics, hangs or does not boot
//! is an error with a reason, within a bounded time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use magpie_lab::{Guest, GuestOptions, KernelChoice, Stream};
use magpie_tests::{boot, shell_argv};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SHORT: Duration = Duration::from_secs(30);

/// Fails if more than `seconds` have passed since `began`.
fn within(began: Instant, seconds: u64) -> Result<()> {
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(seconds), "it took {took:?}");
    Ok(())
}

/// Runs a script of which the guest cannot report a result, because it takes too long or the guest
/// dies, and returns the error.
fn error_of(guest: &mut Guest, script: &str, limit: Duration) -> String {
    let result = guest.exec(&shell_argv(script), limit, &mut |_, _| {});
    let error = result.expect_err("the guest reported the end of the script");
    error.to_string()
}

#[test]
fn output_arrives_complete_and_by_stream() -> Result<()> {
    let mut guest = boot("tiny2", |_| {})?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let script = "head -c 300000 /dev/zero | tr '\\0' '\\377'; echo oops >&2; exit 7";
    let result = guest.exec(
        &shell_argv(script),
        SHORT,
        &mut |stream, bytes| match stream {
            Stream::Stdout => stdout.extend_from_slice(bytes),
            Stream::Stderr => stderr.extend_from_slice(bytes),
        },
    )?;
    assert_eq!(stdout, vec![0xff; 300_000]);
    assert_eq!(stderr, b"oops\n");
    assert_eq!((result.code, result.signal), (7, None));

    let result = guest.exec(&shell_argv("kill -9 $$"), SHORT, &mut |_, _| {})?;
    assert_eq!((result.code, result.signal), (137, Some(9)));

    let result = guest.exec(&shell_argv("sleep 1"), SHORT, &mut |_, _| {})?;
    ensure!(
        (0.9..10.0).contains(&result.wall_seconds),
        "a second took {result:?}"
    );

    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
    let result = guest.exec(&shell_argv(script), SHORT, &mut |_, _| {})?;
    ensure!(
        result.user_seconds > 0.0 && result.max_rss_kib > 0,
        "no usage in {result:?}"
    );

    let error = guest.exec(&["no-such-command".into()], SHORT, &mut |_, _| {});
    let error = error.expect_err("there is no such command").to_string();
    ensure!(error.contains("no-such-command"), "{error}");
    guest.into_guest().shutdown()
}

#[test]
fn the_guest_has_what_schedulers_and_workloads_expect() -> Result<()> {
    let mut guest = boot("tiny2", |_| {})?;
    ensure!(guest.warnings().is_empty(), "{:?}", guest.warnings());
    let release = guest.capture(&["uname", "-r"], SHORT)?;
    assert_eq!(release.trim(), guest.kernel_release());
    let config = format!("/boot/config-{}", guest.kernel_release());
    let script = format!(
        "grep -q CONFIG_SCHED_CLASS_EXT=y {config} && test -e /sys/kernel/btf/vmlinux \
         && ping -c 1 127.0.0.1 >/dev/null && test -c /dev/ptmx && touch /dev/shm/x /tmp/x \
         && mkdir /sys/fs/cgroup/a && cat /sys/fs/cgroup/a/cpu.weight"
    );
    assert_eq!(guest.capture(&["sh", "-c", &script], SHORT)?.trim(), "100");
    // QEMU started the kernel itself: one that unpacks itself moves to a random address.
    let code = "grep 'Kernel code' /proc/iomem";
    let code = guest.capture(&["sh", "-c", code], SHORT)?;
    ensure!(code.trim().starts_with("01000000-"), "{code}");
    // The agent runs above every scheduler, its children do not.
    let policy = "cut -d ' ' -f 41 /proc/1/stat /proc/self/stat";
    assert_eq!(guest.capture(&["sh", "-c", policy], SHORT)?, "1\n0\n");
    Ok(())
}

#[test]
fn vcpu_threads_are_threads_of_qemu() -> Result<()> {
    let mut guest = boot("smt8", |_| {})?;
    let threads = guest.qemu_threads()?;
    assert_eq!(threads.len(), 8);
    for thread in threads {
        let task = format!("/proc/{}/task/{thread}/comm", guest.qemu_pid());
        std::fs::read_to_string(&task).with_context(|| task.clone())?;
    }
    Ok(())
}

#[test]
fn a_command_that_takes_too_long_is_killed_and_the_guest_lives() -> Result<()> {
    let mut guest = boot("tiny2", |_| {})?;
    let began = Instant::now();
    let error = error_of(&mut guest, "yes > /dev/null", Duration::from_secs(2));
    ensure!(error.contains("exceeded its limit of 2 s"), "{error}");
    within(began, 25)?;
    assert_eq!(guest.capture(&["echo", "alive"], SHORT)?, "alive\n");
    Ok(())
}

#[test]
fn a_panic_is_reported_with_the_console() -> Result<()> {
    let mut guest = boot("tiny2", |_| {})?;
    let began = Instant::now();
    let panic = "echo c > /proc/sysrq-trigger";
    let error = error_of(&mut guest, panic, Duration::from_secs(120));
    ensure!(error.contains("kernel panicked"), "{error}");
    ensure!(
        error.contains("sysrq triggered crash"),
        "no console in: {error}"
    );
    within(began, 60)
}

#[test]
fn a_guest_that_hangs_is_reported() -> Result<()> {
    let mut guest = boot("tiny2", |_| {})?;
    kill(Pid::from_raw(guest.qemu_pid() as i32), Signal::SIGSTOP)?;
    let began = Instant::now();
    let error = error_of(&mut guest, "true", Duration::from_secs(2));
    ensure!(error.contains("hangs"), "{error}");
    within(began, 40)?;
    let pid = guest.qemu_pid();
    drop(guest);
    ensure!(
        !std::path::Path::new(&format!("/proc/{pid}")).exists(),
        "QEMU outlives its guest"
    );
    Ok(())
}

#[test]
fn a_file_that_is_no_kernel_is_reported() -> Result<()> {
    magpie_tests::build_agent()?;
    let file = std::env::temp_dir().join(format!("magpie-garbage-{}", std::process::id()));
    std::fs::write(&file, vec![0x5a; 100_000])?;
    let options = GuestOptions {
        kernel: KernelChoice::Files {
            kernel: file.clone(),
            config: None,
        },
        boot_timeout: Duration::from_secs(20),
        ..GuestOptions::default()
    };
    let began = Instant::now();
    let result = Guest::boot(&options);
    std::fs::remove_file(&file)?;
    let error = format!("{:#}", result.expect_err("the file is no kernel"));
    ensure!(
        error.contains("did not boot") || error.contains("QEMU ended"),
        "{error}"
    );
    within(began, 60)
}
