//! Compares a running guest with the machine that it was booted on.
//!
//! The guest's view is read where schedulers and the kernel read it: sysfs for siblings, LLCs,
//! nodes and online CPUs, `/proc/schedstat` for the scheduling domains that the kernel built.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::Guest;
use crate::machine::{Cpu, Machine};

/// A script that prints all files that are compared, as `FILE:LINE`. It is one command, because
/// each command costs a round trip to the guest.
const READ: &str = "cd /sys/devices/system; \
    grep -sH '' cpu/online cpu/present cpu/cpu[0-9]*/topology/thread_siblings_list \
        cpu/cpu[0-9]*/cache/index3/shared_cpu_list node/node[0-9]*/cpulist; \
    grep -sH '^cpu[0-9]\\|^domain' /proc/schedstat; true";

/// Returns the differences between a guest and its machine, one sentence each.
///
/// # Errors
/// When the guest does not answer, or with text that is no list of CPUs.
pub fn differences(guest: &mut Guest, machine: &Machine) -> Result<Vec<String>> {
    let text = guest.capture(&["sh", "-c", READ], Duration::from_secs(60))?;
    compare(&text, machine)
}

/// CPUs by their numbers.
type Group = BTreeSet<u32>;

/// Compares the output of [`READ`] with a machine. Takes text and no guest, so that a unit test can
/// call it.
fn compare(text: &str, machine: &Machine) -> Result<Vec<String>> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let (file, value) = line
            .split_once(':')
            .context("the guest's grep prints file:line")?;
        files.entry(file).or_default().push(value);
    }
    // The lists of a file: one, or none if the guest has no such file.
    let groups = |file: &str| -> Result<Vec<Group>> {
        files
            .get(file)
            .into_iter()
            .flatten()
            .map(|list| parse_list(list))
            .collect()
    };
    let layout = machine.layout();
    let online = machine.online();
    let online_with = |shares: &dyn Fn(&Cpu) -> bool| -> Group {
        let sharing = online.iter().filter(|cpu| shares(cpu));
        sharing.map(|cpu| cpu.number).collect()
    };

    let mut differences = Vec::new();
    let mut expect = |what: String, found: Vec<Group>, wanted: Vec<Group>| {
        if found != wanted {
            differences.push(format!("{what}: found {found:?}, wanted {wanted:?}"));
        }
    };
    expect(
        "present CPUs".into(),
        groups("cpu/present")?,
        vec![layout.iter().map(|cpu| cpu.number).collect()],
    );
    expect(
        "online CPUs".into(),
        groups("cpu/online")?,
        vec![online_with(&|_| true)],
    );
    let domains = domains_by_cpu(files.get("/proc/schedstat").map_or(&[][..], Vec::as_slice))?;
    for this in &online {
        let cpu = this.number;
        let core = online_with(&|other| other.core == this.core);
        let llc = online_with(&|other| other.llc == this.llc);
        let node = online_with(&|other| other.node == this.node);
        expect(
            format!("siblings of CPU {cpu}"),
            groups(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"))?,
            vec![core.clone()],
        );
        expect(
            format!("CPUs that share the last-level cache of CPU {cpu}"),
            groups(&format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"))?,
            vec![llc.clone()],
        );
        // The kernel leaves out a domain that is no larger than the one below it.
        let mut wanted: Vec<Group> = Vec::new();
        for level in [core, llc, node, online_with(&|_| true)] {
            if level.len() > wanted.last().map_or(1, Group::len) {
                wanted.push(level);
            }
        }
        let found = domains.get(&cpu).cloned().unwrap_or_default();
        expect(format!("domains of CPU {cpu}"), found, wanted);
    }
    for node in 0..machine.nodes() {
        let mut found = groups(&format!("node/node{node}/cpulist"))?;
        // Some kernels still list an offline CPU here, others do not.
        found
            .iter_mut()
            .for_each(|group| group.retain(|cpu| !machine.offline.contains(cpu)));
        expect(
            format!("CPUs of node {node}"),
            found,
            vec![online_with(&|cpu| cpu.node == node)],
        );
    }
    Ok(differences)
}

/// Returns the CPUs of each scheduling domain of each CPU, smallest domain first.
fn domains_by_cpu(lines: &[&str]) -> Result<BTreeMap<u32, Vec<Group>>> {
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

/// Reads a mask in the kernel's form: words of 32 bits in hexadecimal, the lowest last.
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

/// Reads a list in the kernel's form, such as `0-3,8`.
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
    fn a_guest_that_differs_is_reported() {
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
