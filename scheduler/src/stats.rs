//! What the scheduler did, as numbers for tools and as sentences for people.
//!
//! The BPF side counts events per CPU; [`Metrics`] has one field for each event,
//! summed over the CPUs. They are served over scx_stats, the protocol of the
//! other sched_ext schedulers, so scxtop and the usual tools read them. Five
//! things can be asked for: `top`, what happened since this client asked last;
//! `totals`, what happened since the scheduler started; `preferred`, which CPUs
//! are preferred, after a change if the request carries one; `cpus`, what each CPU
//! has learned; `cgroups`, what each cgroup gets.
//!
//! A new event needs one line in [`metrics!`]; the build fails until it is there.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use crossbeam::channel::{Receiver, Sender};
use scx_stats::prelude::*;
use scx_stats_derive::{Stats, stat_doc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bpf_intf;
use crate::cgroups::{CgroupStatus, CgroupsStatus};
use crate::cpus::{CpuStatus, CpusStatus};
use crate::preferred::{Change, PreferredStatus};

/// Events the BPF side counts.
pub const NR_EVENTS: usize = bpf_intf::magpie_event_NR_EVENTS as usize;

/// How long a client waits for the running scheduler's answer. In a guest that its host holds back,
/// both share what is left with everything else, and five seconds were sometimes not enough.
const ANSWER_TIMEOUT_MS: u64 = 30_000;

/// Around the reason of a refusal, which scx_stats buries in the error's debug
/// form.
const REFUSAL: &str = "<<>>";

macro_rules! metrics {
    ($($field:ident = $event:ident, $description:literal;)*) => {
        /// How often each event happened, all CPUs together.
        #[stat_doc]
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Stats)]
        #[stat(top, desc = "Events since the last request")]
        pub struct Metrics {
            $(#[stat(desc = $description)] pub $field: u64,)*
        }

        impl Metrics {
            /// From counts in the order of `enum magpie_event`.
            pub fn from_events(events: &[u64; NR_EVENTS]) -> Metrics {
                Metrics { $($field: events[bpf_intf::$event as usize],)* }
            }

            /// What happened since an earlier reading.
            pub fn since(&self, earlier: &Metrics) -> Metrics {
                Metrics { $($field: self.$field.wrapping_sub(earlier.$field),)* }
            }
        }

        // An event without a line above would never be seen.
        const _: () = assert!([$(stringify!($field)),*].len() == NR_EVENTS);
    };
}

