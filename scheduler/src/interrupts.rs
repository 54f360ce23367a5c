//! The device interrupts of the host, for hosts without irqbalance.
//!
//! Each interrupt has a file with the list of CPUs that may serve it. The file cannot be written if
//! the interrupt belongs to one CPU or if the kernel manages its affinity itself; only a try tells.

use std::fs;
use std::path::Path;

const INTERRUPTS: &str = "proc/irq";

/// Returns the affinity files of all interrupts, relative to `root`.
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
