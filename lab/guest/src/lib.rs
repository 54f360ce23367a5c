//! The protocol between the lab and the agent in a guest: one JSON object per line, both ways, over
//! the virtio-serial port [`PORT_NAME`].
//!
//! ```text
//!   host                                    guest
//!    |  <------------- hello ----------------  |   once, when the guest is ready
//!    |  -- exec {id, argv} ----------------->  |
//!    |  <-- output {id, stream, data} -------  |   any number
//!    |  <-- exited {id, usage} --------------  |
//!    |  -- start_scheduler {id, argv} ------>  |
//!    |  <-- scheduler_started {id} ----------  |   when the kernel's state is "enabled"
//!    |  <-- scheduler_exited {id?, exit} ----  |   at any time; with id: the answer to a request
//!    |  <-- failed {id, message} ------------  |   the request could not be carried out
//! ```

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "org.magpie.agent";

/// Raised with every incompatible change, so that a stale agent is named and not misunderstood.
pub const PROTOCOL: u32 = 1;

/// What the host asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Runs a command; answered by `Output`s and one `Exited`.
    Exec {
        /// Chosen by the host, repeated in the answers.
        id: u64,
        /// Program (looked up in PATH) and arguments.
        argv: Vec<String>,
    },
    /// Kills the process group of a running `Exec`; its `Exited` follows.
    Kill {
        /// The id of the `Exec`.
        id: u64,
    },
    /// Starts a scheduler; answered by `SchedulerStarted`, `SchedulerExited` or `Failed`.
    StartScheduler {
        /// Chosen by the host.
        id: u64,
        /// Program and arguments.
        argv: Vec<String>,
    },
    /// Interrupts the scheduler, answered by `SchedulerExited` when the kernel's state is "disabled".
    StopScheduler {
        /// Chosen by the host.
        id: u64,
    },
    /// Asks for `Scheduler`.
    SchedulerStatus {
        /// Chosen by the host.
        id: u64,
    },
    /// Powers the guest off. There is no answer but the end of QEMU.
    Shutdown,
}

/// What the guest says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The guest is up.
    Hello {
        /// [`PROTOCOL`] of the agent.
        protocol: u32,
        /// `uname -r`.
        release: String,
        /// Things of the boot that failed and that a test may miss, such as a mount.
        warnings: Vec<String>,
    },
    /// Bytes that a command wrote.
    Output {
        /// Of the `Exec`.
        id: u64,
        /// Which of its streams.
        stream: Stream,
        /// Base64, see [`encode`] and [`decode`].
        data: String,
    },
    /// A command has ended; all of its output was sent before.
    Exited {
        /// Of the `Exec`.
        id: u64,
        /// How it ended and what it used.
        result: ExecResult,
    },
    /// The scheduler is attached.
    SchedulerStarted {
        /// Of the request.
        id: u64,
    },
    /// The scheduler has ended.
    SchedulerExited {
        /// Of the request that waited for it, none when it ended by itself.
        id: Option<u64>,
        /// How and why.
        exit: SchedulerExit,
    },
    /// Answer to `SchedulerStatus`.
    Scheduler {
        /// Of the request.
        id: u64,
        /// True while the process that was started lives.
        running: bool,
        /// Contents of /sys/kernel/sched_ext/state, empty without sched_ext.
        state: String,
    },
    /// A request could not be carried out.
    Failed {
        /// Of the request.
        id: u64,
        /// What was tried, on what, and why it failed.
        message: String,
    },
}

/// One of a command's output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a command ended and what it used, all measured in the guest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecResult {
    /// Exit code; 128 plus the signal's number when a signal ended it.
    pub code: i32,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Wall-clock seconds on the guest's monotonic clock, from before the fork to the reaping.
    pub wall_seconds: f64,
    /// CPU seconds in user mode, of the command and its waited-for children.
    pub user_seconds: f64,
    /// CPU seconds in kernel mode, of the command and its waited-for children.
    pub system_seconds: f64,
    /// Largest resident set in KiB.
    pub max_rss_kib: i64,
    /// Voluntary context switches.
    pub voluntary_switches: i64,
    /// Involuntary context switches.
    pub involuntary_switches: i64,
}

/// How a scheduler ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SchedulerExit {
    /// Exit code; 128 plus the signal's number when a signal ended it.
    pub code: i32,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// The last 64 KiB of what it wrote, both streams, lossy UTF-8.
    pub output: String,
    /// Kernel log lines about sched_ext since it was started: the kernel's reason is here.
    pub kernel_log: Vec<String>,
    /// Contents of /sys/kernel/sched_ext/state after the end.
    pub state: String,
}

/// Bytes as they travel in `Output`.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of an `Output`; the error names the malformed position.
pub fn decode(data: &str) -> Result<Vec<u8>, base64::DecodeError> {
    STANDARD.decode(data)
}