metrics! {
    wake_idle = magpie_event_EVENT_WAKE_IDLE, "Wakeups placed directly on an idle CPU";
    wake_previous = magpie_event_EVENT_WAKE_PREVIOUS, "Wakeups to the previous CPU, whose core was idle";
    wake_recent = magpie_event_EVENT_WAKE_RECENT, "Wakeups to the CPU before the previous one, whose core was idle";
    wake_waker = magpie_event_EVENT_WAKE_WAKER, "Synchronous wakeups to the queue of the waker's CPU";
    wake_core = magpie_event_EVENT_WAKE_CORE, "Wakeups to another idle core of the LLC";
    wake_cpu = magpie_event_EVENT_WAKE_CPU, "Wakeups to an idle CPU of the LLC whose core is busy";
    wake_beyond = magpie_event_EVENT_WAKE_BEYOND, "Wakeups to an idle CPU of another LLC";
    fork_away = magpie_event_EVENT_FORK_AWAY, "New tasks that looked for a CPU in another LLC, which had fewer";
    spread = magpie_event_EVENT_SPREAD, "Running tasks that left a shared core for an idle one";
    idle_enter = magpie_event_EVENT_IDLE_ENTER, "CPUs going idle";
    idle_write = magpie_event_EVENT_IDLE_WRITE, "Writes to shared lines that tell which CPUs are idle";
    enqueue = magpie_event_EVENT_ENQUEUE, "Tasks put into a CPU's queue";
    dispatch = magpie_event_EVENT_DISPATCH, "Tasks taken from the CPU's own queue";
    keep = magpie_event_EVENT_KEEP, "Running tasks kept for another slice";
    preempt = magpie_event_EVENT_PREEMPT, "Wakeups that preempted the running task";
    steal_attempt = magpie_event_EVENT_STEAL_ATTEMPT, "Searches for work in other CPUs' queues";
    steal_sibling = magpie_event_EVENT_STEAL_SIBLING, "Tasks taken from the core's sibling";
    steal_llc = magpie_event_EVENT_STEAL_LLC, "Tasks taken from the same last-level cache";
    steal_node = magpie_event_EVENT_STEAL_NODE, "Tasks taken from another cache of the node";
    steal_remote = magpie_event_EVENT_STEAL_REMOTE, "Tasks taken from another node";
    steal_gated = magpie_event_EVENT_STEAL_GATED, "Searches not made: idle for less than they cost";
    steal_look = magpie_event_EVENT_STEAL_LOOK, "Queues of other CPUs that searches tried";
    steal_ns = magpie_event_EVENT_STEAL_NS, "Time spent in searches, in nanoseconds";
    steal_found_ns = magpie_event_EVENT_STEAL_FOUND_NS, "Time spent in searches that found work, in nanoseconds";
    rotate = magpie_event_EVENT_ROTATE, "Tasks pulled by a busy CPU to even out service";
    turn = magpie_event_EVENT_TURN, "Looks of a busy CPU at other caches, for its own";
    kick_idle = magpie_event_EVENT_KICK_IDLE, "Idle CPUs woken to take a waiting task";
    push = magpie_event_EVENT_PUSH, "Idle CPUs woken at once because a task had to wait again";
    backoff = magpie_event_EVENT_BACKOFF, "Tasks sent away from CPUs that are not preferred";
    rescue = magpie_event_EVENT_RESCUE, "CPUs that found work in their queue while going idle";
    share_update = magpie_event_EVENT_SHARE_UPDATE, "Calculations of the shares of all cgroups";
    share_ns = magpie_event_EVENT_SHARE_NS, "Time spent on them, in nanoseconds";
    cgroup_lumped = magpie_event_EVENT_CGROUP_LUMPED, "Cgroups too many, taken for the root";
    throttle = magpie_event_EVENT_THROTTLE, "Cgroups that used up what cpu.max gives them for a period";
    throttle_ns = magpie_event_EVENT_THROTTLE_NS, "Time until they might go on, in nanoseconds";
    park = magpie_event_EVENT_PARK, "Tasks that had to wait for a next period";
}

impl Metrics {
    fn stolen(&self) -> u64 {
        self.steal_sibling + self.steal_llc + self.steal_node + self.steal_remote
    }

    /// Writes the numbers as sentences.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn tell<W: Write>(&self, output: &mut W) -> io::Result<()> {
        writeln!(
            output,
            "{} wakeups went straight to an idle CPU, {} tasks queued; {} wakeups preempted, {} \
             slices renewed.",
            self.wake_idle, self.enqueue, self.preempt, self.keep
        )?;
        writeln!(
            output,
            "  Woken on the previous CPU {}, the recent one {}, the waker's {}, an idle core {}, an \
             idle CPU {}, beyond the LLC {} times; {} left a shared core while they ran, {} were \
             forked in another LLC.",
            self.wake_previous,
            self.wake_recent,
            self.wake_waker,
            self.wake_core,
            self.wake_cpu,
            self.wake_beyond,
            self.spread,
            self.fork_away
        )?;
        writeln!(
            output,
            "  CPUs went idle {} times, with {} writes to lines that others read.",
            self.idle_enter, self.idle_write
        )?;
        write!(
            output,
            "  Idle CPUs searched for work {} times, tried {} queues and found {}",
            self.steal_attempt,
            self.steal_look,
            self.stolen()
        )?;
        if self.stolen() > 0 {
            write!(
                output,
                " ({} at the sibling, {} in the LLC, {} in the node, {} beyond)",
                self.steal_sibling, self.steal_llc, self.steal_node, self.steal_remote
            )?;
        }
        match self.steal_ns.checked_div(self.steal_attempt) {
            Some(cost) => write!(output, ", {cost} ns per search")?,
            None => write!(output, ", no search made")?,
        }
        if let Some(cost) = self.steal_found_ns.checked_div(self.stolen()) {
            write!(output, ", {cost} ns where there was work")?;
        }
        writeln!(
            output,
            "; {} searches not worth their cost.",
            self.steal_gated
        )?;
        writeln!(
            output,
            "  {} tasks rotated between busy CPUs, which looked beyond their LLC {} times; {} idle CPUs kicked, {} of them by a push, {} \
             rescued work while going idle; {} tasks sent away from CPUs that are not preferred.",
            self.rotate, self.turn, self.kick_idle, self.push, self.rescue, self.backoff
        )?;
        if self.throttle > 0 || self.park > 0 {
            writeln!(
                output,
                "  Cgroups reached their limit {} times, and were throttled for {} us each; {} tasks \
                 had to wait for it.",
                self.throttle,
                self.throttle_ns / 1000 / self.throttle.max(1),
                self.park
            )?;
        }
        match self.share_ns.checked_div(self.share_update) {
            Some(cost) => writeln!(
                output,
                "  Shares of cgroups calculated {} times, {cost} ns each; {} cgroups beyond the \
                 number that can be told apart.",
                self.share_update, self.cgroup_lumped
            ),
            None => Ok(()),
        }
    }
}

