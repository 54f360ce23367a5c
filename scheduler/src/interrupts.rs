//! The device interrupts of the host, where no irqbalance takes care of them.
//!
//! Each has a file with the list of CPUs that may serve it. Some of these files
//! cannot be written: interrupts that belong to one CPU, and those whose
//! affinity the kernel manages itself. Which ones is known only by trying.

use std::fs;
use std::path::Path;

const INTERRUPTS: &str = "proc/irq";

/// The affinity files of all interrupts, relative to `root`.
pub fn affinity_files(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join(INTERRUPTS)) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .map(|number| format!("{INTERRUPTS}/{number}/smp_affinity_list"))
        .collect()
}
