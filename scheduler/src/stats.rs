//! Statistics over scx_stats, the protocol of the other sched_ext schedulers: scxtop and the usual
//! tools read them.
//!
//! A client names one of five targets:
//!
//! | target | answer |
//! |---|---|
//! | `top` | what happened since this client's last request ([`Metrics`]) |
//! | `totals` | what happened since the scheduler started ([`Metrics`]) |
//! | `preferred` | which CPUs are preferred, after the change that the request may carry |
//! | `cpus` | what each CPU has measured |
//! | `cgroups` | what each cgroup gets |
//!
//! The server's threads have no access to the BPF object. They send a [`Request`] to the thread
//! that owns it (`scheduler.rs`), which sends back an [`Answer`].

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use crossbeam::channel::{Receiver, Sender};
use scx_stats::prelude::*;
use serde::de::DeserializeOwned;

use crate::cgroups::{CgroupStatus, CgroupsStatus};
use crate::counters::Metrics;
use crate::cpus::{CpuStatus, CpusStatus};
use crate::preferred::{Change, PreferredStatus};

/// How long a client waits for the running scheduler's answer. In a guest that its host holds back
/// five seconds were sometimes too short, because both share the CPU time that is left.
const ANSWER_TIMEOUT_MS: u64 = 30_000;

/// Marks the reason of a refusal, which scx_stats buries in the error's debug form.
const REFUSAL: &str = "<<>>";

/// A request of the server to the thread that owns the BPF object.
#[derive(Debug)]
pub enum Request {
    /// The counters since the start.
    Totals,
    /// A change, possibly an empty one, and the preferred CPUs after it.
    Preferred(Change),
    /// The measurements of each CPU.
    Cpus,
    /// The share and throttling of each cgroup.
    Cgroups,
}

/// The answer to the [`Request`] of the same name.
#[derive(Debug)]
pub enum Answer {
    /// The counters.
    Totals(Metrics),
    /// The preferred CPUs, or why they cannot be changed.
    Preferred(Result<PreferredStatus, String>),
    /// The measurements of each CPU.
    Cpus(CpusStatus),
    /// The share and throttling of each cgroup.
    Cgroups(CgroupsStatus),
}

type Channels<'a> = (&'a Sender<Request>, &'a Receiver<Answer>);

/// Sends the request of this name and returns what the answer of the same name holds.
macro_rules! ask {
    ($channels:expr, $name:ident $(($change:expr))?) => {{
        let (request, answer) = $channels;
        request.send(Request::$name $(($change))?)?;
        match answer.recv()? {
            Answer::$name(content) => content,
            other => bail!("the answer to {} is {other:?}", stringify!($name)),
        }
    }};
}

/// Reads the change from the arguments, and asks for the preferred CPUs after it.
fn ask_preferred(
    arguments: &BTreeMap<String, String>,
    channels: Channels,
) -> Result<PreferredStatus> {
    let change = Change::from_arguments(arguments).map_err(refuse)?;
    ask!(channels, Preferred(change)).map_err(refuse)
}

/// Makes an error of which the client shows the reason and not the error number.
fn refuse(reason: String) -> anyhow::Error {
    anyhow!("{REFUSAL}{reason}{REFUSAL}")
}

/// Returns the targets that the server offers, and how each is answered.
pub fn server_data() -> StatsServerData<Request, Answer> {
    type Read = Box<dyn StatsReaderSend<Request, Answer>>;

    let open_top: Box<dyn StatsOpener<Request, Answer>> = Box::new(|channels| {
        let mut earlier = ask!(channels, Totals);
        let read: Box<dyn StatsReader<Request, Answer>> = Box::new(move |_, channels| {
            let now = ask!(channels, Totals);
            let delta = now.since(&earlier);
            earlier = now;
            delta.to_json()
        });
        Ok(read)
    });
    let read_totals: Read = Box::new(|_, channels| ask!(channels, Totals).to_json());
    let read_preferred: Read =
        Box::new(|arguments, channels| ask_preferred(arguments, channels)?.to_json());
    let read_cpus: Read = Box::new(|_, channels| ask!(channels, Cpus).to_json());
    let read_cgroups: Read = Box::new(|_, channels| ask!(channels, Cgroups).to_json());

    StatsServerData::new()
        .add_meta(Metrics::meta())
        .add_meta(PreferredStatus::meta())
        .add_meta(CpuStatus::meta())
        .add_meta(CpusStatus::meta())
        .add_meta(CgroupStatus::meta())
        .add_meta(CgroupsStatus::meta())
        .add_ops(
            "top",
            StatsOps {
                open: open_top,
                close: None,
            },
        )
        .add_stats("totals", read_totals)
        .add_stats("preferred", read_preferred)
        .add_stats("cpus", read_cpus)
        .add_stats("cgroups", read_cgroups)
}

/// Explains everything that a client can ask for.
///
/// # Errors
/// When the output cannot be written.
pub fn explain<W: Write>(output: &mut W) -> Result<()> {
    let shown = ["Metrics", "PreferredStatus", "CpusStatus", "CgroupsStatus"];
    server_data().describe_meta(output, Some(&shown))
}