/// What the server asks the thread that owns the BPF object.
#[derive(Debug)]
pub enum Request {
    /// The counters since the start.
    Totals,
    /// A change, possibly an empty one, and what is preferred after it.
    Preferred(Change),
    /// What each CPU has learned.
    Cpus,
    /// What each cgroup gets.
    Cgroups,
}

/// What that thread answers.
#[derive(Debug)]
pub enum Answer {
    /// To [`Request::Totals`].
    Totals(Metrics),
    /// To [`Request::Preferred`]; or why it cannot be done.
    Preferred(Result<PreferredStatus, String>),
    /// To [`Request::Cpus`].
    Cpus(CpusStatus),
    /// To [`Request::Cgroups`].
    Cgroups(CgroupsStatus),
}

type Channels<'a> = (&'a Sender<Request>, &'a Receiver<Answer>);

fn ask_totals((request, answer): Channels) -> Result<Metrics> {
    request.send(Request::Totals)?;
    match answer.recv()? {
        Answer::Totals(metrics) => Ok(metrics),
        other => bail!("asked for the counters, got {other:?}"),
    }
}

fn ask_cpus((request, answer): Channels) -> Result<CpusStatus> {
    request.send(Request::Cpus)?;
    match answer.recv()? {
        Answer::Cpus(status) => Ok(status),
        other => bail!("asked for what CPUs have learned, got {other:?}"),
    }
}

fn ask_cgroups((request, answer): Channels) -> Result<CgroupsStatus> {
    request.send(Request::Cgroups)?;
    match answer.recv()? {
        Answer::Cgroups(status) => Ok(status),
        other => bail!("asked for what cgroups get, got {other:?}"),
    }
}

fn ask_preferred(
    arguments: &BTreeMap<String, String>,
    (request, answer): Channels,
) -> Result<PreferredStatus> {
    let change = Change::from_arguments(arguments).map_err(refuse)?;
    request.send(Request::Preferred(change))?;
    match answer.recv()? {
        Answer::Preferred(status) => status.map_err(refuse),
        other => bail!("asked for preferred CPUs, got {other:?}"),
    }
}

/// The client shows the message, not the number.
fn refuse(reason: String) -> anyhow::Error {
    anyhow::anyhow!("{REFUSAL}{reason}{REFUSAL}")
}

