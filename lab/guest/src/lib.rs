//! The protocol between the lab and the agent in a guest: JSON objects, one per line in both
//! directions, over the virtio-serial port [`PORT_NAME`].
//!
//! ```text
//!   host                                    guest
//!    |  <------------- hello ----------------  |   once, when the guest is ready
//!    |  -- exec {id, argv} ----------------->  |
//!    |  <-- output {id, stream, data} -------  |   any number
//!    |  <-- exited {id, result} -------------  |
//!    |  -- start_scheduler {id, argv} ------>  |
//!    |  <-- scheduler_started {id} ----------  |   when the kernel's state is "enabled"
//!    |  <-- scheduler_exited {id?, exit} ----  |   at any time; an answer if it has an id
//!    |  <-- failed {id, message} ------------  |   the request could not be carried out
//! ```

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "org.magpie.agent";

/// Version of the protocol. Each incompatible change raises it, so that the lab detects a stale
/// agent.
pub const PROTOCOL: u32 = 1;

/// A request of the host.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Run a command. The answers are any number of `Output` and one `Exited`, or `Failed`.
    Exec {
        /// The host chooses it, the answers repeat it.
        id: u64,
        /// Program (looked up in PATH) and arguments.
        argv: Vec<String>,
    },
    /// Kill the process group of a running `Exec`. The `Exited` of that follows.
    Kill {
        /// The id of the `Exec`.
        id: u64,
    },
    /// Start a scheduler. The answer is `SchedulerStarted`, `SchedulerExited` or `Failed`.
    StartScheduler {
        /// The host chooses it, the answer repeats it.
        id: u64,
        /// Program and arguments.
        argv: Vec<String>,
    },
    /// Send the scheduler SIGINT. The answer is `SchedulerExited` once the kernel's state is
    /// "disabled", or `Failed`.
    StopScheduler {
        /// The host chooses it, the answer repeats it.
        id: u64,
    },
    /// Ask for `Scheduler`.
    SchedulerStatus {
        /// The host chooses it, the answer repeats it.
        id: u64,
    },
    /// Power the guest off. QEMU ends, and there is no other answer.
    Shutdown,
}

/// An event that the agent reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The guest is ready.
    Hello {
        /// [`PROTOCOL`] of the agent.
        protocol: u32,
        /// `uname -r`.
        release: String,
        /// Steps of the boot that failed, such as a mount. A test may need what they would have set
        /// up.
        warnings: Vec<String>,
    },
    /// Bytes that a command wrote.
    Output {
        /// Of the `Exec`.
        id: u64,
        /// The stream that the command wrote to.
        stream: Stream,
        /// The bytes in base64, see [`encode`] and [`decode`].
        data: String,
    },
    /// A command has ended. All its output was sent before.
    Exited {
        /// Of the `Exec`.
        id: u64,
        /// How it ended and what it used.
        result: ExecResult,
    },
    /// The kernel has enabled the scheduler.
    SchedulerStarted {
        /// Of the request.
        id: u64,
    },
    /// The scheduler has ended.
    SchedulerExited {
        /// Of the request that waited for it; `None` if the scheduler ended by itself.
        id: Option<u64>,
        /// How and why.
        exit: SchedulerExit,
    },
    /// Answer to `SchedulerStatus`.
    Scheduler {
        /// Of the request.
        id: u64,
        /// Whether the process that was started lives.
        running: bool,
        /// Contents of /sys/kernel/sched_ext/state; empty without sched_ext.
        state: String,
    },
    /// A request could not be carried out.
    Failed {
        /// Of the request.
        id: u64,
        /// Names the step that failed, on which object, and the reason.
        message: String,
    },
}

/// An output stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a command ended and what it used, measured in the guest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecResult {
    /// Exit code; 128 plus the signal's number when a signal ended it.
    pub code: i32,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Seconds on the guest's monotonic clock, from before the fork until the agent has reaped it.
    pub wall_seconds: f64,
    /// CPU seconds in user mode, of the command and the children that it has reaped.
    pub user_seconds: f64,
    /// CPU seconds in kernel mode, of the command and the children that it has reaped.
    pub system_seconds: f64,
    /// Largest resident set, in KiB.
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
    /// The last 64 KiB that it wrote to both streams, as lossy UTF-8.
    pub output: String,
    /// Lines about sched_ext in the kernel's log since its start; the kernel's reason is among
    /// them.
    pub kernel_log: Vec<String>,
    /// Contents of /sys/kernel/sched_ext/state after its end.
    pub state: String,
}

/// Encodes bytes for `Output`.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes the bytes of an `Output`.
///
/// # Errors
/// When `data` is no base64; the error names the position.
pub fn decode(data: &str) -> Result<Vec<u8>, base64::DecodeError> {
    STANDARD.decode(data)
}
