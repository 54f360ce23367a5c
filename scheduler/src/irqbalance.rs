//! irqbalance, the daemon that spreads device interrupts over CPUs.
//!
//! irqbalance overwrites within seconds any affinity that another program has written. So
//! scx_magpie tells it which CPUs to avoid ("ban"), over the socket of its user interface
//! (COMMUNICATION.md of its sources): `setup` answers with the banned CPUs, `settings cpus LIST`
//! replaces them, and `settings cpus NULL` returns to its own configuration. A connection carries
//! one request; the sender's credentials must be root's.

use std::fs;
use std::io::{IoSlice, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixCredentials, sendmsg};

use crate::cpu_set::CpuSet;

const FOLDER: &str = "run/irqbalance";
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// A running irqbalance.
#[derive(Debug, PartialEq, Eq)]
pub struct Irqbalance {
    socket: PathBuf,
}

impl Irqbalance {
    /// Returns the running irqbalance. A socket of a process that is gone does not count.
    pub fn find(root: &Path) -> Option<Irqbalance> {
        fs::read_dir(root.join(FOLDER))
            .ok()?
            .flatten()
            .find_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let pid = name.strip_prefix("irqbalance")?.strip_suffix(".sock")?;
                let pid: u32 = pid.parse().ok()?;
                root.join(format!("proc/{pid}"))
                    .exists()
                    .then(|| Irqbalance {
                        socket: entry.path(),
                    })
            })
    }

    /// Returns the CPUs that irqbalance avoids now.
    ///
    /// # Errors
    /// When irqbalance does not answer in time, or its answer has no mask of banned CPUs.
    pub fn banned(&self) -> Result<CpuSet> {
        let answer = self.ask("setup")?;
        let mask = answer
            .split_once("BANNED ")
            .and_then(|(_, mask)| mask.split_whitespace().next())
            .with_context(|| format!("irqbalance answered {answer:?} when asked for its setup"))?;
        CpuSet::from_mask(mask)
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("irqbalance answered {answer:?}"))
    }

    /// Replaces the CPUs that irqbalance avoids; the empty set returns to its own configuration. It
    /// moves interrupts within its interval, usually 10 s.
    ///
    /// # Errors
    /// When irqbalance cannot be reached.
    pub fn ban(&self, cpus: &CpuSet) -> Result<()> {
        let list = match cpus.is_empty() {
            true => "NULL".to_string(),
            false => cpus.to_string(),
        };
        self.ask(&format!("settings cpus {list}")).map(|_| ())
    }

    /// Sends a request and returns the answer. irqbalance closes the connection when it has handled
    /// the request, so the end of the answer is awaited even where the answer is empty.
    fn ask(&self, request: &str) -> Result<String> {
        let mut answer = String::new();
        let mut ask = || -> std::io::Result<()> {
            let mut stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
            sendmsg::<()>(
                stream.as_raw_fd(),
                &[IoSlice::new(request.as_bytes())],
                &[ControlMessage::ScmCredentials(&UnixCredentials::new())],
                MsgFlags::MSG_NOSIGNAL,
                None,
            )?;
            stream.read_to_string(&mut answer).map(|_| ())
        };
        ask().with_context(|| {
            format!(
                "sending \"{request}\" to irqbalance at {}",
                self.socket.display()
            )
        })?;
        Ok(answer)
    }
}
