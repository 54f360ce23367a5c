//! Does a running guest look like the machine that was asked for?
//!
//! The guest's own view is read from where schedulers and the kernel take it: sysfs for siblings,
//! caches, nodes and online CPUs, /proc/schedstat for the scheduling domains that the kernel built.

use crate::guest::Guest;
use crate::machine::{Machine, Place};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One `grep` for all files: a guest of 64 CPUs answers in one round.
const READ: &str = "cd /sys/devices/system; \
    grep -sH '' cpu/online cpu/present cpu/cpu[0-9]*/topology/thread_siblings_list \
        cpu/cpu[0-9]*/cache/index3/shared_cpu_list node/node[0-9]*/cpulist; \
    grep -sH '^cpu[0-9]\\|^domain' /proc/schedstat; true";

/// Compares a guest with its machine; the differences in words, none if there are none.
pub fn differences(guest: &mut Guest, machine: &Machine) -> Result<Vec<String>> {
    let text = guest.capture(&["sh", "-c", READ], Duration::from_secs(60))?;
    compare(&text, machine)
}

type Group = BTreeSet<u32>;

fn compare(text: &str, machine: &Machine) -> Result<Vec<String>> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let (file, value) = line
            .split_once(':')
            .context("the guest's grep prints file:line")?;
        files.entry(file).or_default().push(value);
    }
    // The one list of a file, or nothing if the guest has no such file.
    let group = |file: &str| -> Result<Vec<Group>> {
        files
            .get(file)
            .into_iter()
            .flatten()
            .map(|list| parse_list(list))
            .collect()
    };
    let places = machine.places();
    let online: Vec<Place> = places
        .iter()
        .filter(|p| !machine.offline.contains(&p.cpu))
        .copied()
        .collect();
    let alike = |same: &dyn Fn(&Place) -> bool| -> Group {
        online.iter().filter(|p| same(p)).map(|p| p.cpu).collect()
    };

    let mut differences = Vec::new();
    let mut expect = |what: String, found: Vec<Group>, wanted: Vec<Group>| {
        if found != wanted {
            differences.push(format!("{what}: found {found:?}, wanted {wanted:?}"));
        }
    };
    expect(
        "present CPUs".into(),
        group("cpu/present")?,
        vec![places.iter().map(|p| p.cpu).collect()],
    );
    expect(
        "online CPUs".into(),
        group("cpu/online")?,
        vec![alike(&|_| true)],
    );
    let domains = domains(files.get("/proc/schedstat").map_or(&[][..], Vec::as_slice))?;
    for place in &online {
        let cpu = place.cpu;
        let core = alike(&|p| p.core == place.core);
        let llc = alike(&|p| p.llc == place.llc);
        let node = alike(&|p| p.node == place.node);
        expect(
            format!("siblings of CPU {cpu}"),
            group(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"))?,
            vec![core.clone()],
        );
        expect(
            format!("CPUs that share the last-level cache of CPU {cpu}"),
            group(&format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"))?,
            vec![llc.clone()],
        );
        // The kernel leaves out a domain that is no larger than the one below it.
        let mut wanted: Vec<Group> = Vec::new();
        for level in [core, llc, node, alike(&|_| true)] {
            if level.len() > wanted.last().map_or(1, Group::len) {
                wanted.push(level);
            }
        }
        let found = domains.get(&cpu).cloned().unwrap_or_default();
        expect(format!("domains of CPU {cpu}"), found, wanted);
    }
    for node in 0..machine.nodes() {
        let mut found = group(&format!("node/node{node}/cpulist"))?;
        // Whether an offline CPU is still listed differs between kernels.
        found
            .iter_mut()
            .for_each(|group| group.retain(|cpu| !machine.offline.contains(cpu)));
        expect(
            format!("CPUs of node {node}"),
            found,
            vec![alike(&|p| p.node == node)],
        );
    }
    Ok(differences)
}

/// The spans of each CPU's scheduling domains, smallest first.
fn domains(lines: &[&str]) -> Result<BTreeMap<u32, Vec<Group>>> {
    let mut domains: BTreeMap<u32, Vec<Group>> = BTreeMap::new();
    let mut cpu = None;
    for line in lines {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(number) = first.strip_prefix("cpu") {
            cpu = Some(number.parse().context("cpuN in /proc/schedstat")?);
        } else if let (Some(cpu), true) = (cpu, first.starts_with("domain")) {
            // "domain0 SMT 00000003 ..." since version 17, "domain0 00000003 ..." before.
            let mut mask = words.next().context("a domain has a mask")?;
            if !mask.bytes().all(|b| b.is_ascii_hexdigit() || b == b',') {
                mask = words.next().context("a named domain has a mask")?;
            }
            domains.entry(cpu).or_default().push(parse_mask(mask)?);
        }
    }
    Ok(domains)
}

fn parse_mask(mask: &str) -> Result<Group> {
    let mut group = Group::new();
    for (word, digits) in mask.split(',').rev().enumerate() {
        let bits = u32::from_str_radix(digits, 16).with_context(|| format!("CPU mask {mask}"))?;
        group.extend(
            (0..32)
                .filter(|bit| bits >> bit & 1 == 1)
                .map(|bit| word as u32 * 32 + bit),
        );
    }
    Ok(group)
}

fn parse_list(list: &str) -> Result<Group> {
    let mut group = Group::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |s: &str| s.parse::<u32>().with_context(|| format!("CPU list {list}"));
        let (first, last) = (number(first)?, number(last)?);
        ensure!(first <= last, "CPU list {list}");
        group.extend(first..=last);
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks_are_read() {
        assert_eq!(
            parse_list("0-2,5").expect("valid"),
            Group::from([0, 1, 2, 5])
        );
        assert_eq!(parse_list("").expect("valid"), Group::new());
        assert_eq!(
            parse_mask("00000001,80000003").expect("valid"),
            Group::from([0, 1, 31, 32])
        );
        assert!(parse_list("3-x").is_err());
    }

    #[test]
    fn a_guest_that_differs_is_told_apart() {
        let machine = Machine::preset("tiny2").expect("preset");
        let guest = |llc: &str| {
            format!(
                "cpu/online:0-1\ncpu/present:0-1\n\
                 cpu/cpu0/topology/thread_siblings_list:0\n\
                 cpu/cpu1/topology/thread_siblings_list:1\n\
                 cpu/cpu0/cache/index3/shared_cpu_list:{llc}\n\
                 cpu/cpu1/cache/index3/shared_cpu_list:0-1\n\
                 node/node0/cpulist:0-1\n\
                 /proc/schedstat:cpu0 0\n/proc/schedstat:domain0 MC 3 0\n\
                 /proc/schedstat:cpu1 0\n/proc/schedstat:domain0 3 0\n"
            )
        };
        assert!(
            compare(&guest("0-1"), &machine)
                .expect("readable")
                .is_empty()
        );
        let differences = compare(&guest("0"), &machine).expect("readable");
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert!(differences[0].contains("last-level cache of CPU 0"));
    }
}
