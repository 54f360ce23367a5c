//! Records scheduling events with the kernel's own tracer (tracefs) and reads them back.
//!
//! The recorder uses a tracing *instance* of its own, so that it neither disturbs nor sees other
//! tracing, and removes the instance when dropped. It reads the buffers after the run, because
//! reading meanwhile would wake the CPUs whose idleness is measured; and as raw pages, because the
//! kernel's text form costs more time than the run. A full buffer stops recording and does not
//! overwrite, so that the trace is complete up to a known time.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::event::{Event, Record, parse_marker};

/// Events that the analysis cannot do without.
const REQUIRED: [&str; 5] = [
    "sched/sched_switch",
    "sched/sched_wakeup",
    "sched/sched_wakeup_new",
    "sched/sched_migrate_task",
    "sched/sched_process_fork",
];

/// Events that tell of kicks and answers. On a kernel without them, less is blamed on the host.
const OPTIONAL: [&str; 4] = [
    "ipi/ipi_send_cpu",
    "sched/sched_wake_idle_without_ipi",
    "power/cpu_idle",
    "timer/hrtimer_expire_entry",
];

/// A tracing instance.
pub struct Recorder {
    folder: PathBuf,
    page_size: usize,
    formats: HashMap<u16, Format>,
    /// Optional events that this kernel lacks.
    pub missing: Vec<&'static str>,
}

/// A recorded trace.
#[derive(Default)]
pub struct Trace {
    /// All events in order of time.
    pub records: Vec<Record>,
    /// Names of the tasks that were seen.
    pub names: HashMap<i32, String>,
    /// Set when a buffer was full: the trace is complete up to this time only.
    pub complete_until: Option<u64>,
}

impl Recorder {
    /// Makes an instance with buffers of `kib_per_cpu` and switches the events on; records nothing
    /// yet.
    pub fn new(kib_per_cpu: usize) -> Result<Self> {
        let root = Path::new("/sys/kernel/tracing");
        let instances = root.join("instances");
        if !instances.is_dir() {
            bail!(
                "no tracefs at {}: run as root, after `mount -t tracefs tracefs {}`",
                root.display(),
                root.display()
            );
        }
        let folder = instances.join(format!("magpie-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| {
            format!(
                "make the tracing instance {}: run as root",
                folder.display()
            )
        })?;
        // From here on, dropping removes the folder, also if a step below fails.
        let mut recorder = Self {
            page_size: sub_buffer_size(&folder),
            folder,
            formats: HashMap::new(),
            missing: Vec::new(),
        };
        recorder.write("tracing_on", "0")?;
        recorder.write("trace_clock", "mono")?;
        recorder.write("options/overwrite", "0")?;
        recorder.write("buffer_size_kb", &kib_per_cpu.to_string())?;
        for event in REQUIRED {
            recorder.enable(event)?;
        }
        for event in OPTIONAL {
            if recorder.enable(event).is_err() {
                recorder.missing.push(event);
            }
        }
        let print = Format::read(&recorder.folder.join("events/ftrace/print/format"))
            .or_else(|_| Format::read(&root.join("events/ftrace/print/format")))?;
        recorder.formats.insert(print.id, print);
        Ok(recorder)
    }

    /// Empties the buffers and records.
    pub fn start(&self) -> Result<()> {
        self.write("trace", "")?;
        self.write("tracing_on", "1")
    }

    /// Stops recording.
    pub fn stop(&self) -> Result<()> {
        self.write("tracing_on", "0")
    }

