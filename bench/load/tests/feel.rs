//! Runs `pairs`, `frames` and `audio` as a user does, for a short time and beside each load: do
//! they measure, does the load make progress, and is it gone afterwards, whatever ends the program?

use std::error::Error;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const WORKLOADS: [&str; 3] = ["pairs", "frames", "audio"];
const LOADS: [&str; 3] = ["hogs", "build", "network"];

/// Starts a workload. The mark in its environment, which its processes inherit, tells them apart
/// from those of other tests.
fn start(mark: &str, args: &[&str]) -> Result<Child> {
    let child = Command::new(env!("CARGO_BIN_EXE_magpie-load"))
        .args(args)
        .env("MAGPIE_LOAD_TEST", mark)
        .stdout(Stdio::piped())
        .spawn()?;
    Ok(child)
}

/// Runs a workload to its end, and returns what it printed.
fn measure(mark: &str, args: &[&str]) -> Result<Value> {
    let output = start(mark, args)?.wait_with_output()?;
    assert!(output.status.success(), "{args:?}: {output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The processes that have the mark. A process that has ended has no environment any more.
fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("MAGPIE_LOAD_TEST={mark}");
    let has_mark = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == wanted.as_bytes())
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(has_mark)
        .collect()
}

/// Fails if processes with the mark are still there after a moment, in which the kernel ends those
/// whose parent has ended.
fn assert_gone(mark: &str) {
    let patience = Instant::now() + Duration::from_secs(10);
    while !marked(mark).is_empty() {
        assert!(Instant::now() < patience, "still there: {:?}", marked(mark));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn each_workload_measures_beside_each_load_and_leaves_nothing() -> Result<()> {
    for workload in WORKLOADS {
        for load in LOADS {
            let mark = format!("measure-{workload}-{load}");
            let args = [
                workload,
                "--json",
                "--beside",
                load,
                "--beside-count",
                "2",
                "--seconds",
                "0.3",
                "--warmup",
                "0.1",
            ];
            let json = measure(&mark, &args)?;
            assert_eq!(json["beside"]["kind"], *load, "{json}");
            assert_eq!(json["beside"]["count"], 2, "{json}");
            assert!(json["beside"]["per_s"].as_f64() > Some(0.0), "{json}");
            assert_gone(&mark);
        }
    }
    Ok(())
}

#[test]
fn percentiles_ascend_and_counts_agree_with_the_time() -> Result<()> {
    let run = |args: &[&str]| measure("alone", args);
    let short = ["--json", "--seconds", "0.5"];

    let pairs = run(&[
        &["pairs", "--fixed-think", "--think-us", "5000"],
        &short[..],
    ]
    .concat())?;
    // Four clients think 100 times each, at most, in half a second; one more request may have
    // begun.
    let requests = pairs["requests"].as_u64().unwrap_or_default();
    assert!((40..=404).contains(&requests), "{pairs}");

    let frames = run(&[&["frames", "--clients", "3", "--hz", "50,100"], &short[..]].concat())?;
    // Two clients of 50 Hz and one of 100 Hz; when a window begins decides over one frame of each.
    let due = frames["frames"].as_u64().unwrap_or_default();
    assert!((97..=103).contains(&due), "{frames}");

    let audio = run(&[&["audio", "--period-us", "5000"], &short[..]].concat())?;
    let buffers = audio["buffers"].as_u64().unwrap_or_default();
    assert!((99..=101).contains(&buffers), "{audio}");
    assert!(audio["late"].as_u64() <= Some(buffers), "{audio}");

    for latencies in [
        &pairs["response_us"],
        &frames["latency_us"],
        &audio["wakeup_us"],
        &audio["done_us"],
    ] {
        let at = |name: &str| latencies[name].as_f64().unwrap_or(f64::NAN);
        let names = ["p50", "p90", "p99", "p99_9", "max"];
        assert!(names.map(at).is_sorted(), "{latencies}");
    }
    for alone in [pairs, frames, audio] {
        assert!(alone["beside"].is_null(), "{alone}");
    }
    Ok(())
}

#[test]
fn a_signal_ends_the_load_too() -> Result<()> {
    for (load, signal) in LOADS
        .into_iter()
        .zip([Signal::SIGTERM, Signal::SIGKILL, Signal::SIGINT])
    {
        let mark = format!("signal-{load}");
        let args = [
            "pairs",
            "--beside",
            load,
            "--beside-count",
            "2",
            "--seconds",
            "60",
        ];
        let mut child = start(&mark, &args)?;
        let patience = Instant::now() + Duration::from_secs(10);
        while marked(&mark).len() < 3 {
            assert!(Instant::now() < patience, "{load} did not start");
            thread::sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(child.id() as i32), signal)?;
        child.wait()?;
        assert_gone(&mark);
    }
    Ok(())
}

#[test]
fn an_error_ends_the_load_too() -> Result<()> {
    let args = [
        "frames",
        "--clients",
        "1024",
        "--beside",
        "hogs",
        "--beside-count",
        "2",
        "--seconds",
        "60",
    ];
    // With few open files the sockets of so many clients cannot be made; the hogs run by then.
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_magpie-load"))
        .args(args)
        .env("MAGPIE_LOAD_TEST", "error")
        .output()?;
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr)?;
    assert!(message.contains("limit of open files"), "{message}");
    assert_gone("error");
    Ok(())
}
