//! `programs`: what the BPF programs of a sched_ext scheduler have cost so far.
//!
//! The kernel counts calls and time of every BPF program while `kernel.bpf_stats_enabled` is set.
//! This lists the struct_ops programs, which are a scheduler's operations. libbpf-rs reads them,
//! because `bpftool` is not packaged for every kernel. It also counts the BPF programs, maps and links
//! of the whole machine, of which a scheduler that ended may leave none.

use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use libbpf_rs::ProgramType;
use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use serde_json::{Value, json};

use crate::Finding;

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// List the loaded struct_ops BPF programs: calls, time, instructions that the verifier processed.
///
/// The kernel counts while kernel.bpf_stats_enabled is 1, since its last change from 0.
#[derive(clap::Args)]
pub struct Args {
    /// Switch the kernel's counting on first; it stays on
    #[arg(long)]
    enable: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Prints a line for each loaded struct_ops program: how often the kernel called it, and what it
/// cost. With `--enable`, first switches the kernel's counting on.
pub fn run(args: &Args) -> Result<Finding> {
    if args.enable {
        std::fs::write(SWITCH, "1")
            .with_context(|| format!("write {SWITCH}, to have BPF programs counted: root?"))?;
    }
    let mut text = String::from("        id       calls   ns a call    verified  program\n");
    let mut programs: Vec<Value> = Vec::new();
    // Without permission to read the programs the iterator just ends.
    for program in ProgInfoIter::default().filter(|p| p.ty == ProgramType::StructOps) {
        let name = program.name.to_string_lossy();
        let _ = writeln!(
            text,
            "{:>10}  {:>10}  {:>10}  {:>10}  {name}",
            program.id,
            program.run_cnt,
            program
                .run_time_ns
                .checked_div(program.run_cnt)
                .unwrap_or(0),
            program.verified_insns
        );
        programs.push(json!({
            "id": program.id, "name": name, "calls": program.run_cnt, "ns": program.run_time_ns,
            "verified_instructions": program.verified_insns,
        }));
    }
    if programs.is_empty() {
        text = "no struct_ops program is loaded, or only root may see it".into();
    }
    let objects = [
        ("programs", ProgInfoIter::default().count()),
        ("maps", MapInfoIter::default().count()),
        ("links", LinkInfoIter::default().count()),
    ];
    let counts = objects.map(|(what, count)| format!("{count} {what}"));
    let _ = write!(text, "\nof all kinds: {}", counts.join(", "));
    Ok(Finding {
        text,
        json: json!({
            "programs": programs, "objects": HashMap::from(objects),
        }),
        holds: true,
    })
}
