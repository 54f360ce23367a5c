//! `magpie trace`: the file has each switch, wakeup and migration that the kernel's own tracer
//! counts, and scx_magpie's decisions; the explanation names the task behind which another waited.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use magpie_lab::Guest;
use magpie_tests::scheduler::{MAGPIE, VT8, boot_for_magpie, json, program, shell, under};
use serde_json::Value;

/// The events that are counted twice: their names in tracefs, the filter that leaves those of
/// hackbench, and the number of their field in Perfetto's `FtraceEvent`.
const EVENTS: [(&str, &str, u64); 4] = [
    ("sched_switch", "next_comm", 4),
    ("sched_wakeup", "comm", 17),
    ("sched_wakeup_new", "comm", 114),
    ("sched_migrate_task", "comm", 491),
];

/// Runs hackbench while `magpie trace` records, and the kernel's own tracer, in an instance for
/// each event, counts.
fn trace_hackbench(guest: &mut Guest) -> Result<(BTreeMap<&'static str, u64>, Vec<u8>)> {
    let mut before = String::from(
        "mount -t tracefs tracefs /sys/kernel/tracing 2> /dev/null\n\
         cd /sys/kernel/tracing/instances\n",
    );
    let mut after = String::new();
    for (event, name, _) in EVENTS {
        before += &format!(
            "mkdir {event}; echo '{name} == \"hackbench\"' > {event}/events/sched/{event}/filter\n\
             echo 1 > {event}/events/sched/{event}/enable\n"
        );
        after += &format!(
            "echo {event} $(cat {event}/per_cpu/cpu*/stats | \
             awk '/^(entries|overrun|dropped events)/ {{ sum += $NF }} END {{ print sum }}')\n\
             rmdir {event}\n"
        );
    }
    let script = format!(
        "{before}magpie trace -o /tmp/trace -- hackbench -g 1 -l 20 > /tmp/said || exit 1\n{after}"
    );
    let counted = shell(guest, &script)?;
    let said = shell(guest, "cat /tmp/said")?;
    println!("{said}{counted}");
    ensure!(!said.contains("lost"), "{said}");
    let counts = EVENTS.into_iter().map(|(event, ..)| {
        let line = counted
            .lines()
            .find_map(|line| line.strip_prefix(event)?.strip_prefix(' '));
        let count = line.with_context(|| format!("no {event} in {counted}"))?;
        Ok((event, count.trim().parse()?))
    });
    let counts = counts.collect::<Result<_>>()?;
    let hex = shell(guest, "od -v -An -tx1 /tmp/trace")?;
    let bytes = hex
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16));
    Ok((counts, bytes.collect::<Result<_, _>>()?))
}

/// The fields of a protobuf message that are messages or texts: a reader of the wire format alone,
/// which shares nothing with the writer.
fn fields(message: &[u8]) -> Result<Vec<(u64, &[u8])>> {
    let mut fields = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let length = match key & 7 {
            0 => {
                varint(&mut rest)?;
                continue;
            }
            1 => 8,
            2 => varint(&mut rest)? as usize,
            5 => 4,
            kind => anyhow::bail!("wire type {kind}"),
        };
        let value = rest
            .get(..length)
            .context("a field ends within the message")?;
        rest = &rest[length..];
        fields.push((key >> 3, value));
    }
    Ok(fields)
}

/// Takes a number of variable length from the front.
fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes
            .split_first()
            .context("a number ends within the message")?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    anyhow::bail!("a number of more than 64 bits")
}