    /// Returns a handle that writes markers into the trace, also from forked children.
    pub fn marker(&self) -> Result<File> {
        let path = self.folder.join("trace_marker");
        OpenOptions::new()
            .write(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))
    }

    /// How full the fullest buffer is, 0 to 1. The caller ends its run before a buffer drops
    /// events.
    pub fn fill(&self, kib_per_cpu: usize) -> Result<f64> {
        let mut most = 0.0_f64;
        for cpu in self.cpus()? {
            let stats = self.read(&format!("per_cpu/cpu{cpu}/stats"))?;
            let value = |key: &str| {
                stats
                    .lines()
                    .find_map(|l| l.strip_prefix(key)?.trim().parse::<f64>().ok())
                    .unwrap_or(0.0)
            };
            if value("dropped events:") > 0.0 {
                return Ok(1.0);
            }
            most = most.max(value("bytes:") / (kib_per_cpu as f64 * 1024.0));
        }
        Ok(most)
    }

    /// Reads all that was recorded. Call this after [`Self::stop`].
    pub fn collect(&self) -> Result<Trace> {
        let mut trace = Trace::default();
        for cpu in self.cpus()? {
            let path = self.folder.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
            let mut file = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&path)
                .with_context(|| format!("open {}", path.display()))?;
            let mut page = vec![0; self.page_size];
            let mut last = None;
            loop {
                match file.read(&mut page) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        return Err(error).with_context(|| format!("read {}", path.display()));
                    }
                }
                decode_page(&page, |time, data| {
                    last = Some(time);
                    trace.records.push(Record {
                        time,
                        cpu,
                        event: self.decode(data, &mut trace.names),
                    });
                })
                .with_context(|| format!("{} has a page that is not understood", path.display()))?;
            }
            let stats = self.read(&format!("per_cpu/cpu{cpu}/stats"))?;
            let dropped = stats.lines().any(|l| {
                l.strip_prefix("dropped events:")
                    .is_some_and(|n| n.trim() != "0")
            });
            if dropped {
                let until = last.unwrap_or(0);
                trace.complete_until =
                    Some(trace.complete_until.map_or(until, |t: u64| t.min(until)));
            }
        }
        trace.records.sort_by_key(|record| record.time);
        if let Some(until) = trace.complete_until {
            trace.records.retain(|record| record.time <= until);
        }
        Ok(trace)
    }

    /// The event of a record, and into `names` the names of tasks that it tells.
    fn decode(&self, data: &[u8], names: &mut HashMap<i32, String>) -> Event {
        let Some(format) = data
            .first_chunk()
            .and_then(|id| self.formats.get(&u16::from_le_bytes(*id)))
        else {
            return Event::Sign;
        };
        let int = |name: &str| format.int(data, name);
        let mut note_name = |pid: i32, field: &str| {
            names.entry(pid).or_insert_with(|| format.text(data, field));
        };
        match format.name.as_str() {
            "sched_switch" => {
                let (prev, next) = (int("prev_pid") as i32, int("next_pid") as i32);
                note_name(next, "next_comm");
                Event::Switch {
                    prev,
                    // The states are bits 0 to 7; "preempted" is a bit above them.
                    prev_runs_on: int("prev_state") & 0xff == 0,
                    prev_is_rt: int("prev_prio") < 100,
                    next,
                }
            }
            "sched_wakeup" | "sched_wakeup_new" => {
                let pid = int("pid") as i32;
                note_name(pid, "comm");
                Event::Wakeup {
                    pid,
                    target: int("target_cpu") as usize,
                    is_rt: int("prio") < 100,
                }
            }
            "sched_migrate_task" => Event::Migrate {
                pid: int("pid") as i32,
                target: int("dest_cpu") as usize,
            },
            "sched_process_fork" => Event::Fork {
                parent: int("parent_pid") as i32,
                child: int("child_pid") as i32,
            },
            "ipi_send_cpu" | "sched_wake_idle_without_ipi" => Event::Kick {
                target: int("cpu") as usize,
            },
            // The state is -1 when the CPU leaves its idle state.
            "cpu_idle" if int("state") as u32 == u32::MAX => Event::IdleExit,
            "cpu_idle" => Event::IdleEnter,
            "print" => parse_marker(&format.text(data, "buf")),
            _ => Event::Sign,
        }
    }

    /// Switches an event on, and reads where its fields are.
    fn enable(&mut self, event: &str) -> Result<()> {
        let format = Format::read(&self.folder.join("events").join(event).join("format"))?;
        self.write(&format!("events/{event}/enable"), "1")?;
        self.formats.insert(format.id, format);
        Ok(())
    }

    /// The CPUs that have a buffer.
    fn cpus(&self) -> Result<Vec<usize>> {
        let path = self.folder.join("per_cpu");
        let entries = fs::read_dir(&path).with_context(|| format!("list {}", path.display()))?;
        let mut cpus: Vec<usize> = entries
            .filter_map(|entry| {
                entry
                    .ok()?
                    .file_name()
                    .to_str()?
                    .strip_prefix("cpu")?
                    .parse()
                    .ok()
            })
            .collect();
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// Writes a file of the instance, which changes a setting of it.
    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, text).with_context(|| format!("write `{text}` to {}", path.display()))
    }

    /// Reads a file of the instance.
    fn read(&self, file: &str) -> Result<String> {
        let path = self.folder.join(file);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }
}