/// Prints every `interval` what the running scheduler did. Waits for a scheduler where none runs,
/// and returns only on an error.
///
/// # Errors
/// When standard output cannot be written, as after `| head`.
pub fn monitor(interval: Duration) -> Result<()> {
    scx_utils::monitor_stats::<Metrics>(
        &[],
        interval,
        || false,
        |metrics| Ok(metrics.tell(&mut io::stdout())?),
    )
}

/// Returns the running scheduler's counters since its start, as one JSON object.
///
/// # Errors
/// When no scx_magpie runs, or it does not answer in time.
pub fn totals() -> Result<String> {
    let totals: Metrics = ask_running("totals", Vec::new())?;
    serde_json::to_string(&totals).context("writing the counters as JSON")
}

/// Changes which CPUs the running scheduler prefers, and returns which they are then.
///
/// # Errors
/// When no scx_magpie runs, or it refuses the change, with its reason.
pub fn preferred(change: &Change) -> Result<PreferredStatus> {
    ask_running("preferred", change.to_arguments())
}

/// Returns what each CPU of the running scheduler has measured.
///
/// # Errors
/// When no scx_magpie runs, or it does not answer in time.
pub fn cpus() -> Result<CpusStatus> {
    ask_running("cpus", Vec::new())
}

/// Returns what each cgroup gets from the running scheduler.
///
/// # Errors
/// When no scx_magpie runs, or it does not answer in time.
pub fn cgroups() -> Result<CgroupsStatus> {
    ask_running("cgroups", Vec::new())
}

/// Asks the running scheduler for a target.
///
/// # Errors
/// Says which of the usual reasons it is: no scheduler, no permission, another version, or a change
/// that the scheduler refuses.
fn ask_running<T: DeserializeOwned>(
    target: &str,
    mut arguments: Vec<(String, String)>,
) -> Result<T> {
    let mut client = StatsClient::new()
        .connect(Some(ANSWER_TIMEOUT_MS))
        .map_err(
            |error| match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                    anyhow!("scx_magpie is not running; start it with `sudo scx_magpie`")
                }
                Some(ErrorKind::PermissionDenied) => {
                    anyhow!("only root may ask the running scheduler; use sudo")
                }
                _ => error.context("connecting to the running scheduler"),
            },
        )?;
    arguments.push(("target".into(), target.into()));
    client.request("stats", arguments).map_err(|error| {
        let text = format!("{error:#}");
        match text.split(REFUSAL).nth(1) {
            Some(reason) => anyhow!("{}", reason.replace("\\n", "\n")),
            None if error.downcast_ref::<StatsErrno>().is_some() => anyhow!(
                "the running scheduler is not this version of scx_magpie: it does not know {target}"
            ),
            None => error.context(format!("asking the running scheduler for {target}")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::NR_EVENTS;

    #[test]
    fn every_counter_is_explained() {
        let mut text = Vec::new();
        explain(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let fields: usize = [
            serde_json::to_value(Metrics::default()),
            serde_json::to_value(PreferredStatus::default()),
            serde_json::to_value(CpuStatus::default()),
            serde_json::to_value(CpusStatus::default()),
            serde_json::to_value(CgroupStatus::default()),
            serde_json::to_value(CgroupsStatus::default()),
        ]
        .map(|status| status.unwrap().as_object().unwrap().len())
        .iter()
        .sum();
        assert_eq!(
            text.lines().filter(|line| line.contains(" : ")).count(),
            fields,
            "{text}"
        );
    }

    #[test]
    fn a_client_gets_deltas_and_totals_from_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("stats");
        let server = StatsServer::new(server_data())
            .set_path(&socket)
            .launch()
            .unwrap();
        let (answer, request) = server.channels();
        let scheduler = std::thread::spawn(move || {
            let mut events = [0; NR_EVENTS];
            while let Ok(asked) = request.recv_timeout(Duration::from_secs(5)) {
                let said = match asked {
                    Request::Totals => {
                        events = events.map(|count| count + 1);
                        Answer::Totals(Metrics::from_events(&events))
                    }
                    Request::Preferred(change) => Answer::Preferred(Err(format!("{change:?}"))),
                    Request::Cpus => Answer::Cpus(CpusStatus::default()),
                    Request::Cgroups => Answer::Cgroups(CgroupsStatus::default()),
                };
                if answer.send(said).is_err() {
                    break;
                }
            }
        });

        let mut client = StatsClient::new()
            .set_path(&socket)
            .connect(Some(5000))
            .unwrap();
        let mut ask = |target: &str| -> Metrics {
            client
                .request("stats", vec![("target".into(), target.into())])
                .unwrap()
        };
        // "top" reads once to begin with, then once for each request.
        assert_eq!(ask("top"), Metrics::from_events(&[1; NR_EVENTS]));
        assert_eq!(ask("totals"), Metrics::from_events(&[3; NR_EVENTS]));
        assert_eq!(ask("top"), Metrics::from_events(&[2; NR_EVENTS]));
        let arguments = vec![
            ("target".into(), "preferred".into()),
            ("set".into(), "0-1".into()),
        ];
        let refused = client.request::<PreferredStatus>("stats", arguments);
        let text = format!("{:#}", refused.unwrap_err());
        assert!(
            text.split(REFUSAL).nth(1).unwrap().contains("Cpus"),
            "{text}"
        );
        drop(client);
        drop(server);
        scheduler.join().unwrap();
    }
}