/// Returns how often a trace has each name: the counted events of hackbench, and each kind of
/// instant.
fn contents(trace: &[u8]) -> Result<BTreeMap<String, u64>> {
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for (number, packet) in fields(trace)? {
        ensure!(number == 1, "a trace has packets only, not field {number}");
        for (data, message) in fields(packet)? {
            for (number, message) in fields(message)? {
                // An ftrace bundle's event, or the name of an event on a track.
                if (data, number) == (11, 23) {
                    let name = String::from_utf8_lossy(message).into_owned();
                    *found.entry(name).or_default() += 1;
                }
                if (data, number) != (1, 2) {
                    continue;
                }
                for (kind, event) in fields(message)? {
                    let Some((name, ..)) = EVENTS.iter().find(|(.., number)| *number == kind)
                    else {
                        continue;
                    };
                    // The task that is switched to, woken or moved.
                    let comm = if *name == "sched_switch" { 5 } else { 1 };
                    if fields(event)?.contains(&(comm, b"hackbench")) {
                        *found.entry(name.to_string()).or_default() += 1;
                    }
                }
            }
        }
    }
    Ok(found)
}

/// Checks a trace against the kernel's counts, and returns what it has.
fn check_counts(guest: &mut Guest) -> Result<BTreeMap<String, u64>> {
    let (counts, trace) = trace_hackbench(guest)?;
    let found = contents(&trace)?;
    println!("{found:#?}");
    for (event, expected) in counts {
        let ours = found.get(event).copied().unwrap_or(0);
        ensure!(
            expected > 0 && ours.abs_diff(expected) as f64 <= 0.01 * expected as f64,
            "{event}: {ours} in the trace, {expected} counted by the kernel"
        );
    }
    Ok(found)
}

/// Two tasks that never sleep share a CPU; returns the explanation of one, and the number of the
/// other.
fn explain_beside_hog(guest: &mut Guest) -> Result<(Value, String, i64)> {
    shell(
        guest,
        "cd /tmp; cp /bin/busybox busybox-hog\n\
         taskset -c 1 sh -c 'while :; do :; done' & victim=$!\n\
         taskset -c 1 ./busybox-hog sh -c 'while :; do :; done' & hog=$!\n\
         sleep 0.5\n\
         magpie trace --seconds 1 -o hog.pftrace || exit 1\n\
         kill $victim $hog; echo $victim > victim; echo $hog > hog",
    )?;
    let told = json(
        guest,
        "magpie trace --explain $(cat /tmp/victim) /tmp/hog.pftrace --json",
    )?;
    let text = shell(
        guest,
        "magpie trace --explain $(cat /tmp/victim) /tmp/hog.pftrace",
    )?;
    let hog = shell(guest, "cat /tmp/hog")?.trim().parse()?;
    Ok((told, text, hog))
}

#[test]
fn a_trace_counts_as_the_kernel_and_has_the_decisions() -> Result<()> {
    let magpie = program("magpie")?;
    let mut guest = boot_for_magpie(VT8, |options| options.files.push(magpie))?;
    let plain = check_counts(&mut guest)?;
    let decisions = |found: &BTreeMap<String, u64>| {
        let of_magpie = |name: &&String| name.starts_with("wakeup: ") || *name == "steal";
        found.keys().filter(of_magpie).count()
    };
    ensure!(decisions(&plain) == 0, "{plain:#?}");

    let (told, text, hog) = under(&mut guest, MAGPIE, |guest| {
        let found = check_counts(guest)?;
        for name in ["wakeup: previous CPU", "wakeup: queue", "steal"] {
            ensure!(found.contains_key(name), "no {name:?} in {found:#?}");
        }
        let wakeups = found
            .iter()
            .filter(|(name, _)| name.starts_with("wakeup: "));
        let wakeups: u64 = wakeups.map(|(_, count)| count).sum();
        ensure!(wakeups > 0 && decisions(&found) >= 3, "{found:#?}");
        explain_beside_hog(guest)
    })?;
    println!("{text}");
    let longest = &told["longest"][0];
    ensure!(told["allowed_cpus"] == "1", "{told:#}");
    ensure!(
        longest["ran"][0]["pid"] == hog && longest["ran"][0]["cpu"] == 1,
        "the hog is {hog}: {told:#}"
    );
    ensure!(
        longest["idle"].as_array().is_some_and(Vec::is_empty),
        "{told:#}"
    );
    ensure!(
        text.contains("meanwhile CPU 1 ran") && text.contains("busybox-hog"),
        "{text}"
    );
    guest.into_guest().shutdown()
}
