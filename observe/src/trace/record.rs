//! The records that the BPF side writes, as events.
//!
//! A record is `struct record` of `bpf/trace.bpf.c`: numbers of fixed size in the machine's byte
//! order, then two names.

use std::collections::HashSet;
use std::sync::Arc;

use super::event::{Decision, Event, Step, Task, What};

/// Size of a record.
const LENGTH: usize = 80;
const NAME_LENGTH: usize = 16;

/// Makes events of records. Each name is kept once.
#[derive(Default)]
pub struct Decoder {
    names: HashSet<Arc<str>>,
    /// Preferred cores at the last record, of which only changes are events.
    cores: Option<u32>,
}

impl Decoder {
    /// Returns the event of a record; none for one that tells nothing new or is not understood.
    pub fn decode(&mut self, record: &[u8]) -> Option<Event> {
        let record: &[u8; LENGTH] = record.try_into().ok()?;
        let long =
            |at: usize| u64::from_ne_bytes(record[at..at + 8].try_into().unwrap_or_default());
        let word =
            |at: usize| u32::from_ne_bytes(record[at..at + 4].try_into().unwrap_or_default());
        let (kind, current) = (word(8), word(24) as i32);
        let (from, to, detail, looked) = (word(32), word(36), word(40), word(44));
        let (pid, name_at) = (word(16) as i32, LENGTH - 2 * NAME_LENGTH);
        let mut task = |number: usize, name: usize| Task {
            pid: word(number) as i32,
            prio: word(number + 4) as i32,
            name: self.name(&record[name..name + NAME_LENGTH]),
        };
        let mut current_task = current;
        let what = match kind {
            0 => {
                let (prev, next) = (task(16, name_at), task(24, name_at + NAME_LENGTH));
                current_task = prev.pid;
                What::Switch {
                    prev,
                    state: detail,
                    next,
                }
            }
            1..=3 => {
                let (task, target) = (task(16, name_at), to);
                match kind {
                    1 => What::Waking { task, target },
                    2 => What::Wakeup { task, target },
                    _ => What::WakeupNew { task, target },
                }
            }
            4 => What::Migrate {
                task: task(16, name_at),
                from,
                to,
            },
            5 => What::Decision(Decision::Place {
                pid,
                step: Step::of_number(detail),
                from,
                to,
                looked,
            }),
            6 => What::Decision(match detail {
                0 => Decision::Steal { pid, from, to },
                _ => Decision::Balance { pid, from, to },
            }),
            7 => What::Decision(match detail {
                0 => Decision::Push { pid, from },
                _ => Decision::Offer { pid, from },
            }),
            8 if self.cores.replace(detail) == Some(detail) => return None,
            8 => What::Decision(Decision::Preferred { cores: detail }),
            _ => return None,
        };
        Some(Event {
            time: long(0),
            cpu: word(12),
            current: current_task,
            what,
        })
    }

    /// Returns the text of a name, which ends at its NUL.
    fn name(&mut self, bytes: &[u8]) -> Arc<str> {
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(bytes);
        if let Some(name) = self.names.get(text.as_ref()) {
            return name.clone();
        }
        let name: Arc<str> = text.into();
        self.names.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record in which each number is another one.
    fn record(kind: u32) -> Vec<u8> {
        let mut bytes = 7_000_u64.to_ne_bytes().to_vec();
        for number in [kind, 1, 11, 120, 12, 121, 3, 4, 1, 6] {
            bytes.extend(u32::to_ne_bytes(number));
        }
        for name in ["first", "second"] {
            let mut name = name.as_bytes().to_vec();
            name.resize(NAME_LENGTH, 0);
            bytes.extend(name);
        }
        bytes
    }

    #[test]
    fn each_kind_of_record_is_its_event() {
        let mut decoder = Decoder::default();
        let task = |pid, prio, name: &str| Task {
            pid,
            prio,
            name: name.into(),
        };
        let (first, second) = (task(11, 120, "first"), task(12, 121, "second"));
        let (pid, from, to) = (11, 3, 4);
        let expected = [
            What::Switch {
                prev: first.clone(),
                state: 1,
                next: second,
            },
            What::Waking {
                task: first.clone(),
                target: 4,
            },
            What::Wakeup {
                task: first.clone(),
                target: 4,
            },
            What::WakeupNew {
                task: first.clone(),
                target: 4,
            },
            What::Migrate {
                task: first,
                from,
                to,
            },
            What::Decision(Decision::Place {
                pid,
                step: Step::Recent,
                from,
                to,
                looked: 6,
            }),
            What::Decision(Decision::Balance { pid, from, to }),
            What::Decision(Decision::Offer { pid, from }),
            What::Decision(Decision::Preferred { cores: 1 }),
        ];
        for (kind, what) in expected.into_iter().enumerate() {
            let event = decoder.decode(&record(kind as u32)).unwrap();
            let current = if kind == 0 { 11 } else { 12 };
            assert_eq!((event.time, event.cpu, event.current), (7_000, 1, current));
            assert_eq!(event.what, what);
        }
        assert_eq!(decoder.decode(&record(8)), None, "the same number of cores");
        assert_eq!(decoder.decode(&record(9)), None, "an unknown kind");
        assert_eq!(decoder.decode(&record(0)[1..]), None, "too short");
        assert_eq!(decoder.names.len(), 2);
    }
}