impl Drop for Recorder {
    /// Removes the instance, which would otherwise record until the machine ends.
    fn drop(&mut self) {
        let _ = self.write("tracing_on", "0");
        // Removing an instance fails while markers are open in a child that is still ending.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!(
            "magpie-load: could not remove {}: remove it with rmdir",
            self.folder.display()
        );
    }
}

/// Bytes of a raw page of a tracing instance: 4 KiB on a kernel that does not say it.
fn sub_buffer_size(instance: &Path) -> usize {
    let chosen = fs::read_to_string(instance.join("buffer_subbuf_size_kb"));
    chosen
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok())
        .unwrap_or(4)
        * 1024
}

/// Where the fields of an event are, from its `format` file.
#[derive(Debug, Default)]
struct Format {
    id: u16,
    name: String,
    /// Offset, size, signed.
    fields: HashMap<String, (usize, usize, bool)>,
}

impl Format {
    /// Reads the `format` file of an event; an error if the kernel does not have the event.
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| {
            format!("read {}: does the kernel have this event?", path.display())
        })?;
        Self::parse(&text).with_context(|| format!("{} is not understood", path.display()))
    }

    /// Reads a `format` file; none if it has another form.
    fn parse(text: &str) -> Option<Self> {
        let mut format = Self::default();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("name: ") {
                format.name = name.trim().into();
            } else if let Some(id) = line.strip_prefix("ID: ") {
                format.id = id.trim().parse().ok()?;
            } else if let Some(field) = line.trim().strip_prefix("field:") {
                let mut parts = field.split(';').map(str::trim);
                let declaration = parts.next()?;
                let name = declaration
                    .rsplit([' ', '\t', '*'])
                    .next()?
                    .split('[')
                    .next()?;
                let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse::<usize>().ok();
                let (offset, size) = (number("offset:")?, number("size:")?);
                let signed = number("signed:")? == 1;
                format.fields.insert(name.into(), (offset, size, signed));
            }
        }
        (!format.name.is_empty()).then_some(format)
    }

    /// An integer field; 0 if the event has none of that name.
    fn int(&self, data: &[u8], name: &str) -> i64 {
        let Some((offset, size, signed)) = self.fields.get(name) else {
            return 0;
        };
        let Some(bytes) = data.get(*offset..offset + size) else {
            return 0;
        };
        let mut wide = [0; 8];
        let count = bytes.len().min(8);
        wide[..count].copy_from_slice(&bytes[..count]);
        let value = i64::from_le_bytes(wide);
        let unused = 64 - 8 * count as u32;
        if *signed {
            value << unused >> unused
        } else {
            value
        }
    }

    /// A text field, up to its NUL. A field of size 0 reaches to the end of the record.
    fn text(&self, data: &[u8], name: &str) -> String {
        let Some((offset, size, _)) = self.fields.get(name) else {
            return String::new();
        };
        let end = if *size == 0 {
            data.len()
        } else {
            (offset + size).min(data.len())
        };
        let bytes = data.get(*offset..end).unwrap_or_default();
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

/// Calls `each` with the time and the data of every record in a raw ring-buffer page of a 64-bit
/// little-endian kernel. Returns None if the page is damaged.
///
/// A page is a 64-bit time, a 64-bit length with flags on top, then records with a 27-bit time
/// delta each.
fn decode_page(page: &[u8], mut each: impl FnMut(u64, &[u8])) -> Option<()> {
    const PADDING: u32 = 29;
    const TIME_EXTEND: u32 = 30;
    const TIME_STAMP: u32 = 31;
    let word = |at: usize| Some(u32::from_le_bytes(page.get(at..at + 4)?.try_into().ok()?));
    let mut time = u64::from_le_bytes(page.get(..8)?.try_into().ok()?);
    let length = (u64::from_le_bytes(page.get(8..16)?.try_into().ok()?) & 0xf_ffff) as usize;
    let (mut at, end) = (16, (16 + length).min(page.len()));
    while at + 4 <= end {
        let header = word(at)?;
        let (kind, delta) = (header & 31, u64::from(header >> 5));
        match kind {
            PADDING if delta == 0 => break,
            PADDING => {
                time += delta;
                at += 4 + word(at + 4)? as usize;
            }
            TIME_EXTEND => {
                time += (u64::from(word(at + 4)?) << 27) + delta;
                at += 8;
            }
            TIME_STAMP => {
                // The record has 59 bits of the time; take the bits above from the page's time.
                time = (time >> 59 << 59) | ((u64::from(word(at + 4)?) << 27) + delta);
                at += 8;
            }
            _ => {
                time += delta;
                let (from, size) = match kind {
                    0 => (at + 8, (word(at + 4)? as usize).checked_sub(4)?),
                    small => (at + 4, small as usize * 4),
                };
                each(time, page.get(from..from + size)?);
                at = from + size;
            }
        }
    }
    Some(())
}

/// The tasks of which a marker reports a change of affinity up to a time, or anywhere if no time is
/// given.
pub fn tasks_with_affinity_marks(trace: &Trace, until: Option<u64>) -> HashSet<i32> {
    trace
        .records
        .iter()
        .take_while(|record| until.is_none_or(|until| record.time <= until))
        .filter_map(|record| match record.event {
            Event::Affinity { pid, .. } => Some(pid),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: &str = "name: sched_switch
ID: 314
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;

\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;
";

    #[test]
    fn formats_are_read() {
        let format = Format::parse(SWITCH).unwrap();
        assert_eq!((format.id, format.name.as_str()), (314, "sched_switch"));
        let mut data = vec![0; 32];
        data[8..12].copy_from_slice(b"bash");
        data[24..28].copy_from_slice(&77_i32.to_le_bytes());
        data[28..32].copy_from_slice(&(-1_i32).to_le_bytes());
        assert_eq!(format.int(&data, "prev_pid"), 77);
        assert_eq!(format.int(&data, "prev_prio"), -1);
        assert_eq!(format.text(&data, "prev_comm"), "bash");
        assert_eq!(format.int(&data[..26], "prev_pid"), 0);
    }

    /// A page from record words.
    fn page(time: u64, words: &[u32]) -> Vec<u8> {
        let mut page = time.to_le_bytes().to_vec();
        page.extend(((words.len() * 4) as u64).to_le_bytes());
        words
            .iter()
            .for_each(|word| page.extend(word.to_le_bytes()));
        page.resize(4096, 0);
        page
    }

    #[test]
    fn pages_are_walked_through_all_kinds_of_records() {
        let words = [
            (5 << 5) | 1,
            0xaaaa, // after 5 ns: 4 bytes
            (3 << 5) | 30,
            2, // time extend: 2 << 27, plus 3
            7 << 5,
            12,
            0xbbbb,
            0xcccc, // a large record: its length counts its own word
            (1 << 5) | 29,
            8,
            0, // a discarded record
            (1 << 5) | 2,
            0xdddd,
            0xeeee,
            29, // padding to the end
        ];
        let mut seen = Vec::new();
        decode_page(&page(1000, &words), |time, data| {
            seen.push((time, data.len()))
        })
        .unwrap();
        let extended = 1005 + (2 << 27) + 3;
        assert_eq!(seen, [(1005, 4), (extended + 7, 8), (extended + 9, 8)]);
    }

    #[test]
    fn a_damaged_page_is_refused_not_followed() {
        assert!(decode_page(&[0; 10], |_, _| {}).is_none());
        let mut bad = page(0, &[0, 2]);
        assert!(decode_page(&bad, |_, _| {}).is_none());
        bad.truncate(18);
        assert!(decode_page(&bad, |_, _| {}).is_some());
    }
}