/// What the server offers: `top`, `totals`, `preferred`, `cpus` and `cgroups`.
pub fn server_data() -> StatsServerData<Request, Answer> {
    let open_top: Box<dyn StatsOpener<Request, Answer>> = Box::new(|channels| {
        let mut earlier = ask_totals(channels)?;
        let read: Box<dyn StatsReader<Request, Answer>> = Box::new(move |_, channels| {
            let now = ask_totals(channels)?;
            let delta = now.since(&earlier);
            earlier = now;
            delta.to_json()
        });
        Ok(read)
    });
    let read_totals: Box<dyn StatsReaderSend<Request, Answer>> =
        Box::new(|_, channels| ask_totals(channels)?.to_json());
    let read_preferred: Box<dyn StatsReaderSend<Request, Answer>> =
        Box::new(|arguments, channels| ask_preferred(arguments, channels)?.to_json());
    let read_cpus: Box<dyn StatsReaderSend<Request, Answer>> =
        Box::new(|_, channels| ask_cpus(channels)?.to_json());
    let read_cgroups: Box<dyn StatsReaderSend<Request, Answer>> =
        Box::new(|_, channels| ask_cgroups(channels)?.to_json());

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

/// Explains everything that can be asked for.
///
/// # Errors
/// When the output cannot be written.
pub fn explain<W: Write>(output: &mut W) -> Result<()> {
    let shown = ["Metrics", "PreferredStatus", "CpusStatus", "CgroupsStatus"];
    server_data().describe_meta(output, Some(&shown))
}

/// Prints what the running scheduler does, for as long as `interval` repeats and
/// the process lives. Waits for a scheduler where none runs.
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

/// The running scheduler's counters since its start, as one JSON object.
///
/// # Errors
/// When no scx_magpie runs, or it does not answer in time.
pub fn totals() -> Result<String> {
    let totals: Metrics = ask_running("totals", Vec::new())?;
    serde_json::to_string(&totals).context("writing the counters as JSON")
}

/// Changes which CPUs the running scheduler prefers, and says which they are.
///
/// # Errors
/// When no scx_magpie runs, or it refuses the change, with its reason.
pub fn preferred(change: &Change) -> Result<PreferredStatus> {
    ask_running("preferred", change.to_arguments())
}

/// What each CPU of the running scheduler has learned.
///
/// # Errors
/// When no scx_magpie runs, or it does not answer in time.
pub fn cpus() -> Result<CpusStatus> {
    ask_running("cpus", Vec::new())
}

/// What each cgroup gets from the running scheduler.
///
/// # Errors
/// When no scx_magpie runs, or it does not answer in time.
pub fn cgroups() -> Result<CgroupsStatus> {
    ask_running("cgroups", Vec::new())
}

fn ask_running<T: DeserializeOwned>(
    target: &str,
    mut arguments: Vec<(String, String)>,
) -> Result<T> {
    let mut client = StatsClient::new()
        .connect(Some(ANSWER_TIMEOUT_MS))
        .map_err(
            |error| match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                    anyhow::anyhow!("scx_magpie is not running; start it with `sudo scx_magpie`")
                }
                Some(ErrorKind::PermissionDenied) => {
                    anyhow::anyhow!("only root may ask the running scheduler; use sudo")
                }
                _ => error.context("connecting to the running scheduler"),
            },
        )?;
    arguments.push(("target".into(), target.into()));
    client.request("stats", arguments).map_err(|error| {
        let text = format!("{error:#}");
        match text.split(REFUSAL).nth(1) {
            Some(reason) => anyhow::anyhow!("{}", reason.replace("\\n", "\n")),
            None if error.downcast_ref::<StatsErrno>().is_some() => anyhow::anyhow!(
                "the running scheduler is not this version of scx_magpie: it does not know {target}"
            ),
            None => error.context(format!("asking the running scheduler for {target}")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> [u64; NR_EVENTS] {
        std::array::from_fn(|event| 10 + event as u64)
    }

    fn told(metrics: &Metrics) -> String {
        let mut text = Vec::new();
        metrics.tell(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn each_event_has_its_own_field() {
        let json = serde_json::to_value(Metrics::from_events(&counting())).unwrap();
        let mut values: Vec<_> = json
            .as_object()
            .unwrap()
            .values()
            .map(|value| value.as_u64().unwrap())
            .collect();
        values.sort_unstable();
        assert_eq!(values, counting());
    }

    #[test]
    fn a_delta_is_what_happened_between() {
        let earlier = Metrics::from_events(&counting());
        let later = Metrics::from_events(&counting().map(|count| 3 * count));
        assert_eq!(
            later.since(&earlier),
            Metrics::from_events(&counting().map(|count| 2 * count))
        );
        assert_eq!(later.since(&later), Metrics::default());
    }

    #[test]
    fn every_counter_is_told() {
        // Large and distinct, so that no number is part of another.
        let events = std::array::from_fn(|event| 1_000_003 * (event as u64 + 1));
        let metrics = Metrics::from_events(&events);
        let text = told(&metrics);
        let derived = [
            metrics.dispatch,
            metrics.steal_ns,
            metrics.steal_found_ns,
            metrics.share_ns,
            metrics.throttle_ns,
        ];
        for count in events.iter().filter(|count| !derived.contains(count)) {
            assert!(
                text.contains(&count.to_string()),
                "{count} is missing in\n{text}"
            );
        }
    }

    #[test]
    fn nothing_happened_reads_well() {
        let text = told(&Metrics::default());
        assert!(text.contains("no search made"), "{text}");
        assert!(!text.contains("sibling"), "{text}");
    }

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
